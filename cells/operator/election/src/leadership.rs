//! Whether this process leads, for writers.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

/// Whether this process may act as the leader. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<watch::Sender<Option<Instant>>>);

impl Default for Leadership {
    fn default() -> Leadership {
        Leadership(Arc::new(watch::Sender::new(None)))
    }
}

impl Leadership {
    /// Leads for ever, for tests of the leader's cells.
    #[must_use]
    pub fn permanent() -> Leadership {
        let leadership = Leadership::default();
        leadership.set(Some(Instant::now() + std::time::Duration::from_secs(86_400 * 365)));
        leadership
    }

    /// Whether the lease cannot have passed to another process yet. Ask before each write: a process that was suspended
    /// resumes with timers that are late.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    pub(crate) fn set(&self, until: Option<Instant>) {
        self.0.send_if_modified(|now| std::mem::replace(now, until) != until);
    }
}
