//! Addresses on their way to the agent, and those that it has: state without clock or connection.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use fqdn::Lookup;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::oneshot;

/// Bytes of an endpoint's reports that wait for the agent, and of those that it has taken: a workload that asks for
/// ever new names must not fill the memory.
const MAX_BYTES: usize = 256 << 10;
/// Bytes of a name and of an address beside their text, about.
const NAME_BYTES: usize = 96;
const ADDRESS_BYTES: usize = 48;
/// A lookup that lasts only this much longer than the reported one is not reported.
const RESOLUTION: SignedDuration = SignedDuration::from_secs(1);
/// Reports of this age are reported again to the next agent: one that was killed may have lost them.
const UNSAFE_AGE: SignedDuration = SignedDuration::from_secs(30);

/// A lookup for the agent.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) lookup: Lookup,
    /// Answers that wait for the agent. They go on when this is dropped.
    waiters: Vec<oneshot::Sender<()>>,
}

/// Reports of all endpoints.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    is_connected: bool,
    backlogs: BTreeMap<u16, Backlog>,
    known: HashMap<u16, Known>,
    /// The endpoint of the last report that was sent: the next one is of another.
    last: u16,
}

/// The reports of an endpoint that wait, oldest first.
#[derive(Debug, Default)]
struct Backlog {
    order: VecDeque<Arc<str>>,
    reports: HashMap<Arc<str>, Report>,
    bytes: usize,
}

/// The addresses of an endpoint that the agent has, each until its lookup expires.
#[derive(Debug, Default)]
struct Known {
    names: HashMap<Arc<str>, HashMap<IpAddr, Expiry>>,
    bytes: usize,
}

/// When an address was reported, and when its lookup expires.
#[derive(Debug, Clone, Copy)]
struct Expiry {
    reported: Timestamp,
    end: Timestamp,
}

impl Reports {
    /// Adds a lookup. Returns what its answer waits for, which ends with or without a value; `None` if the answer need
    /// not wait: the agent has all addresses, or is away.
    pub(crate) fn add(
        &mut self,
        endpoint: u16,
        lookup: Lookup,
        now: Timestamp,
    ) -> Option<oneshot::Receiver<()>> {
        let known = self.known.get(&endpoint);
        let reported = |until: Timestamp| known.is_some_and(|known| known.has(&lookup, until));
        let is_known = reported(now);
        if is_known && reported(lookup.expiration_time.saturating_sub(RESOLUTION).unwrap_or(now)) {
            return None;
        }
        let backlog = self.backlogs.entry(endpoint).or_default();
        let report = backlog.push(lookup)?;
        (!is_known && self.is_connected).then(|| {
            let (sender, receiver) = oneshot::channel();
            report.waiters.push(sender);
            receiver
        })
    }

    /// Returns the next report and its endpoint, of the endpoints in turn.
    pub(crate) fn next(&mut self) -> Option<(u16, Report)> {
        loop {
            let after = self.backlogs.range((Excluded(self.last), Unbounded)).next();
            let endpoint = *after.or_else(|| self.backlogs.iter().next())?.0;
            self.last = endpoint;
            let backlog = self.backlogs.get_mut(&endpoint)?;
            let report = backlog.pop();
            if backlog.order.is_empty() {
                self.backlogs.remove(&endpoint);
            }
            if let Some(report) = report {
                return Some((endpoint, report));
            }
        }
    }

    /// Records that the agent has the addresses of a report. Its answers go on.
    pub(crate) fn done(&mut self, endpoint: u16, report: Report, now: Timestamp) {
        self.known.entry(endpoint).or_default().insert(report.lookup, now);
    }

    /// Keeps a report for the next connection. Its answers go on.
    pub(crate) fn failed(&mut self, endpoint: u16, report: Report) {
        self.backlogs.entry(endpoint).or_default().push(report.lookup);
    }

    /// Whether an agent takes reports.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Records that an agent takes reports.
    pub(crate) fn connected(&mut self) {
        self.is_connected = true;
    }

    /// Records that the agent is away: no answer waits. What it has got last is reported to the next one, too.
    pub(crate) fn disconnected(&mut self, now: Timestamp) {
        self.is_connected = false;
        let waiting = self.backlogs.values_mut().flat_map(|backlog| backlog.reports.values_mut());
        waiting.for_each(|report| report.waiters.clear());
        let since = now.saturating_sub(UNSAFE_AGE).unwrap_or(Timestamp::MIN);
        for (endpoint, known) in &mut self.known {
            for lookup in known.take_since(since) {
                self.backlogs.entry(*endpoint).or_default().push(lookup);
            }
        }
    }

