//! The operator: idle, and with 5,000 nodes, 100,000 endpoints and 60,000 identities.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::measure::{peak, percentile, resident, row, seconds};
use integration_tests::simulated::{SimulatedCluster, Size, cilium_node, identity, node_name};
use integration_tests::{Node, binary};
use k8s_types::{Key, Kind};
use serde_json::json;
use test_kit::Process;

use crate::agent::LIMIT;
use crate::processor_seconds;

const SIZE: Size = Size { nodes: 5000, pods: 100_000, services: 10_000, identities: 60_000, policies: 0 };
/// Identities that no endpoint has.
const UNUSED: usize = 400;
const KINDS: &[Kind] = &[
    Kind::Namespace,
    Kind::Node,
    Kind::CiliumNode,
    Kind::CiliumIdentity,
    Kind::CiliumEndpoint,
    Kind::Pod,
    Kind::Service,
    Kind::EndpointSlice,
];
const IDLE: Duration = Duration::from_secs(60);
/// Without processor time for so long, lists are complete.
const QUIET: Duration = Duration::from_secs(1);
const SETTLED: Duration = Duration::from_secs(20);
const NEW_NODES: usize = 50;

pub(crate) fn run() {
    idle();
    large();
}

fn idle() {
    let node = Node::new();
    let cluster = SimulatedCluster::new(node.host(), Size::nodes(3), KINDS);
    let operator = Operator::start(&node, &cluster, &[]);
    operator.wait_leading();
    thread::sleep(SETTLED);
    let (begin, before) = (Instant::now(), processor_seconds(operator.process.id()));
    thread::sleep(IDLE);
    let used = (processor_seconds(operator.process.id()) - before) / seconds(begin) * 100.0;
    row("operator idle: processor time", used, "%", 0.1);
    row("operator idle: memory", resident(operator.process.id()), "MB", 15.0);
}

fn large() {
    let node = Node::new();
    let cluster = SimulatedCluster::new(node.host(), SIZE, KINDS);
    for unused in 0..UNUSED {
        cluster.add(&identity(SIZE.identities + unused));
    }
    let begin = Instant::now();
    // Long enough for a collection after the measurements of memory, and short enough to wait for.
    let options = ["--identity-gc-interval=60s", "--identity-heartbeat-timeout=30s"];
    let operator = Operator::start(&node, &cluster, &options);
    operator.wait_leading();
    operator.wait_quiet();
    row(
        "operator with 5k nodes: start until it is quiet",
        seconds(begin) - QUIET.as_secs_f64(),
        "s",
        f64::INFINITY,
    );
    thread::sleep(SETTLED);
    row("operator with 5k nodes: memory", resident(operator.process.id()), "MB", 250.0);
    row("operator with 5k nodes: peak of memory", peak(operator.process.id()), "MB", f64::INFINITY);
    new_nodes(&cluster);
    collection(&operator, &cluster);
}

/// The time from the creation of a CiliumNode until it has a CIDR.
fn new_nodes(cluster: &SimulatedCluster) {
    let samples = (0..NEW_NODES).map(|new| {
        let number = SIZE.nodes + new;
        let mut object = cilium_node(number);
        object["spec"]["ipam"] = json!({});
        let begin = Instant::now();
        cluster.add(&object);
        while cluster.get(Kind::CiliumNode, &Key::new("", node_name(number)))["spec"]["ipam"]["podCIDRs"]
            .is_null()
        {
            assert!(begin.elapsed() < LIMIT);
            thread::sleep(Duration::from_micros(200));
        }
        let took = seconds(begin) * 1e3;
        thread::sleep(Duration::from_millis(20));
        took
    });
    let samples: Vec<f64> = samples.collect();
    row("operator with 5k nodes: a new node's CIDR, median", percentile(samples.clone(), 50), "ms", 50.0);
    row("operator with 5k nodes: a new node's CIDR, p99", percentile(samples, 99), "ms", f64::INFINITY);
}

/// A collection of identities, of which some are unused.
fn collection(operator: &Operator, cluster: &SimulatedCluster) {
    cluster.take_requests();
    let begin = Instant::now();
    let name = "cilium_operator_identity_gc_latency";
    while operator.metric(name).is_none_or(|sum| sum == 0.0) {
        assert!(begin.elapsed() < LIMIT, "{}", operator.metrics());
        thread::sleep(Duration::from_millis(500));
    }
    let took = operator.metric(name).unwrap();
    let requests = cluster.take_requests();
    let marks =
        requests.iter().filter(|request| request.starts_with("PUT") && request.contains("ciliumidentities"));
    row("operator with 60k identities: a collection", took, "s", 5.0);
    let marks = marks.count();
    assert_eq!(marks, UNUSED, "each unused identity is marked once");
    row("operator with 60k identities: requests of it", marks as f64, "", f64::INFINITY);
}

struct Operator<'n> {
    node: &'n Node,
    process: Process,
}

impl<'n> Operator<'n> {
    const ADDRESS: &'static str = "127.0.0.1:9234";
    const METRICS: &'static str = "127.0.0.1:9963";

    fn start(node: &'n Node, cluster: &SimulatedCluster, options: &[&str]) -> Self {
        let log = File::create(node.sandbox().dir().join("operator.log")).unwrap();
        let mut command = node.host().command(binary("operator"));
        command
            .arg(format!("--k8s-api-server-urls={}", cluster.url()))
            .args(["--k8s-namespace=kube-system", "--shell-sock-path=", "--skip-crd-creation"])
            .arg(format!("--operator-api-serve-addr={}", Self::ADDRESS))
            .arg(format!("--operator-prometheus-serve-addr={}", Self::METRICS))
            .args(["--enable-metrics", "--cluster-pool-ipv4-cidr=10.0.0.0/8", "--enable-ipv6=false"])
            .args(["--identity-allocation-mode=crd"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Operator { node, process: Process::start(&mut command).unwrap() }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.node.sandbox().dir().join("operator.log")).unwrap()
    }

    fn wait_leading(&self) {
        self.wait(|| self.log().contains("Leading the operator HA deployment"));
    }

    /// Waits until it has used no processor time for a while.
    fn wait_quiet(&self) {
        self.wait(|| {
            let before = processor_seconds(self.process.id());
            thread::sleep(QUIET);
            processor_seconds(self.process.id()) - before < 0.05
        });
    }

    fn wait(&self, is_done: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_done() {
            assert!(begin.elapsed() < LIMIT, "{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn metrics(&self) -> String {
        let address: SocketAddr = Self::METRICS.parse().unwrap();
        let read = || {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        };
        self.node.host().run(read).unwrap_or_default()
    }

    /// Returns the sum of the samples of a metric.
    fn metric(&self, name: &str) -> Option<f64> {
        let text = self.metrics();
        let samples = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).reduce(|a, b| a + b)
    }
}
