//! The probes in flight, as a state machine without clock and sockets.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::echo::Echo;
use super::schedule::{Cycle, Moment, Schedule};
use super::target::{Key, Target};
use crate::row::{CheckResult, Failure};

/// The most addresses that are probed at the same time. Each is two checks: a descriptor, and pings.
pub(crate) const MAX_IN_FLIGHT: usize = 256;

/// The time limit of a check.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// The time between two pings of a probe.
pub(crate) const PING_INTERVAL: Duration = Duration::from_millis(100);

/// The id of a probe in flight.
pub(crate) type ProbeId = u64;

/// A request of the core, or a result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Send a ping.
    Ping { to: IpAddr, echo: Echo },
    /// Send an HTTP request; its result is due within [`CHECK_TIMEOUT`].
    Hello { probe: ProbeId, to: IpAddr },
    /// An address was probed. The pings have no result where none can be sent.
    Probed { key: Key, icmp: Option<CheckResult>, http: CheckResult },
    /// All addresses were probed since [`Prober::probe_all`].
    AllProbed,
}

/// The prober.
pub(crate) struct Prober {
    pub(crate) schedule: Schedule,
    /// Pings of a probe until the address counts as unreachable.
    pings: u32,
    /// The id of its pings.
    id: u16,
    secret: RandomState,
    probes: HashMap<ProbeId, Probe>,
    last_probe: ProbeId,
    running: HashSet<Key>,
    /// Pings without a reply, by sequence number.
    sent: HashMap<u16, Sent>,
    sequence: u16,
    /// When the next ping of a probe is due, or its pings have failed.
    timers: BTreeSet<(Moment, ProbeId)>,
    /// Addresses that were not probed since `probe_all`.
    remaining: Option<HashSet<Key>>,
    events: VecDeque<Event>,
}

/// A probe in flight.
struct Probe {
    key: Key,
    deadline: Moment,
    pings: u32,
    timer: Option<Moment>,
    /// Sequence numbers of its pings.
    sequences: Vec<u16>,
    icmp: Option<Option<CheckResult>>,
    http: Option<CheckResult>,
}

/// A ping that was sent.
struct Sent {
    probe: ProbeId,
    to: IpAddr,
    nonce: u128,
    at: Moment,
}

impl Prober {
    /// Returns a prober without nodes. `pings`: the most pings of a probe.
    pub(crate) fn new(base: Duration, pings: u32) -> Self {
        let secret = RandomState::new();
        #[expect(clippy::cast_possible_truncation, reason = "any bits of a random number")]
        let (id, sequence) = (secret.hash_one("id") as u16, secret.hash_one("sequence") as u16);
        Self {
            schedule: Schedule::new(base),
            pings,
            id,
            secret,
            probes: HashMap::new(),
            last_probe: 0,
            running: HashSet::new(),
            sent: HashMap::new(),
            sequence,
            timers: BTreeSet::new(),
            remaining: None,
            events: VecDeque::new(),
        }
    }

    /// Returns the id of its pings.
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    pub(crate) fn cycle(&self) -> Cycle {
        self.schedule.cycle()
    }

    /// Adds a node, changes its addresses, or removes it. Returns false if nothing has changed.
    pub(crate) fn set(&mut self, now: Moment, name: &Arc<str>, target: Option<Target>) -> bool {
        let Some(removed) = self.schedule.set(now, name, target) else { return false };
        if let Some(remaining) = &mut self.remaining {
            for key in &removed {
                remaining.remove(key);
            }
            self.finish_round();
        }
        true
    }

    /// Begins to probe some addresses at once, which their cycle does not wait for.
    pub(crate) fn probe_now(&mut self, keys: impl IntoIterator<Item = Key>) {
        self.schedule.probe_now(keys);
    }

    /// Begins to probe all addresses at once; a second call joins a round that is in progress.
    pub(crate) fn probe_all(&mut self) {
        if self.remaining.is_none() {
            self.remaining = Some(self.schedule.keys().collect());
            self.schedule.probe_all();
            self.finish_round();
        }
    }

    /// Processes the passage of time: sends and fails pings, starts probes.
    pub(crate) fn handle_time(&mut self, now: Moment) {
        while let Some(&(due, id)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            if let Some(probe) = self.probes.get_mut(&id) {
                probe.timer = None;
            }
            self.ping(id, now);
        }
        while self.probes.len() < MAX_IN_FLIGHT
            && let Some(key) = self.schedule.pop(now)
        {
            // A probe in flight counts for a round that begins now: its result is as new.
            if self.running.insert(key.clone()) {
                self.start(key, now);
            }
        }
    }

    /// Returns when [`handle_time`](Self::handle_time) has work again; `None` if only an event can give it some.
    pub(crate) fn due(&self) -> Option<Moment> {
        let start = if self.probes.len() < MAX_IN_FLIGHT { self.schedule.due() } else { None };
        let timer = self.timers.first().map(|(due, _)| *due);
        start.into_iter().chain(timer).min()
    }