    /// Forgets endpoints that are gone.
    pub(crate) fn retain(&mut self, endpoints: &BTreeSet<u16>) {
        self.backlogs.retain(|endpoint, _| endpoints.contains(endpoint));
        self.known.retain(|endpoint, _| endpoints.contains(endpoint));
    }
}

impl Backlog {
    /// Adds a lookup to that of its name, and removes the oldest ones if there are too many bytes. Returns its report;
    /// `None` if it is too large itself.
    fn push(&mut self, lookup: Lookup) -> Option<&mut Report> {
        let name = lookup.name.clone();
        match self.reports.get_mut(&name) {
            Some(report) => {
                let old = &mut report.lookup;
                let new = lookup.addresses.iter().filter(|address| !old.addresses.contains(address));
                let new: Vec<IpAddr> = new.copied().collect();
                self.bytes += new.len() * ADDRESS_BYTES;
                old.addresses.extend(new);
                old.expiration_time = old.expiration_time.max(lookup.expiration_time);
            }
            None => {
                self.bytes += cost(&lookup);
                self.order.push_back(name.clone());
                self.reports.insert(name.clone(), Report { lookup, waiters: Vec::new() });
            }
        }
        while self.bytes > MAX_BYTES && self.pop().is_some() {}
        self.reports.get_mut(&name)
    }

    fn pop(&mut self) -> Option<Report> {
        let report = self.reports.remove(&self.order.pop_front()?)?;
        self.bytes -= cost(&report.lookup);
        Some(report)
    }
}

impl Known {
    /// Whether all addresses of a lookup last until a time, and longer.
    fn has(&self, lookup: &Lookup, until: Timestamp) -> bool {
        let Some(addresses) = self.names.get(&lookup.name) else { return false };
        lookup.addresses.iter().all(|address| addresses.get(address).is_some_and(|expiry| expiry.end > until))
    }

    fn insert(&mut self, lookup: Lookup, now: Timestamp) {
        if self.bytes + cost(&lookup) > MAX_BYTES {
            self.retain(|expiry| expiry.end > now);
            // Without it, answers wait for the agent again: slower, and never wrong.
            if self.bytes > MAX_BYTES / 2 {
                *self = Known::default();
            }
        }
        let addresses = self.names.entry(lookup.name.clone()).or_insert_with(|| {
            self.bytes += bytes(&lookup.name, 0);
            HashMap::new()
        });
        for address in lookup.addresses {
            let expiry = addresses.entry(address).or_insert_with(|| {
                self.bytes += ADDRESS_BYTES;
                Expiry { reported: now, end: lookup.expiration_time }
            });
            *expiry = Expiry { reported: now, end: expiry.end.max(lookup.expiration_time) };
        }
    }

    /// Removes the addresses that were reported since a time. Returns their lookups.
    fn take_since(&mut self, since: Timestamp) -> Vec<Lookup> {
        let mut lookups = Vec::new();
        for (name, addresses) in &self.names {
            let recent = addresses.iter().filter(|(_, expiry)| expiry.reported >= since);
            let end = recent.clone().map(|(_, expiry)| expiry.end).max();
            let addresses: Vec<IpAddr> = recent.map(|(address, _)| *address).collect();
            if let Some(expiration_time) = end {
                lookups.push(Lookup {
                    name: name.clone(),
                    lookup_time: since,
                    expiration_time,
                    ttl: 0,
                    addresses,
                });
            }
        }
        self.retain(|expiry| expiry.reported < since);
        lookups
    }

    fn retain(&mut self, keep: impl Fn(&Expiry) -> bool) {
        self.names.values_mut().for_each(|addresses| addresses.retain(|_, expiry| keep(expiry)));
        self.names.retain(|_, addresses| !addresses.is_empty());
        let cost = |(name, addresses): (&Arc<str>, &HashMap<_, _>)| bytes(name, addresses.len());
        self.bytes = self.names.iter().map(cost).sum();
    }
}

fn cost(lookup: &Lookup) -> usize {
    bytes(&lookup.name, lookup.addresses.len())
}

