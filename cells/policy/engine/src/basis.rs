//! The basis of rows: endpoints with the same one share a computation.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::engine::{Engine, Rule};
use crate::plan::Rules;

/// The rules that apply to an identity, with the options that affect it. Endpoints with equal bases and equal named
/// ports have the same rows and the same filters, regardless of their labels; a [`Change`](crate::Change) refreshes all
/// of them or none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Basis {
    rules: Vec<TheRule>,
    always: bool,
    localhost: bool,
}

/// A rule compared by its address: an equal rule at another place in the policies is a different rule.
#[derive(Debug, Clone)]
struct TheRule(Arc<Rule>);

impl PartialEq for TheRule {
    fn eq(&self, other: &TheRule) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for TheRule {}

impl Hash for TheRule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl Engine {
    /// Returns the basis of an identity; `None` if it is unknown. Costs what applies to it.
    pub fn basis(&self, identity: u32) -> Option<Basis> {
        Rules::about(self, identity).map(|rules| rules.basis())
    }
}

impl Rules<'_> {
    fn basis(&self) -> Basis {
        let rules = self.rules.iter().map(|stored| TheRule(stored.rule.clone())).collect();
        Basis { rules, always: self.always, localhost: self.localhost }
    }
}
