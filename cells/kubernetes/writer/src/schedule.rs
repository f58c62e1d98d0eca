//! The order of attempts: the queue without requests, clock or tasks.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hive::Backoff;
use k8s_types::{ApiError, Key, Kind};
use tokio::time::Instant;

use crate::mutation::Limit;
use crate::target::Target;

/// Objects that are written at the same time.
const AT_ONCE: usize = 8;

/// Delays after a stale object, doubling.
const STALE_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Delays after the server could not take a request, doubling: of one object while others are taken.
const UNAVAILABLE_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Delays between two probes of an unreachable server, doubling.
const PROBE_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Delays after a refusal, doubling: a role or a definition has to be changed first.
const REFUSED_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// The longest `Retry-After` that is followed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// A class of failures, by the reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// The server is unreachable or too busy, and may have asked for a delay.
    Unavailable(Option<Duration>),
    /// The object is another one than was read.
    Stale,
    /// It fails until a user has changed something.
    Refused,
}

impl Class {
    pub(crate) fn of(error: &ApiError) -> Class {
        match error {
            ApiError::Unavailable { retry_after, .. } => Class::Unavailable(
                retry_after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER)),
            ),
            // The namespace will be gone in a moment, and its objects with it.
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
    /// The mutation is over.
    Over,
    /// It is tried again.
    Again,
    /// It was tried as often as it was to be.
    Exhausted,
    /// Another mutation has taken its place meanwhile.
    Replaced,
}

/// An attempt that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) target: Target,
    pub(crate) number: u64,
    /// Whether the attempt may begin without reading the object.
    pub(crate) blind: bool,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    limit: Option<Limit>,
    due: Instant,
    blind: bool,
    /// Failures of each class.
    failures: u32,
    moves: u32,
    refusals: u32,
}

/// Which mutations there are, when each is due, and how the server is doing. At most one request an object is under way.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: HashMap<Target, Entry>,
    /// By the time at which they are due, then by age.
    due: BTreeMap<(Instant, u64), Target>,
    busy: HashMap<(Kind, Key), u64>,
    gate: Gate,
}

/// Whether the server takes requests. It is unreachable when two objects in a row fail with it, or when it asks to wait;
/// then one object at a time is tried, until it answers.
#[derive(Debug, Default)]
struct Gate {
    closed: Option<Closed>,
    /// The mutation that has failed last, if no answer came since.
    suspect: Option<u64>,
}

#[derive(Debug)]
struct Closed {
    until: Instant,
    probes: u32,
    /// The mutation that is tried now.
    probe: Option<u64>,
}

impl Schedule {
    /// There is this mutation now, and no other for its target.
    pub(crate) fn put(&mut self, now: Instant, target: &Target, number: u64, limit: Option<Limit>) {
        if self.entries.get(target).is_some_and(|entry| entry.number == number) {
            return;
        }
        // Failures of the server are not those of the replaced mutation: the order of probes stays.
        let failures = self.entries.get(target).map_or(0, |entry| entry.failures);
        self.remove(target);
        self.due.insert((now, number), target.clone());
        let entry = Entry { number, limit, due: now, blind: true, failures, moves: 0, refusals: 0 };
        self.entries.insert(target.clone(), entry);
    }

    /// There is no mutation for this target any more.
    pub(crate) fn remove(&mut self, target: &Target) {
        if let Some(entry) = self.entries.remove(target) {
            self.due.remove(&(entry.due, entry.number));
        }
    }

    /// Returns the mutation to try now, if any; until [`finished`](Self::finished) its object is busy.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Turn> {
        let mut ready = self.due.range(..=(now, u64::MAX)).filter(|(_, target)| !self.is_busy(target));
        let ((due, number), target) = match &self.gate.closed {
            None if self.busy.len() < AT_ONCE => ready.next()?,
            // Not always the same one: its failure may be its own.
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

    /// A turn is not taken: its mutation has gone.
    pub(crate) fn left_out(&mut self, turn: &Turn) {
        self.busy.remove(&(turn.target.kind, turn.target.key.clone()));
        if let Some(closed) = self.gate.closed.as_mut().filter(|closed| closed.probe == Some(turn.number)) {
            closed.probe = None;
        }
    }

    /// When [`next`](Self::next) has something again, unless an attempt finishes before.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let ready = self.due.iter().find(|(_, target)| !self.is_busy(target)).map(|((due, _), _)| *due)?;
        match &self.gate.closed {
            None => (self.busy.len() < AT_ONCE).then_some(ready),
            Some(closed) => closed.probe.is_none().then(|| ready.max(closed.until)),
        }
    }

    /// Ends an attempt, with a failure or without; `blind` allows the next one to begin without reading the object.
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
            // It goes as soon as the server is there again.
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

    /// Whether the object is being written, on behalf of any of its parts.
    fn is_busy(&self, target: &Target) -> bool {
        // Without a name to copy: few are busy.
        self.busy.keys().any(|(kind, key)| *kind == target.kind && *key == target.key)
    }

    /// Those that wait because of the server go when it is there again.
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
    /// Takes an answer; true if the server counts as unreachable from now on.
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

/// The wait after a failure, which is counted; spread, so that nodes do not come all at once.
fn after((min, max): (Duration, Duration), failures: &mut u32) -> Duration {
    let wait = min.saturating_mul(1 << (*failures).min(20)).min(max);
    *failures += 1;
    Backoff::constant(wait).jitter(0.2).next_wait().unwrap_or(wait)
}

/// A server's `Retry-After` is the minimum.
fn spread_up(wait: Duration) -> Duration {
    wait + Backoff::constant(wait / 10).jitter(1.0).next_wait().unwrap_or_default()
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
