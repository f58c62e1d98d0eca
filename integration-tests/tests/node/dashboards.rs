//! Cilium's Grafana dashboards of agents and of the operator find their series in those of ours.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use integration_tests::simulated::{SimulatedCluster, Size};
use integration_tests::{Cluster, Node, binary, pod_manifest};
use k8s_types::Kind;
use serde_json::{Value, json};
use test_kit::{NetNs, Process, require_command, require_root, try_wait_until};

/// A line a series, in columns that its head describes.
const DASHBOARDS: &str = include_str!("dashboards.tsv");

const KINDS: &[Kind] = &[Kind::Namespace, Kind::Node, Kind::CiliumNode];

const AGENT_METRICS: &str = "127.0.0.1:9962";

const OPERATOR_METRICS: &str = "127.0.0.1:9963";

/// Until the slowest first round of a job has counted something: that of connection tracking's garbage collection.
const LIMIT: Duration = Duration::from_secs(120);

/// Begins the reason of a row that has a series at times.
const IN_USE: &str = "(in use)";

/// Compares the rows of a dashboard with exported text; returns the differences.
fn compare(dashboard: &str, text: &str) -> Result<(), String> {
    let mut differences = Vec::new();
    for row in DASHBOARDS.lines().filter(|row| row.split('\t').next() == Some(dashboard)) {
        let [_, series, labels, selections, reason] =
            row.split('\t').collect::<Vec<_>>().try_into().expect("five columns");
        let samples: Vec<&str> =
            text.lines().filter(|line| line.split(['{', ' ']).next() == Some(series)).collect();
        let selected_by = |selection: &str| {
            let has_all = |sample: &&str| {
                let mut pairs = selection.split(',').map(|pair| pair.split_once('=').unwrap());
                pairs.all(|(label, value)| sample.contains(&format!("{label}=\"{value}\"")))
            };
            samples.iter().any(has_all)
        };
        let mut selections = selections.split("; ").filter(|selection| !selection.is_empty());
        let has_label = |label: &str| {
            samples.iter().all(|sample| {
                sample.contains(&format!("{{{label}=\"")) || sample.contains(&format!(",{label}=\""))
            })
        };
        let mut labels = labels.split(' ').filter(|label| !label.is_empty());
        match reason {
            "" if samples.is_empty() => differences.push(format!("{row}: there is no such series")),
            "" => {
                if let Some(label) = labels.find(|label| !has_label(label)) {
                    differences.push(format!("{row}: {label} is not a label of all of {samples:#?}"));
                }
                if let Some(selection) = selections.find(|selection| !selected_by(selection)) {
                    differences.push(format!("{row}: {selection} selects none of {samples:#?}"));
                }
            }
            // A reason for a whole series, or for one selection of it.
            reason if reason.starts_with(IN_USE) => {}
            _ => {
                let mut selections = selections.peekable();
                let is_found = match selections.peek() {
                    Some(_) => selections.any(selected_by),
                    None => !samples.is_empty(),
                };
                if is_found {
                    differences.push(format!("{row}: it is exported"));
                }
            }
        }
    }
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
}

/// Reads the metrics of a process.
fn scrape(ns: &NetNs, address: &str) -> std::io::Result<String> {
    ns.run(|| {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })
}

fn policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

/// Adds objects of each kind by which the dashboard selects events; one policy is wrong.
fn add_objects(cluster: &SimulatedCluster) {
    let of = |app: &str| json!({"matchLabels": {"app": app}});
    let nobody = json!([{"fromEndpoints": [of("none")]}]);
    cluster.add(&policy("closed", json!({"endpointSelector": of("closed"), "ingress": nobody})));
    let dns =
        json!({"ports": [{"port": "53", "protocol": "UDP"}], "rules": {"dns": [{"matchName": "a.test"}]}});
    let egress = json!([{"toEndpoints": [of("closed")]}, {"toEntities": ["world"], "toPorts": [dns]}]);
    cluster.add(&policy("client", json!({"endpointSelector": of("client"), "egress": egress})));
    let wrong = json!([{"toPorts": [{"ports": [{"port": "70000", "protocol": "TCP"}]}]}]);
    cluster.add(&policy("wrong", json!({"endpointSelector": of("client"), "egress": wrong})));
    cluster.add(&json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": "default"},
        "spec": {"podSelector": of("closed"), "policyTypes": ["Ingress"]},
    }));
    cluster.add(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [{"port": 80, "protocol": "TCP"}]},
    }));
}

/// A query for the address of `b.test`, which policy does not allow.
const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01b\x04test\0\0\x01\0\x01";

/// Sends a packet to each address and port.
fn send(ns: &NetNs, to: &[(IpAddr, u16)]) {
    ns.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // A packet that is dropped may be an error here, too.
        to.iter().for_each(|to| drop(socket.send_to(QUERY, to)));
    });
}

#[test]
fn dashboards_of_cilium_find_series_of_the_agent() {
    require_root!();
    require_command!("iptables");
    let mut node = Node::new();
    let cluster = SimulatedCluster::new(node.host(), Size::nodes(1), KINDS);
    cluster.join(&mut node);
    node.config.remove("enable-health-checking");
    node.config.insert("prometheus-serve-addr".to_owned(), AGENT_METRICS.to_owned());
    node.config.insert("metrics".to_owned(), "+cilium_bpf_syscall_duration_seconds".to_owned());
    // For the redirect of DNS.
    node.config.insert("install-iptables-rules".to_owned(), "true".to_owned());
    cluster.spawn(&mut node);
    node.wait_ready();
    add_objects(&cluster);
    let [client, closed] = ["client", "closed"].map(|name| {
        let manifest = pod_manifest("default", name, &[("app", name)]);
        let mut pod: Value = serde_json::from_str(&manifest).unwrap();
        pod["spec"]["nodeName"] = Cluster::NODE.into();
        cluster.add(&pod);
        node.add_unknown_pod("default", name)
    });
    let world: IpAddr = Node::WORLD_IPV4.parse().unwrap();
    let compare = || {
        send(&client.ns, &[(world, 53), (world, 7777), (closed.ipv4, 7777)]);
        compare("agent", &scrape(node.host(), AGENT_METRICS).map_err(|error| error.to_string())?)
    };
    if let Err(differences) = try_wait_until(LIMIT, compare) {
        panic!("{differences}\n{}", node.log());
    }
}

#[test]
fn dashboards_of_cilium_find_series_of_the_operator() {
    require_root!();
    let node = Node::new();
    let cluster = SimulatedCluster::new(node.host(), Size::nodes(1), KINDS);
    let log = node.sandbox().dir().join("operator.log");
    let output = File::create(&log).unwrap();
    let mut command: Command = node.host().command(binary("operator"));
    command
        .args([&format!("--k8s-api-server-urls={}", cluster.url()), "--shell-sock-path="])
        .arg(format!("--operator-prometheus-serve-addr={OPERATOR_METRICS}"))
        .arg("--enable-metrics=true")
        .env("K8S_NODE_NAME", Cluster::NODE)
        .env("CILIUM_K8S_NAMESPACE", "kube-system")
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output);
    let _operator = Process::start(&mut command).unwrap();
    let compare =
        || compare("operator", &scrape(node.host(), OPERATOR_METRICS).map_err(|error| error.to_string())?);
    if let Err(differences) = try_wait_until(LIMIT, compare) {
        panic!("{differences}\n{}", std::fs::read_to_string(log).unwrap_or_default());
    }
}
