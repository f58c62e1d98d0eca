//! Subscriptions: published messages go to the queue of each.

use std::sync::Arc;

use bytes::Bytes;
use monitor_events::gob;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::queue::{Losses, Queue};
use crate::ring::Counters;

/// The monitor of the node: events of the datapath and notifications of the agent, to all subscriptions.
#[derive(Debug)]
pub struct Monitor {
    queues: Mutex<Vec<Arc<Queue>>>,
    count: watch::Sender<usize>,
    capacity: usize,
    labels: Vec<String>,
    pub(crate) counters: Counters,
}

/// The receiving end of a subscription, which ends when it is dropped.
#[derive(Debug)]
pub struct Subscription {
    monitor: Arc<Monitor>,
    queue: Arc<Queue>,
}

impl Monitor {
    /// Returns a monitor whose subscriptions have queues of so many messages.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            queues: Mutex::default(),
            count: watch::Sender::new(0),
            capacity,
            labels: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the monitor with labels of the agent.
    #[must_use]
    pub fn with_labels(self, labels: Vec<String>) -> Self {
        Self { labels, ..self }
    }

    /// Returns the labels of the agent (`agent-labels`), the metadata of records.
    #[must_use]
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Subscribes to the events that follow.
    pub fn subscribe(self: &Arc<Self>) -> Subscription {
        self.subscribe_by(Queue::new(self.capacity, Losses::InStream))
    }

    /// Subscribes to the events that follow, with a queue of so many messages. Its own losses are not in the stream:
    /// [`Subscription::read`] returns them, so that they differ from those of the rings.
    pub fn subscribe_separately(self: &Arc<Self>, capacity: usize) -> Subscription {
        self.subscribe_by(Queue::new(capacity, Losses::Separate))
    }

    fn subscribe_by(self: &Arc<Self>, queue: Queue) -> Subscription {
        let queue = Arc::new(queue);
        self.queues.lock().push(queue.clone());
        self.count.send_modify(|count| *count += 1);
        Subscription { monitor: self.clone(), queue }
    }

    /// Publishes an event of the agent, its type byte first. The event is made only if there is a subscription.
    pub fn publish(&self, event: impl FnOnce() -> Vec<u8>) {
        if self.has_subscriptions() {
            self.publish_all(&[(gob::sample(0, &event(), &[]).into(), 1)]);
        }
    }

    /// Publishes encoded messages with the number of events that each stands for.
    pub(crate) fn publish_all(&self, messages: &[(Bytes, u64)]) {
        if messages.is_empty() {
            return;
        }
        for queue in self.queues.lock().iter() {
            queue.push(messages);
        }
    }

    /// Whether there is a subscription.
    #[must_use]
    pub fn has_subscriptions(&self) -> bool {
        *self.count.borrow() > 0
    }

    /// Returns the number of subscriptions, to follow it.
    pub fn subscriptions(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }
}

impl Subscription {
    /// Waits for messages of the stream and moves them to `out`: whole values, in total little more than `limit` bytes.
    /// A stream begins with [`gob::PREAMBLE`]. Returns the number of events that this subscription has lost and that is
    /// not in the stream. Cancel safe.
    pub async fn read(&self, out: &mut Vec<u8>, limit: usize) -> u64 {
        self.queue.read(out, limit).await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.monitor.queues.lock().retain(|queue| !Arc::ptr_eq(queue, &self.queue));
        self.monitor.count.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_subscription_gets_events_from_its_begin_on() {
        let monitor = Arc::new(Monitor::new(8));
        monitor.publish(|| panic!("an event for nobody is not made"));
        let first = monitor.subscribe();
        monitor.publish(|| vec![130, 1]);
        let second = monitor.subscribe();
        monitor.publish(|| vec![130, 2]);
        let (mut one, mut two) = (Vec::new(), Vec::new());
        first.read(&mut one, 4096).await;
        second.read(&mut two, 4096).await;
        let [event_1, event_2] = [1, 2].map(|number| gob::sample(0, &[130, number], &[]));
        assert_eq!(one, [event_1, event_2.clone()].concat());
        assert_eq!(two, event_2);
        drop(first);
        assert_eq!(*monitor.subscriptions().borrow(), 1);
        drop(second);
        assert_eq!(*monitor.subscriptions().borrow(), 0);
        monitor.publish(|| panic!("an event for nobody is not made"));
    }
}
