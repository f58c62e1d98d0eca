//! A node joins a cluster in numbers, with a real API server: beside an operator that starts at the same moment, at one that
//! leads already, and once more after a restart; and the time from an installation to the first pod that runs. Prints one row a number (name, measured, unit, goal, met, peer), tab separated.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use cluster_stage::{StageOptions, User};
use integration_tests::measure::{no_rows, percentile, row, seconds};
use integration_tests::{Cluster, Kubelet, Node, binary, brought_by};
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
        let operator = start_operator(&cluster, &POOL)?;
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
    // 2 s of it are the API server's, which sleeps in the creation of an object whose kind was established less than 2 s before.
    row("first join with an operator that starts as well", percentile(first, 50), "s", 1.0);
    row("first join with an operator that leads", percentile(known, 50), "s", 0.6);
    row("ready again in a cluster after a restart", percentile(again, 50), "s", 0.5);
    let installed: io::Result<Vec<f64>> = (0..ROUNDS).map(|_| install(None)).collect();
    row("objects of the chart applied to first pod running", percentile(installed?, 50), "s", 5.0);
    let Some(helm) = helm() else {
        no_rows("helm install", "helm is not built: tools/helm does it");
        return Ok(());
    };
    let installed: io::Result<Vec<f64>> = (0..ROUNDS).map(|_| install(Some(&helm))).collect();
    row("helm install to first pod running", percentile(installed?, 50), "s", 5.0);
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns helm's path, if it is built.
fn helm() -> Option<PathBuf> {
    brought_by("helm").map(|folder| folder.join("helm"))
}

/// Installs the chart with its default values, by helm or as the objects that it renders.
fn apply_chart(cluster: &Cluster, helm: Option<&Path>) -> io::Result<()> {
    let Some(helm) = helm else {
        for file in ["config/kubernetes/cilium-config.yaml", "config/kubernetes/cilium.yaml"] {
            let text = fs::read_to_string(root().join(file))?;
            cluster.stage.apply(&text).map_err(io::Error::other)?;
        }
        return Ok(());
    };
    let home = cluster.node.sandbox().dir().join("helm");
    let mut command = cluster.node.host().command(helm);
    let output = command
        .args(["install", "cilium", "helm/apiary", "--namespace", "kube-system"])
        .current_dir(root())
        .env("KUBECONFIG", cluster.gate.kubeconfig(User::Admin).map_err(io::Error::other)?)
        .envs(["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"].map(|name| (name, &home)))
        .output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Installs the chart, starts operator and agent with its options as soon as those are there, and makes a pod. Returns the
/// seconds until it is ready. Images are no part of it, nor are the steps before the agent.
fn install(helm: Option<&Path>) -> io::Result<f64> {
    let mut cluster = addressed(Cluster::of(Node::with_cgroup(), &StageOptions::default(), &[]));
    Kubelet::configure(&mut cluster.node);
    let kubelet = Kubelet::start(&cluster);
    let begin = Instant::now();
    apply_chart(&cluster, helm)?;
    let config =
        cluster.stage.get(&["-n", "kube-system", "configmap", "cilium-config"]).map_err(io::Error::other)?;
    let data: BTreeMap<String, String> = serde_json::from_value(config["data"].clone())?;
    cluster.node.config.insert("procfs".to_owned(), "/proc".to_owned());
    let folder = cluster.node.sandbox().dir().join("operator");
    fs::create_dir(&folder)?;
    for (option, value) in &data {
        fs::write(folder.join(option), value)?;
        // Paths of the sandbox stay.
        cluster.node.config.entry(option.clone()).or_insert_with(|| value.clone());
    }
    let config_dir = format!("--config-dir={}", folder.display());
    let _operator = start_operator(&cluster, &[&config_dir])?;
    let mut command = cluster.node.agent_command();
    command.env("K8S_NODE_NAME", Cluster::NODE);
    cluster.node.spawn_command(command);
    cluster.stage.kubectl(&["run", "first", "--image=none", "--restart=Never"]).map_err(io::Error::other)?;
    let ready = ["wait", "--for=condition=Ready", "--timeout=60s", "pod", "first"];
    cluster.stage.kubectl(&ready).map_err(|error| {
        io::Error::other(format!("{error}\n{:#?}\n{}", kubelet.failures(), cluster.node.log()))
    })?;
    Ok(seconds(begin))
}

/// A cluster without Cilium's kinds, whose Node has an address, and an agent without ranges of its own.
fn cluster() -> Cluster {
    let mut cluster = addressed(Cluster::new(&[]));
    for (key, value) in [("ipam", "cluster-pool"), ("enable-ipv6", "false")] {
        cluster.node.config.insert(key.to_owned(), value.to_owned());
    }
    cluster
}

fn addressed(mut cluster: Cluster) -> Cluster {
    let address = json!({"type": "InternalIP", "address": Node::IPV4});
    let status = json!({"status": {"addresses": [address]}}).to_string();
    let patch = ["patch", "node", Cluster::NODE, "--subresource=status", "--type=merge", "-p", &status];
    cluster.stage.kubectl(&patch).unwrap();
    for option in ["ipv4-range", "ipv6-range"] {
        cluster.node.config.remove(option);
    }
    cluster
}

/// Options of the operator where there is no ConfigMap.
const POOL: [&str; 4] = [
    "--k8s-namespace=kube-system",
    "--operator-api-serve-addr=127.0.0.1:0",
    "--cluster-pool-ipv4-cidr=10.0.0.0/16",
    "--enable-ipv6=false",
];

fn start_operator(cluster: &Cluster, options: &[&str]) -> io::Result<Process> {
    let log = File::create(cluster.node.sandbox().dir().join("operator.log"))?;
    let kubeconfig = cluster.gate.kubeconfig(User::Operator).map_err(io::Error::other)?;
    let mut command = cluster.node.host().command(binary("operator"));
    command
        .arg(format!("--k8s-kubeconfig-path={}", kubeconfig.display()))
        .arg("--shell-sock-path=")
        .args(options)
        .env("CILIUM_K8S_NAMESPACE", "kube-system")
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
