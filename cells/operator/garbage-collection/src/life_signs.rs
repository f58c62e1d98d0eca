//! The last sign of life of each identity, and the step that follows from it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_types::SmolStr;
use tokio::time::Instant;

/// The next step with an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    Keep,
    /// It gets the annotation by which agents see that it will be deleted.
    Mark,
    /// It is deleted.
    Delete,
}

/// The last signs of life of identities.
#[derive(Debug)]
pub(crate) struct LifeSigns {
    /// The time without a sign after which an identity is marked or deleted.
    timeout: Duration,
    /// When this process has begun to look for signs.
    begun: Instant,
    signs: BTreeMap<SmolStr, Instant>,
}

impl LifeSigns {
    /// Begins to look for signs.
    pub(crate) fn new(timeout: Duration, now: Instant) -> LifeSigns {
        LifeSigns { timeout, begun: now, signs: BTreeMap::new() }
    }

    /// Notes a sign: the identity is used, or its object has changed.
    pub(crate) fn alive(&mut self, name: &SmolStr, now: Instant) {
        self.signs.insert(name.clone(), now);
    }

    /// Forgets a deleted identity.
    pub(crate) fn gone(&mut self, name: &str) {
        self.signs.remove(name);
    }

    /// Returns the next step with an identity that is marked or not, and used or not. A use is a sign.
    pub(crate) fn action(&mut self, name: &SmolStr, is_marked: bool, is_used: bool, now: Instant) -> Action {
        if is_used {
            self.alive(name, now);
            return Action::Keep;
        }
        let last = self.signs.get(name).copied().unwrap_or(self.begun);
        match now.saturating_duration_since(last) >= self.timeout {
            false => Action::Keep,
            true if is_marked => Action::Delete,
            true => Action::Mark,
        }
    }
}
