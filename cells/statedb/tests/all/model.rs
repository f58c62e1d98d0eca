//! Any order of transactions has the same result as on a pair of plain maps, old snapshots do not change, and no watch
//! misses a change.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

use crate::rows::*;
use proptest::prelude::*;
use statedb::{Db, KeyRange, Query, ReadSource, RwTable, Snapshot, Table, Watch};

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    pods: BTreeMap<u8, (Pod, u64)>,
    pods_revision: u64,
    services: BTreeMap<String, Service>,
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Pod),
    Update(u8, String),
    Modify(Pod),
    Delete(u8),
    DeleteByNode(String),
    Cas(bool, Pod),
    RetainBelow(u8),
    Service(Service),
    DeleteService(String),
}

#[derive(Clone, Debug)]
enum Step {
    Txn { ops: Vec<Op>, commit: bool },
    Hold,
    Watch(Asked),
}

#[derive(Clone, Debug)]
enum Asked {
    Pod(u8),
    Node(String),
    Prefix(String),
    From(u8),
    Ids(Bounds<u8>),
    Nodes(Bounds<String>),
    All,
    Service(u8),
}

type Bounds<K> = (Bound<K>, Bound<K>);

fn bounds<K: Clone + std::fmt::Debug>(
    key: impl Strategy<Value = K> + Clone,
) -> impl Strategy<Value = Bounds<K>> {
    let bound = prop_oneof![
        2 => key.clone().prop_map(Bound::Included),
        2 => key.prop_map(Bound::Excluded),
        1 => Just(Bound::Unbounded)
    ];
    (bound.clone(), bound)
}

fn node() -> impl Strategy<Value = String> + Clone {
    "[ab]{0,2}"
}

fn a_pod() -> impl Strategy<Value = Pod> {
    (0..8u8, node(), prop::collection::vec(0..4u16, 0..3))
        .prop_map(|(id, node, ports)| pod(id, &node, &ports))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => a_pod().prop_map(Op::Insert),
        1 => (0..8u8, node()).prop_map(|(id, node)| Op::Update(id, node)),
        1 => a_pod().prop_map(Op::Modify),
        2 => (0..8u8).prop_map(Op::Delete),
        1 => node().prop_map(Op::DeleteByNode),
        1 => (any::<bool>(), a_pod()).prop_map(|(right, pod)| Op::Cas(right, pod)),
        1 => (0..8u8).prop_map(Op::RetainBelow),
        2 => ("[xy]", prop::option::of(0..3u8)).prop_map(|(name, address)| Op::Service(service(&name, address))),
        1 => "[xy]".prop_map(Op::DeleteService),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (prop::collection::vec(op(), 0..5), prop::bool::weighted(0.8))
            .prop_map(|(ops, commit)| Step::Txn { ops, commit }),
        1 => Just(Step::Hold),
        3 => prop_oneof![
            (0..8u8).prop_map(Asked::Pod), node().prop_map(Asked::Node), node().prop_map(Asked::Prefix),
            (0..8u8).prop_map(Asked::From), bounds(0..8u8).prop_map(Asked::Ids),
            bounds(node()).prop_map(Asked::Nodes), Just(Asked::All), (0..3u8).prop_map(Asked::Service)
        ].prop_map(Step::Watch),
    ]
}

impl Model {
    fn put(&mut self, pod: Pod) {
        self.pods_revision += 1;
        self.pods.insert(pod.id, (pod, self.pods_revision));
    }

    fn remove(&mut self, id: u8) {
        if self.pods.remove(&id).is_some() {
            self.pods_revision += 1;
        }
    }

    fn first_on(&self, node: &str) -> Option<u8> {
        self.pods.values().find(|(pod, _)| pod.node == node).map(|(pod, _)| pod.id)
    }

