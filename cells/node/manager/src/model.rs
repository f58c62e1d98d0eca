//! The nodes as their sources declare them, and the rows that follow: a pure core.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::claims::{Claims, NodeIndex, Rank};
use crate::node::Node;
use crate::source::NodeSource;

/// The cluster and the name of a node.
pub(crate) type Key = (Arc<str>, Arc<str>);

/// A change that a source reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The node is new or has changed.
    Upsert(Node),
    /// The source has deleted the node.
    Delete(Key, NodeSource),
}

/// Rows to write, none where a row is to be deleted.
pub(crate) type Rows = BTreeMap<Key, Option<Node>>;

/// All nodes with their claims on addresses and ranges.
#[derive(Debug, Default)]
pub(crate) struct Model {
    nodes: HashMap<NodeIndex, Arc<Node>>,
    indexes: HashMap<Key, NodeIndex>,
    addresses: Claims,
    ranges: Claims,
    /// Nodes of which a claim is withheld.
    conflicts: BTreeSet<NodeIndex>,
    last_index: NodeIndex,
    last_rank: u64,
}

/// An address or range of a node that it does not get.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Conflict {
    pub(crate) node: String,
    pub(crate) prefix: IpNetwork,
    /// The node that has it.
    pub(crate) holder: String,
    pub(crate) is_range: bool,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, prefix, holder, is_range } = self;
        match is_range {
            true => write!(f, "{node}: pod range {prefix} overlaps one of {holder}"),
            false => write!(f, "{node}: {} is an address of {holder}", prefix.ip()),
        }
    }
}

impl Model {
    /// Applies events in order. Returns the rows that have changed.
    pub(crate) fn apply(&mut self, events: impl IntoIterator<Item = Event>) -> Rows {
        let mut rows = Rows::new();
        let mut touched = BTreeSet::new();
        for event in events {
            match event {
                Event::Upsert(node) => self.upsert(node, &mut touched),
                Event::Delete(key, source) => self.delete(&key, source, &mut touched, &mut rows),
            }
        }
        for index in touched {
            if let Some(node) = self.nodes.get(&index).cloned() {
                let row = self.row(index, &node);
                match row == *node {
                    true => self.conflicts.remove(&index),
                    false => self.conflicts.insert(index),
                };
                rows.insert(key(&node), Some(row));
            }
        }
        rows
    }

    /// Returns the keys of the nodes of a source.
    pub(crate) fn of_source(&self, source: NodeSource) -> Vec<Key> {
        let mut keys: Vec<Key> =
            self.nodes.values().filter(|node| node.source == source).map(|node| key(node)).collect();
        keys.sort();
        keys
    }

