//! Node ids: which node has which, and the entries of `cilium_node_map_v2` that follow. A pure core.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::model::Key;

/// A map entry to write, or to delete where there is no id.
pub(crate) type Write = (IpAddr, Option<u16>);

/// Node ids. Each node with addresses has one; ids of entries without a node are not free before they are pruned.
#[derive(Debug)]
pub(crate) struct NodeIds {
    /// The entries that the map should have.
    entries: BTreeMap<IpAddr, u16>,
    /// The number of entries with an id.
    uses: HashMap<u16, usize>,
    nodes: BTreeMap<Key, Assigned>,
    owners: HashMap<u16, Key>,
    /// Nodes that wait for an id.
    waiting: BTreeSet<Key>,
    random: u64,
}

#[derive(Debug, Default)]
struct Assigned {
    id: Option<u16>,
    ips: BTreeSet<IpAddr>,
}

impl NodeIds {
    /// Restores the entries of the map. Ids are chosen at random, beginning with this seed: those of the previous run may
    /// still be in packets and in the state of encryption.
    pub(crate) fn new(entries: BTreeMap<IpAddr, u16>, seed: u64) -> NodeIds {
        let mut uses = HashMap::new();
        for id in entries.values() {
            *uses.entry(*id).or_default() += 1;
        }
        NodeIds {
            entries,
            uses,
            nodes: BTreeMap::new(),
            owners: HashMap::new(),
            waiting: BTreeSet::new(),
            random: seed | 1,
        }
    }

    /// Returns the entries that the map should have.
    pub(crate) fn entries(&self) -> &BTreeMap<IpAddr, u16> {
        &self.entries
    }

    /// Returns the node's id.
    #[cfg(test)]
    fn id(&self, key: &Key) -> Option<u16> {
        self.nodes.get(key)?.id
    }

    /// Returns the number of nodes with an id.
    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    /// Returns the number of nodes that wait for a free id.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sets the addresses of a node.
    pub(crate) fn upsert(&mut self, key: &Key, ips: BTreeSet<IpAddr>) -> Vec<Write> {
        let Assigned { id, ips: before } = self.nodes.remove(key).unwrap_or_default();
        let id = id.or_else(|| self.restored(&ips)).or_else(|| self.free(&ips));
        let mut writes = Vec::new();
        if let Some(id) = id {
            self.owners.insert(id, key.clone());
            for ip in before.difference(&ips) {
                // Another node may have got the address in the meantime.
                if self.entries.get(ip) == Some(&id) {
                    self.set(*ip, None, &mut writes);
                }
            }
            for ip in &ips {
                self.set(*ip, Some(id), &mut writes);
            }
        }
        match id.is_none() && !ips.is_empty() {
            true => self.waiting.insert(key.clone()),
            false => self.waiting.remove(key),
        };
        self.nodes.insert(key.clone(), Assigned { id, ips });
        writes
    }

    /// Removes a node: its id is free again.
    pub(crate) fn delete(&mut self, key: &Key) -> Vec<Write> {
        let mut writes = Vec::new();
        self.waiting.remove(key);
        if let Some(Assigned { id: Some(id), ips }) = self.nodes.remove(key) {
            self.owners.remove(&id);
            for ip in ips {
                if self.entries.get(&ip) == Some(&id) {
                    self.set(ip, None, &mut writes);
                }
            }
            self.retry(&mut writes);
        }
        writes
    }

    /// Removes restored entries that no node has: all nodes are known.
    pub(crate) fn prune(&mut self) -> Vec<Write> {
        let known: BTreeSet<IpAddr> = self.nodes.values().flat_map(|node| &node.ips).copied().collect();
        let stale: Vec<IpAddr> = self.entries.keys().filter(|ip| !known.contains(ip)).copied().collect();
        let mut writes = Vec::new();
        stale.into_iter().for_each(|ip| self.set(ip, None, &mut writes));
        self.retry(&mut writes);
        writes
    }

