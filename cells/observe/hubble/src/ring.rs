//! The ring: the latest events, each with its position, for any number of readers.

use std::collections::VecDeque;
use std::sync::Arc;

use hubble_api::flow::{AgentEvent, DebugEvent, Flow, LostEvent};
use parking_lot::Mutex;
use prost_types::Timestamp;
use tokio::sync::watch;

/// An event of the ring. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A flow; its time is set.
    Flow(Arc<Flow>),
    /// A notification of the agent, with the time of its arrival.
    Agent(Arc<AgentEvent>, Timestamp),
    /// A debug message of the programs, with the time of its arrival.
    Debug(Arc<DebugEvent>, Timestamp),
    /// Events that were lost before they reached the ring.
    Lost(LostEvent),
}

impl Event {
    /// Returns the time of the event's arrival; losses have none.
    pub(crate) fn time(&self) -> Option<&Timestamp> {
        match self {
            Self::Flow(flow) => flow.time.as_ref(),
            Self::Agent(_, time) | Self::Debug(_, time) => Some(time),
            Self::Lost(_) => None,
        }
    }
}

/// The latest events.
#[derive(Debug)]
pub(crate) struct Ring {
    state: Mutex<State>,
    capacity: usize,
    /// The position after the newest event, to wait for more.
    end: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// The position of the oldest event.
    first: u64,
}

/// The result of reading a position.
#[derive(Debug, PartialEq)]
pub(crate) enum Read {
    /// Its event.
    Event(Event),
    /// It is overwritten: the oldest position that is not.
    Overwritten(u64),
    /// It is not written yet.
    End,
}

impl Ring {
    /// Returns an empty ring of so many events.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { state: Mutex::default(), capacity, end: watch::Sender::new(0) }
    }

    /// Adds events; the oldest ones are overwritten. Never waits.
    pub(crate) fn push(&self, events: Vec<Event>) {
        let mut overwritten = Vec::new();
        let end = {
            let mut state = self.state.lock();
            for event in events {
                if state.events.len() == self.capacity {
                    // Freed below: readers do not wait for it.
                    overwritten.extend(state.events.pop_front());
                    state.first += 1;
                }
                state.events.push_back(event);
            }
            state.end()
        };
        self.end.send_replace(end);
    }

    /// Returns the event at a position.
    pub(crate) fn read(&self, position: u64) -> Read {
        let state = self.state.lock();
        match position.checked_sub(state.first) {
            None => Read::Overwritten(state.first),
            Some(offset) => match usize::try_from(offset).ok().and_then(|offset| state.events.get(offset)) {
                Some(event) => Read::Event(event.clone()),
                None => Read::End,
            },
        }
    }

    /// Appends events from a position on, up to a limit. Returns the number of events in front of them that are
    /// overwritten.
    pub(crate) fn read_many(&self, position: u64, limit: usize, events: &mut Vec<Event>) -> u64 {
        let state = self.state.lock();
        let lost = state.first.saturating_sub(position);
        let offset = usize::try_from(position.saturating_sub(state.first)).unwrap_or(usize::MAX);
        events.extend(state.events.iter().skip(offset).take(limit).cloned());
        lost
    }

    /// Returns the positions of the oldest event and after the newest one.
    pub(crate) fn positions(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.first, state.end())
    }

    /// Returns the position after the newest event, to follow it.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    /// Returns the number of events.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().events.len()
    }

    /// Returns how many events fit.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of flows that are not older than this, and the time of the oldest one if the ring has no older
    /// flow. Linear in their number.
    pub(crate) fn flows_since(&self, since: &Timestamp) -> (usize, Option<Timestamp>) {
        let (mut count, mut oldest) = (0, None);
        for event in self.state.lock().events.iter().rev() {
            let Event::Flow(flow) = event else { continue };
            match &flow.time {
                Some(time) if is_before(time, since) => return (count, None),
                time => (count, oldest) = (count + 1, *time),
            }
        }
        (count, oldest)
    }
}

impl State {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}

/// Whether a time is before another one.
pub(crate) fn is_before(time: &Timestamp, other: &Timestamp) -> bool {
    (time.seconds, time.nanos) < (other.seconds, other.nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(seconds: i64) -> Event {
        let time = Some(Timestamp { seconds, nanos: 0 });
        Event::Flow(Arc::new(Flow { time, ..Flow::default() }))
    }

    #[test]
    fn the_newest_event_is_readable_and_the_oldest_ones_are_overwritten() {
        let ring = Ring::new(3);
        assert_eq!((ring.read(0), ring.positions(), ring.len()), (Read::End, (0, 0), 0));
        ring.push(vec![flow(0)]);
        assert_eq!((ring.read(0), ring.read(1)), (Read::Event(flow(0)), Read::End));
        ring.push((1..=4).map(flow).collect());
        assert_eq!((ring.positions(), ring.len()), ((2, 5), 3));
        assert_eq!(ring.read(0), Read::Overwritten(2));
        assert_eq!(ring.read(1), Read::Overwritten(2));
        assert_eq!(
            (2..=5).map(|at| ring.read(at)).collect::<Vec<_>>(),
            [Read::Event(flow(2)), Read::Event(flow(3)), Read::Event(flow(4)), Read::End]
        );
    }

    #[test]
    fn flows_are_counted_by_time_without_losses() {
        let ring = Ring::new(7);
        ring.push(vec![flow(1), flow(5), Event::Lost(LostEvent::default()), flow(6)]);
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        assert_eq!(ring.flows_since(&at(5)), (2, None));
        assert_eq!(ring.flows_since(&at(0)), (3, Some(at(1))));
        assert_eq!(ring.flows_since(&at(7)), (0, None));
    }

    #[tokio::test]
    async fn a_follower_wakes_with_the_next_event() {
        let ring = Arc::new(Ring::new(3));
        let mut end = ring.follow();
        let (_, ()) = tokio::join!(async { *end.wait_for(|end| *end == 1).await.unwrap() }, async {
            ring.push(vec![flow(1)]);
        });
    }
}
