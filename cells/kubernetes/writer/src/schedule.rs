//! The order of attempts: the pure core of the queue, without requests, clock or tasks.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hive::Backoff;
use k8s_types::{ApiError, Key, Kind};
use tokio::time::Instant;

use crate::mutation::Limit;
use crate::target::Target;

/// The maximum number of objects that are written concurrently.
const AT_ONCE: usize = 8;

/// Minimum and maximum backoff after a stale object.
const STALE_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Minimum and maximum backoff of an object that the server cannot process while it processes others.
const UNAVAILABLE_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Minimum and maximum backoff between probes of an unreachable server.
const PROBE_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Minimum and maximum backoff after a refusal: an operator has to change a role or a definition first.
const REFUSED_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// The maximum `Retry-After` that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// A class of failures, by the required reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// The server is unreachable or overloaded; with its `Retry-After`, if sent.
    Unavailable(Option<Duration>),
    /// The object has changed since it was read.
    Stale,
    /// It fails until an operator has changed something.
    Refused,
}

impl Class {
    pub(crate) fn of(error: &ApiError) -> Class {
        match error {
            ApiError::Unavailable { retry_after, .. } => Class::Unavailable(
                retry_after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER)),
            ),
            // Temporary: the namespace is about to be deleted with its objects.
            ApiError::Forbidden(message) if message.contains("because it is being terminated") => {
                Class::Stale
            }
            ApiError::Forbidden(_) | ApiError::Invalid(_) => Class::Refused,
            ApiError::NotFound(_)
            | ApiError::AlreadyExists(_)
            | ApiError::Conflict(_)
            | ApiError::Expired(_) => Class::Stale,
        }
    }
}

/// The next action after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The mutation is finished.
    Over,
    /// It is retried.
    Again,
    /// The limit of attempts was reached.
    Exhausted,
    /// It was replaced by another mutation meanwhile.
    Replaced,
}

/// An attempt that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) target: Target,
    pub(crate) number: u64,
    /// Whether the attempt may start without reading the object.
    pub(crate) blind: bool,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    limit: Option<Limit>,
    due: Instant,
    blind: bool,
    /// The number of failures.
    failures: u32,
    moves: u32,
    refusals: u32,
}

/// The queued mutations, their due times, and the state of the server. At most one request per object is in flight.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: HashMap<Target, Entry>,
    /// Targets by due time, then by age.
    due: BTreeMap<(Instant, u64), Target>,
    busy: HashMap<(Kind, Key), u64>,
    gate: Gate,
}

/// A gate before the server. It closes when requests of two objects in a row fail, or when the server sends
/// `Retry-After`; then one object at a time is tried as a probe, until the server responds.
#[derive(Debug, Default)]
struct Gate {
    closed: Option<Closed>,
    /// The mutation that failed last, if no response was received since.
    suspect: Option<u64>,
}

#[derive(Debug)]
struct Closed {
    until: Instant,
    probes: u32,
    /// The mutation that is tried as the probe.
    probe: Option<u64>,
}

impl Schedule {
    /// Enqueues a mutation, in place of that of the same target.
    pub(crate) fn put(&mut self, now: Instant, target: &Target, number: u64, limit: Option<Limit>) {
        if self.entries.get(target).is_some_and(|entry| entry.number == number) {
            return;
        }
        // Keeps the count of server failures, which are not caused by the replaced mutation, so that the order of
        // probes does not change.
        let failures = self.entries.get(target).map_or(0, |entry| entry.failures);
        self.remove(target);
        self.due.insert((now, number), target.clone());
        let entry = Entry { number, limit, due: now, blind: true, failures, moves: 0, refusals: 0 };
        self.entries.insert(target.clone(), entry);
    }

    /// Removes the mutation of a target.
    pub(crate) fn remove(&mut self, target: &Target) {
        if let Some(entry) = self.entries.remove(target) {
            self.due.remove(&(entry.due, entry.number));
        }
    }

    /// Returns a due mutation, if any; its object is busy until [`finished`](Self::finished).
    pub(crate) fn next(&mut self, now: Instant) -> Option<Turn> {
        let mut ready = self.due.range(..=(now, u64::MAX)).filter(|(_, target)| !self.is_busy(target));
        let ((due, number), target) = match &self.gate.closed {
            None if self.busy.len() < AT_ONCE => ready.next()?,
            // Probes alternate between objects, since the failure may be specific to one.
            Some(closed) if closed.probe.is_none() && closed.until <= now => {
                ready.min_by_key(|(_, target)| self.entries.get(target).map(|entry| entry.failures))?
            }
            _ => return None,
        };
        let (due, number, target) = (*due, *number, target.clone());
        self.due.remove(&(due, number));
        self.busy.insert((target.kind, target.key.clone()), number);
        if let Some(closed) = &mut self.gate.closed {
            closed.probe = Some(number);
        }
        let blind = self.entries.get(&target).is_some_and(|entry| entry.blind);
        Some(Turn { target, number, blind })
    }

