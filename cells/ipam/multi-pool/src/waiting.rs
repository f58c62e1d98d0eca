//! Requests that wait for a range of their pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipam::Family;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a request counts that is not repeated.
const TIMEOUT: Duration = Duration::from_secs(300);

type Request = (Arc<str>, Family, String);

/// The requests by pool, family and owner, with the time at which they end.
#[derive(Debug)]
pub(crate) struct Waiting {
    requests: Mutex<BTreeMap<Request, Instant>>,
    changed: watch::Sender<()>,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { requests: Mutex::default(), changed: watch::Sender::new(()) }
    }
}

/// Numbers of requests by pool and family.
pub(crate) type Counts = BTreeMap<(Arc<str>, Family), u64>;

impl Waiting {
    pub(crate) fn insert(&self, pool: &Arc<str>, family: Family, owner: &str) {
        let request = (pool.clone(), family, owner.to_owned());
        let before = self.requests.lock().insert(request, Instant::now() + TIMEOUT);
        if before.is_none() {
            self.changed.send_replace(());
        }
    }

    pub(crate) fn remove(&self, pool: &Arc<str>, family: Family, owner: &str) {
        let mut requests = self.requests.lock();
        // Nearly always nothing waits.
        if !requests.is_empty() && requests.remove(&(pool.clone(), family, owner.to_owned())).is_some() {
            self.changed.send_replace(());
        }
    }

    /// Reports new requests and served ones.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Drops requests that have ended. Returns the number of others by pool and family, and when the next one ends.
    pub(crate) fn count(&self) -> (Counts, Option<Instant>) {
        let mut requests = self.requests.lock();
        let now = Instant::now();
        requests.retain(|_, end| *end > now);
        let mut counts = BTreeMap::new();
        for (pool, family, _) in requests.keys() {
            *counts.entry((pool.clone(), *family)).or_default() += 1;
        }
        (counts, requests.values().min().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_count_once_until_they_are_served_or_end() {
        let (waiting, blue): (_, Arc<str>) = (Waiting::default(), "blue".into());
        let mut changes = waiting.subscribe();
        waiting.insert(&blue, Family::V4, "shop/a");
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        tokio::time::advance(Duration::from_secs(200)).await;
        waiting.insert(&blue, Family::V4, "shop/a");
        assert!(!changes.has_changed().unwrap(), "a repeated request changes nothing");
        waiting.insert(&blue, Family::V4, "shop/b");
        tokio::time::advance(Duration::from_secs(200)).await;
        assert_eq!(waiting.count().0, BTreeMap::from([((blue.clone(), Family::V4), 2)]));
        waiting.remove(&blue, Family::V4, "shop/b");
        waiting.remove(&blue, Family::V6, "shop/a");
        assert_eq!(waiting.count().0[&(blue.clone(), Family::V4)], 1);
        tokio::time::advance(Duration::from_secs(101)).await;
        assert_eq!(waiting.count(), (BTreeMap::new(), None));
    }
}
