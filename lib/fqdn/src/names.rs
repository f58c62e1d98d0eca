//! The names of all endpoints, and the selectors of policies that select their addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use crate::cache::Cache;
use crate::history::History;
use crate::index::Index;
use crate::lookup::{Limits, Lookup};
use crate::pattern::Pattern;

/// A selector of a policy: a name or a pattern, as written. Two spellings are two selectors, each with its own label.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    /// The name; empty if there is a pattern.
    pub match_name: String,
    /// The pattern.
    pub match_pattern: String,
}

impl Selector {
    /// Returns the selector of a name.
    pub fn name(name: &str) -> Selector {
        Selector { match_name: name.to_owned(), ..Selector::default() }
    }

    /// Returns the selector of a pattern.
    pub fn pattern(pattern: &str) -> Selector {
        Selector { match_pattern: pattern.to_owned(), ..Selector::default() }
    }

    /// Returns the key of the label of the addresses, with the source `fqdn`.
    pub fn label_key(&self) -> &str {
        if self.match_name.is_empty() { &self.match_pattern } else { &self.match_name }
    }

    /// Returns the text of the selector in the API.
    pub fn text(&self) -> String {
        format!("MatchName: {}, MatchPattern: {}", self.match_name, self.match_pattern)
    }

    /// Returns the pattern that names are compared with; `None` if the selector is empty.
    pub fn compiled(&self) -> Option<Pattern> {
        (!self.label_key().is_empty()).then(|| Pattern::parse(self.label_key()))
    }
}

/// The selectors of addresses, for addresses where they have changed; none if the address belongs to no name of a
/// selector any more.
pub type Changes = BTreeMap<IpAddr, Arc<BTreeSet<Selector>>>;

/// The histories of all endpoints, and the selectors of each address. A selector selects the addresses of all endpoints:
/// the identity of an address is the same for all of them.
#[derive(Debug)]
pub struct Names {
    limits: Limits,
    histories: BTreeMap<u16, History>,
    /// The pairs of all histories.
    all: Index,
    /// Selectors without a star, by canonical name.
    exact: HashMap<String, BTreeSet<Selector>>,
    patterns: BTreeMap<Selector, Pattern>,
    /// The addresses with at least one selector. Equal sets are shared.
    selected: HashMap<IpAddr, Arc<BTreeSet<Selector>>>,
    sets: BTreeSet<Arc<BTreeSet<Selector>>>,
}

impl Names {
    /// Returns an object without names and selectors.
    pub fn new(limits: Limits) -> Names {
        Names {
            limits,
            histories: BTreeMap::new(),
            all: Index::default(),
            exact: HashMap::new(),
            patterns: BTreeMap::new(),
            selected: HashMap::new(),
            sets: BTreeSet::new(),
        }
    }

    /// Returns the names of all endpoints together.
    pub fn all(&self) -> &Index {
        &self.all
    }

    /// Returns the lookups of all endpoints together, and the times of names that only connections keep. Linear in the
    /// number of all names.
    pub fn lookups(&self) -> Vec<Lookup> {
        let mut all = Cache::default();
        for history in self.histories.values() {
            for lookup in history.cache().lookups() {
                all.insert(&lookup);
            }
        }
        for zombie in self.histories.values().flat_map(|history| history.zombies().iter()) {
            for name in zombie
                .names
                .iter()
                .filter(|name| !all.contains(name, zombie.address))
                .cloned()
                .collect::<Vec<_>>()
            {
                all.insert(&Lookup {
                    name,
                    lookup_time: zombie.alive_at,
                    expiration_time: zombie.delete_pending_at,
                    ttl: 0,
                    addresses: vec![zombie.address],
                });
            }
        }
        all.lookups()
    }

    /// Iterates over the histories, by endpoint.
    pub fn histories(&self) -> impl Iterator<Item = (u16, &History)> {
        self.histories.iter().map(|(endpoint, history)| (*endpoint, history))
    }

    /// Returns the history of an endpoint.
    pub fn history(&self, endpoint: u16) -> Option<&History> {
        self.histories.get(&endpoint)
    }

    /// Returns all selectors, in order.
    pub fn selectors(&self) -> BTreeSet<Selector> {
        self.exact.values().flatten().chain(self.patterns.keys()).cloned().collect()
    }

    /// Returns the selectors of an address; `None` without any.
    pub fn selectors_of(&self, address: IpAddr) -> Option<&Arc<BTreeSet<Selector>>> {
        self.selected.get(&address)
    }

    /// Returns all addresses with selectors.
    pub fn selected(&self) -> Changes {
        self.selected.iter().map(|(address, selectors)| (*address, selectors.clone())).collect()
    }

    /// Adds a selector. Names that were looked up before count.
    pub fn select(&mut self, selector: Selector) -> Changes {
        let Some(pattern) = selector.compiled() else { return Changes::new() };
        match pattern.text().contains('*') {
            true => drop(self.patterns.insert(selector, pattern.clone())),
            false => drop(self.exact.entry(pattern.text().to_owned()).or_default().insert(selector)),
        }
        self.refresh_matching(&pattern)
    }

