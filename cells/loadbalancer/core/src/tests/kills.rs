//! A crash after every entry of every kind of change, then a start: the maps converge to the model, and in between no
//! packet meets a backend that neither the old nor the new state has. On maps in memory and on those of the kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use ::maps::{FamilyConfig, MapsConfig, Specs};
use devices::NodeAddress;
use statedb::RwTable;
use test_kit::require_root;

use super::model::{actual, expected_at};
use super::*;
use crate::lbmap::rows::{Family, LbMap, LbMaps, MapError};
use crate::testing::FakeRows;
use crate::{FrontendParams, FrontendType, KernelMaps, Service, ServiceName};

/// The input of the sources.
#[derive(Clone)]
struct World {
    state: State,
    /// Addresses of the node, and whether they are node port addresses.
    node: BTreeMap<IpAddr, bool>,
}

impl World {
    /// Returns it without health of backends, which no source contains.
    fn unmarked(&self) -> World {
        let mut world = self.clone();
        world.state.backends.iter_mut().for_each(|backend| backend.unhealthy = false);
        world
    }

    fn expected(&self) -> BTreeSet<String> {
        expected_at(&self.state, &self.node)
    }
}

/// A load balancer with node ports, and a service that shares backends with it.
#[derive(Clone)]
struct Shape {
    policy: &'static str,
    affinity: bool,
    ranges: &'static [u8],
    algorithm: Option<&'static str>,
    active: Vec<u8>,
    terminating: Vec<u8>,
    maintenance: Vec<u8>,
    unhealthy: Vec<u8>,
    node: &'static [(u8, bool)],
    gate: bool,
    host_port: bool,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            policy: "Cluster",
            affinity: true,
            ranges: &[1, 2],
            algorithm: None,
            active: vec![1, 2, 3],
            terminating: Vec::new(),
            maintenance: Vec::new(),
            unhealthy: Vec::new(),
            node: &[(1, true), (2, true)],
            gate: true,
            host_port: false,
        }
    }
}

impl Shape {
    fn world(&self) -> World {
        let mut text =
            "services:\n- metadata: {name: plain}\n  spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}\n"
                .to_owned();
        if self.gate {
            let algorithm = self.algorithm.map(|name| format!("service.cilium.io/lb-algorithm: {name}"));
            let affinity = if self.affinity { "ClientIP" } else { "None" };
            let ranges: Vec<String> = self.ranges.iter().map(|n| format!("10.{n}.0.0/16")).collect();
            text += &format!(
                "- metadata: {{name: gate, annotations: {{{}}}}}\n  spec: {{type: LoadBalancer, clusterIP: 10.96.0.1, \
                 sessionAffinity: {affinity}, externalTrafficPolicy: {}, loadBalancerSourceRanges: [{}], \
                 ports: [{{port: 80, nodePort: 30080}}]}}\n  status: {{loadBalancer: {{ingress: [{{ip: 203.0.113.1}}]}}}}\n",
                algorithm.unwrap_or_default(),
                self.policy,
                ranges.join(", ")
            );
        }
        let of = |list: &[u8], conditions: &str| -> Vec<String> {
            list.iter()
                .map(|n| format!("{{addresses: [10.0.0.{n}], nodeName: {NODE}, {conditions}}}"))
                .collect()
        };
        let mut endpoints = of(&self.active, "");
        endpoints.extend(of(&self.unhealthy, ""));
        endpoints
            .extend(of(&self.terminating, "conditions: {ready: false, serving: true, terminating: true}"));
        endpoints
            .extend(of(&self.maintenance, "conditions: {ready: false, serving: false, terminating: false}"));
        text += "endpoints:\n";
        for (name, endpoints) in [("gate", endpoints.join(", ")), ("plain", of(&[1, 2], "").join(", "))] {
            text += &format!(
                "- metadata: {{name: {name}-1, labels: {{kubernetes.io/service-name: {name}}}}}\n  \
                 addressType: IPv4\n  ports: [{{port: 8080}}]\n  endpoints: [{endpoints}]\n"
            );
        }
        let mut state = state(&text);
        for backend in &mut state.backends {
            let marked = |n: &u8| backend.address.ip == IpAddr::from([10, 0, 0, *n]);
            backend.unhealthy =
                backend.service_name.to_string().ends_with("gate") && self.unhealthy.iter().any(marked);
        }
        if self.host_port {
            let name = ServiceName::new("ns", "pod:host-port:8443:uid");
            let address = LbAddress::new([0, 0, 0, 0].into(), 8443, crate::Protocol::Tcp);
            let kind = FrontendType::HostPort;
            let params = FrontendParams { address, kind, port_name: "".into(), service_port: 8443 };
            let backend = LbAddress::new([10, 0, 0, 77].into(), 443, crate::Protocol::Tcp);
            state.backends.push(crate::Backend::new(name.clone(), backend, Source::Api));
            state.services.push((Service::new(name, Source::Api), vec![params]));
        }
        let node = self.node.iter().map(|(last, port)| ([192, 0, 2, *last].into(), *port)).collect();
        World { state, node }
    }
}

