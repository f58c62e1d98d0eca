//! Objects whose update waits for another table to change.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use statedb::{KeyBuf, WatchSet};
use tokio::time::Instant;

use crate::ops::Waiting;

/// The keys of waiting objects, each with its watch, deadline and revision.
pub(crate) struct Waits {
    watches: WatchSet<KeyBuf>,
    items: HashMap<KeyBuf, Item>,
    by_deadline: BTreeSet<(Instant, KeyBuf)>,
    by_revision: BTreeSet<(u64, KeyBuf)>,
}

struct Item {
    deadline: Option<Instant>,
    /// The object's revision when its wait began.
    revision: u64,
}

impl Waits {
    pub(crate) fn new() -> Self {
        Waits {
            watches: WatchSet::new(),
            items: HashMap::new(),
            by_deadline: BTreeSet::new(),
            by_revision: BTreeSet::new(),
        }
    }

    /// Adds a waiting object. An object that waits already keeps its first revision, so that progress does not pass it.
    pub(crate) fn add(&mut self, key: KeyBuf, revision: u64, waiting: Waiting) {
        let revision = self.clear(&key).unwrap_or(revision);
        let Waiting { watch, deadline } = waiting;
        if let Some(deadline) = deadline {
            self.by_deadline.insert((deadline, key.clone()));
        }
        self.by_revision.insert((revision, key.clone()));
        self.watches.add(key.clone(), watch);
        self.items.insert(key, Item { deadline, revision });
    }

    /// Removes a key whose object has changed or is reconciled. Returns the revision at which its wait began.
    pub(crate) fn clear(&mut self, key: &KeyBuf) -> Option<u64> {
        let item = self.items.remove(key)?;
        self.watches.remove(key);
        self.by_revision.remove(&(item.revision, key.clone()));
        if let Some(deadline) = item.deadline {
            self.by_deadline.remove(&(deadline, key.clone()));
        }
        Some(item.revision)
    }

    /// Waits until watches close and returns their keys, which remain waiting until they are [cleared](Self::clear).
    /// Cancel safe.
    pub(crate) async fn closed(&mut self) -> Vec<KeyBuf> {
        self.watches.wait(Duration::ZERO).await
    }

    /// Returns the keys that are past their deadline.
    pub(crate) fn overdue(&self, now: Instant) -> impl Iterator<Item = KeyBuf> {
        self.by_deadline.iter().take_while(move |(at, _)| *at <= now).map(|(_, key)| key.clone())
    }

    /// Returns the next deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.by_deadline.first().map(|(at, _)| *at)
    }

    /// Returns the lowest waiting revision.
    pub(crate) fn since(&self) -> Option<u64> {
        self.by_revision.first().map(|(revision, _)| *revision)
    }

    pub(crate) fn contains(&self, key: &KeyBuf) -> bool {
        self.items.contains_key(key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}