    /// Cancels an attempt whose mutation was withdrawn.
    pub(crate) fn left_out(&mut self, turn: &Turn) {
        self.busy.remove(&(turn.target.kind, turn.target.key.clone()));
        if let Some(closed) = self.gate.closed.as_mut().filter(|closed| closed.probe == Some(turn.number)) {
            closed.probe = None;
        }
    }

    /// Returns the time at which [`next`](Self::next) may return a mutation, unless an attempt finishes before.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let ready = self.due.iter().find(|(_, target)| !self.is_busy(target)).map(|((due, _), _)| *due)?;
        match &self.gate.closed {
            None => (self.busy.len() < AT_ONCE).then_some(ready),
            Some(closed) => closed.probe.is_none().then(|| ready.max(closed.until)),
        }
    }

    /// Records the end of an attempt, with or without a failure; `blind` allows the next one to skip the read.
    pub(crate) fn finished(
        &mut self,
        now: Instant,
        turn: &Turn,
        failure: Option<Class>,
        blind: bool,
    ) -> Verdict {
        let Turn { target, number, .. } = turn;
        self.busy.remove(&(target.kind, target.key.clone()));
        if self.gate.answered(now, *number, failure) {
            self.bring_forward(now);
        }
        let closed = self.gate.closed.is_some();
        let Some(entry) = self.entries.get_mut(target).filter(|entry| entry.number == *number) else {
            return Verdict::Replaced;
        };
        let Some(class) = failure else {
            self.entries.remove(target);
            return Verdict::Over;
        };
        entry.blind = blind;
        let wait = match (class, entry.limit) {
            // It is retried as soon as the server responds again.
            (Class::Unavailable(_), _) if closed => {
                entry.failures += 1;
                Duration::ZERO
            }
            (Class::Unavailable(_), _) => after(UNAVAILABLE_BACKOFF, &mut entry.failures),
            (_, Some(limit)) => {
                entry.moves += 1;
                if entry.moves >= limit.tries {
                    self.entries.remove(target);
                    return Verdict::Exhausted;
                }
                limit.apart
            }
            (Class::Stale, None) => after(STALE_BACKOFF, &mut entry.moves),
            (Class::Refused, None) => after(REFUSED_BACKOFF, &mut entry.refusals),
        };
        entry.due = now + wait;
        self.due.insert((entry.due, *number), target.clone());
        Verdict::Again
    }

    /// Whether the server counts as unreachable.
    pub(crate) fn is_closed(&self) -> bool {
        self.gate.closed.is_some()
    }

    /// Whether a write of the object, or of any of its parts, is in flight.
    fn is_busy(&self, target: &Target) -> bool {
        // A linear search, which needs no copy of the name: at most `AT_ONCE` are busy.
        self.busy.keys().any(|(kind, key)| *kind == target.kind && *key == target.key)
    }

    /// Makes all mutations due that wait only because of the server.
    fn bring_forward(&mut self, now: Instant) {
        for (target, entry) in &mut self.entries {
            if entry.failures > 0 && entry.due > now && self.due.remove(&(entry.due, entry.number)).is_some()
            {
                entry.due = now;
                self.due.insert((now, entry.number), target.clone());
            }
        }
    }
}

impl Gate {
    /// Records the outcome of an attempt; returns true if the gate closes by it.
    fn answered(&mut self, now: Instant, number: u64, failure: Option<Class>) -> bool {
        let Some(Class::Unavailable(asked)) = failure else {
            *self = Gate::default();
            return false;
        };
        let retry_after_end = asked.map(|wait| now + spread_up(wait));
        match &mut self.closed {
            Some(closed) => {
                if closed.probe == Some(number) {
                    closed.probe = None;
                    closed.until = now + after(PROBE_BACKOFF, &mut closed.probes);
                }
                closed.until = closed.until.max(retry_after_end.unwrap_or(now));
                false
            }
            None if asked.is_some() || self.suspect.is_some_and(|other| other != number) => {
                let mut probes = 0;
                let until = now + after(PROBE_BACKOFF, &mut probes);
                let until = until.max(retry_after_end.unwrap_or(now));
                self.closed = Some(Closed { until, probes, probe: None });
                true
            }
            None => {
                self.suspect = Some(number);
                false
            }
        }
    }
}

/// Counts a failure; returns the backoff with jitter, so that the nodes of a cluster do not retry at the same time.
fn after((min, max): (Duration, Duration), failures: &mut u32) -> Duration {
    // The shift is capped so that it cannot overflow; every `max` is reached before.
    let wait = min.saturating_mul(1 << (*failures).min(20)).min(max);
    *failures += 1;
    Backoff::constant(wait).jitter(0.2).next_wait().unwrap_or(wait)
}

/// Adds jitter to a server's `Retry-After`, which is the minimum.
fn spread_up(wait: Duration) -> Duration {
    wait + Backoff::constant(wait / 10).jitter(1.0).next_wait().unwrap_or_default()
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