    /// Whether a node claims the address.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.has(address.into())
    }

    /// Whether the local node has one of these addresses.
    pub(crate) fn is_local_with(&self, wanted: &BTreeSet<IpAddr>) -> bool {
        let mut local = self.nodes.values().filter(|node| node.is_local());
        local.any(|node| node.addresses.iter().any(|address| wanted.contains(&address.ip)))
    }

    /// Returns the rows of the nodes with one of these addresses.
    pub(crate) fn with_addresses(&self, wanted: &BTreeSet<IpAddr>) -> Rows {
        let has_one = |node: &Node| node.addresses.iter().any(|address| wanted.contains(&address.ip));
        let nodes = self.nodes.iter().filter(|(_, node)| has_one(node));
        nodes.map(|(index, node)| (key(node), Some(self.row(*index, node)))).collect()
    }

    /// Returns the number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is a node of this name, and its source.
    pub(crate) fn source(&self, key: &Key) -> Option<NodeSource> {
        Some(self.nodes.get(self.indexes.get(key)?)?.source)
    }

    /// Returns what nodes do not get because others have it, in the order of their names.
    pub(crate) fn conflicts(&self) -> Vec<Conflict> {
        let mut found = Vec::new();
        let name = |index: NodeIndex| self.nodes.get(&index).map(|node| node.full_name()).unwrap_or_default();
        for &index in &self.conflicts {
            let Some(node) = self.nodes.get(&index) else { continue };
            let mut add = |claims: &Claims, prefix: IpNetwork, is_range| {
                if let Some(holder) = claims.holder(prefix, index) {
                    found.push(Conflict { node: node.full_name(), prefix, holder: name(holder), is_range });
                }
            };
            addresses(node).into_iter().for_each(|prefix| add(&self.addresses, prefix, false));
            ranges(node).into_iter().for_each(|prefix| add(&self.ranges, prefix, true));
        }
        found.sort();
        found
    }

    fn upsert(&mut self, node: Node, touched: &mut BTreeSet<NodeIndex>) {
        let key = key(&node);
        let index = match self.indexes.get(&key) {
            Some(&index) => index,
            None => {
                self.last_index += 1;
                self.indexes.insert(key, self.last_index);
                self.last_index
            }
        };
        let before = self.nodes.get(&index);
        if before.is_some_and(|before| before.source > node.source || **before == node) {
            return;
        }
        touched.insert(index);
        let (old_addresses, old_ranges) =
            before.map(|before| (addresses(before), ranges(before))).unwrap_or_default();
        self.last_rank += 1;
        let rank = (!node.is_local(), self.last_rank);
        // A node that becomes the local one gets its claims again, with the rank of the local node.
        let again = before.is_some_and(|before| before.is_local() != node.is_local());
        replace(&mut self.addresses, index, rank, again, &old_addresses, &addresses(&node), touched);
        replace(&mut self.ranges, index, rank, again, &old_ranges, &ranges(&node), touched);
        self.nodes.insert(index, Arc::new(node));
    }

    fn delete(&mut self, key: &Key, source: NodeSource, touched: &mut BTreeSet<NodeIndex>, rows: &mut Rows) {
        let Some(&index) = self.indexes.get(key) else { return };
        if self.nodes.get(&index).is_none_or(|node| node.source > source) {
            return;
        }
        let Some(node) = self.nodes.remove(&index) else { return };
        self.indexes.remove(key);
        self.conflicts.remove(&index);
        let rank = (true, 0);
        replace(&mut self.addresses, index, rank, false, &addresses(&node), &BTreeSet::new(), touched);
        replace(&mut self.ranges, index, rank, false, &ranges(&node), &BTreeSet::new(), touched);
        rows.insert(key.clone(), None);
    }

    /// Returns the node with the addresses and ranges that it has been granted.
    fn row(&self, index: NodeIndex, node: &Node) -> Node {
        let has = |ip: IpAddr| self.addresses.is_granted(ip.into(), index);
        let mut row = node.clone();
        row.addresses.retain(|address| has(address.ip));
        row.pod_cidrs.retain(|range| self.ranges.is_granted(*range, index));
        row.health_ipv4 = row.health_ipv4.filter(|ip| has((*ip).into()));
        row.health_ipv6 = row.health_ipv6.filter(|ip| has((*ip).into()));
        row.ingress_ipv4 = row.ingress_ipv4.filter(|ip| has((*ip).into()));
        row.ingress_ipv6 = row.ingress_ipv6.filter(|ip| has((*ip).into()));
        row
    }
}

/// Replaces the claims of a node; those that stay keep their rank.
fn replace(
    claims: &mut Claims,
    node: NodeIndex,
    rank: Rank,
    again: bool,
    before: &BTreeSet<IpNetwork>,
    after: &BTreeSet<IpNetwork>,
    touched: &mut BTreeSet<NodeIndex>,
) {
    for prefix in before.iter().filter(|prefix| again || !after.contains(prefix)) {
        touched.extend(claims.remove(*prefix, node));
    }
    for prefix in after.iter().filter(|prefix| again || !before.contains(prefix)) {
        touched.extend(claims.add(*prefix, node, rank));
    }
}

pub(crate) fn key(node: &Node) -> Key {
    (node.cluster.clone(), node.name.clone())
}

fn addresses(node: &Node) -> BTreeSet<IpNetwork> {
    node.all_addresses().map(IpNetwork::from).collect()
}

