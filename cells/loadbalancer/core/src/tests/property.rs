//! Any order of changes, failures and restarts converges to the maps of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Mutex;

use devices::NodeAddress;
use ipnetwork::IpNetwork;
use proptest::prelude::*;
use statedb::RwTable;

use super::model::{actual, behind, expected_where, leads_nowhere};
use super::*;
use crate::model::backend::{Backend, BackendState};
use crate::model::frontend::{FrontendParams, FrontendType};
use crate::model::service::{Service, TrafficPolicy};
use crate::testing::Fault;
use crate::{Protocol, Scope, ServiceName};

#[derive(Debug, Clone)]
enum Step {
    /// The source changes or removes a service, and the changed frontends are reconciled.
    Service(u8, Box<Option<(Service, Vec<FrontendParams>)>>),
    /// The source changes a service's backends.
    Backends(u8, Vec<Backend>),
    /// The operation after this number of operations fails.
    Fault(usize),
    /// From now on every tenth operation fails.
    Weather,
    /// The agent is killed after this number of operations of the next change, and another one starts.
    Kill(usize),
    Prune,
    /// A health check finds a backend of a service healthy, or unhealthy.
    Health(u8, u8, bool),
    /// The agent stops after all work is done, and another one starts.
    Restart,
    /// The node has this address, for node ports or not, or has lost it.
    Address(u8, Option<bool>),
}

fn backend_state() -> impl Strategy<Value = BackendState> {
    prop_oneof![
        4 => Just(BackendState::Active),
        1 => Just(BackendState::Terminating),
        1 => Just(BackendState::TerminatingNotServing),
        1 => Just(BackendState::Maintenance),
    ]
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![2 => Just(TrafficPolicy::Cluster), 1 => Just(TrafficPolicy::Local)]
}

prop_compose! {
    /// Generates one of three services. Addresses of types other than ClusterIP may move between them.
    fn service(index: u8)(
        ports in proptest::collection::vec((1u16..4, any::<bool>(), any::<bool>()), 1..3),
        outside in proptest::option::of((1u8..4, any::<bool>())),
        (ext, int) in (policy(), policy()),
        node_port in proptest::option::of(any::<bool>()),
        affinity in proptest::option::of(1u64..100),
        ranges in proptest::collection::vec(0u8..4, 0..2),
    ) -> (Service, Vec<FrontendParams>) {
        let name = ServiceName::new("ns", &format!("s{index}"));
        let service = Service {
            ext_traffic_policy: ext,
            int_traffic_policy: int,
            session_affinity: affinity.map(std::time::Duration::from_secs),
            source_ranges: ranges.iter().map(|n| IpNetwork::new([10, *n, 0, 0].into(), 16).unwrap()).collect(),
            ..Service::new(name, Source::Api)
        };
        let mut frontends = BTreeMap::new();
        for (port, v6, udp) in ports {
            let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
            let mut add = |kind, ip, scope| {
                let address = LbAddress { ip, port, protocol, scope };
                frontends.entry(address).or_insert(FrontendParams { address, kind, port_name: "".into(), service_port: port });
            };
            let cluster = if v6 { format!("fd10::{index}") } else { format!("10.96.0.{index}") };
            add(FrontendType::ClusterIP, cluster.parse().unwrap(), Scope::External);
            // Node ports share addresses with frontends at the node's addresses.
            if let Some(host) = node_port {
                let kind = if host { FrontendType::HostPort } else { FrontendType::NodePort };
                let any = if v6 { "::" } else { "0.0.0.0" };
                add(kind, any.parse().unwrap(), Scope::External);
                if ext != int {
                    add(kind, any.parse().unwrap(), Scope::Internal);
                }
            }
            if let Some((last, balancer)) = outside {
                let kind = if balancer { FrontendType::LoadBalancer } else { FrontendType::ExternalIPs };
                add(kind, [192, 0, 2, last].into(), Scope::External);
                if balancer && ext != int {
                    add(kind, [192, 0, 2, last].into(), Scope::Internal);
                }
            }
        }
        (service, frontends.into_values().collect())
    }
}

