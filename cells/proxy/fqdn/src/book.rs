//! The names, and which addresses the kernel does not have yet: state without tables, kernel or clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use endpoints::RecordedNames;
use fqdn::{Changes, History, Limits, Lookup, Names, Pattern, RestoredRules, Selector};
use identity::cidr_labels;
use ipnetwork::IpNetwork;
use jiff::Timestamp;
use labels::{KUBE_APISERVER, LabelArray, LabelRef, RESERVED};
use serde_json::Value;

use crate::record;

/// The source of labels of names.
const FQDN: &str = "fqdn";

/// The names of all endpoints.
#[derive(Debug)]
pub(crate) struct Book {
    names: Names,
    /// Addresses with changed selectors, each with the number of its last change.
    pending: BTreeMap<IpAddr, u64>,
    /// The number of changes.
    changes: u64,
    /// Endpoints with changed names, for their records.
    unrecorded: BTreeSet<u16>,
    /// The DNS rules in the records.
    recorded_rules: BTreeMap<u16, Value>,
    /// The DNS rules of the previous run, until policies are in force.
    restored_rules: BTreeMap<u16, RestoredRules>,
}

/// The addresses of a round of the job.
pub(crate) struct Batch {
    pub(crate) addresses: BTreeMap<IpAddr, Arc<BTreeSet<Selector>>>,
    /// The last change that the batch includes.
    pub(crate) change: u64,
}

