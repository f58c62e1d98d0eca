//! Which events have occurred how often, and which are to be written when. Pure: the caller has the clock.

use std::collections::BTreeMap;
use std::time::Duration;

use prost_types::Timestamp;
use tokio::time::Instant;

use crate::occurrence::Occurrence;

/// The number of messages that a pod has before further ones are combined, as in Kubernetes' clients.
const MESSAGES_OF_POD: usize = 10;

/// The number of events in memory.
const EVENTS: usize = 1024;

/// The age after which an event is a new one: the API server keeps events for an hour.
const AGE: Duration = Duration::from_secs(3600);

/// How long a book without a place is taken for full: a flood of drops costs no search each.
const FULL: Duration = Duration::from_secs(1);

/// The prefix of a combined message.
const COMBINED: &str = "(combined from similar events): ";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    namespace: String,
    pod: String,
    /// `None` for the combined event.
    message: Option<String>,
}

#[derive(Debug)]
struct Record {
    endpoint: u32,
    message: String,
    first: Timestamp,
    last: Timestamp,
    /// Occurrences that are written.
    written: u32,
    /// Occurrences that are not.
    pending: u32,
    /// The name of the event on the server, with the time of its last write.
    event: Option<(String, Instant)>,
}

/// An event to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    pub(crate) key: Key,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) endpoint: u32,
    pub(crate) message: String,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    pub(crate) count: u32,
    /// The event of this name gets the count; `None` to create one.
    pub(crate) name: Option<String>,
}

/// The events in memory.
#[derive(Debug)]
pub(crate) struct Book {
    interval: Duration,
    records: BTreeMap<Key, Record>,
    /// Occurrences that had no place.
    lost: u64,
    /// Until then all events wait to be written, as far as is known: no place is looked for.
    full_until: Option<Instant>,
}

impl Book {
    /// Returns an empty book; equal events are written at this interval.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, records: BTreeMap::new(), lost: 0, full_until: None }
    }

    /// Counts an occurrence.
    pub(crate) fn add(&mut self, occurrence: Occurrence, now: Instant) {
        let Occurrence { endpoint, namespace, pod, message, time } = occurrence;
        let mut key = Key { namespace, pod, message: Some(message.clone()) };
        if !self.records.contains_key(&key) && self.messages_of(&key) >= MESSAGES_OF_POD {
            key.message = None;
        }
        if let Some(record) = self.records.get_mut(&key) {
            record.pending = record.pending.saturating_add(1);
            record.last = time;
            return;
        }
        let is_full = self.full_until.is_some_and(|until| now < until);
        if self.records.len() >= EVENTS && (is_full || !self.evict(now)) {
            self.lost += 1;
            return;
        }
        let message = if key.message.is_none() { format!("{COMBINED}{message}") } else { message };
        let record =
            Record { endpoint, message, first: time, last: time, written: 0, pending: 1, event: None };
        self.records.insert(key, record);
    }

    fn messages_of(&self, key: &Key) -> usize {
        let first = Key { message: None, ..key.clone() };
        let of_pod = self
            .records
            .range(first..)
            .take_while(|(other, _)| (&other.namespace, &other.pod) == (&key.namespace, &key.pod));
        of_pod.filter(|(other, _)| other.message.is_some()).count()
    }

    /// Forgets events that are too old to be continued; if there are none, the oldest without occurrences to write.
    fn evict(&mut self, now: Instant) -> bool {
        let before = self.records.len();
        self.records.retain(|_, record| record.pending > 0 || !is_old(record, now));
        if self.records.len() < before {
            return true;
        }
        let idle = self.records.iter().filter(|(_, record)| record.pending == 0);
        let oldest = idle.min_by_key(|(_, record)| record.event.as_ref().map(|(_, at)| *at));
        let Some(key) = oldest.map(|(key, _)| key.clone()) else {
            self.full_until = Some(now + FULL);
            return false;
        };
        self.records.remove(&key);
        true
    }

    /// Returns when the next event is to be written, which may be now; `None` if nothing waits.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        let waiting = self.records.values().filter(|record| record.pending > 0);
        waiting.map(|record| self.due(record).unwrap_or(now)).min()
    }

    /// Returns when an event may be written; `None` for at once.
    fn due(&self, record: &Record) -> Option<Instant> {
        record.event.as_ref().map(|(_, at)| *at + self.interval)
    }

    /// Returns an event that is due.
    pub(crate) fn take(&self, now: Instant) -> Option<Write> {
        let due = self.records.iter().filter(|(_, record)| record.pending > 0);
        let due = due.map(|(key, record)| (self.due(record), key, record));
        let (_, key, record) =
            due.filter(|(at, ..)| at.is_none_or(|at| at <= now)).min_by_key(|(at, ..)| *at)?;
        let name = record.event.as_ref().filter(|_| !is_old(record, now)).map(|(name, _)| name.clone());
        let count = record.pending + if name.is_some() { record.written } else { 0 };
        Some(Write {
            key: key.clone(),
            namespace: key.namespace.clone(),
            pod: key.pod.clone(),
            endpoint: record.endpoint,
            message: record.message.clone(),
            first: record.first,
            last: record.last,
            count,
            name,
        })
    }

    /// Notes that an event was written, under this name. Occurrences since [`take`](Self::take) remain to be written.
    pub(crate) fn written(&mut self, write: &Write, name: String, now: Instant) {
        let Some(record) = self.records.get_mut(&write.key) else { return };
        let before = if write.name.is_some() { record.written } else { 0 };
        record.pending = record.pending.saturating_sub(write.count - before);
        record.written = write.count;
        record.event = Some((name, now));
    }

    /// Notes that the event of a write is gone from the server: the next write creates one.
    pub(crate) fn gone(&mut self, write: &Write) {
        if let Some(record) = self.records.get_mut(&write.key) {
            (record.event, record.written, record.first) = (None, 0, record.last);
        }
    }

    /// Forgets a write that the server refuses for good, as for a namespace that is gone.
    pub(crate) fn forget(&mut self, write: &Write) {
        self.records.remove(&write.key);
    }

    /// Returns the number of occurrences without a place since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

