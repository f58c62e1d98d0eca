//! Settings of programs other than the agent.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use http::Method;
use k8s_types::Kind;

/// Settings that a program other than the agent gives its client, in place of the agent's options `k8s-client-qps`,
/// `k8s-client-burst` and `crd-wait-timeout`: it does not wait for definitions, as it may be the one that registers them.
#[derive(Clone, Debug, Default)]
pub struct ClientProfile {
    /// Requests a second; 0 for no limit.
    pub qps: f64,
    /// Requests at once before the limit counts.
    pub burst: u32,
    /// Kinds whose objects are unknown, not none, while they are not defined.
    pub required: BTreeSet<Kind>,
    /// Whether the program only sends requests: nothing is read that it does not ask for.
    pub only_requests: bool,
    /// Which writes may be sent.
    pub fence: Fence,
}

/// Decides about each write in the moment before it is sent, after the wait for the rate limit: a process that was suspended
/// in that wait may not be permitted any more what it was permitted before. By default all writes are.
#[derive(Clone, Default)]
pub struct Fence(Option<Arc<IsPermitted>>);

type IsPermitted = dyn Fn(&str) -> bool + Send + Sync;

impl Fence {
    /// Returns a fence that permits writes of the kinds, by plural name, for which the function returns true at that time.
    pub fn new(is_permitted: impl Fn(&str) -> bool + Send + Sync + 'static) -> Fence {
        Fence(Some(Arc::new(is_permitted)))
    }

    pub(crate) fn permits(&self, method: &Method, plural: &str) -> bool {
        method.is_safe() || self.0.as_ref().is_none_or(|is_permitted| is_permitted(plural))
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("is_set", &self.0.is_some()).finish()
    }
}
