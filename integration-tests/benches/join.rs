//! A node joins a cluster in numbers, with a real API server: beside an operator that starts at the same moment, at one that
//! leads already, and once more after a restart. Prints one row a number (name, measured, unit, goal, met, peer), tab separated.

use std::fs::{self, File};
use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cluster_stage::User;
use integration_tests::measure::{no_rows, percentile, row, seconds};
use integration_tests::{Cluster, Node, binary};
use serde_json::{Value, json};
use test_kit::Process;

const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> io::Result<()> {
    if !test_kit::is_root() {
        no_rows("join", "needs root");
        return Ok(());
    }
    let (mut first, mut known, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut cluster = cluster();
        let begin = Instant::now();
        let operator = start_operator(&cluster)?;
        first.push(join(&mut cluster, begin));
        cluster.node.stop();

        let begin = Instant::now();
        again.push(join(&mut cluster, begin));
        cluster.node.stop();

        // Nothing of this node is known any more, neither here nor there.
        cluster.stage.kubectl(&["delete", "ciliumnode", Cluster::NODE]).map_err(io::Error::other)?;
        fs::remove_dir_all(&cluster.node.config["state-dir"])?;
        let begin = Instant::now();
        known.push(join(&mut cluster, begin));
        drop(operator);
    }
    // The API server holds back objects of a kind that was defined less than 2 s before, for others of its kind.
    row("first join with an operator that starts as well", percentile(first, 50), "s", 1.0);
    row("first join with an operator that leads", percentile(known, 50), "s", 0.6);
    row("ready again in a cluster after a restart", percentile(again, 50), "s", 0.5);
    Ok(())
}

/// A cluster without Cilium's kinds, whose Node has an address, and an agent without ranges of its own.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(&[]);
    let address = json!({"type": "InternalIP", "address": Node::IPV4});
    let status = json!({"status": {"addresses": [address]}}).to_string();
    let patch = ["patch", "node", Cluster::NODE, "--subresource=status", "--type=merge", "-p", &status];
    cluster.stage.kubectl(&patch).unwrap();
    for option in ["ipv4-range", "ipv6-range"] {
        cluster.node.config.remove(option);
    }
    for (key, value) in [("ipam", "cluster-pool"), ("enable-ipv6", "false")] {
        cluster.node.config.insert(key.to_owned(), value.to_owned());
    }
    cluster
}

fn start_operator(cluster: &Cluster) -> io::Result<Process> {
    let log = File::create(cluster.node.sandbox().dir().join("operator.log"))?;
    let kubeconfig = cluster.gate.kubeconfig(User::Operator).map_err(io::Error::other)?;
    let mut command = cluster.node.host().command(binary("operator"));
    command
        .arg(format!("--k8s-kubeconfig-path={}", kubeconfig.display()))
        .args(["--k8s-namespace=kube-system", "--shell-sock-path=", "--operator-api-serve-addr=127.0.0.1:0"])
        .args(["--cluster-pool-ipv4-cidr=10.0.0.0/16", "--enable-ipv6=false"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    Process::start(&mut command)
}

/// Starts the agent. Returns the seconds until it is ready and has an address for a pod.
fn join(cluster: &mut Cluster, begin: Instant) -> f64 {
    let mut command = cluster.node.agent_command();
    command.env("K8S_NODE_NAME", Cluster::NODE);
    cluster.node.spawn_command(command);
    while !has_address(&cluster.node) {
        assert!(begin.elapsed() < LIMIT, "{}\n{:?}", cluster.node.log(), cluster.unwell());
        std::thread::sleep(Duration::from_millis(1));
    }
    seconds(begin)
}

fn has_address(node: &Node) -> bool {
    let Ok(health) = node.request("GET", "/v1/healthz?brief=true", None) else { return false };
    let is_ready =
        serde_json::from_str::<Value>(&health.body).is_ok_and(|body| body["cilium"]["state"] == "Ok");
    let address = || node.request("POST", "/v1/ipam?family=ipv4&owner=default%2Fpod", None);
    is_ready && address().is_ok_and(|answer| answer.status == 201)
}