    fn answer(&self, asked: &Asked) -> Vec<(Pod, u64)> {
        let mut rows: Vec<_> = self
            .pods
            .values()
            .filter(|(pod, _)| match asked {
                Asked::Pod(id) => pod.id == *id,
                Asked::Node(node) => pod.node == *node,
                Asked::Prefix(start) => pod.node.starts_with(start),
                Asked::From(id) => pod.id >= *id,
                Asked::Ids(ids) => ids.contains(&pod.id),
                Asked::Nodes(nodes) => nodes.contains(&pod.node),
                Asked::All => true,
                Asked::Service(_) => false,
            })
            .cloned()
            .collect();
        if matches!(asked, Asked::Prefix(_) | Asked::Nodes(_)) {
            rows.sort_by_key(|(pod, _)| (pod.node.clone(), pod.id));
        }
        rows
    }

    fn service_at(&self, address: u8) -> Option<&Service> {
        self.services.values().find(|service| service.address == Some(address))
    }
}

fn apply(
    model: &mut Model,
    op: Op,
    pods: &mut statedb::Writer<'_, Pod>,
    services: &mut statedb::Writer<'_, Service>,
) {
    match op {
        Op::Insert(pod) => {
            let before = model.pods.get(&pod.id).map(|(pod, _)| pod.clone());
            let old = pods.insert(pod.clone());
            assert_eq!(old.as_deref(), before.as_ref());
            model.put(pod);
        }
        Op::Update(id, node) => {
            let old = pods.update(by_id(id), |pod| pod.node.clone_from(&node));
            assert_eq!(old.is_some(), model.pods.contains_key(&id));
            if let Some((mut pod, _)) = model.pods.get(&id).cloned() {
                pod.node = node;
                model.put(pod);
            }
        }
        Op::Modify(new) => {
            let merge = |old: &Pod, mut new: Pod| {
                new.ports.extend(&old.ports);
                new
            };
            pods.modify(new.clone(), merge);
            let merged = match model.pods.get(&new.id) {
                Some((old, _)) => merge(old, new),
                None => new,
            };
            model.put(merged);
        }
        Op::Delete(id) => {
            assert_eq!(pods.delete(by_id(id)).is_some(), model.pods.contains_key(&id));
            model.remove(id);
        }
        Op::DeleteByNode(node) => {
            let first = model.first_on(&node);
            assert_eq!(pods.delete(by_node(&node)).map(|pod| pod.id), first);
            first.into_iter().for_each(|id| model.remove(id));
        }
        Op::Cas(right, pod) => {
            let revision = model.pods.get(&pod.id).map_or(0, |(_, revision)| *revision);
            let swapped = pods.compare_and_swap(if right { revision } else { revision + 1 }, pod.clone());
            assert_eq!(swapped.is_ok(), right && model.pods.contains_key(&pod.id));
            if swapped.is_ok() {
                model.put(pod);
            }
        }
        Op::RetainBelow(limit) => {
            pods.retain(|pod| pod.id < limit);
            (limit..8).for_each(|id| model.remove(id));
        }
        Op::Service(service) => {
            let other = service.address.and_then(|address| model.service_at(address));
            let conflict = other.is_some_and(|other| other.name != service.name);
            assert_eq!(services.try_insert(service.clone()).is_err(), conflict);
            if !conflict {
                model.services.insert(service.name.clone(), service);
            }
        }
        Op::DeleteService(name) => {
            let deleted = services.delete(Query::primary(name.as_str()));
            assert_eq!(deleted.map(|service| (*service).clone()), model.services.remove(&name));
        }
    }
}