fn is_old(record: &Record, now: Instant) -> bool {
    record.event.as_ref().is_some_and(|(_, at)| now.duration_since(*at) >= AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(120);

    fn occurrence(pod: &str, message: &str, seconds: i64) -> Occurrence {
        Occurrence {
            endpoint: 1,
            namespace: "shop".into(),
            pod: pod.into(),
            message: message.into(),
            time: Timestamp { seconds, nanos: 0 },
        }
    }

    #[test]
    fn equal_occurrences_are_one_event_that_is_written_at_the_interval() {
        let (mut book, start) = (Book::new(INTERVAL), Instant::now());
        assert_eq!(book.next(start), None);
        book.add(occurrence("a", "x", 1), start);
        let first = book.take(start).unwrap();
        assert_eq!((first.count, first.name.as_deref()), (1, None));
        // It occurs again while it is written.
        book.add(occurrence("a", "x", 2), start);
        book.written(&first, "a.1".into(), start);
        assert_eq!((book.take(start), book.next(start)), (None, Some(start + INTERVAL)));
        book.add(occurrence("a", "x", 3), start);
        let second = book.take(start + INTERVAL).unwrap();
        assert_eq!((second.count, second.name.as_deref()), (3, Some("a.1")));
        assert_eq!((second.first.seconds, second.last.seconds), (1, 3));
        book.written(&second, "a.1".into(), start + INTERVAL);
        assert_eq!(book.next(start), None);
    }

    #[test]
    fn an_event_that_the_server_has_removed_begins_again() {
        let (mut book, start) = (Book::new(INTERVAL), Instant::now());
        book.add(occurrence("a", "x", 1), start);
        let first = book.take(start).unwrap();
        book.written(&first, "a.1".into(), start);
        book.add(occurrence("a", "x", 9), start);
        let second = book.take(start + INTERVAL).unwrap();
        book.gone(&second);
        let again = book.take(start + INTERVAL).unwrap();
        assert_eq!((again.count, again.name.as_deref(), again.first.seconds), (1, None, 9));
        book.written(&again, "a.2".into(), start);
        // The server keeps none for longer than an hour.
        book.add(occurrence("a", "x", 10), start);
        let old = book.take(start + AGE).unwrap();
        assert_eq!((old.count, old.name), (1, None));
    }

    #[test]
    fn a_pod_that_scans_ports_has_ten_events_and_a_combined_one() {
        let (mut book, now) = (Book::new(INTERVAL), Instant::now());
        for port in 0..1000 {
            book.add(occurrence("a", &format!("TCP/{port:04}"), port), now);
        }
        book.add(occurrence("b", "x", 0), now);
        let mut counts = Vec::new();
        while let Some(write) = book.take(now) {
            book.written(&write, "n".into(), now);
            counts.push((write.pod, write.count, write.message.starts_with(COMBINED)));
        }
        let combined: Vec<_> = counts.iter().filter(|(.., combined)| *combined).collect();
        assert_eq!(combined, [&("a".to_owned(), 990, true)]);
        assert_eq!(counts.len(), 12);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut book, now) = (Book::new(INTERVAL), Instant::now());
        for pod in 0..EVENTS + 5 {
            book.add(occurrence(&format!("p{pod}"), "x", 0), now);
        }
        assert_eq!((book.records.len(), book.take_lost(), book.take_lost()), (EVENTS, 5, 0));
        let write = book.take(now).unwrap();
        book.written(&write, "n".into(), now);
        book.add(occurrence("new", "x", 0), now + FULL);
        assert_eq!((book.records.len(), book.take_lost()), (EVENTS, 0));
        assert!(!book.records.contains_key(&write.key), "the one that waits for nothing has gone");
    }
}
