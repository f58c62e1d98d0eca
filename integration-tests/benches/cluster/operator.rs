//! The operator while nothing happens.

use std::fs::{self, File};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::measure::{resident, row, seconds};
use integration_tests::simulated::{SimulatedCluster, Size};
use integration_tests::{Node, binary};
use k8s_types::Kind;
use test_kit::Process;

use crate::agent::LIMIT;
use crate::processor_seconds;

const KINDS: &[Kind] = &[Kind::Namespace, Kind::Node, Kind::CiliumNode];
const IDLE: Duration = Duration::from_secs(60);
const SETTLED: Duration = Duration::from_secs(20);

pub(crate) fn run() {
    let node = Node::new();
    let cluster = SimulatedCluster::new(node.host(), Size::nodes(3), KINDS);
    let operator = Operator::start(&node, &cluster);
    operator.wait_leading();
    thread::sleep(SETTLED);
    let (begin, before) = (Instant::now(), processor_seconds(operator.process.id()));
    thread::sleep(IDLE);
    let used = (processor_seconds(operator.process.id()) - before) / seconds(begin) * 100.0;
    row("operator idle: processor time", used, "%", 0.1);
    row("operator idle: memory", resident(operator.process.id()), "MB", 15.0);
}

struct Operator<'n> {
    node: &'n Node,
    process: Process,
}

impl<'n> Operator<'n> {
    fn start(node: &'n Node, cluster: &SimulatedCluster) -> Self {
        let log = File::create(node.sandbox().dir().join("operator.log")).unwrap();
        let mut command = node.host().command(binary("operator"));
        command
            .arg(format!("--k8s-api-server-urls={}", cluster.url()))
            .args(["--k8s-namespace=kube-system", "--shell-sock-path=", "--skip-crd-creation"])
            .args(["--operator-api-serve-addr=127.0.0.1:0", "--cluster-pool-ipv4-cidr=10.0.0.0/8"])
            .args(["--enable-ipv6=false"])
            .args(["--identity-allocation-mode=crd"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Operator { node, process: Process::start(&mut command).unwrap() }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.node.sandbox().dir().join("operator.log")).unwrap()
    }

    fn wait_leading(&self) {
        let begin = Instant::now();
        while !self.log().contains("Leading the operator HA deployment") {
            assert!(begin.elapsed() < LIMIT, "{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }
}