fn ranges(node: &Node) -> BTreeSet<IpNetwork> {
    node.pod_cidrs.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::node;

    fn local(name: &str, ips: &[&str], cidrs: &[&str]) -> Node {
        Node { source: NodeSource::Local, ..node(name, ips, cidrs) }
    }

    fn named(name: &str) -> Key {
        ("default".into(), name.into())
    }

    fn names(rows: &Rows) -> Vec<&str> {
        rows.keys().map(|(_, name)| &**name).collect()
    }

    fn texts(model: &Model) -> Vec<String> {
        model.conflicts().iter().map(Conflict::to_string).collect()
    }

    #[test]
    fn one_change_is_one_row() {
        let mut model = Model::default();
        let named_node = |n: u32| {
            let (high, low) = (n / 256, n % 256);
            let ips = [format!("192.168.{high}.{low}"), format!("fd00::{n:x}")];
            node(&format!("n{n}"), &[&ips[0], &ips[1]], &[&format!("10.{high}.{low}.0/24")])
        };
        assert_eq!(model.apply((0..5000).map(named_node).map(Event::Upsert)).len(), 5000);
        assert!(model.apply([Event::Upsert(named_node(7))]).is_empty());
        let changed = node("n7", &["192.168.0.7", "198.51.100.7"], &["10.0.7.0/24"]);
        assert_eq!(names(&model.apply([Event::Upsert(changed)])), ["n7"]);
        let gone = model.apply([Event::Delete(named("n7"), NodeSource::CustomResource)]);
        assert_eq!(gone, Rows::from([(named("n7"), None)]));
    }

    #[test]
    fn a_weaker_source_changes_nothing() {
        let mut model = Model::default();
        model.apply([Event::Upsert(local("n1", &["192.0.2.1"], &[]))]);
        assert!(model.apply([Event::Upsert(node("n1", &["192.0.2.66"], &[]))]).is_empty());
        assert!(model.apply([Event::Delete(named("n1"), NodeSource::CustomResource)]).is_empty());
        let restored = Node { source: NodeSource::Restored, ..node("n2", &["192.0.2.2"], &[]) };
        model.apply([Event::Upsert(restored)]);
        let rows = model.apply([Event::Upsert(node("n2", &["192.0.2.2"], &[]))]);
        assert_eq!(rows[&named("n2")].as_ref().map(|node| node.source), Some(NodeSource::CustomResource));
        assert!(model.apply([Event::Delete(named("n2"), NodeSource::Restored)]).is_empty());
    }

    #[test]
    fn an_address_moves_in_either_order_of_events() {
        for add_first in [true, false] {
            let mut model = Model::default();
            let (a, b) = (node("a", &["192.0.2.1", "192.0.2.9"], &[]), node("b", &["192.0.2.2"], &[]));
            model.apply([Event::Upsert(a), Event::Upsert(b)]);
            let gets = Event::Upsert(node("b", &["192.0.2.2", "192.0.2.9"], &[]));
            let loses = Event::Upsert(node("a", &["192.0.2.1"], &[]));
            match add_first {
                true => {
                    let rows = model.apply([gets]);
                    assert_eq!(rows[&named("b")], Some(node("b", &["192.0.2.2"], &[])), "still of a");
                    assert_eq!(texts(&model), ["b: 192.0.2.9 is an address of a"]);
                    let rows = model.apply([loses]);
                    assert_eq!(names(&rows), ["a", "b"]);
                    assert_eq!(rows[&named("b")], Some(node("b", &["192.0.2.2", "192.0.2.9"], &[])));
                }
                false => {
                    model.apply([loses]);
                    assert_eq!(names(&model.apply([gets])), ["b"]);
                }
            }
            assert!(model.conflicts().is_empty());
        }
    }

    /// A node that claims addresses and ranges of all others gets what is left, and the others keep theirs.
    #[test]
    fn a_node_that_lies_changes_no_other_node() {
        let mut model = Model::default();
        model.apply([
            Event::Upsert(local("n1", &["192.0.2.1"], &["10.0.1.0/24"])),
            Event::Upsert(node("n2", &["192.0.2.2"], &["10.0.2.0/24"])),
        ]);
        let mut liar =
            node("evil", &["192.0.2.1", "192.0.2.2", "192.0.2.3"], &["10.0.0.0/16", "10.0.2.128/25"]);
        liar.health_ipv4 = Some([192, 0, 2, 2].into());
        liar.ingress_ipv4 = Some([192, 0, 2, 1].into());
        let rows = model.apply([Event::Upsert(liar)]);
        assert_eq!(rows, Rows::from([(named("evil"), Some(node("evil", &["192.0.2.3"], &[])))]));
        assert_eq!(
            texts(&model),
            [
                "evil: pod range 10.0.0.0/16 overlaps one of n1",
                "evil: pod range 10.0.2.128/25 overlaps one of n2",
                "evil: 192.0.2.1 is an address of n1",
                "evil: 192.0.2.2 is an address of n2",
            ]
        );
        let rows = model.apply([Event::Delete(named("n2"), NodeSource::CustomResource)]);
        assert_eq!(names(&rows), ["evil", "n2"]);
        assert_eq!(model.conflicts().len(), 2);
    }

    #[test]
    fn the_local_node_has_its_addresses_whoever_was_first() {
        let mut model = Model::default();
        model.apply([Event::Upsert(node("n2", &["192.0.2.1"], &["10.0.0.0/16"]))]);
        let rows = model.apply([Event::Upsert(local("n1", &["192.0.2.1"], &["10.0.1.0/24"]))]);
        assert_eq!(rows[&named("n1")], Some(local("n1", &["192.0.2.1"], &["10.0.1.0/24"])));
        assert_eq!(rows[&named("n2")], Some(node("n2", &[], &[])));
    }

    fn event() -> impl Strategy<Value = Event> {
        let ips = prop::collection::vec(1..6u8, 0..3);
        let ranges = prop::collection::vec((0..4u8, 24..=26u8), 0..2);
        (0..4u8, 0..3u8, ips, ranges, 0..4u8).prop_map(|(name, source, ips, ranges, kind)| {
            let source =
                [NodeSource::Restored, NodeSource::CustomResource, NodeSource::Local][usize::from(source)];
            if kind == 0 {
                return Event::Delete(named(&name.to_string()), source);
            }
            let ips: Vec<String> = ips.iter().map(|ip| format!("192.0.2.{ip}")).collect();
            let ranges: Vec<String> =
                ranges.iter().map(|(net, bits)| format!("10.0.{}.0/{bits}", net / 2)).collect();
            let refs = |texts: &[String]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
            let (ips, ranges) = (refs(&ips), refs(&ranges));
            let (ips, ranges): (Vec<&str>, Vec<&str>) =
                (ips.iter().map(String::as_str).collect(), ranges.iter().map(String::as_str).collect());
            Event::Upsert(Node { source, ..node(&name.to_string(), &ips, &ranges) })
        })
    }

    proptest! {
        /// Any order of events, in batches of any size, gives the rows of a model that computes all of them.
        #[test]
        fn any_order_gives_the_rows_of_a_naive_model(events in prop::collection::vec(event(), 0..40), batch in 1..5usize) {
            let mut model = Model::default();
            let mut table: BTreeMap<Key, Node> = BTreeMap::new();
            let mut naive = Naive::default();
            for events in events.chunks(batch) {
                for (key, row) in model.apply(events.iter().cloned()) {
                    match row {
                        Some(row) => table.insert(key, row),
                        None => table.remove(&key),
                    };
                }
                events.iter().for_each(|event| naive.apply(event));
            }
            for (key, node) in &naive.declared {
                let has = |prefix, range| naive.granted.contains(&(key.clone(), prefix, range));
                let mut expected = node.clone();
                expected.addresses.retain(|address| has(address.ip.into(), false));
                expected.pod_cidrs.retain(|range| has(*range, true));
                prop_assert_eq!(table.get(key), Some(&expected));
            }
            prop_assert_eq!(table.len(), naive.declared.len());
            prop_assert_eq!(model.len(), naive.declared.len());
            prop_assert_eq!(model.conflicts().len(), naive.since.len() - naive.granted.len());
        }
    }

    /// A claim of a node on a range, or on an address.
    type Claimed = (Key, IpNetwork, bool);

    /// Computes all claims after each step.
    #[derive(Default)]
    struct Naive {
        declared: BTreeMap<Key, Node>,
        /// The rank of each claim.
        since: BTreeMap<Claimed, Rank>,
        granted: BTreeSet<Claimed>,
        time: u64,
    }

    impl Naive {
        fn apply(&mut self, event: &Event) {
            match event {
                Event::Upsert(node) => {
                    let key = key(node);
                    let before = self.declared.insert(key.clone(), node.clone());
                    if let Some(before) = before.clone().filter(|before| before.source > node.source) {
                        self.declared.insert(key, before);
                        return;
                    }
                    let again = before.is_some_and(|before| before.is_local() != node.is_local());
                    self.replace(&key, again, node.clone());
                }
                Event::Delete(key, source) => {
                    if self.declared.get(key).is_some_and(|node| node.source <= *source) {
                        self.replace(key, false, Node::default());
                        self.declared.remove(key);
                    }
                }
            }
        }

        fn replace(&mut self, key: &Key, again: bool, node: Node) {
            self.time += 1;
            for (range, after) in [(false, addresses(&node)), (true, ranges(&node))] {
                let own: Vec<Claimed> =
                    self.since.keys().filter(|claim| claim.0 == *key && claim.2 == range).cloned().collect();
                for claim in own.iter().filter(|claim| again || !after.contains(&claim.1)) {
                    self.since.remove(claim);
                    self.grant();
                }
                for prefix in after {
                    self.since.entry((key.clone(), prefix, range)).or_insert((!node.is_local(), self.time));
                    self.grant();
                }
            }
        }

        fn grant(&mut self) {
            let before = std::mem::take(&mut self.granted);
            let mut ordered: Vec<_> = self.since.iter().collect();
            ordered.sort_by_key(|(claim, rank)| (rank.0, !before.contains(*claim), rank.1));
            for (claim, _) in ordered {
                let overlaps = |other: &Claimed| {
                    let contains = other.1.contains(claim.1.ip()) || claim.1.contains(other.1.ip());
                    other.0 != claim.0 && other.2 == claim.2 && contains
                };
                if !self.granted.iter().any(overlaps) {
                    self.granted.insert(claim.clone());
                }
            }
        }
    }
}
