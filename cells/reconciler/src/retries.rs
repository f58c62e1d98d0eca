//! The queue of failed operations by key, due time and revision. Callers pass the current time.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use statedb::{KeyBuf, Obj};
use tokio::time::Instant;

/// Exponential backoff: `min * 2^n`, at most `max`, after the n-th failure in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

impl Backoff {
    fn delay(self, failures: u32) -> Duration {
        self.min.saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX)).min(self.max)
    }
}

/// A failed operation that will be retried.
pub(crate) struct Retry<T> {
    /// The deleted object; none for an update, whose retry reads the current object from the table.
    pub(crate) deleted: Option<Obj<T>>,
    failures: u32,
    due: Instant,
    /// The revision of the first of the current run of failures.
    revision: u64,
    failure: Failure,
}

/// The error of a failed operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) error: String,
    /// Whether the row's status has the failure. If not, the row is still pending.
    pub(crate) recorded: bool,
}

/// A retry that is due.
pub(crate) struct Due<T> {
    pub(crate) key: KeyBuf,
    /// See [`Retry::deleted`].
    pub(crate) deleted: Option<Obj<T>>,
    /// See [`Failure::recorded`].
    pub(crate) recorded: bool,
}

pub(crate) struct Retries<T> {
    backoff: Backoff,
    items: HashMap<KeyBuf, Retry<T>>,
    by_due: BTreeSet<(Instant, KeyBuf)>,
    by_revision: BTreeSet<(u64, KeyBuf)>,
}

impl<T> Retries<T> {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Retries { backoff, items: HashMap::new(), by_due: BTreeSet::new(), by_revision: BTreeSet::new() }
    }

    /// Records a failure, the first or the next in a row.
    pub(crate) fn failed(
        &mut self,
        key: KeyBuf,
        revision: u64,
        deleted: Option<Obj<T>>,
        failure: Failure,
        now: Instant,
    ) {
        let before = self.clear(&key);
        let failures = before.as_ref().map_or(1, |before| before.failures.saturating_add(1));
        let revision = before.map_or(revision, |before| before.revision);
        let due = now + self.backoff.delay(failures);
        self.by_due.insert((due, key.clone()));
        self.by_revision.insert((revision, key.clone()));
        self.items.insert(key, Retry { deleted, failures, due, revision, failure });
    }

    /// Removes a key whose operation has succeeded or whose object has changed.
    pub(crate) fn clear(&mut self, key: &KeyBuf) -> Option<Retry<T>> {
        let item = self.items.remove(key)?;
        self.by_due.remove(&(item.due, key.clone()));
        self.by_revision.remove(&(item.revision, key.clone()));
        Some(item)
    }

    /// Dequeues a key whose object now waits for a watch. The key still counts as failing, and the delay after its next
    /// failure grows further.
    pub(crate) fn suspend(&mut self, key: &KeyBuf) {
        if let Some(item) = self.items.get(key) {
            self.by_due.remove(&(item.due, key.clone()));
        }
    }

    /// Returns the due retries, at most `limit`.
    pub(crate) fn due(&self, now: Instant, limit: usize) -> Vec<Due<T>> {
        let due = self.by_due.iter().take_while(|(at, _)| *at <= now).take(limit);
        let due = due.map(|(_, key)| {
            let Retry { deleted, failure, .. } = &self.items[key];
            Due { key: key.clone(), deleted: deleted.clone(), recorded: failure.recorded }
        });
        due.collect()
    }

    /// Returns the time of the next due retry.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.by_due.first().map(|(at, _)| *at)
    }

    /// Returns the lowest revision that still fails.
    pub(crate) fn failing_since(&self) -> Option<u64> {
        self.by_revision.first().map(|(revision, _)| *revision)
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the errors, those of the oldest revisions first.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &str> {
        self.by_revision.iter().map(|(_, key)| self.items[key].failure.error.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> KeyBuf {
        KeyBuf::of(&n)
    }

    fn failure(error: &str) -> Failure {
        Failure { error: error.to_owned(), recorded: true }
    }

    #[tokio::test(start_paused = true)]
    async fn delays_double_up_to_the_limit_and_reset_after_a_success() {
        let start = Instant::now();
        let mut retries: Retries<()> =
            Retries::new(Backoff { min: Duration::from_millis(100), max: Duration::from_secs(1) });
        let mut waits = Vec::new();
        for _ in 0..5 {
            retries.failed(key(1), 7, None, failure("no"), start);
            waits.push((retries.next_due().unwrap() - start).as_millis());
        }
        assert_eq!(waits, [200, 400, 800, 1000, 1000]);
        assert!(retries.due(start, 9).is_empty());
        assert_eq!(retries.due(start + Duration::from_secs(1), 9).len(), 1);
        retries.clear(&key(1));
        assert_eq!((retries.len(), retries.next_due(), retries.failing_since()), (0, None, None));
        retries.failed(key(1), 9, None, failure("no"), start);
        assert_eq!((retries.next_due().unwrap() - start).as_millis(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn the_low_mark_is_the_first_failing_revision() {
        let now = Instant::now();
        let mut retries: Retries<()> =
            Retries::new(Backoff { min: Duration::from_millis(100), max: Duration::from_secs(60) });
        retries.failed(key(1), 7, None, failure("a"), now);
        retries.failed(key(2), 5, None, failure("b"), now);
        retries.failed(key(2), 12, None, failure("c"), now);
        assert_eq!(retries.failing_since(), Some(5));
        assert_eq!(retries.errors().collect::<Vec<_>>(), ["c", "a"]);
        retries.clear(&key(2));
        assert_eq!(retries.failing_since(), Some(7));
    }
}