/// Asserts that every kind of read returns the rows of the model.
fn compare(model: &Model, source: &impl ReadSource, pods: &Table<Pod>, services: &Table<Service>) {
    let rows = |asked: &Asked| match asked {
        Asked::Pod(id) => pods.list(source, by_id(*id)),
        Asked::Node(node) => pods.list(source, by_node(node)),
        Asked::Prefix(start) => pods.prefix(source, node_prefix(start)),
        Asked::From(id) => pods.lower_bound(source, by_id(*id)),
        Asked::Ids(ids) => pods.range(source, KeyRange::primary(*ids)),
        Asked::Nodes(nodes) => pods.range(source, nodes_within(nodes)),
        Asked::All => pods.all(source),
        Asked::Service(_) => unreachable!(),
    };
    let nodes = ["", "a", "b", "aa", "ab", "ba", "bb"];
    let asked = (0..8)
        .flat_map(|id| [Asked::Pod(id), Asked::From(id)])
        .chain(nodes.iter().flat_map(|node| [Asked::Node(node.to_string()), Asked::Prefix(node.to_string())]))
        .chain(within(&[0, 3, 4, 7, 255]).into_iter().map(Asked::Ids))
        .chain(within(&nodes.map(str::to_owned)).into_iter().map(Asked::Nodes))
        .chain([Asked::All]);
    let own = |row: &statedb::Obj<Pod>| ((**row).clone(), row.revision());
    for asked in asked {
        let mut wanted = model.answer(&asked);
        assert_eq!(rows(&asked).map(own).collect::<Vec<_>>(), wanted, "{asked:?}");
        let mut one_by_one = Vec::new();
        for row in rows(&asked) {
            one_by_one.push(own(row));
        }
        assert_eq!(one_by_one, wanted, "{asked:?}");
        wanted.reverse();
        assert_eq!(rows(&asked).rev().map(own).collect::<Vec<_>>(), wanted, "{asked:?}, descending");
    }
    assert_eq!(pods.len(source), model.pods.len());
    assert_eq!(pods.revision(source), model.pods_revision);

    let mut by_revision: Vec<_> = model.pods.values().map(|(pod, revision)| (*revision, pod.id)).collect();
    by_revision.sort_unstable();
    assert_eq!(
        pods.by_revision(source, 0).map(|pod| (pod.revision(), pod.id)).collect::<Vec<_>>(),
        by_revision
    );
    for port in 0..4u16 {
        let listed: Vec<_> = pods.list(source, BY_PORT.query(&port)).map(|pod| pod.id).collect();
        let wanted: Vec<_> =
            model.pods.values().filter(|(pod, _)| pod.ports.contains(&port)).map(|(pod, _)| pod.id).collect();
        assert_eq!(listed, wanted);
    }
    // A row with several keys is returned once, at the smallest matching one.
    let mut from_one: Vec<_> = model
        .pods
        .values()
        .filter_map(|(pod, _)| pod.ports.iter().filter(|port| **port >= 1).min().map(|port| (*port, pod.id)))
        .collect();
    from_one.sort_unstable();
    let listed: Vec<_> = pods.lower_bound(source, BY_PORT.query(&1)).map(|pod| pod.id).collect();
    assert_eq!(listed, from_one.iter().map(|(_, id)| *id).collect::<Vec<_>>());
    for ports in within(&[0u16, 1, 2, 3]) {
        // At its smallest key in ascending order, at its greatest in descending order.
        let at = |pick: fn(&[u16]) -> Option<u16>| {
            let row = |(pod, _): &(Pod, u64)| {
                let within: Vec<_> = pod.ports.iter().copied().filter(|port| ports.contains(port)).collect();
                pick(&within).map(|port| (port, pod.id))
            };
            let mut rows: Vec<_> = model.pods.values().filter_map(row).collect();
            rows.sort_unstable();
            rows.into_iter().map(|(_, id)| id).collect::<Vec<_>>()
        };
        let range = || pods.range(source, BY_PORT.range(ports));
        assert_eq!(range().map(|pod| pod.id).collect::<Vec<_>>(), at(|ports| ports.iter().min().copied()));
        let mut down = at(|ports| ports.iter().max().copied());
        down.reverse();
        assert_eq!(range().rev().map(|pod| pod.id).collect::<Vec<_>>(), down);
    }
    let from = model.pods_revision / 2;
    let descending: Vec<_> = pods.by_revision(source, from).rev().map(|pod| pod.revision()).collect();
    by_revision.retain(|(revision, _)| *revision >= from);
    assert_eq!(descending, by_revision.iter().rev().map(|(revision, _)| *revision).collect::<Vec<_>>());

    for address in 0..3 {
        let found = services.get(source, BY_ADDRESS.query(&address)).map(|service| (**service).clone());
        assert_eq!(found.as_ref(), model.service_at(address));
    }
    let all: Vec<_> = services.all(source).map(|service| (**service).clone()).collect();
    assert_eq!(all, model.services.values().cloned().collect::<Vec<_>>());
}