    fn retry(&mut self, writes: &mut Vec<Write>) {
        for key in self.waiting.iter().cloned().collect::<Vec<_>>() {
            let ips = self.nodes.get(&key).map(|node| node.ips.clone()).unwrap_or_default();
            writes.extend(self.upsert(&key, ips));
            if self.waiting.contains(&key) {
                return;
            }
        }
    }

    fn set(&mut self, ip: IpAddr, id: Option<u16>, writes: &mut Vec<Write>) {
        let before = match id {
            Some(id) => self.entries.insert(ip, id),
            None => self.entries.remove(&ip),
        };
        if before == id {
            return;
        }
        if let Some(id) = id {
            *self.uses.entry(id).or_default() += 1;
        }
        if let Some(before) = before
            && let Entry::Occupied(mut uses) = self.uses.entry(before)
        {
            *uses.get_mut() -= 1;
            if *uses.get() == 0 {
                uses.remove();
            }
        }
        writes.push((ip, id));
    }

    /// Returns the id of the previous run: the only one of the node's addresses, unless another node has it.
    fn restored(&self, ips: &BTreeSet<IpAddr>) -> Option<u16> {
        let ids: BTreeSet<u16> = ips.iter().filter_map(|ip| self.entries.get(ip)).copied().collect();
        let mut ids = ids.into_iter().filter(|id| !self.owners.contains_key(id));
        match (ids.next(), ids.next()) {
            (Some(id), None) if id != 0 => Some(id),
            _ => None,
        }
    }