prop_compose! {
    /// Generates a backend; services share addresses.
    fn backend(index: u8)(last in 1u8..6, v6 in any::<bool>(), udp in any::<bool>(), state in backend_state(),
        node in prop_oneof![Just(""), Just(NODE), Just("other")]) -> Backend {
        let ip = if v6 { format!("fd20::{last}") } else { format!("10.1.0.{last}") };
        let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
        let address = LbAddress::new(ip.parse().unwrap(), 80, protocol);
        let name = ServiceName::new("ns", &format!("s{index}"));
        Backend { state, node_name: node.into(), ..Backend::new(name, address, Source::Api) }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let of_service = |index: u8| {
        prop_oneof![
            2 => proptest::option::weighted(0.8, service(index)).prop_map(move |content| Step::Service(index, Box::new(content))),
            3 => proptest::collection::vec(backend(index), 0..8).prop_map(move |content| Step::Backends(index, content)),
        ]
    };
    prop_oneof![
        6 => (0u8..3).prop_flat_map(of_service),
        2 => (0usize..12).prop_map(Step::Fault),
        1 => (0usize..12).prop_map(Step::Kill),
        1 => Just(Step::Prune),
        1 => Just(Step::Weather),
        1 => Just(Step::Restart),
        3 => (0u8..3, 1u8..6, any::<bool>()).prop_map(|(index, last, healthy)| Step::Health(index, last, healthy)),
        2 => (1u8..4, proptest::option::of(any::<bool>())).prop_map(|(last, port)| Step::Address(last, port)),
    ]
}

/// A backend of a service.
type Of = (ServiceName, LbAddress);

fn of(backend: &Backend) -> Of {
    (backend.service_name.clone(), backend.address)
}

/// The tables, a balancer, and the steps of the reconciler.
pub(super) struct Node {
    pub(super) maps: Arc<FakeMaps>,
    pub(super) ops: LbOps,
    pub(super) writer: ServicesWriter,
    pub(super) addresses: RwTable<NodeAddress>,
    services: BTreeMap<u8, (Service, Vec<FrontendParams>)>,
    backends: BTreeMap<u8, Vec<Backend>>,
    /// The source's state, and the accepted part of it.
    asked: State,
    pub(super) content: State,
    /// Backends that were reported unhealthy to this agent.
    unhealthy: BTreeSet<Of>,
    /// Those reported unhealthy to previous runs, or restored as such: they were terminating.
    perhaps: BTreeSet<Of>,
    leaving: BTreeSet<Of>,
    /// Whether the agent is killed during the next change.
    dying: bool,
    /// Frontends that were deleted from the table and not yet from the maps.
    pub(super) deleted: BTreeSet<LbAddress>,
    /// Frontends in the maps, as they were written last.
    done: BTreeMap<LbAddress, Desired>,
}

impl Node {
    pub(super) fn new() -> Node {
        Node::on(Arc::default())
    }

    /// Returns a node with maps that may have entries.
    pub(super) fn on(maps: Arc<FakeMaps>) -> Node {
        let (writer, addresses, ops) = agent(maps.clone());
        Node {
            maps,
            ops,
            writer,
            addresses,
            services: BTreeMap::new(),
            backends: BTreeMap::new(),
            asked: State::default(),
            content: State::default(),
            unhealthy: BTreeSet::new(),
            perhaps: BTreeSet::new(),
            leaving: BTreeSet::new(),
            dying: false,
            deleted: BTreeSet::new(),
            done: BTreeMap::new(),
        }
    }

    fn publish(&mut self) {
        let state = State {
            services: self.services.values().cloned().collect(),
            backends: crate::reflectors::convert::merge(self.backends.values().flatten().cloned()),
        };
        self.state(state);
    }

    /// Adds, changes or removes an address of the node: frontends that depend on it become pending.
    pub(super) fn address(&mut self, last: u8, node_port: Option<bool>) {
        let addr = [192, 0, 2, last].into();
        let row = NodeAddress {
            addr,
            node_port: node_port == Some(true),
            primary: false,
            device_name: "lan0".to_owned(),
        };
        let mut txn = self.addresses.write();
        match node_port {
            Some(_) => _ = txn.insert(row),
            None => _ = txn.retain(|row| row.addr != addr),
        }
        txn.commit();
        self.done.retain(|address, _| !address.ip.is_unspecified() && address.ip != addr);
        self.reconcile();
    }

    /// Returns the addresses of the node, and whether they are for node ports.
    fn node(&self) -> BTreeMap<IpAddr, bool> {
        let snapshot = self.addresses.snapshot();
        self.addresses.all(&snapshot).map(|row| (row.addr, row.node_port)).collect()
    }

    pub(super) fn state(&mut self, state: State) {
        let before: BTreeSet<LbAddress> =
            desired(&self.writer).iter().map(|desired| desired.address).collect();
        self.asked = state.clone();
        self.content = state.clone();
        // The health of a backend is removed with it, unless a crash has left it in the maps.
        let now: BTreeSet<Of> = state.backends.iter().map(of).collect();
        self.perhaps.extend(self.unhealthy.difference(&now).cloned());
        self.unhealthy.retain(|backend| now.contains(backend));
        let leaves = |b: &&Backend| b.state != BackendState::Active;
        self.leaving.extend(state.backends.iter().filter(leaves).map(of));
        let refused = self.writer.replace(Source::Api, state);
        if !refused.is_empty() {
            let (services, snapshot) = (self.writer.services(), self.writer.services().snapshot());
            self.content
                .services
                .retain(|(service, _)| services.get(&snapshot, Service::by_name(&service.name)).is_some());
        }
        let now: BTreeSet<LbAddress> = desired(&self.writer).iter().map(|desired| desired.address).collect();
        self.deleted.extend(before.difference(&now));
        self.deleted.retain(|address| !now.contains(address));
        self.reconcile();
        if std::mem::take(&mut self.dying) {
            self.restart();
        }
    }

    /// Runs a round without retries: failures are retried in the next one.
    pub(super) fn reconcile(&mut self) {
        let deleted: Vec<LbAddress> = self.deleted.iter().copied().collect();
        let snapshot = self.writer.frontends().snapshot();
        for (address, result) in deleted.iter().zip(self.ops.delete_frontends(&snapshot, &deleted)) {
            self.done.remove(address);
            if result.is_ok() {
                self.deleted.remove(address);
            }
        }
        let wanted: Vec<(Desired, Frontend)> =
            desired(&self.writer).into_iter().zip(served(&self.writer)).collect();
        let changed =
            wanted.into_iter().filter(|(desired, _)| self.done.get(&desired.address) != Some(desired));
        let (changed, frontends): (Vec<Desired>, Vec<Frontend>) = changed.unzip();
        for (desired, result) in changed.into_iter().zip(self.ops.upsert_batch(&snapshot, frontends.iter())) {
            match result {
                Ok(_) => self.done.insert(desired.address, desired),
                Err(_) => self.done.remove(&desired.address),
            };
        }
    }

    /// Starts another agent: it finds the maps, and its source has the same content. Health of backends is only in the
    /// maps.
    fn restart(&mut self) {
        self.maps.fail(Fault::Never);
        let mut next = Node::on(self.maps.clone());
        let mut txn = next.addresses.write();
        let snapshot = self.addresses.snapshot();
        self.addresses.all(&snapshot).for_each(|row| _ = txn.insert((**row).clone()));
        txn.commit();
        (next.services, next.backends) = (self.services.clone(), self.backends.clone());
        next.perhaps =
            [&self.perhaps, &self.unhealthy, &self.leaving].into_iter().flatten().cloned().collect();
        next.state(self.asked.clone());
        *self = next;
    }

    /// Restarts after all work is done: the maps must not change, except for the health of terminating backends.
    fn restart_when_done(&mut self) -> Result<(), TestCaseError> {
        self.maps.fail(Fault::Never);
        self.reconcile();
        self.ops.balancer.prune().unwrap();
        let before = actual(&self.maps.dump());
        let active = |backend: &&Backend| backend.state == BackendState::Active;
        let active: BTreeSet<Of> = self.asked.backends.iter().filter(active).map(of).collect();
        let stays = self.unhealthy.is_subset(&active);
        self.restart();
        if stays {
            prop_assert_eq!(actual(&self.maps.dump()), before);
        }
        Ok(())
    }

    fn find(&mut self, index: u8, last: u8, healthy: bool) {
        let name = ServiceName::new("ns", &format!("s{index}"));
        let mut txn = self.writer.write();
        for (v6, protocol) in [(false, Protocol::Tcp), (true, Protocol::Tcp), (false, Protocol::Udp)] {
            let ip = if v6 { format!("fd20::{last}") } else { format!("10.1.0.{last}") };
            let address = LbAddress::new(ip.parse().unwrap(), 80, protocol);
            if txn.set_health(&name, &address, healthy, std::time::SystemTime::UNIX_EPOCH) {
                let backend = (name.clone(), address);
                self.perhaps.remove(&backend);
                match healthy {
                    true => self.unhealthy.remove(&backend),
                    false => self.unhealthy.insert(backend),
                };
            }
        }
        txn.commit();
        self.done.clear();
        self.reconcile();
        if std::mem::take(&mut self.dying) {
            self.restart();
        }
    }

    /// Returns the expected entries. Health reported to previous runs is taken from the maps.
    fn expected(&self) -> BTreeSet<String> {
        let behind = behind(&self.maps.dump());
        expected_where(&self.content, &self.node(), |frontend, backend| {
            let key = of(backend);
            let kept = self.perhaps.contains(&key) && behind.contains(&(*frontend, backend.address));
            self.unhealthy.contains(&key) || kept && backend.state == BackendState::Active
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_ends_in_the_maps_of_the_model(steps in proptest::collection::vec(step(), 1..20)) {
        let maps = Arc::<FakeMaps>::default();
        let broken = Arc::new(Mutex::new(None));
        let report = broken.clone();
        maps.watch(move |rows| {
            let mut report = report.lock().unwrap();
            if report.is_none() {
                *report = leads_nowhere(rows);
            }
        });
        let mut node = Node::on(maps.clone());
        let mut strays = false;
        for step in steps {
            match step {
                Step::Service(index, content) => {
                    match *content {
                        Some(content) => node.services.insert(index, content),
                        None => node.services.remove(&index),
                    };
                    node.publish();
                }
                Step::Backends(index, content) => {
                    node.backends.insert(index, content);
                    node.publish();
                }
                Step::Fault(after) if !node.dying => maps.fail(Fault::Once(after)),
                Step::Weather if !node.dying => maps.fail(Fault::Random(0.1)),
                Step::Fault(_) | Step::Weather => {}
                Step::Kill(after) => {
                    maps.fail(Fault::From(after));
                    (node.dying, strays) = (true, true);
                }
                Step::Health(index, last, healthy) => node.find(index, last, healthy),
                Step::Restart if !node.dying => node.restart_when_done()?,
                Step::Restart => {}
                Step::Prune => _ = node.ops.balancer.prune(),
                Step::Address(last, node_port) => node.address(last, node_port),
            }
        }
        node.dying = false;
        maps.fail(Fault::Never);
        node.reconcile();
        prop_assert_eq!(&node.deleted, &BTreeSet::new());
        // Leftovers of a crash are pruned later; failed operations leave none that the retry does not find.
        if !strays {
            prop_assert_eq!(actual(&maps.dump()), node.expected());
        }
        node.ops.balancer.prune().unwrap();
        prop_assert_eq!(actual(&maps.dump()), node.expected());
        prop_assert_eq!(broken.lock().unwrap().take(), None);
        // No record of deleted objects may remain.
        node.services.clear();
        node.backends.clear();
        node.publish();
        prop_assert_eq!(actual(&maps.dump()), BTreeSet::new());
        let (store, ids) = (&node.ops.balancer.mirror.store, &node.ops.balancer.ids);
        let left = (store.backends.in_use(), ids.in_use(), store.wildcards().len());
        prop_assert_eq!(left, (0, 0, 0));
        prop_assert_eq!(node.ops.balancer.quarantined.len(), 0);
    }
}
