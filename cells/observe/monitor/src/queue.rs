//! The queue of a subscription: bounded, with the number of events that did not fit in their place.

use std::collections::VecDeque;

use bytes::Bytes;
use monitor_events::gob;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The maximum number of bytes in a queue: events of the rings are small, records of proxies have contents that workloads
/// choose.
const MAX_BYTES: usize = 16 << 20;

/// Messages for one reader.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    capacity: usize,
    losses: Losses,
    filled: Notify,
}

/// Where the number of events that did not fit goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Losses {
    /// Among the messages, in the place of the events.
    InStream,
    /// To the reader, beside the messages.
    Separate,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Bytes>,
    /// The total length of the messages.
    bytes: usize,
    /// Events that were lost since the last message.
    lost: u64,
}

impl Queue {
    /// Returns an empty queue with space for so many messages, one at least.
    pub(crate) fn new(capacity: usize, losses: Losses) -> Self {
        Self { state: Mutex::default(), capacity: capacity.max(1), losses, filled: Notify::new() }
    }

    /// Adds messages, each with the number of events that it stands for. Never waits.
    pub(crate) fn push(&self, messages: &[(Bytes, u64)]) {
        let mut state = self.state.lock();
        for (message, events) in messages {
            // The number of lost events takes a place before the first message after the loss.
            let needs_report = self.losses == Losses::InStream && state.lost > 0;
            let needed = 1 + usize::from(needs_report);
            let is_full = state.messages.len() + needed > self.capacity.max(2);
            if is_full || state.bytes + message.len() > MAX_BYTES {
                state.lost += events;
                continue;
            }
            if needs_report {
                let lost = std::mem::take(&mut state.lost);
                state.push(gob::lost(0, lost).into());
            }
            state.push(message.clone());
        }
        drop(state);
        self.filled.notify_one();
    }

    /// Waits for messages and moves them to `out`, until it has `limit` bytes or the queue is empty; then the number of
    /// events that were lost last is among them. Returns the number of lost events that is not. Cancel safe; for one
    /// reader.
    pub(crate) async fn read(&self, out: &mut Vec<u8>, limit: usize) -> u64 {
        loop {
            let lost = self.take(out, limit);
            if !out.is_empty() || lost > 0 {
                return lost;
            }
            self.filled.notified().await;
        }
    }

    fn take(&self, out: &mut Vec<u8>, limit: usize) -> u64 {
        let mut state = self.state.lock();
        while out.len() < limit {
            let Some(message) = state.messages.pop_front() else {
                if state.lost > 0 && self.losses == Losses::InStream {
                    out.extend(gob::lost(0, std::mem::take(&mut state.lost)));
                }
                break;
            };
            state.bytes -= message.len();
            out.extend_from_slice(&message);
        }
        // The memory of a peak is not kept.
        if state.messages.is_empty() {
            state.messages.shrink_to(64);
        }
        match self.losses {
            Losses::InStream => 0,
            Losses::Separate => std::mem::take(&mut state.lost),
        }
    }
}

impl State {
    fn push(&mut self, message: Bytes) {
        self.bytes += message.len();
        self.messages.push_back(message);
    }
}

#[cfg(test)]
mod tests {
    use monitor_events::gob::{LOST, Payload, Reader};

    use super::*;

    fn event(number: u8) -> (Bytes, u64) {
        (gob::sample(0, &[number], &[]).into(), 1)
    }

    /// Returns the events that are in the queue by number, and losses as negative numbers.
    async fn read(queue: &Queue, limit: usize) -> Vec<i64> {
        let (mut out, mut reader) = (Vec::new(), Reader::default());
        queue.read(&mut out, limit).await;
        reader.push(gob::PREAMBLE);
        reader.push(&out);
        let mut all = Vec::new();
        while let Some(value) = reader.next_value().unwrap() {
            let payload = Payload::from(value);
            all.push(if payload.kind == LOST { -(payload.lost as i64) } else { payload.data[0].into() });
        }
        all
    }

    #[tokio::test]
    async fn large_messages_are_bounded_by_their_bytes() {
        let queue = Queue::new(1 << 14, Losses::Separate);
        let large: Bytes = vec![0; 1 << 20].into();
        queue.push(&vec![(large.clone(), 1); 20]);
        let mut out = Vec::new();
        assert_eq!(queue.read(&mut out, usize::MAX).await, 4);
        assert_eq!(out.len(), MAX_BYTES);
        queue.push(&[(large, 1)]);
        out.clear();
        assert_eq!(queue.read(&mut out, usize::MAX).await, 0, "read messages leave their space");
    }

    #[tokio::test]
    async fn a_full_queue_loses_new_events_and_reports_how_many() {
        let queue = Queue::new(3, Losses::InStream);
        queue.push(&[1, 2, 3, 4, 5].map(event));
        assert_eq!(read(&queue, 1).await, [1]);
        // One place is free: too little for the number and an event.
        queue.push(&[event(6)]);
        assert_eq!(read(&queue, 1).await, [2]);
        queue.push(&[event(7)]);
        assert_eq!(read(&queue, 4096).await, [3, -3, 7]);
        queue.push(&[event(8)]);
        assert_eq!(read(&queue, 4096).await, [8]);
    }

    #[tokio::test]
    async fn losses_may_be_returned_beside_the_messages() {
        let queue = Queue::new(2, Losses::Separate);
        queue.push(&[event(1), event(2), event(3), (gob::lost(1, 40).into(), 40)]);
        let mut out = Vec::new();
        assert_eq!(queue.read(&mut out, 4096).await, 41);
        assert_eq!(out, [event(1).0, event(2).0].concat());
        queue.push(&[event(4)]);
        out.clear();
        assert_eq!((queue.read(&mut out, 4096).await, &out[..]), (0, &event(4).0[..]));
    }

    #[tokio::test]
    async fn the_last_loss_is_reported_without_another_event() {
        let queue = Queue::new(2, Losses::InStream);
        queue.push(&[(gob::lost(1, 40).into(), 40), event(1), event(2), (gob::lost(1, 50).into(), 50)]);
        assert_eq!(read(&queue, 4096).await, [-40, 1, -51]);
        let pending = tokio::time::timeout(std::time::Duration::from_millis(1), read(&queue, 1));
        assert!(pending.await.is_err(), "nothing is left");
    }
}
