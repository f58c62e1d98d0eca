//! Shared parts of benchmarks: rows of the table that `tools/bench` makes, endpoints without a plugin, memory of a process.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use test_kit::NetNs;

use crate::{Node, pod_manifest, request};

/// Prints a row (name, measured, unit, goal, met, peer); `goal` is an upper bound.
pub fn row(name: &str, measured: f64, unit: &str, goal: f64) {
    compared_row(name, measured, unit, goal, "-");
}

/// Prints a row with what the measured value is compared with.
#[expect(clippy::print_stdout, reason = "a benchmark prints its rows")]
pub fn compared_row(name: &str, measured: f64, unit: &str, goal: f64, peer: &str) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("{name}\t{measured:.3}\t{unit}\t{goal}\t{met}\t{peer}");
}

/// Says why there are no rows.
#[expect(clippy::print_stderr, reason = "says why there are no rows")]
pub fn no_rows(benchmark: &str, reason: &str) {
    eprintln!("{benchmark} benchmarks: {reason}");
}

/// The sample that so many hundredths of the samples do not exceed.
#[must_use]
pub fn percentile(mut samples: Vec<f64>, hundredths: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    let rank = (samples.len() * hundredths).div_ceil(100).max(1);
    samples.get(rank - 1).copied().unwrap_or(f64::NAN)
}

/// Seconds since a moment.
#[must_use]
pub fn seconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64()
}

/// Private and file pages of a process, in MB.
///
/// # Panics
/// When there is no such process.
#[must_use]
pub fn resident(pid: u32) -> f64 {
    megabytes(pid, &["RssAnon:", "RssFile:"])
}

/// The largest that the resident memory of a process ever was, in MB.
///
/// # Panics
/// When there is no such process.
#[must_use]
pub fn peak(pid: u32) -> f64 {
    megabytes(pid, &["VmHWM:"])
}

/// The sum of these rows of a process' status.
fn megabytes(pid: u32, keys: &[&str]) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kilobytes = |key: &&str| {
        status.lines().find(|l| l.starts_with(*key))?.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    keys.iter().filter_map(kilobytes).sum::<f64>() * 1024.0 / 1e6
}

/// Makes endpoints that are pods with the labels `app=bench` and `bench=bN`, without the plugin: all far ends are in one
/// namespace.
///
/// # Panics
/// When one cannot be made.
pub fn bench_pods(node: &Node, count: usize) {
    let manifest =
        |i| pod_manifest("default", &format!("bench{i}"), &[("app", "bench"), ("bench", &format!("b{i}"))]);
    node.apply("pods.yaml", &(0..count).map(manifest).collect::<Vec<_>>().join("---\n"));
    let ns = node.sandbox().netns("pods").unwrap();
    for i in 0..count {
        Candidate::new(node, &ns, i).of_pod("default", &format!("bench{i}")).create(&node.socket());
    }
}

/// A clusterwide policy; `version` is the value of the label `version` of its rules.
#[must_use]
pub fn cluster_policy(name: &str, mut spec: Value, version: usize) -> String {
    spec["labels"] = json!([{"key": "version", "value": version.to_string()}]);
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumClusterwideNetworkPolicy",
        "metadata": {"name": name},
        "spec": spec,
    })
    .to_string()
}

/// Policies about the pods of [`bench_pods()`], each with a peer, ports, a prefix of its own and entities.
#[must_use]
pub fn bench_policies(count: usize, pods: usize, version: usize) -> String {
    let policy = |i: usize| {
        let spec = json!({
            "endpointSelector": {"matchLabels": {"bench": format!("b{}", i % pods)}},
            "ingress": [{
                "fromEndpoints": [{"matchLabels": {"bench": format!("b{}", (i + 1) % pods)}}],
                "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}, {"port": "53", "protocol": "UDP"}]}],
            }],
            "egress": [{"toCIDR": [format!("10.{i}.0.0/16")]}, {"toEntities": ["cluster"]}],
        });
        cluster_policy(&format!("p{i}"), spec, version)
    };
    (0..count).map(policy).collect::<Vec<_>>().join("\n---\n")
}

/// Does something with each, from so many clients at once.
pub fn from_clients<T: Sync>(clients: usize, items: &[T], work: impl Fn(&T) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for client in 0..clients {
            scope.spawn(move || items.iter().skip(client).step_by(clients).for_each(work));
        }
    });
}

/// A link pair as the plugin would leave it; the body of the request that makes it an endpoint.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Where the request goes.
    pub path: String,
    body: Value,
}

impl Candidate {
    /// Makes the pair, its far end in `pods`, and takes addresses for it.
    ///
    /// # Panics
    /// When the agent has no address, or the pair cannot be made.
    #[must_use]
    pub fn new(node: &Node, pods: &NetNs, number: usize) -> Self {
        let (host, peer) = (format!("lxc{number:012x}"), format!("eth{number}"));
        let ns = pods.path().display();
        node.host().ip(&format!("link add {host} type veth peer name {peer} netns {ns}")).unwrap();
        let read = |file: &str| {
            let text =
                node.host().run(|| fs::read_to_string(format!("/sys/class/net/{host}/{file}"))).unwrap();
            text.trim().to_owned()
        };
        let ipam = node.request("POST", &format!("/v1/ipam?owner=bench{number}"), None).unwrap().json();
        let body = json!({
            "container-id": format!("bench{number}"),
            "container-interface-name": peer,
            "state": "waiting-for-identity",
            "interface-name": host,
            "interface-index": read("ifindex").parse::<u32>().unwrap(),
            "mac": format!("02:00:00:00:{:02x}:{:02x}", number / 256, number % 256),
            "host-mac": read("address"),
            "addressing": {"ipv4": ipam["address"]["ipv4"], "ipv6": ipam["address"]["ipv6"]},
            "sync-build-endpoint": true,
        });
        Self { path: format!("/v1/endpoint/cni-attachment-id:bench{number}:{peer}"), body }
    }

    /// The same as a pod of the cluster, which has a manifest.
    #[must_use]
    pub fn of_pod(mut self, namespace: &str, name: &str) -> Self {
        self.body["k8s-namespace"] = json!(namespace);
        self.body["k8s-pod-name"] = json!(name);
        self
    }

    /// Makes it an endpoint; how long the request took, in seconds.
    ///
    /// # Panics
    /// When the agent refuses.
    pub fn create(&self, socket: &Path) -> f64 {
        let body = self.body.to_string();
        let begin = Instant::now();
        let answer = request(socket, "PUT", &self.path, Some(&body)).unwrap();
        let took = seconds(begin);
        assert_eq!(answer.status, 201, "{answer:?}");
        took
    }

    /// Removes the endpoint, as the plugin does.
    ///
    /// # Panics
    /// When the agent refuses.
    pub fn delete(&self, socket: &Path) {
        let answer = request(socket, "DELETE", &self.path, None).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}