/// A function that checks the maps after each entry.
type Watch = Box<dyn Fn(&dyn LbMaps) + Send + Sync>;

/// Maps in which each entry is an operation; after a given number of them the agent is killed.
struct Mortal {
    maps: Arc<dyn LbMaps>,
    left: AtomicUsize,
    watch: Option<Watch>,
}

impl Mortal {
    fn operation(&self, change: impl FnOnce(&dyn LbMaps) -> Result<(), MapError>) -> Result<(), MapError> {
        match self.left.load(Ordering::Relaxed) {
            0 => return Err("killed".into()),
            left => self.left.store(left - 1, Ordering::Relaxed),
        }
        change(&*self.maps)?;
        if let Some(watch) = &self.watch {
            watch(&*self.maps);
        }
        Ok(())
    }
}

impl LbMaps for Mortal {
    fn put(&self, rows: &[(Key, Value)]) -> Result<(), MapError> {
        rows.iter().try_for_each(|row| self.operation(|maps| maps.put(&[*row])))
    }

    fn put_tables(&self, tables: &[(Key, Arc<[u32]>)]) -> Result<(), MapError> {
        tables
            .iter()
            .try_for_each(|table| self.operation(|maps| maps.put_tables(std::slice::from_ref(table))))
    }

    fn table(&self, key: &Key) -> Result<Option<Arc<[u32]>>, MapError> {
        self.maps.table(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<(), MapError> {
        keys.iter().try_for_each(|key| self.operation(|maps| maps.delete(&[*key])))
    }

    fn get(&self, key: &Key) -> Result<Option<Value>, MapError> {
        self.maps.get(key)
    }

    fn rows(&self) -> Result<Vec<(Key, Value)>, MapError> {
        self.maps.rows()
    }

    fn capacity(&self, map: LbMap) -> usize {
        self.maps.capacity(map)
    }
}

/// An agent without a hive: tables, and the operations of its reconciler.
struct Agent {
    ops: LbOps,
    writer: ServicesWriter,
    addresses: RwTable<NodeAddress>,
}

impl Agent {
    fn start(maps: Arc<dyn LbMaps>) -> Agent {
        let (writer, addresses, ops) = agent(maps);
        Agent { ops, writer, addresses }
    }

    /// Replaces the sources and reconciles; true without failures.
    fn follow(&mut self, world: &World) -> bool {
        let before: BTreeSet<LbAddress> = served(&self.writer).iter().map(Frontend::address).collect();
        let mut txn = self.addresses.write();
        txn.retain(|row| world.node.contains_key(&row.addr));
        for (addr, node_port) in &world.node {
            let device_name = "lan0".to_owned();
            txn.insert(NodeAddress { addr: *addr, node_port: *node_port, primary: false, device_name });
        }
        txn.commit();
        let refused = self.writer.replace(Source::Api, world.unmarked().state);
        assert!(refused.is_empty(), "{refused:?}");
        let frontends = served(&self.writer);
        let now: BTreeSet<LbAddress> = frontends.iter().map(Frontend::address).collect();
        let gone: Vec<LbAddress> = before.difference(&now).copied().collect();
        let snapshot = self.writer.frontends().snapshot();
        let removed = self.ops.delete_frontends(&snapshot, &gone).into_iter().all(|result| result.is_ok());
        let brought =
            self.ops.upsert_batch(&snapshot, frontends.iter()).into_iter().all(|result| result.is_ok());
        removed && brought
    }

    /// Reports health checks before the change.
    fn check_health(&mut self, world: &World) {
        let mut txn = self.writer.write();
        for backend in world.state.backends.iter().filter(|backend| backend.unhealthy) {
            assert!(txn.set_health(&backend.service_name, &backend.address, false, SystemTime::UNIX_EPOCH));
        }
        txn.commit();
    }
}

/// The backends that take new connections, by frontend.
type Usable = HashMap<LbAddress, HashSet<LbAddress>>;

/// The entries as text.
struct Seen {
    rows: FakeRows,
    backends: HashMap<(Family, u32), LbAddress>,
}

impl Seen {
    fn of(maps: &dyn LbMaps) -> Seen {
        let rows: FakeRows = maps.all_rows().unwrap().into_iter().collect();
        let backend = |(key, value): (&Key, &Value)| match (key, value) {
            (Key::Backend(family, id), Value::Backend(row)) => Some(((*family, *id), row.address)),
            _ => None,
        };
        let backends = rows.iter().filter_map(backend).collect();
        Seen { rows, backends }
    }

    fn masters(&self) -> impl Iterator<Item = (LbAddress, datapath_abi::LbService)> {
        self.rows.iter().filter_map(|(key, value)| match (key, value) {
            (Key::Service(address, 0), Value::Service(row)) if row.rev_nat_index != 0 => {
                Some((*address, *row))
            }
            _ => None,
        })
    }

    /// Returns the backends beyond the count of a frontend's entry; panics where a packet would find none.
    fn behind(&self, address: LbAddress, master: datapath_abi::LbService) -> HashSet<LbAddress> {
        let family = Family::of(address.ip);
        let id = u16::from_be(master.rev_nat_index);
        let of_slot = |slot: u16| match self.rows.get(&Key::Service(address, slot)) {
            Some(Value::Service(row)) => {
                assert_eq!(u16::from_be(row.rev_nat_index), id, "{address} slot {slot} is another's");
                *self
                    .backends
                    .get(&(family, row.backend_id))
                    .unwrap_or_else(|| panic!("{address} slot {slot}: no backend"))
            }
            other => panic!("{address} slot {slot} of {}: {other:?}", master.count),
        };
        let reverse = self.rows.get(&Key::ReverseNat(family, id));
        assert_eq!(reverse, Some(&Value::ReverseNat(address.ip, address.port)), "replies of {address}");
        (1..=master.count).map(of_slot).collect()
    }

    fn usable(&self) -> Usable {
        self.masters().map(|(address, row)| (address, self.behind(address, row))).collect()
    }
}

/// Returns the entries in the notation of the model.
fn lines(maps: &dyn LbMaps) -> BTreeSet<String> {
    actual(&maps.all_rows().unwrap().into_iter().collect())
}

/// Checks that no frontend has a backend that neither state has, that none is without backends if it has some in both,
/// and that no table refers to a deleted backend.
fn check(maps: &dyn LbMaps, [old, new]: [&Usable; 2]) {
    let seen = Seen::of(maps);
    let now = seen.usable();
    let none = HashSet::new();
    for (address, backends) in &now {
        let [old, new] = [old, new].map(|usable| usable.get(address).unwrap_or(&none));
        let strange: Vec<_> =
            backends.iter().filter(|backend| !old.contains(backend) && !new.contains(backend)).collect();
        assert!(strange.is_empty(), "{address} has {strange:?}, neither of {old:?} nor of {new:?}");
    }
    let has = |usable: &Usable, address| usable.get(address).is_some_and(|backends| !backends.is_empty());
    for address in old.keys().filter(|address| has(old, address) && has(new, address)) {
        assert!(has(&now, address), "{address} has no backends for a while");
    }
    for (address, master) in seen.masters() {
        let family = Family::of(address.ip);
        let table = maps.table(&Key::Maglev(family, u16::from_be(master.rev_nat_index))).unwrap();
        let ids: HashSet<u32> = table.iter().flat_map(|table| table.iter().copied()).collect();
        for id in ids {
            assert!(seen.backends.contains_key(&(family, id)), "the table of {address} names backend {id}");
        }
    }
}

/// Kills the agent after `k` entries of the change, and starts another one; false if the change had fewer.
fn killed_after(k: usize, maps: &Arc<dyn LbMaps>, from: &World, to: &World, usable: &[Usable; 3]) -> bool {
    let mortal = |left, watch| Arc::new(Mortal { maps: maps.clone(), left: AtomicUsize::new(left), watch });
    let first = mortal(usize::MAX, None);
    let mut agent = Agent::start(first.clone());
    assert!(agent.follow(from));
    agent.check_health(from);
    assert!(agent.follow(from));
    agent.ops.balancer.prune().unwrap();
    assert_eq!(lines(&**maps), from.expected());
    first.left.store(k, Ordering::Relaxed);
    let done = agent.follow(to);
    drop(agent);
    let [old, new, lost] = usable;
    check(&**maps, [old, new]);

    let (old, lost) = (old.clone(), lost.clone());
    let watch = move |maps: &dyn LbMaps| check(maps, [&old, &lost]);
    let mut next = Agent::start(mortal(usize::MAX, Some(Box::new(watch))));
    assert!(next.follow(to));
    next.ops.balancer.prune().unwrap();
    // A crash may lose the health of a backend, but must not mark one unhealthy.
    let (found, marked) = (lines(&**maps), to.expected());
    match done || k == 0 {
        true => assert_eq!(found, marked),
        false => {
            let unmarked = to.unmarked().expected();
            let neither: Vec<_> =
                found.iter().filter(|line| !marked.contains(*line) && !unmarked.contains(*line)).collect();
            assert!(neither.is_empty() && found.len() == marked.len(), "{neither:#?} instead of {marked:#?}");
        }
    }
    !done
}

/// Runs every crash of the change from one world to another; returns their number.
fn all_kills(name: &str, maps: &dyn Fn() -> Arc<dyn LbMaps>, from: &Shape, to: &Shape) -> usize {
    let (from, to) = (from.world(), to.world());
    let usable = [&from, &to].map(|world| {
        let fresh: Arc<FakeMaps> = Arc::default();
        let mut agent = Agent::start(fresh.clone());
        // Including the health that a crash may have lost.
        assert!(agent.follow(world));
        let all = Seen::of(&*fresh).usable();
        agent.check_health(world);
        assert!(agent.follow(world));
        assert_eq!(actual(&fresh.dump()), world.expected(), "{name}");
        [Seen::of(&*fresh).usable(), all]
    });
    let [[old, _], [new, lost]] = usable;
    let usable = [old, new, lost];
    let mut k = 0;
    while killed_after(k, &maps(), &from, &to, &usable) {
        k += 1;
    }
    assert!(k > 3, "{name}: {k} operations");
    k
}

/// Returns the kinds of changes: states before and after, in both directions.
fn changes() -> Vec<(&'static str, Shape, Shape)> {
    let shape = Shape::default;
    let with = |change: &dyn Fn(&mut Shape)| {
        let mut shape = Shape::default();
        change(&mut shape);
        shape
    };
    vec![
        ("service", with(&|s| s.gate = false), shape()),
        ("one backend", shape(), with(&|s| s.active = vec![1, 3])),
        ("ten backends", with(&|s| s.active = (1..=10).collect()), with(&|s| s.active = (11..=20).collect())),
        (
            "a step of a rollover",
            with(&|s| (s.active, s.terminating) = (vec![1, 2], vec![3])),
            with(&|s| (s.active, s.terminating) = (vec![1, 2, 4], vec![])),
        ),
        (
            "from leaving to leaving",
            with(&|s| (s.active, s.terminating) = (vec![1, 2, 7, 8], vec![4, 5])),
            with(&|s| (s.active, s.terminating) = (vec![1, 6], vec![7, 8])),
        ),
        ("last resort", shape(), with(&|s| (s.active, s.terminating) = (vec![], vec![2, 3]))),
        ("maintenance", shape(), with(&|s| (s.active, s.maintenance) = (vec![2], vec![1, 3]))),
        ("no backends", shape(), with(&|s| s.active = vec![])),
        ("addresses of the node", shape(), with(&|s| s.node = &[(2, false), (3, true), (4, true)])),
        ("algorithm", with(&|s| s.algorithm = Some("maglev")), with(&|s| s.algorithm = Some("random"))),
        ("affinity and ranges", shape(), with(&|s| (s.affinity, s.ranges) = (false, &[2, 3]))),
        ("scopes", shape(), with(&|s| s.policy = "Local")),
        ("port of a host", shape(), with(&|s| s.host_port = true)),
        (
            "unhealthy",
            with(&|s| (s.active, s.unhealthy) = (vec![1, 2], vec![3])),
            with(&|s| (s.active, s.unhealthy) = (vec![1, 2, 4], vec![3])),
        ),
    ]
}

#[test]
fn every_crash_of_every_kind_of_change_converges_to_the_model() {
    let maps = || Arc::<FakeMaps>::default() as Arc<dyn LbMaps>;
    let mut kills = 0;
    for (name, one, other) in changes() {
        kills += all_kills(name, &maps, &one, &other);
        if name != "ten backends" {
            kills += all_kills(&format!("{name}, back"), &maps, &other, &one);
        }
    }
    assert!(kills > 1000, "{kills} kills");
}

/// Uses the same maps all the time: leftovers of earlier crashes are part of the test.
#[test]
fn every_crash_on_kernel_maps_converges_to_the_model() {
    require_root!();
    let families = FamilyConfig { enable_ipv4: true, enable_ipv6: true };
    let specs = Specs::new(MapsConfig { bpf_lb_map_max: 1024, ..MapsConfig::default() }, families.clone())
        .with_maglev(Some(251));
    let kernel: Arc<dyn LbMaps> = Arc::new(KernelMaps::unpinned(&specs, &families).unwrap());
    let kinds = ["service", "a step of a rollover", "addresses of the node", "algorithm", "scopes"];
    for (name, one, other) in changes().into_iter().filter(|(name, ..)| kinds.contains(name)) {
        all_kills(name, &|| kernel.clone(), &one, &other);
    }
}
