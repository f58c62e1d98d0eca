//! When addresses are probed: once a cycle, evenly spaced, and at once on request.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::target::{Key, Target};
use crate::config::cycle;

/// The time since the start of the prober. The caller's clock must not go back.
pub(crate) type Moment = Duration;

/// The least time between two batches of probes. In large clusters addresses are due every few milliseconds: a wakeup, a
/// timer and a round of pings for each of them would cost more than the probes.
pub(crate) const BATCH_INTERVAL: Duration = Duration::from_millis(500);

/// The nodes, and the order of their probes.
pub(crate) struct Schedule {
    base: Duration,
    nodes: BTreeMap<Arc<str>, Target>,
    /// Number of addresses of all nodes.
    addresses: usize,
    /// Addresses that this cycle has not probed yet. Those of removed nodes stay until they are popped.
    queue: VecDeque<Key>,
    queued: HashSet<Key>,
    /// Addresses to be probed at once.
    urgent: VecDeque<Key>,
    cycle: Cycle,
    /// When the next address of the queue is due.
    next: Moment,
    /// When addresses of the queue were returned last.
    batch: Option<Moment>,
}

/// A cycle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cycle {
    pub(crate) start: Moment,
    pub(crate) length: Duration,
}

impl Cycle {
    fn end(self) -> Moment {
        self.start + self.length
    }
}

impl Schedule {
    pub(crate) fn new(base: Duration) -> Self {
        Self {
            base,
            nodes: BTreeMap::new(),
            addresses: 0,
            queue: VecDeque::new(),
            queued: HashSet::new(),
            urgent: VecDeque::new(),
            cycle: Cycle::default(),
            next: Duration::ZERO,
            batch: None,
        }
    }

    pub(crate) fn cycle(&self) -> Cycle {
        self.cycle
    }

    /// Whether the address is one of the node's.
    pub(crate) fn has(&self, (name, ip): &Key) -> bool {
        self.nodes.get(name).is_some_and(|node| node.host.contains(ip) || node.endpoint.contains(ip))
    }

    /// Returns all addresses.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.nodes.values().flat_map(Target::keys)
    }

    /// Adds a node or replaces its addresses; `None` removes it. Added addresses are probed in this cycle, which
    /// becomes as long as that many addresses need. Returns the removed addresses, or `None` if nothing has changed.
    pub(crate) fn set(&mut self, now: Moment, name: &Arc<str>, target: Option<Target>) -> Option<Vec<Key>> {
        if self.nodes.get(name) == target.as_ref() {
            return None;
        }
        let was_empty = self.addresses == 0;
        let old = self.nodes.remove(name).map(|old| old.keys()).unwrap_or_default();
        let new = target.as_ref().map(Target::keys).unwrap_or_default();
        self.addresses = self.addresses + new.len() - old.len();
        self.nodes.extend(target.map(|target| (name.clone(), target)));
        if was_empty {
            self.cycle.start = now;
            self.next = now;
        }
        for key in new.iter().filter(|key| !old.contains(key)) {
            if self.queued.insert(key.clone()) {
                self.queue.push_back(key.clone());
            }
        }
        self.cycle.length = cycle(self.base, self.addresses);
        // The first of many new addresses must not wait as long as few addresses were apart.
        self.next = self.next.min(now + self.steady_spacing());
        Some(old.into_iter().filter(|key| !new.contains(key)).collect())
    }

    /// Schedules all addresses at once.
    pub(crate) fn probe_all(&mut self) {
        self.urgent = self.keys().collect();
    }

    /// Schedules some addresses at once.
    pub(crate) fn probe_now(&mut self, keys: impl IntoIterator<Item = Key>) {
        self.urgent.extend(keys);
    }

    /// Returns the next address that is due.
    pub(crate) fn pop(&mut self, now: Moment) -> Option<Key> {
        while let Some(key) = self.urgent.pop_front() {
            if self.has(&key) {
                return Some(key);
            }
        }
        if self.addresses == 0 || now < self.next || self.batch != Some(now) && now < self.earliest() {
            return None;
        }
        loop {
            match self.queue.pop_front() {
                Some(key) => {
                    self.queued.remove(&key);
                    if self.has(&key) {
                        self.batch = Some(now);
                        self.advance(now);
                        return Some(key);
                    }
                }
                None if now < self.cycle.end() => return None,
                None => self.begin(now),
            }
        }
    }

    /// Returns when [`pop`](Self::pop) returns the next address; `None` without any.
    pub(crate) fn due(&self) -> Option<Moment> {
        if !self.urgent.is_empty() {
            return Some(Duration::ZERO);
        }
        if self.addresses == 0 {
            return None;
        }
        let next = if self.queue.is_empty() { self.next.max(self.cycle.end()) } else { self.next };
        Some(next.max(self.earliest()))
    }

    /// Returns when the next batch may begin.
    fn earliest(&self) -> Moment {
        self.batch.map_or(Duration::ZERO, |batch| batch + BATCH_INTERVAL)
    }

    /// Begins a cycle.
    fn begin(&mut self, now: Moment) {
        let end = self.cycle.end();
        self.cycle = Cycle { start: self.on_time(end, now), length: cycle(self.base, self.addresses) };
        self.next = self.cycle.start;
        self.queue = self.keys().collect();
        self.queued = self.queue.iter().cloned().collect();
    }

    /// Moves the time of the next address. The rest of the cycle is divided evenly, but no faster than all addresses in
    /// a whole cycle: a burst of nodes at the end of a cycle must not become a burst of packets.
    fn advance(&mut self, now: Moment) {
        let this = self.on_time(self.next, now);
        let rest = self.cycle.end().saturating_sub(this) / count(self.queue.len() + 1);
        self.next = this + rest.max(self.steady_spacing());
    }

    /// Returns the time between two addresses in a cycle without changes.
    fn steady_spacing(&self) -> Duration {
        self.cycle.length / count(self.addresses).max(1)
    }

    /// Returns when an event took place that was due at `due`: a little delay of the caller or by the batch does not shift
    /// the ones that follow, but time in which the machine slept is not made up for.
    fn on_time(&self, due: Moment, now: Moment) -> Moment {
        if now.saturating_sub(due) < self.steady_spacing().max(BATCH_INTERVAL) { due } else { now }
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
