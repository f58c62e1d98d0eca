//! The agent with everything.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bpf::{Map, RawMap};
use datapath_abi::{IpcacheKey, LbService, LbServiceKey4, RemoteEndpointInfo};
use integration_tests::Node;
use integration_tests::measure::{peak, percentile, resident, row, seconds};
use integration_tests::simulated::{SimulatedCluster, Size, cilium_node, node_address, service_address};
use k8s_types::{Key, Kind};
use serde_json::{Value, json};
use test_kit::StallFlow;

use crate::processor_seconds;

const SIZE: Size = Size::LARGE;
pub(crate) const LIMIT: Duration = Duration::from_secs(600);
const SETTLED: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(20);
const LOCAL_PODS: usize = 20;
const CHANGES: usize = 300;
/// Every so many pods move to another identity while the agent is away, and every so many services lose a backend.
const STRIDE: usize = 100;
const KINDS: &[Kind] = &[
    Kind::Namespace,
    Kind::Node,
    Kind::CiliumNode,
    Kind::CiliumEndpointSlice,
    Kind::CiliumIdentity,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::CiliumNetworkPolicy,
];

/// Lines of the log, one for each start.
const SYNCED: [&str; 2] = ["Policies of all sources are in force", "Services of all sources are in the maps"];

/// The entries that maps have to have: identities by address, and numbers of backends by service; and how often policies and
/// services have been complete.
#[derive(Default)]
pub(crate) struct Expected {
    starts: usize,
    pub(crate) identities: BTreeMap<Ipv4Addr, u32>,
    pub(crate) backends: BTreeMap<Ipv4Addr, u16>,
}

impl Expected {
    /// Returns how many entries differ.
    pub(crate) fn differences(&self, node: &Node) -> usize {
        let (Some(ipcache), Some(services)) = (ipcache(node), open(&node.pin("cilium_lb4_services_v2")))
        else {
            return usize::MAX;
        };
        let services: Map<LbServiceKey4, LbService> = services;
        let pods = self.identities.iter().filter(|(pod, id)| identity(&ipcache, **pod) != Some(**id)).count();
        let backends = |address: Ipv4Addr| {
            let address = u32::from_ne_bytes(address.octets());
            let key = LbServiceKey4 { address, dport: 80u16.to_be(), proto: 6, ..LbServiceKey4::default() };
            services.lookup(&key).unwrap().map(|service| service.count)
        };
        let services =
            self.backends.iter().filter(|(service, count)| backends(**service) != Some(**count)).count();
        let log = node.log();
        let starts = SYNCED.iter().filter(|line| log.matches(*line).count() < self.starts).count();
        pods + services + starts
    }