    /// Returns a free id; none if all are in use, or for a node without addresses.
    fn free(&mut self, ips: &BTreeSet<IpAddr>) -> Option<u16> {
        if ips.is_empty() {
            return None;
        }
        // xorshift64: the choice need not be secret.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let first = u16::try_from(self.random % u64::from(u16::MAX)).unwrap_or_default() + 1;
        let ids = (first..=u16::MAX).chain(1..first);
        ids.into_iter().find(|id| !self.owners.contains_key(id) && !self.uses.contains_key(id))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> Key {
        ("default".into(), name.into())
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn ips(last: &[u8]) -> BTreeSet<IpAddr> {
        last.iter().map(|last| ip(*last)).collect()
    }

    fn restored(entries: &[(u8, u16)]) -> NodeIds {
        NodeIds::new(entries.iter().map(|(last, id)| (ip(*last), *id)).collect(), 42)
    }

    #[test]
    fn the_id_is_kept_and_follows_the_addresses() {
        let mut ids = restored(&[(1, 7), (2, 7), (9, 1)]);
        assert_eq!(ids.upsert(&key("a"), ips(&[2, 3])), [(ip(3), Some(7))]);
        assert_eq!(ids.upsert(&key("a"), ips(&[3])), [(ip(2), None)]);
        assert_eq!(ids.upsert(&key("a"), ips(&[3])), []);
        assert_eq!(ids.prune(), [(ip(1), None), (ip(9), None)], "entries of no node go when all are known");
        assert_eq!(ids.delete(&key("a")), [(ip(3), None)]);
        assert!(ids.entries().is_empty() && ids.uses.is_empty() && ids.owners.is_empty());
    }

    #[test]
    fn contradictions_of_the_map_are_allocated_anew() {
        // Two ids on one node.
        let mut ids = restored(&[(1, 7), (2, 8)]);
        ids.upsert(&key("a"), ips(&[1, 2]));
        let id = ids.id(&key("a")).unwrap();
        assert!(id != 7 && id != 8);
        assert_eq!(ids.entries(), &BTreeMap::from([(ip(1), id), (ip(2), id)]));
        // One id on two nodes.
        let mut ids = restored(&[(1, 7), (2, 7)]);
        ids.upsert(&key("a"), ips(&[1]));
        ids.upsert(&key("b"), ips(&[2]));
        assert_eq!(ids.id(&key("a")), Some(7));
        assert!(ids.id(&key("b")).is_some_and(|id| id != 7));
        // The id that no node may have.
        let mut ids = restored(&[(1, 0)]);
        ids.upsert(&key("a"), ips(&[1]));
        assert!(ids.id(&key("a")).is_some_and(|id| id > 0));
    }

    #[test]
    fn an_address_moves_in_either_order_of_events() {
        for first_loses in [true, false] {
            let mut ids = restored(&[]);
            ids.upsert(&key("a"), ips(&[1, 9]));
            ids.upsert(&key("b"), ips(&[2]));
            let (lost, got) = (ips(&[1]), ips(&[2, 9]));
            match first_loses {
                true => drop((ids.upsert(&key("a"), lost), ids.upsert(&key("b"), got))),
                false => drop((ids.upsert(&key("b"), got), ids.upsert(&key("a"), lost))),
            }
            assert_eq!(ids.entries().get(&ip(9)).copied(), ids.id(&key("b")));
            assert_ne!(ids.id(&key("a")), ids.id(&key("b")));
        }
    }

    #[test]
    fn a_node_without_a_free_id_gets_the_next_one() {
        let all = (1..=u16::MAX).map(|id| (IpAddr::from([172, 16, (id >> 8) as u8, id as u8]), id));
        let mut ids = NodeIds::new(all.collect(), 42);
        assert_eq!((ids.upsert(&key("a"), ips(&[1])), ids.waiting()), (vec![], 1));
        ids.upsert(&key("b"), BTreeSet::from([[172, 16, 0, 5].into()]));
        assert_eq!((ids.id(&key("b")), ids.waiting()), (Some(5), 1));
        let writes = ids.delete(&key("b"));
        assert_eq!(writes, [([172, 16, 0, 5].into(), None), (ip(1), Some(5))]);
        assert_eq!((ids.id(&key("a")), ids.waiting()), (Some(5), 0));
        ids.upsert(&key("c"), ips(&[2]));
        assert_eq!(ids.waiting(), 1);
        ids.prune();
        assert_eq!((ids.waiting(), ids.len()), (0, 2));
    }

    proptest! {
        /// In any order of events each node has an id of its own at each of its addresses, and the writes lead there.
        #[test]
        fn any_order_gives_each_node_an_id_of_its_own(
            before in prop::collection::btree_map(0..6u8, 0..4u16, 0..4),
            events in prop::collection::vec((0..4u8, prop::option::of(0..2u8), any::<bool>()), 0..30),
        ) {
            let before: BTreeMap<IpAddr, u16> = before.into_iter().map(|(last, id)| (ip(last), id)).collect();
            let (mut ids, mut kernel) = (NodeIds::new(before.clone(), 42), before);
            let mut nodes: BTreeMap<Key, BTreeSet<IpAddr>> = BTreeMap::new();
            let apply = |writes: Vec<Write>, kernel: &mut BTreeMap<IpAddr, u16>| {
                for (ip, id) in writes {
                    match id {
                        Some(id) => kernel.insert(ip, id),
                        None => kernel.remove(&ip),
                    };
                }
            };
            for (node, upsert, prune) in events {
                let name = key(&node.to_string());
                match upsert {
                    Some(second) => {
                        // Addresses of nodes are disjoint, as rows are.
                        let own: BTreeSet<IpAddr> = [node, 10 + node * 2 + second].map(ip).into();
                        apply(ids.upsert(&name, own.clone()), &mut kernel);
                        nodes.insert(name, own);
                    }
                    None => {
                        apply(ids.delete(&name), &mut kernel);
                        nodes.remove(&name);
                    }
                }
                if prune {
                    apply(ids.prune(), &mut kernel);
                }
                let mut seen = BTreeSet::new();
                for (name, own) in &nodes {
                    let id = ids.id(name).unwrap();
                    prop_assert!(id > 0 && seen.insert(id));
                    prop_assert!(own.iter().all(|ip| kernel.get(ip) == Some(&id)));
                }
                prop_assert_eq!(&kernel, ids.entries());
            }
            apply(ids.prune(), &mut kernel);
            prop_assert_eq!(kernel.len(), nodes.values().map(BTreeSet::len).sum::<usize>());
        }
    }
}
