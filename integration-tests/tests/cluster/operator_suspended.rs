//! A leader that was suspended past its lease, with writes in flight.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use integration_tests::binary;
use integration_tests::simulated::{SimulatedCluster, Size};
use k8s_types::{Key, Kind};
use serde_json::{Value, json};
use test_kit::{Process, Sandbox, Slice, require_root, try_wait_until};

const LIMIT: Duration = Duration::from_secs(120);

/// Nodes that join before the first operator starts.
const NODES: usize = 60;

/// Requests of the first operator a second, and at once: each of its writes waits for its turn.
const RATE: [&str; 2] = ["--operator-k8s-client-qps=16", "--operator-k8s-client-burst=20"];

/// The first operator is suspended after one of these writes; which one changes with the commit.
const WRITES: std::ops::Range<u64> = 12..28;

struct Operator {
    process: Process,
    log: PathBuf,
}

impl Operator {
    fn start(sandbox: &Sandbox, name: &str, url: &str, options: &[&str]) -> Operator {
        let log = sandbox.dir().join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        let mut command = sandbox.host().command(binary("operator"));
        command
            .arg(format!("--k8s-api-server-urls={url}"))
            .args(["--k8s-namespace=kube-system", "--shell-sock-path=", "--skip-crd-creation"])
            .args(["--operator-api-serve-addr=127.0.0.1:0", "--cluster-pool-ipv4-cidr=10.0.0.0/16"])
            .args(["--enable-ipv6=false", "--nodes-gc-interval=0s"])
            .args(["--leader-election-lease-duration=5s", "--leader-election-renew-deadline=4s"])
            .arg("--leader-election-retry-period=500ms")
            .args(options)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        Operator { process: Process::start(&mut command).unwrap(), log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

fn name(node: usize) -> Key {
    Key::new("", format!("n{node}"))
}

/// CIDRs of all nodes that have one.
fn cidrs(cluster: &SimulatedCluster) -> Vec<String> {
    let cidr = |node| {
        let object = cluster.get(Kind::CiliumNode, &name(node));
        object["spec"]["ipam"]["podCIDRs"][0].as_str().map(str::to_owned)
    };
    (0..NODES).filter_map(cidr).collect()
}

fn is_write(request: &str) -> bool {
    !request.starts_with("GET ")
}

#[test]
fn a_leader_that_was_suspended_past_its_lease_writes_nothing_any_more() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let cluster = SimulatedCluster::new(sandbox.host(), Size::nodes(0), &[Kind::Namespace]);
    for node in 0..NODES {
        let mut object: Value =
            json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "spec": {"ipam": {"pools": {}}}});
        object["metadata"]["name"] = name(node).name.as_str().into();
        cluster.add(&object);
    }
    let mut one = Operator::start(&sandbox, "one", cluster.url(), &RATE);
    let slice = Slice::of(WRITES.end - WRITES.start);
    let (at, mut writes) = (WRITES.start + slice.index, 0);
    let (reached, is_reached) = mpsc::channel();
    cluster.server().on_request(move |request| {
        writes += u64::from(request.starts_with("PUT ") && request.contains("/ciliumnodes/"));
        if writes == at {
            let _ = reached.send(());
        }
    });
    is_reached.recv_timeout(LIMIT).unwrap_or_else(|error| panic!("write {at}: {error}\n{}", one.log()));
    one.process.suspend().unwrap();

    // Whatever it had sent is executed long before another one may lead.
    let (_, url) = cluster.second_server(sandbox.host());
    let before = cidrs(&cluster);
    assert!(before.len() + 20 < NODES, "control: it was about to write many more: {before:?}");
    let two = Operator::start(&sandbox, "two", &url, &["--operator-k8s-client-qps=0"]);
    let served = || match cidrs(&cluster) {
        all if all.len() == NODES => Ok(all),
        all => Err(format!("{} nodes have a CIDR", all.len())),
    };
    let all = try_wait_until(LIMIT, served).unwrap_or_else(|error| panic!("{error}\n{}", two.log()));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), NODES, "{all:?}");
    assert!(before.iter().all(|cidr| all.contains(cidr)), "{before:?} {all:?}");

    // Resumed, it finds its lease lost, and ends.
    cluster.take_requests();
    one.process.resume().unwrap();
    let status = one.process.wait(LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", one.log()));
    let requests = cluster.take_requests();
    let written: Vec<&String> = requests.iter().filter(|request| is_write(request)).collect();
    assert_eq!(written, Vec::<&String>::new(), "after write {at}: {}", one.log());
    assert_eq!(status.code(), Some(255), "{}", one.log());
    assert!(one.log().contains("leader election lost"), "{}", one.log());
    assert_eq!(cidrs(&cluster), all);
}
