//! The history of an endpoint's status, bounded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use crate::model::state::State;

/// Maximum number of changes in an endpoint's log.
pub(crate) const CAPACITY: usize = 256;

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Success.
    Ok,
    /// A fault without consequences.
    Warning,
    /// Failure; it is retried.
    Failure,
}

impl Code {
    /// Returns the name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Code::Ok => "OK",
            Code::Warning => "Warning",
            Code::Failure => "Failure",
        }
    }
}

/// The part of an endpoint that a change is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// Programs and maps: the result of a regeneration.
    Bpf,
    /// The policy map.
    Policy,
    /// The endpoint's state.
    Other,
}

impl Component {
    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Component::Bpf => "BPF",
            Component::Policy => "Policy",
            Component::Other => "Other",
        }
    }
}

/// One change of an endpoint's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its time.
    pub at: SystemTime,
    /// The part that it is about.
    pub component: Component,
    /// Its outcome.
    pub code: Code,
    /// The event.
    pub message: Arc<str>,
    /// The state after it.
    pub state: State,
}

impl Change {
    /// Returns the time as the API prints it, `2026-11-21T12:10:50Z`.
    pub fn timestamp(&self) -> String {
        api_models::rfc3339(self.at)
    }
}

/// The last 256 changes, oldest first. Cheap to clone; pushing copies the list of pointers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log(Arc<VecDeque<Change>>);

impl Log {
    /// Returns the log with one more change, without the oldest if it is full.
    #[must_use]
    pub fn with(
        &self,
        now: SystemTime,
        component: Component,
        code: Code,
        message: impl Into<Arc<str>>,
        state: State,
    ) -> Log {
        let mut changes = (*self.0).clone();
        if changes.len() == CAPACITY {
            changes.pop_front();
        }
        changes.push_back(Change { at: now, component, code, message: message.into(), state });
        Log(Arc::new(changes))
    }

    /// Returns the changes, newest first, as the API lists them.
    pub fn newest_first(&self) -> impl Iterator<Item = &Change> {
        self.0.iter().rev()
    }

    /// Returns the outcome of the last change of a component; `None` if the log has none.
    pub fn last_code(&self, component: Component) -> Option<Code> {
        self.newest_first().find(|change| change.component == component).map(|change| change.code)
    }

    /// Returns the last change.
    pub fn last(&self) -> Option<&Change> {
        self.0.back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn the_log_keeps_the_newest() {
        let mut log = Log::default();
        for n in 0..300 {
            log = log.with(UNIX_EPOCH, Component::Other, Code::Ok, format!("change {n}"), State::Ready);
        }
        assert_eq!(log.newest_first().count(), CAPACITY);
        assert_eq!(&*log.last().unwrap().message, "change 299");
        assert_eq!(&*log.newest_first().last().unwrap().message, "change 44");
    }
}