    /// Waits until nothing differs.
    pub(crate) fn wait(&self, node: &Node) {
        let begin = Instant::now();
        while self.differences(node) > 0 {
            let left = self.differences(node);
            assert!(begin.elapsed() < LIMIT, "{left} entries differ\n{}", node.log());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

pub(crate) fn run() {
    let mut node = Node::new();
    let cluster = SimulatedCluster::new(node.host(), SIZE, KINDS);
    cluster.join(&mut node);
    for pod in 0..LOCAL_PODS {
        cluster.add(&local_pod(pod));
    }
    let mut expected = Expected { starts: 1, ..Expected::default() };
    for pod in (0..SIZE.pods).step_by(STRIDE - 1) {
        expected.identities.insert(SIZE.pod_address(pod), SIZE.pod_identity(pod));
    }
    for service in (0..SIZE.services).step_by(STRIDE - 1) {
        expected.backends.insert(service_address(service), 10);
    }
    let begin = Instant::now();
    cluster.spawn(&mut node);
    expected.wait(&node);
    row("5k nodes: first start to in sync", seconds(begin), "s", f64::INFINITY);
    row("5k nodes: processor time of it", processor_seconds(node.agent_pid()), "s", f64::INFINITY);
    node.wait_ready();
    let pods: Vec<_> = (0..LOCAL_PODS)
        .map(|pod| node.add_unknown_pod(&format!("team-{}", app(pod) % 50), &format!("local-{pod}")))
        .collect();

    restart(&mut node, &cluster, &mut expected, || {
        StallFlow::start(&pods[0].ns, &pods[1].ns, pods[1].ipv4).unwrap()
    });
    thread::sleep(SETTLED);
    let memory = resident(node.agent_pid());
    row("5k nodes: memory 30 s after a restart", memory, "MB", 200.0);
    row("5k nodes: peak of memory of a restart", peak(node.agent_pid()), "MB", f64::INFINITY);
    let begin = (Instant::now(), processor_seconds(node.agent_pid()));
    thread::sleep(IDLE);
    let used = (processor_seconds(node.agent_pid()) - begin.1) / seconds(begin.0) * 100.0;
    row("5k nodes: processor time while nothing changes", used, "%", 1.0);
    pod_changes(&node, &cluster);
    node_changes(&node, &cluster);
    node.stop();
}

/// Stops the agent, changes a hundredth of the cluster, and starts it again under traffic between pods.
fn restart(
    node: &mut Node,
    cluster: &SimulatedCluster,
    expected: &mut Expected,
    flow: impl Fn() -> StallFlow,
) {
    let flow = flow();
    node.stop();
    for pod in (1..SIZE.pods).step_by(STRIDE) {
        let identity = SIZE.pod_identity(pod + 1);
        set_identity(cluster, pod, identity);
        expected.identities.insert(SIZE.pod_address(pod), identity);
    }
    for service in (1..SIZE.services).step_by(STRIDE) {
        let key = Key::new(format!("team-{}", service % 50), format!("svc-{service}-x7k2p"));
        cluster
            .edit(Kind::EndpointSlice, &key, |slice| drop(slice["endpoints"].as_array_mut().unwrap().pop()));
        expected.backends.insert(service_address(service), 9);
    }
    expected.starts += 1;
    let begin = Instant::now();
    cluster.spawn(node);
    expected.wait(node);
    row("5k nodes: restart to in sync", seconds(begin), "s", 8.0);
    row("5k nodes: processor time of it", processor_seconds(node.agent_pid()), "s", f64::INFINITY);
    node.wait_ready();
    let report = flow.stop();
    row("5k nodes: packets lost over the restart", report.lost as f64, "", 0.0);
    row("5k nodes: longest stall over the restart", report.longest.as_secs_f64() * 1e3, "ms", f64::INFINITY);
}

/// Changes of one pod of another node, from the request of its agent to the entry of the kernel.
fn pod_changes(node: &Node, cluster: &SimulatedCluster) {
    let ipcache = ipcache(node).unwrap();
    let (mut samples, mut own) = (Vec::new(), Vec::new());
    let arrivals = cluster.arrivals(node.host(), "/apis/cilium.io/v2alpha1/ciliumendpointslices");
    for change in 0..CHANGES {
        let pod = change * 7919 % SIZE.pods;
        let identity = SIZE.pod_identity(pod + 2 + change % 3);
        let begin = Instant::now();
        set_identity(cluster, pod, identity);
        wait_for(&ipcache, SIZE.pod_address(pod), Some(identity), node);
        let end = Instant::now();
        samples.push((end - begin).as_secs_f64() * 1e3);
        thread::sleep(Duration::from_millis(10));
        own.push(end.saturating_duration_since(arrivals.last()).as_secs_f64() * 1e3);
    }
    for (part, samples) in [("", samples), (", from the watch event", own)] {
        for hundredths in [50, 99] {
            let name = format!("5k nodes: a remote pod's change to the ipcache{part}, p{hundredths}");
            let goal = if hundredths == 99 && !part.is_empty() { 5.0 } else { f64::INFINITY };
            row(&name, percentile(samples.clone(), hundredths), "ms", goal);
        }
    }
}

/// Nodes that come.
fn node_changes(node: &Node, cluster: &SimulatedCluster) {
    let ipcache = ipcache(node).unwrap();
    let samples = (0..30).map(|new| {
        let number = SIZE.nodes + new;
        let begin = Instant::now();
        cluster.add(&cilium_node(number));
        wait_for(&ipcache, node_address(number), Some(6), node);
        thread::sleep(Duration::from_millis(10));
        seconds(begin) * 1e3 - 10.0
    });
    row("5k nodes: a node added to reachable", percentile(samples.collect(), 50), "ms", 20.0);
}

pub(crate) fn wait_for(
    ipcache: &Map<IpcacheKey, RemoteEndpointInfo>,
    address: Ipv4Addr,
    id: Option<u32>,
    node: &Node,
) {
    let begin = Instant::now();
    while identity(ipcache, address) != id {
        assert!(begin.elapsed() < LIMIT, "{address}: {:?}\n{}", identity(ipcache, address), node.log());
        thread::sleep(Duration::from_micros(100));
    }
}

fn set_identity(cluster: &SimulatedCluster, pod: usize, identity: u32) {
    let (key, at) = SIZE.slice_of(pod);
    cluster.edit(Kind::CiliumEndpointSlice, &key, |slice| slice["endpoints"][at]["id"] = identity.into());
}

pub(crate) fn ipcache(node: &Node) -> Option<Map<IpcacheKey, RemoteEndpointInfo>> {
    open(&node.pin("cilium_ipcache_v2"))
}

pub(crate) fn identity(ipcache: &Map<IpcacheKey, RemoteEndpointInfo>, address: Ipv4Addr) -> Option<u32> {
    // The map is a trie: a range that covers the address is another entry.
    let found = ipcache.lookup(&IpcacheKey::new(IpAddr::V4(address), 32)).unwrap();
    found.map(|entry| entry.sec_identity)
}

fn open<K: bpf::Pod, V: bpf::Pod>(pin: &Path) -> Option<Map<K, V>> {
    Map::new(RawMap::open(pin).ok()?).ok()
}

/// The first ones are of applications without policies: they exchange packets.
fn app(pod: usize) -> usize {
    if pod < 2 { 3000 + 50 * pod } else { pod }
}

fn local_pod(pod: usize) -> Value {
    let (app, name) = (app(pod), format!("local-{pod}"));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": format!("team-{}", app % 50), "name": name, "labels": {"app": format!("web-{app}")}},
        "spec": {"nodeName": integration_tests::Cluster::NODE, "serviceAccountName": "web", "containers": []},
        "status": {"phase": "Running", "hostIP": Node::IPV4},
    })
}
