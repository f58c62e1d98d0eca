//! The operator while nothing happens, and with 5,000 nodes, 100,000 endpoints and 60,000 identities.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::measure::{resident, row, seconds};
use integration_tests::simulated::{SimulatedCluster, Size};
use integration_tests::{Node, binary};
use k8s_types::{Key, Kind};
use serde_json::{Value, json};
use test_kit::Process;

use crate::agent::LIMIT;
use crate::processor_seconds;

const KINDS: &[Kind] = &[Kind::Namespace, Kind::Node, Kind::CiliumNode];
const IDLE: Duration = Duration::from_secs(60);
/// In a network namespace of its own.
const METRICS: u16 = 9963;
const SETTLED: Duration = Duration::from_secs(20);

const LARGE: Size = Size { nodes: 5000, pods: 100_000, services: 0, identities: 60_000, policies: 0 };
const LARGE_KINDS: &[Kind] =
    &[Kind::Namespace, Kind::Node, Kind::CiliumNode, Kind::Pod, Kind::CiliumEndpoint, Kind::CiliumIdentity];
/// Nodes that join one after the other, further apart than the operator's writes.
const JOINS: usize = 5;
const JOIN_INTERVAL: Duration = Duration::from_secs(2);
const COLLECTION_INTERVAL: Duration = Duration::from_secs(30);

pub(crate) fn idle() {
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

pub(crate) fn large() {
    let node = Node::new();
    let cluster = SimulatedCluster::new(node.host(), LARGE, LARGE_KINDS);
    let interval = format!("{}s", COLLECTION_INTERVAL.as_secs());
    let options = [
        format!("--identity-gc-interval={interval}"),
        // The first runs mark what is unused; nothing is.
        "--identity-heartbeat-timeout=1s".to_owned(),
        "--enable-metrics".to_owned(),
        format!("--operator-prometheus-serve-addr=127.0.0.1:{METRICS}"),
    ];
    let mut operator = Operator::start(&node, &cluster, &options);
    operator.wait_leading();
    let pid = operator.process.id();
    // The first run: all lists are complete.
    let collection = operator.collection();
    row("operator of 100k endpoints: memory", resident(pid), "MB", 250.0);
    row("operator: collection of 60k identities", collection, "s", 5.0);
    let joins = (0..JOINS).map(|join| {
        thread::sleep(JOIN_INTERVAL);
        joined(&cluster, &format!("new-{join}"))
    });
    let slowest = joins.fold(0.0, f64::max);
    row("operator of 5k nodes: CIDR of a new node", slowest, "ms", 50.0);
    // Over the next run, which writes nothing either.
    let _ = cluster.take_requests();
    let begin = Instant::now();
    thread::sleep(COLLECTION_INTERVAL);
    let requests = cluster.take_requests().iter().filter(|request| !request.contains("/leases")).count();
    row("operator: requests with 60k identities in use", requests as f64 / seconds(begin), "/s", 5.0);
}

/// Creates a CiliumNode without a range; returns the milliseconds until it has one.
fn joined(cluster: &SimulatedCluster, name: &str) -> f64 {
    cluster.add(&json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": name}, "spec": {"ipam": {}},
    }));
    let begin = Instant::now();
    while cluster.get(Kind::CiliumNode, &Key::new("", name))["spec"]["ipam"]["podCIDRs"] == Value::Null {
        assert!(begin.elapsed() < LIMIT, "{name} has no range");
        thread::sleep(Duration::from_millis(1));
    }
    seconds(begin) * 1e3
}

struct Operator<'n> {
    node: &'n Node,
    process: Process,
}

impl<'n> Operator<'n> {
    fn start(node: &'n Node, cluster: &SimulatedCluster, options: &[String]) -> Self {
        let log = File::create(node.sandbox().dir().join("operator.log")).unwrap();
        let mut command = node.host().command(binary("operator"));
        command
            .arg(format!("--k8s-api-server-urls={}", cluster.url()))
            .args(["--k8s-namespace=kube-system", "--shell-sock-path=", "--skip-crd-creation"])
            .args(["--operator-api-serve-addr=127.0.0.1:0", "--cluster-pool-ipv4-cidr=10.0.0.0/8"])
            .args(["--enable-ipv6=false"])
            .args(["--identity-allocation-mode=crd"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Operator { node, process: Process::start(&mut command).unwrap() }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.node.sandbox().dir().join("operator.log")).unwrap()
    }

    /// Waits for a run of the collection of identities; returns its seconds.
    fn collection(&mut self) -> f64 {
        let begin = Instant::now();
        loop {
            assert!(self.process.child().try_wait().unwrap().is_none(), "{}", self.log());
            let text = self.metrics().unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with("cilium_operator_identity_gc_latency{"));
            if let Some(value) = line.and_then(|line| line.rsplit(' ').next()) {
                return value.parse().unwrap();
            }
            assert!(begin.elapsed() < LIMIT + COLLECTION_INTERVAL, "{}\n{text}", self.log());
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn metrics(&self) -> io::Result<String> {
        let mut stream = self.node.host().run(|| TcpStream::connect(("127.0.0.1", METRICS)))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    fn wait_leading(&self) {
        let begin = Instant::now();
        while !self.log().contains("Leading the operator HA deployment") {
            assert!(begin.elapsed() < LIMIT, "{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }
}