impl Book {
    pub(crate) fn new(limits: Limits) -> Book {
        Book {
            names: Names::new(limits),
            pending: BTreeMap::new(),
            changes: 0,
            unrecorded: BTreeSet::new(),
            recorded_rules: BTreeMap::new(),
            restored_rules: BTreeMap::new(),
        }
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Inserts a lookup. Returns the change that an answer with these addresses waits for; `None` if the kernel has all.
    pub(crate) fn learn(&mut self, endpoint: u16, lookup: Lookup) -> Option<u64> {
        let addresses = lookup.addresses.clone();
        let changes = self.names.insert(endpoint, lookup);
        self.note(changes);
        self.unrecorded.insert(endpoint);
        addresses.iter().filter_map(|address| self.pending.get(address)).max().copied()
    }

    /// Whether the kernel does not have all addresses.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Adds the names and DNS rules of the previous run.
    pub(crate) fn restore(&mut self, endpoint: u16, history: History, rules: Value) {
        let changes = self.names.restore(endpoint, history);
        self.note(changes);
        self.restored_rules.insert(endpoint, RestoredRules::from_record(&rules));
        self.recorded_rules.insert(endpoint, rules);
    }

    /// Returns the DNS rules of an endpoint in the previous run; none once policies are in force.
    pub(crate) fn restored_rules(&self, endpoint: u16) -> Option<&RestoredRules> {
        self.restored_rules.get(&endpoint)
    }

    /// Forgets the DNS rules of the previous run.
    pub(crate) fn forget_restored_rules(&mut self) {
        self.restored_rules.clear();
    }

    /// Makes these the selectors of policies.
    pub(crate) fn set_selectors(&mut self, desired: &BTreeSet<Selector>) {
        let known = self.names.selectors();
        for selector in known.difference(desired) {
            let changes = self.names.deselect(selector);
            self.note(changes);
        }
        for selector in desired.difference(&known) {
            let changes = self.names.select(selector.clone());
            self.note(changes);
        }
    }

    /// Expires names. Returns how many names have lost an address.
    pub(crate) fn collect(&mut self, now: Timestamp, has_connection: impl Fn(IpAddr) -> bool) -> usize {
        let before: Vec<(u16, History)> = self.names.histories().map(|(id, h)| (id, h.clone())).collect();
        let (changes, removed) = self.names.collect(now, |_, address| has_connection(address));
        self.note(changes);
        let changed = before.into_iter().filter(|(id, old)| self.names.history(*id) != Some(old));
        self.unrecorded.extend(changed.map(|(id, _)| id).collect::<Vec<_>>());
        removed
    }

    /// Removes the names that match, all without a pattern.
    pub(crate) fn clear(&mut self, pattern: Option<&Pattern>) {
        let changes = self.names.clear(pattern);
        self.note(changes);
        self.unrecorded.extend(self.names.histories().map(|(id, _)| id).collect::<Vec<_>>());
    }

    /// Removes endpoints.
    pub(crate) fn retain_endpoints(&mut self, exists: impl Fn(u16) -> bool) {
        let gone: Vec<u16> = self.names.histories().map(|(id, _)| id).filter(|id| !exists(*id)).collect();
        for endpoint in gone {
            let changes = self.names.remove_endpoint(endpoint);
            self.note(changes);
            self.unrecorded.insert(endpoint);
        }
    }

    /// Makes addresses pending, whatever their selectors.
    pub(crate) fn recheck(&mut self) {
        let all = self.names.selected();
        self.note(all);
    }

    /// Returns the pending addresses with their selectors.
    pub(crate) fn batch(&self) -> Batch {
        let selectors = |address: &IpAddr| self.names.selectors_of(*address).cloned().unwrap_or_default();
        let addresses = self.pending.keys().map(|address| (*address, selectors(address))).collect();
        Batch { addresses, change: self.changes }
    }

    /// Records that the kernel has the addresses as of a batch.
    pub(crate) fn done(&mut self, change: u64) {
        self.pending.retain(|_, pending| *pending > change);
    }

    /// Returns the endpoints with other names or rules than at the last call.
    pub(crate) fn take_unrecorded(&mut self, rules: BTreeMap<u16, Value>) -> BTreeSet<u16> {
        let known = self.recorded_rules.keys().chain(rules.keys());
        let changed = known.filter(|endpoint| self.recorded_rules.get(endpoint) != rules.get(endpoint));
        let changed: BTreeSet<u16> = changed.copied().chain(std::mem::take(&mut self.unrecorded)).collect();
        self.recorded_rules = rules;
        changed
    }

    /// Returns what the record of an endpoint has.
    pub(crate) fn recorded(&self, endpoint: u16) -> RecordedNames {
        let rules = self.recorded_rules.get(&endpoint).cloned().unwrap_or_default();
        match self.names.history(endpoint) {
            Some(history) => record::names(history, rules),
            None => record::names(&History::default(), rules),
        }
    }

    fn note(&mut self, changes: Changes) {
        if changes.is_empty() {
            return;
        }
        self.changes += 1;
        self.pending.extend(changes.into_keys().map(|address| (address, self.changes)));
    }
}

/// Returns the labels of an address: those of its selectors, of the longest prefix that covers it, of its world, and of the
/// API server if it is one of `api_servers`.
pub(crate) fn labels_of(
    address: IpAddr,
    selectors: &BTreeSet<Selector>,
    prefixes: &BTreeSet<IpNetwork>,
    api_servers: &BTreeSet<IpNetwork>,
    families: [bool; 2],
) -> LabelArray {
    let server = api_servers.get(&address.into());
    let prefixes = prefixes.iter().chain(server);
    let covering = prefixes.filter(|prefix| prefix.contains(address));
    let longest = covering.max_by_key(|prefix| prefix.prefix());
    let world = match address {
        IpAddr::V4(_) => "0.0.0.0/0",
        IpAddr::V6(_) => "::/0",
    };
    let prefix = longest.copied().or_else(|| world.parse().ok());
    let of_prefix = prefix.map(|prefix| cidr_labels(prefix, families[0], families[1])).unwrap_or_default();
    let of_name = |key| LabelRef { key, value: "", source: FQDN };
    let names: BTreeSet<&str> = selectors.iter().map(Selector::label_key).collect();
    let of_server = server.map(|_| LabelRef { key: KUBE_APISERVER, value: "", source: RESERVED });
    names.into_iter().map(of_name).chain(of_prefix.iter()).chain(of_server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn answer(name: &str, address: &str, at: i64) -> Lookup {
        Lookup::new(name, vec![ip(address)], 60, time(at))
    }

    #[test]
    fn an_answer_waits_only_for_addresses_that_the_kernel_does_not_have() {
        let mut book = Book::new(Limits::default());
        book.set_selectors(&BTreeSet::from([Selector::pattern("*.a.io")]));
        assert_eq!(book.learn(7, answer("x.b.io", "192.0.2.9", 0)), None, "no policy selects the name");
        let change = book.learn(7, answer("x.a.io", "192.0.2.1", 0)).unwrap();
        let batch = book.batch();
        assert_eq!(batch.addresses.keys().copied().collect::<Vec<_>>(), [ip("192.0.2.1")]);
        assert_eq!(book.learn(8, answer("x.a.io", "192.0.2.1", 1)), Some(change), "it is being written");
        let later = book.learn(8, answer("y.a.io", "192.0.2.2", 1)).unwrap();
        assert!(later > batch.change);
        book.done(batch.change);
        assert_eq!(book.learn(7, answer("x.a.io", "192.0.2.1", 2)), None);
        assert!(book.has_pending(), "the other name's address");
        assert_eq!(book.batch().addresses.keys().copied().collect::<Vec<_>>(), [ip("192.0.2.2")]);
        book.done(later);
        assert_eq!(book.learn(7, answer("x.b.io", "192.0.2.8", 3)), None);
        assert!(!book.has_pending());
        assert_eq!(book.take_unrecorded(BTreeMap::new()), BTreeSet::from([7, 8]));
        let rules = BTreeMap::from([(9, Value::Null)]);
        assert_eq!(book.take_unrecorded(rules.clone()), BTreeSet::from([9]));
        assert_eq!(book.take_unrecorded(rules), BTreeSet::new());
    }

    #[global_allocator]
    static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

    #[test]
    fn ten_thousand_names_with_five_addresses_need_less_than_twelve_megabytes() {
        let allocated = || memory_limit::allocated().unwrap();
        let before = allocated();
        let mut book = Book::new(Limits::default());
        book.set_selectors(&BTreeSet::from([Selector::pattern("*.a.io")]));
        for number in 0..10_000_u32 {
            let addresses = (0..5).map(|last| IpAddr::from((0x0A00_0000 + number * 5 + last).to_be_bytes()));
            book.learn(7, Lookup::new(&format!("name-{number}.a.io"), addresses.collect(), 3600, time(0)));
        }
        let batch = book.batch();
        assert_eq!(batch.addresses.len(), 50_000);
        book.done(batch.change);
        drop(batch);
        let bytes = allocated() - before;
        assert!(bytes < 12_000_000, "{bytes}");
    }

    #[test]
    fn selectors_of_new_policies_select_known_names() {
        let mut book = Book::new(Limits::default());
        assert_eq!(book.learn(7, answer("x.a.io", "192.0.2.1", 0)), None);
        let selector = Selector::name("x.a.io");
        book.set_selectors(&BTreeSet::from([selector.clone()]));
        assert!(book.batch().addresses[&ip("192.0.2.1")].contains(&selector));
        book.done(book.batch().change);
        book.set_selectors(&BTreeSet::new());
        assert!(book.batch().addresses[&ip("192.0.2.1")].is_empty(), "the address goes");
    }

    #[test]
    fn an_expired_address_stays_as_long_as_it_has_a_connection() {
        let mut book = Book::new(Limits::default());
        book.set_selectors(&BTreeSet::from([Selector::name("a.io")]));
        book.learn(7, answer("a.io", "192.0.2.1", 0));
        book.done(book.batch().change);
        assert_eq!(book.collect(time(1000), |address| address == ip("192.0.2.1")), 0);
        assert!(book.batch().addresses.is_empty());
        assert_eq!(book.collect(time(2000), |_| false), 1);
        assert!(book.batch().addresses[&ip("192.0.2.1")].is_empty());
        book.learn(7, answer("a.io", "192.0.2.1", 3000));
        book.retain_endpoints(|_| false);
        assert!(book.batch().addresses[&ip("192.0.2.1")].is_empty(), "no endpoint has the name");
    }

    #[test]
    fn an_address_has_the_labels_of_names_world_and_longest_prefix() {
        let selectors = BTreeSet::from([Selector::name("a.io"), Selector::pattern("*.io")]);
        let prefixes = ["192.0.2.0/24", "192.0.0.0/16", "198.51.100.0/24"];
        let prefixes = prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect();
        let servers = BTreeSet::from(["192.0.2.9/32".parse().unwrap()]);
        let mut texts = labels_of(ip("192.0.2.1"), &selectors, &prefixes, &servers, [true, false]).texts();
        texts.sort();
        assert_eq!(texts, ["cidr:192.0.2.0/24", "fqdn:*.io", "fqdn:a.io", "reserved:world"]);
        let mut texts = labels_of(ip("192.0.2.9"), &selectors, &prefixes, &servers, [true, false]).texts();
        texts.sort();
        let expected =
            ["cidr:192.0.2.9/32", "fqdn:*.io", "fqdn:a.io", "reserved:kube-apiserver", "reserved:world"];
        assert_eq!(texts, expected, "of the API server, too");
        let labels = labels_of(ip("fd00::1"), &selectors, &prefixes, &servers, [true, true]);
        assert!(labels.has("reserved", "world-ipv6") && labels.has("fqdn", "a.io"));
    }
}
