//! The open connections, and the choice of the one to close at capacity.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accept::Peer;

/// The connections of a server.
#[derive(Default)]
pub(crate) struct Open {
    list: Mutex<Vec<Known>>,
    /// Connections accepted so far; the source of their ids.
    count: AtomicU64,
    /// Notified when a connection has ended or become idle.
    changed: Notify,
}

struct Known {
    /// Unique id of the connection.
    number: u64,
    peer: Peer,
    /// Requests that are being answered.
    busy: usize,
    idle_since: Instant,
    close: CancellationToken,
}

impl Open {
    pub(crate) fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Adds a connection, which stays in the list until the returned guard is dropped.
    pub(crate) fn add(self: &Arc<Self>, peer: Peer) -> Connection {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let close = CancellationToken::new();
        let known = Known { number, peer, busy: 0, idle_since: Instant::now(), close: close.clone() };
        self.list.lock().push(known);
        Connection { open: self.clone(), number, close }
    }

    /// Requests the longest idle connection of the peer with most connections to close, but never `newest`, the id of
    /// the one that needs the slot. Returns false if all others are busy or already requested to close.
    pub(crate) fn close_idle(&self, newest: Option<u64>) -> bool {
        let list = self.list.lock();
        let mut of_peer: HashMap<Peer, usize> = HashMap::new();
        for known in list.iter() {
            *of_peer.entry(known.peer).or_default() += 1;
        }
        let idle = list
            .iter()
            .filter(|known| known.busy == 0 && !known.close.is_cancelled() && Some(known.number) != newest);
        let victim = idle.min_by_key(|known| (std::cmp::Reverse(of_peer[&known.peer]), known.idle_since));
        victim.inspect(|victim| victim.close.cancel()).is_some()
    }

    /// Waits until a connection has ended or become idle since the last call; `Notify` keeps one permit, so that an
    /// event between two calls is not lost.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// A reference to a listed connection, by which its requests mark it busy.
#[derive(Clone)]
pub(crate) struct Tag {
    open: Arc<Open>,
    number: u64,
}

/// The guard of a connection's entry in the list.
pub(crate) struct Connection {
    open: Arc<Open>,
    pub(crate) number: u64,
    pub(crate) close: CancellationToken,
}

impl Connection {
    /// Whether a request is being answered.
    pub(crate) fn is_busy(&self) -> bool {
        self.open.list.lock().iter().any(|known| known.number == self.number && known.busy > 0)
    }

    pub(crate) fn tag(&self) -> Tag {
        Tag { open: self.open.clone(), number: self.number }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.list.lock().retain(|known| known.number != self.number);
        self.open.changed.notify_one();
    }
}

impl Tag {
    /// Marks the connection busy until the returned guard is dropped.
    pub(crate) fn busy(&self) -> Busy {
        if let Some(known) = self.open.list.lock().iter_mut().find(|known| known.number == self.number) {
            known.busy += 1;
        }
        Busy(self.clone())
    }
}

/// The guard of a request that is being answered.
pub(crate) struct Busy(Tag);

impl Drop for Busy {
    fn drop(&mut self) {
        let Tag { open, number } = &self.0;
        if let Some(known) = open.list.lock().iter_mut().find(|known| known.number == *number) {
            known.busy -= 1;
            known.idle_since = Instant::now();
        }
        open.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_connection_of_the_peer_with_most_is_evicted() {
        let open = Arc::new(Open::default());
        let mut connections = Vec::new();
        for peer in [7, 8, 8, 8, 9] {
            connections.push(open.add(Peer::new(peer)));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let is_closing = |at: usize| connections[at].close.is_cancelled();
        let answering = connections[1].tag().busy();
        assert!(open.close_idle(Some(5)));
        assert!(is_closing(2), "the oldest of the greedy one that waits for a request");
        drop(answering);
        assert!(open.close_idle(Some(5)) && is_closing(3), "the other has just been answered");
        assert!(open.close_idle(Some(5)) && is_closing(1));
        let all: Vec<_> = connections.iter().map(|connection| connection.tag().busy()).collect();
        assert!(!open.close_idle(None), "the others are busy");
        drop(all);
        drop(connections);
        assert_eq!(open.len(), 0);
    }
}