fn bytes(name: &str, addresses: usize) -> usize {
    NAME_BYTES + name.len() + addresses * ADDRESS_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lookup(name: &str, last: u8, ttl: u32, second: i64) -> Lookup {
        Lookup::new(name, vec![IpAddr::from([192, 0, 2, last])], ttl, at(second))
    }

    #[test]
    fn answers_wait_only_for_addresses_that_a_present_agent_does_not_have() {
        let mut reports = Reports::default();
        assert!(reports.add(7, lookup("a.io", 1, 60, 0), at(0)).is_none(), "no agent");
        reports.connected();
        let mut waiting = reports.add(7, lookup("a.io", 2, 30, 0), at(0)).unwrap();
        let (endpoint, report) = reports.next().unwrap();
        assert_eq!((endpoint, report.lookup.addresses.len()), (7, 2), "one report for both");
        assert!(reports.next().is_none());
        assert!(waiting.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        reports.done(endpoint, report, at(0));
        assert!(waiting.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        assert!(reports.add(7, lookup("a.io", 1, 60, 0), at(0)).is_none() && reports.next().is_none());
        assert!(reports.add(7, lookup("a.io", 1, 60, 20), at(20)).is_none(), "the agent has it");
        assert!(reports.next().is_some(), "it lasts longer");
        assert!(reports.add(8, lookup("a.io", 1, 60, 0), at(0)).is_some(), "another endpoint");
        assert!(reports.add(7, lookup("a.io", 1, 60, 60), at(60)).is_some(), "it has expired");
    }

    #[test]
    fn reports_outlast_a_connection_and_their_answers_do_not_wait() {
        let mut reports = Reports::default();
        reports.connected();
        let mut waiting = reports.add(7, lookup("a.io", 1, 60, 0), at(0)).unwrap();
        let mut queued = reports.add(9, lookup("b.io", 1, 60, 0), at(0)).unwrap();
        let (endpoint, report) = reports.next().unwrap();
        reports.failed(endpoint, report);
        reports.disconnected(at(0));
        for waiter in [&mut waiting, &mut queued] {
            assert!(waiter.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        }
        let names: Vec<_> =
            std::iter::from_fn(|| reports.next()).map(|(id, r)| (id, r.lookup.name)).collect();
        assert_eq!(names, [(9, "b.io.".into()), (7, "a.io.".into())], "endpoints in turn");
    }

    #[test]
    fn an_agent_gets_what_its_predecessor_may_have_lost() {
        let mut reports = Reports::default();
        reports.connected();
        for (name, second) in [("a.io", 0), ("b.io", 20)] {
            reports.add(7, lookup(name, 1, 600, second), at(second));
            let (endpoint, report) = reports.next().unwrap();
            reports.done(endpoint, report, at(second));
        }
        reports.disconnected(at(40));
        reports.connected();
        assert!(reports.add(7, lookup("a.io", 1, 560, 40), at(40)).is_none(), "on the agent's disk");
        assert!(reports.add(7, lookup("b.io", 1, 560, 40), at(40)).is_some());
        let names: Vec<_> = std::iter::from_fn(|| reports.next()).map(|(_, r)| r.lookup.name).collect();
        assert_eq!(names, ["b.io.".into()]);
    }

    #[test]
    fn an_endpoint_cannot_fill_the_memory() {
        let mut reports = Reports::default();
        for number in 0..20_000 {
            reports.add(7, lookup(&format!("{number}.a.io"), 1, 60, 0), at(0));
        }
        reports.add(8, lookup("b.io", 1, 60, 0), at(0));
        assert!(reports.backlogs[&7].bytes <= MAX_BYTES);
        let kept = reports.backlogs[&7].order.len();
        assert!((1000..4000).contains(&kept), "{kept}");
        assert_eq!(reports.backlogs[&7].order.back().unwrap().as_ref(), "19999.a.io.", "the newest stay");
        let huge = Lookup::new("c.io", vec![IpAddr::from([192, 0, 2, 1]); 6000], 60, at(0));
        assert!(reports.add(7, huge, at(0)).is_none());
        while let Some((endpoint, report)) = reports.next() {
            reports.done(endpoint, report, at(0));
        }
        for number in 0..20_000 {
            let lookup = lookup(&format!("{number}.a.io"), 1, 60, 0);
            reports.done(7, Report { lookup, waiters: Vec::new() }, at(0));
            assert!(reports.known[&7].bytes <= MAX_BYTES);
        }
        reports.retain(&BTreeSet::from([8]));
        assert!(!reports.known.contains_key(&7) && reports.known.contains_key(&8));
    }
}