    /// Processes an echo reply. One that answers no ping of ours is ignored: another id, number, nonce or sender, or a
    /// second reply.
    pub(crate) fn handle_reply(&mut self, from: IpAddr, echo: Echo, now: Moment) {
        let known = self.sent.get(&echo.sequence);
        let Some(sent) =
            known.filter(|sent| echo.id == self.id && sent.nonce == echo.nonce && sent.to == from)
        else {
            return;
        };
        let (probe, latency) = (sent.probe, now.saturating_sub(sent.at));
        self.finish_pings(probe, Some(Ok(latency)));
    }

    /// Processes a ping that could not be sent. `None`: this agent can send no pings, which says nothing about the node.
    /// An error ends the pings only with the last one, as it may be transient.
    pub(crate) fn handle_unsent(&mut self, echo: Echo, error: Option<Failure>) {
        let Some(sent) = self.sent.get(&echo.sequence) else { return };
        let id = sent.probe;
        let is_last = self.probes.get(&id).is_some_and(|probe| probe.pings >= self.pings);
        if error.is_none() || is_last {
            self.finish_pings(id, error.map(Err));
        }
    }

    /// Processes the result of an HTTP request.
    pub(crate) fn handle_http(&mut self, id: ProbeId, result: CheckResult) {
        if let Some(probe) = self.probes.get_mut(&id) {
            probe.http.get_or_insert(result);
            self.finish(id);
        }
    }

    /// Returns the next event.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the number of probes in flight.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.probes.len()
    }

    fn start(&mut self, key: Key, now: Moment) {
        self.last_probe += 1;
        let (id, to) = (self.last_probe, key.1);
        let probe = Probe {
            key,
            deadline: now + CHECK_TIMEOUT,
            pings: 0,
            timer: None,
            sequences: Vec::new(),
            icmp: None,
            http: None,
        };
        self.probes.insert(id, probe);
        self.events.push_back(Event::Hello { probe: id, to });
        self.ping(id, now);
    }

    /// Sends the next ping of a probe, or fails its pings at their deadline.
    fn ping(&mut self, id: ProbeId, now: Moment) {
        let sequence = self.free_sequence();
        let Some(probe) = self.probes.get_mut(&id).filter(|probe| probe.icmp.is_none()) else { return };
        if now >= probe.deadline {
            return self.finish_pings(id, Some(Err(Failure::TimedOut)));
        }
        probe.pings += 1;
        let due = if probe.pings < self.pings { now + PING_INTERVAL } else { probe.deadline };
        probe.timer = Some(due.min(probe.deadline));
        probe.sequences.push(sequence);
        self.timers.insert((due.min(probe.deadline), id));
        let to = probe.key.1;
        let half = |part: u8| u128::from(self.secret.hash_one((id, sequence, part)));
        let nonce = half(0) << 64 | half(1);
        self.sequence = sequence.wrapping_add(1);
        self.sent.insert(sequence, Sent { probe: id, to, nonce, at: now });
        self.events.push_back(Event::Ping { to, echo: Echo { id: self.id, sequence, nonce } });
    }

    /// Returns the next sequence number that no ping in flight has; there are always some, as probes and their pings
    /// are few.
    fn free_sequence(&self) -> u16 {
        let mut sequence = self.sequence;
        while self.sent.contains_key(&sequence) {
            sequence = sequence.wrapping_add(1);
        }
        sequence
    }

    fn finish_pings(&mut self, id: ProbeId, result: Option<CheckResult>) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        probe.icmp.get_or_insert(result);
        for sequence in probe.sequences.drain(..) {
            self.sent.remove(&sequence);
        }
        if let Some(timer) = probe.timer.take() {
            self.timers.remove(&(timer, id));
        }
        self.finish(id);
    }

    /// Ends a probe when both of its checks have a result.
    fn finish(&mut self, id: ProbeId) {
        if !self.probes.get(&id).is_some_and(|probe| probe.icmp.is_some() && probe.http.is_some()) {
            return;
        }
        let Some(Probe { key, icmp: Some(icmp), http: Some(http), .. }) = self.probes.remove(&id) else {
            return;
        };
        self.running.remove(&key);
        if let Some(remaining) = &mut self.remaining {
            remaining.remove(&key);
        }
        // The node may have gone, or have lost the address, during its probe.
        if self.schedule.has(&key) {
            self.events.push_back(Event::Probed { key, icmp, http });
        }
        self.finish_round();
    }

    fn finish_round(&mut self) {
        if self.remaining.as_ref().is_some_and(HashSet::is_empty) {
            self.remaining = None;
            self.events.push_back(Event::AllProbed);
        }
    }
}