    /// Removes a selector; an unknown one changes nothing.
    pub fn deselect(&mut self, selector: &Selector) -> Changes {
        let Some(pattern) = selector.compiled() else { return Changes::new() };
        self.patterns.remove(selector);
        if let Some(selectors) = self.exact.get_mut(pattern.text()) {
            selectors.remove(selector);
            if selectors.is_empty() {
                self.exact.remove(pattern.text());
            }
        }
        self.refresh_matching(&pattern)
    }

    /// Inserts a lookup of an endpoint.
    pub fn insert(&mut self, endpoint: u16, lookup: Lookup) -> Changes {
        let new = self.all.insert(&lookup.name, &lookup.addresses);
        let mut changes = Changes::new();
        // Only the name is matched: an address may have thousands of others.
        let of_name = if new.is_empty() { BTreeSet::new() } else { self.matching(&lookup.name) };
        let history = self.histories.entry(endpoint).or_default();
        let evicted = history.insert(lookup, &self.limits);
        for address in new {
            let old = self.selected.get(&address);
            if old.is_some_and(|old| of_name.is_subset(old)) {
                continue;
            }
            let selectors = old.into_iter().flat_map(|old| old.iter()).chain(&of_name).cloned().collect();
            self.set_selectors(address, selectors, &mut changes);
        }
        if !evicted.is_empty() {
            changes.extend(self.prune(&evicted.into_iter().map(|(name, _)| name).collect()));
        }
        changes
    }

    /// Adds the history of an endpoint of the previous run.
    pub fn restore(&mut self, endpoint: u16, history: History) -> Changes {
        let mut new = Vec::new();
        for lookup in history.cache().lookups() {
            new.extend(self.all.insert(&lookup.name, &lookup.addresses));
        }
        for zombie in history.zombies().iter() {
            for name in &zombie.names {
                new.extend(self.all.insert(name, &[zombie.address]));
            }
        }
        self.histories.insert(endpoint, history);
        self.refresh(new)
    }

    /// Removes an endpoint with its names.
    pub fn remove_endpoint(&mut self, endpoint: u16) -> Changes {
        let Some(history) = self.histories.remove(&endpoint) else { return Changes::new() };
        self.prune(&history.names())
    }

    /// Expires lookups of all endpoints and removes names without a connection. `has_connection` returns whether an
    /// endpoint has one to an address. Returns the changes, and the number of names that have lost an
    /// address.
    pub fn collect(
        &mut self,
        now: Timestamp,
        has_connection: impl Fn(u16, IpAddr) -> bool,
    ) -> (Changes, usize) {
        let mut names = BTreeSet::new();
        for (&endpoint, history) in &mut self.histories {
            let removed = history.collect(now, &self.limits, |address| has_connection(endpoint, address));
            names.extend(removed.into_iter().map(|(name, _)| name));
        }
        let changes = self.prune(&names);
        self.sets.retain(|set| Arc::strong_count(set) > 1);
        (changes, names.len())
    }

    /// Removes the names that match from all histories, all names without a pattern.
    pub fn clear(&mut self, pattern: Option<&Pattern>) -> Changes {
        let names = self.histories.values_mut().flat_map(|history| history.clear(pattern)).collect();
        self.prune(&names)
    }

    /// Removes the pairs of names that no history has any more.
    fn prune(&mut self, names: &BTreeSet<Arc<str>>) -> Changes {
        // Once for each address: many of the names may have the same one.
        let mut removed = BTreeSet::new();
        for name in names {
            let addresses: Vec<IpAddr> = self.all.addresses(name).collect();
            let is_unused =
                |address: &IpAddr| !self.histories.values().any(|history| history.contains(name, *address));
            for address in addresses.into_iter().filter(is_unused).collect::<Vec<_>>() {
                self.all.remove(name, address);
                removed.insert(address);
            }
        }
        self.refresh(removed)
    }

    fn refresh_matching(&mut self, pattern: &Pattern) -> Changes {
        let names = self.all.names().filter(|name| pattern.matches(name));
        let addresses = names.flat_map(|name| self.all.addresses(name)).collect::<BTreeSet<_>>();
        self.refresh(addresses)
    }

    /// Computes the selectors of addresses again. Returns those that have changed.
    fn refresh(&mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Changes {
        let mut changes = Changes::new();
        for address in addresses {
            let selectors = self.all.names_of(address).flat_map(|name| self.matching(name)).collect();
            self.set_selectors(address, selectors, &mut changes);
        }
        changes
    }

    /// Returns the selectors that a name matches.
    fn matching(&self, name: &str) -> BTreeSet<Selector> {
        let exact = self.exact.get(name).into_iter().flatten();
        let patterns = self.patterns.iter().filter(|(_, pattern)| pattern.matches(name));
        exact.chain(patterns.map(|(selector, _)| selector)).cloned().collect()
    }

    fn set_selectors(&mut self, address: IpAddr, selectors: BTreeSet<Selector>, changes: &mut Changes) {
        let is_same = match self.selected.get(&address) {
            Some(old) => **old == selectors,
            None => selectors.is_empty(),
        };
        if is_same {
            return;
        }
        let selectors = match self.sets.get(&selectors) {
            Some(set) => set.clone(),
            None => {
                let set = Arc::new(selectors);
                self.sets.insert(set.clone());
                set
            }
        };
        match selectors.is_empty() {
            true => drop(self.selected.remove(&address)),
            false => drop(self.selected.insert(address, selectors.clone())),
        }
        changes.insert(address, selectors);
    }
}