/// Returns all pairs of bounds on the keys.
fn within<K: Clone>(keys: &[K]) -> Vec<Bounds<K>> {
    let each = |key: &K| [Bound::Included(key.clone()), Bound::Excluded(key.clone())];
    let bounds: Vec<_> = keys.iter().flat_map(each).chain([Bound::Unbounded]).collect();
    bounds.iter().flat_map(|start| bounds.iter().map(|end| (start.clone(), end.clone()))).collect()
}

fn nodes_within((start, end): &Bounds<String>) -> KeyRange<Pod> {
    BY_NODE.range::<&str>((start.as_ref().map(String::as_str), end.as_ref().map(String::as_str)))
}

struct World {
    db: Db,
    pods: RwTable<Pod>,
    services: RwTable<Service>,
    model: Model,
    held: Vec<(Snapshot, Model)>,
    watches: Vec<(Asked, Model, Watch)>,
}

impl World {
    fn new() -> Self {
        let db = Db::new();
        let (pods, services) = (db.table().unwrap(), db.table().unwrap());
        World { db, pods, services, model: Model::default(), held: Vec::new(), watches: Vec::new() }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Hold => self.held.push((self.db.snapshot(), self.model.clone())),
            Step::Watch(asked) => {
                let snapshot = self.db.snapshot();
                let watch = match &asked {
                    Asked::Pod(id) => self.pods.get_watch(&snapshot, by_id(*id)).1,
                    Asked::Node(node) => self.pods.list_watch(&snapshot, by_node(node)).1,
                    Asked::Prefix(start) => self.pods.prefix_watch(&snapshot, node_prefix(start)).1,
                    Asked::From(id) => self.pods.lower_bound_watch(&snapshot, by_id(*id)).1,
                    Asked::Ids(ids) => self.pods.range_watch(&snapshot, KeyRange::primary(*ids)).1,
                    Asked::Nodes(nodes) => self.pods.range_watch(&snapshot, nodes_within(nodes)).1,
                    Asked::All => self.pods.all_watch(&snapshot).1,
                    Asked::Service(address) => {
                        self.services.get_watch(&snapshot, BY_ADDRESS.query(address)).1
                    }
                };
                assert!(!watch.is_closed(), "closed before anything happened");
                self.watches.push((asked, self.model.clone(), watch));
            }
            Step::Txn { ops, commit } => {
                let mut model = self.model.clone();
                let mut txn = self.db.write((&self.services, &self.pods));
                for op in ops {
                    let (services, pods) = txn.split();
                    apply(&mut model, op, pods, services);
                    compare(&model, &txn, &self.pods, &self.services);
                }
                if commit {
                    let snapshot = txn.commit();
                    compare(&model, &snapshot, &self.pods, &self.services);
                    self.model = model;
                } else {
                    txn.abort();
                }
                compare(&self.model, &self.db.snapshot(), &self.pods, &self.services);
                self.check_watches();
            }
        }
    }

    fn check_watches(&self) {
        for (asked, before, watch) in &self.watches {
            match asked {
                Asked::Service(address) => {
                    if before.service_at(*address) != self.model.service_at(*address) {
                        assert!(watch.is_closed(), "missed {asked:?}");
                    }
                }
                // Exact for an existing row: open until it is written.
                Asked::Pod(id) if before.pods.contains_key(id) => {
                    assert_eq!(
                        watch.is_closed(),
                        before.pods.get(id) != self.model.pods.get(id),
                        "{asked:?}"
                    );
                }
                _ => {
                    if before.answer(asked) != self.model.answer(asked) {
                        assert!(watch.is_closed(), "missed {asked:?}");
                    }
                    if before.pods_revision == self.model.pods_revision {
                        assert!(!watch.is_closed(), "woken by nothing: {asked:?}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(192)))]

    #[test]
    fn tables_behave_as_plain_maps(steps in prop::collection::vec(step(), 1..25)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        for (snapshot, model) in &world.held {
            compare(model, snapshot, &world.pods, &world.services);
        }
    }
}
