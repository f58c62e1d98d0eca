//! Whose turn it is: the queue without requests, clock or tasks.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hive::Backoff;
use k8s_types::{ApiError, Key, Kind};
use tokio::time::Instant;

use crate::mutation::Limit;
use crate::target::Target;

/// Objects that are written at the same time.
const AT_ONCE: usize = 8;

/// Waits after the object was not as thought, doubling.
const MOVED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Waits after the server could not take a request, doubling: of one object while others are taken.
const TROUBLE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Waits between two probes of a server that takes nothing, doubling.
const PROBE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Waits after a refusal, doubling: somebody has to change a role or a definition first.
const REFUSED: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// The longest that a server is obeyed when it asks to wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// How a failure is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// The server is away or too busy, and may have said how long.
    RequestError(Option<Duration>),
    /// The object was not as thought.
    Moved,
    /// Not before a user has changed something.
    Refused,
}

impl Class {
    pub(crate) fn of(error: &ApiError) -> Class {
        match error {
            ApiError::Unavailable { retry_after, .. } => Class::RequestError(
                retry_after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER)),
            ),
            // What is made in a namespace that is going is not missed for long.
            ApiError::Forbidden(message) if message.contains("because it is being terminated") => {
                Class::Moved
            }
            ApiError::Forbidden(_) | ApiError::Invalid(_) => Class::Refused,
            ApiError::NotFound(_)
            | ApiError::AlreadyExists(_)
            | ApiError::Conflict(_)
            | ApiError::Expired(_) => Class::Moved,
        }
    }
}

/// What follows from an attempt.
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
    /// Whether it may begin without a look at the object.
    pub(crate) blind: bool,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    limit: Option<Limit>,
    due: Instant,
    blind: bool,
    /// Failures of each class.
    troubles: u32,
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

/// Whether the server takes requests. It is taken to be away when two objects in a row fail with it, or when it says so;
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
        // The server's troubles are not those of the mutation before: the turns of probes go on.
        let troubles = self.entries.get(target).map_or(0, |entry| entry.troubles);
        self.remove(target);
        self.due.insert((now, number), target.clone());
        let entry = Entry { number, limit, due: now, blind: true, troubles, moves: 0, refusals: 0 };
        self.entries.insert(target.clone(), entry);
    }

    /// There is no mutation for this target any more.
    pub(crate) fn remove(&mut self, target: &Target) {
        if let Some(entry) = self.entries.remove(target) {
            self.due.remove(&(entry.due, entry.number));
        }
    }

    /// What is to be tried now, if anything; until [`finished`](Self::finished) its object is busy.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Turn> {
        let mut ready = self.due.range(..=(now, u64::MAX)).filter(|(_, target)| !self.is_busy(target));
        let ((due, number), target) = match &self.gate.closed {
            None if self.busy.len() < AT_ONCE => ready.next()?,
            // Not always the same one: its failure may be its own.
            Some(closed) if closed.probe.is_none() && closed.until <= now => {
                ready.min_by_key(|(_, target)| self.entries.get(target).map(|entry| entry.troubles))?
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

    /// An attempt has come to its end, with a failure or without; `blind` says whether the next one may begin without a look.
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
            (Class::RequestError(_), _) if closed => {
                entry.troubles += 1;
                Duration::ZERO
            }
            (Class::RequestError(_), _) => after(TROUBLE, &mut entry.troubles),
            (_, Some(limit)) => {
                entry.moves += 1;
                if entry.moves >= limit.tries {
                    self.entries.remove(target);
                    return Verdict::Exhausted;
                }
                limit.apart
            }
            (Class::Moved, None) => after(MOVED, &mut entry.moves),
            (Class::Refused, None) => after(REFUSED, &mut entry.refusals),
        };
        entry.due = now + wait;
        self.due.insert((entry.due, *number), target.clone());
        Verdict::Again
    }

    /// Whether the server is taken to be away.
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
            if entry.troubles > 0 && entry.due > now && self.due.remove(&(entry.due, entry.number)).is_some()
            {
                entry.due = now;
                self.due.insert((now, entry.number), target.clone());
            }
        }
    }
}

impl Gate {
    /// Takes an answer; true if the server is taken to be away from now on.
    fn answered(&mut self, now: Instant, number: u64, failure: Option<Class>) -> bool {
        let Some(Class::RequestError(asked)) = failure else {
            *self = Gate::default();
            return false;
        };
        let asked_until = asked.map(|wait| now + spread_up(wait));
        match &mut self.closed {
            Some(closed) => {
                if closed.probe == Some(number) {
                    closed.probe = None;
                    closed.until = now + after(PROBE, &mut closed.probes);
                }
                closed.until = closed.until.max(asked_until.unwrap_or(now));
                false
            }
            None if asked.is_some() || self.suspect.is_some_and(|other| other != number) => {
                let mut probes = 0;
                let until = now + after(PROBE, &mut probes);
                let until = until.max(asked_until.unwrap_or(now));
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

/// What a server asks for is the least.
fn spread_up(wait: Duration) -> Duration {
    wait + Backoff::constant(wait / 10).jitter(1.0).next_wait().unwrap_or_default()
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
