//! Events for other cells of the agent: each at its decoding, or from the ring at a reader's own pace.

use std::fmt;
use std::sync::Arc;

use metrics::{Metrics, Selection};
use tokio::sync::watch;

use crate::ring::{Event, Ring};

/// The events of this node, for cells that follow them. Without `enable-hubble` there are none.
#[derive(Debug)]
pub struct Feed(pub(crate) Option<Arc<Ring>>);

impl Feed {
    /// Whether there are events.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns a reader of the events in the ring and all following ones; `None` with Hubble off.
    pub fn follow(&self) -> Option<Follower> {
        let ring = self.0.clone()?;
        let (written, (position, _)) = (ring.follow(), ring.positions());
        Some(Follower { ring, written, position })
    }
}

/// A reader of the ring at its own pace. A reader that is slow costs no memory; it misses events.
#[derive(Debug)]
pub struct Follower {
    ring: Arc<Ring>,
    written: watch::Receiver<u64>,
    /// The position to read next.
    position: u64,
}

impl Follower {
    /// Waits for events and appends them, at most `limit`. Returns the number of events in front of them that were
    /// overwritten before this call. Dropped while it waits, it loses nothing.
    pub async fn read(&mut self, events: &mut Vec<Event>, limit: usize) -> u64 {
        let position = self.position;
        if self.written.wait_for(|end| *end > position).await.is_err() {
            // The ring ends with the hive, and its readers with it.
            return std::future::pending().await;
        }
        let before = events.len();
        let lost = self.ring.read_many(position, limit, events);
        self.position += lost + (events.len() - before) as u64;
        lost
    }
}

/// A function that is called for each event before it is in the ring, on the job that decodes: it must not block.
#[derive(Clone)]
pub struct Consumer(Arc<dyn Fn(&Event) + Send + Sync>);

impl Consumer {
    /// Returns a consumer.
    pub fn new(consume: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(consume))
    }

    pub(crate) fn consume(&self, event: &Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Consumer")
    }
}

/// The registry of metrics with the prefix `hubble_`, which the metrics server of Hubble serves.
#[derive(Debug)]
pub struct HubbleRegistry(pub Metrics);

impl HubbleRegistry {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Metrics::with_prefix("hubble", Selection::default())))
    }
}

#[cfg(test)]
mod tests {
    use hubble_api::flow::LostEvent;

    use super::*;

    fn lost(count: u64) -> Event {
        Event::Lost(LostEvent { num_events_lost: count, ..LostEvent::default() })
    }

    #[tokio::test]
    async fn a_slow_follower_gets_the_newest_events_and_the_number_of_the_others() {
        let ring = Arc::new(Ring::new(3));
        let mut follower = Feed(Some(ring.clone())).follow().unwrap();
        ring.push((0..2).map(lost).collect());
        let mut events = Vec::new();
        assert_eq!((follower.read(&mut events, 1).await, &*events), (0, &[lost(0)][..]));
        ring.push((2..7).map(lost).collect());
        assert_eq!(follower.read(&mut events, 9).await, 3);
        assert_eq!(events[1..], [lost(4), lost(5), lost(6)]);
        let waits = tokio::time::timeout(std::time::Duration::from_millis(1), follower.read(&mut events, 9));
        assert!(waits.await.is_err() && events.len() == 4);
        assert!(Feed(None).follow().is_none());
    }
}
