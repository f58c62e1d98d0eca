//! Invalid policies, and maps without capacity for them: the policy in force meanwhile, by packets.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{UdpFlow, require_root, wait_until};

const WHILE: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(120);

/// A policy of namespace `default` for `app: server`; `version` is a label of its rules.
fn policy(name: &str, version: &str, mut spec: Value) -> Value {
    spec["endpointSelector"] = json!({"matchLabels": {"app": "server"}});
    spec["labels"] = json!([{"key": "version", "value": version}]);
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    })
}

fn from(app: &str) -> Value {
    json!({"fromEndpoints": [{"matchLabels": {"app": app}}]})
}

fn to(app: &str) -> Value {
    json!({"toEndpoints": [{"matchLabels": {"app": app}}]})
}

/// Whether packets pass; all of them or none.
fn passes(from: &Pod, to: &Pod, address: IpAddr) -> bool {
    let flow = UdpFlow::start(&from.ns, &to.ns, address).unwrap();
    sleep(WHILE);
    let report = flow.stop();
    assert!(report.is_perfect() || report.received == 0, "{report:?}");
    report.received > 0
}

/// Whether each of the two clients reaches the server, over both families alike.
fn reach(clients: [&Pod; 2], server: &Pod) -> [bool; 2] {
    clients.map(|client| {
        let [ipv4, ipv6] = server.addresses().map(|address| passes(client, server, address));
        assert_eq!(ipv4, ipv6, "{} by family", client.name);
        ipv4
    })
}

/// Returns the agent's metrics, read in its namespace.
fn metrics() -> std::io::Result<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect("127.0.0.1:9962")?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the row of a table with all these words, as text.
fn row(node: &Node, table: &str, words: &[&str]) -> Option<String> {
    let dump = node.request("GET", &format!("/statedb/dump/{table}"), None).unwrap();
    assert_eq!(dump.status, 200, "{dump:?}");
    let rows = dump.json()[table].as_array().cloned().unwrap_or_default();
    rows.iter().map(Value::to_string).find(|row| words.iter().all(|word| row.contains(word)))
}

#[test]
fn a_broken_object_leaves_its_last_good_version_in_force_and_the_rest_applies() {
    require_root!();
    let mut node = Node::started();
    node.apply("policy.yaml", &policy("server", "good", json!({"ingress": [from("friend")]})).to_string());
    let [server, friend, other] =
        ["server", "friend", "other"].map(|app| node.add_pod_with("default", app, &[("app", app)]));
    node.wait_rules("version", &["good"]);
    assert_eq!(reach([&friend, &other], &server), [true, false], "{}", node.log());

    // The same object, wrong in one place, beside another that is fine.
    let mut wrong = from("other");
    wrong["toPorts"] = json!([{"ports": [{"port": "80"}, {"port": "70000"}]}]);
    let manifests = [
        policy("server", "broken", json!({"ingress": [wrong]})),
        policy("more", "more", json!({"egress": [to("other")]})),
    ];
    node.apply("policy.yaml", &manifests.map(|manifest| manifest.to_string()).join("\n---\n"));
    node.wait_rules("version", &["good", "more"]);
    assert_eq!(reach([&friend, &other], &server), [true, false], "{}", node.log());
    assert!(!passes(&server, &friend, friend.ipv4) && passes(&server, &other, other.ipv4), "{}", node.log());
    let reported = row(&node, "policies", &["server", "spec.ingress[0].toPorts[0].ports[1].port", "70000"]);
    assert!(reported.is_some(), "{}", node.request("GET", "/statedb/dump/policies", None).unwrap().body);

    // Once corrected, it takes effect.
    node.apply("policy.yaml", &policy("server", "right", json!({"ingress": [from("other")]})).to_string());
    node.wait_rules("version", &["right"]);
    assert_eq!(reach([&friend, &other], &server), [false, true], "{}", node.log());
}

#[test]
fn an_endpoint_whose_map_is_full_is_denied_wholly_and_recovers() {
    require_root!();
    full_map(false);
}

#[test]
fn an_endpoint_in_lockdown_drops_packets_as_denied_by_rules_and_recovers() {
    require_root!();
    full_map(true);
}

/// Fills the map of an endpoint, with and without `enable-endpoint-lockdown-on-policy-overflow`.
fn full_map(lockdown: bool) {
    let mut node = Node::new();
    node.config.insert("bpf-policy-map-max".into(), "256".into());
    node.config.insert("enable-endpoint-lockdown-on-policy-overflow".into(), lockdown.to_string());
    node.config.insert("prometheus-serve-addr".into(), "127.0.0.1:9962".into());
    node.start();
    let few = policy("server", "few", json!({"ingress": [from("friend")]}));
    // Odd ports only, so that no two share an entry.
    let ports: Vec<Value> =
        (0..320).map(|i| json!({"port": (2 * i + 1).to_string(), "protocol": "TCP"})).collect();
    let many = ports.chunks(40).map(|ports| json!({"toPorts": [{"ports": ports}]})).chain([from("friend")]);
    let many = policy("server", "many", json!({"ingress": many.collect::<Vec<_>>()}));
    node.apply("policy.yaml", &few.to_string());
    let [server, friend, other] =
        ["server", "friend", "other"].map(|app| node.add_pod_with("default", app, &[("app", app)]));
    node.wait_rules("version", &["few"]);
    assert_eq!(reach([&friend, &other], &server), [true, false], "{}", node.log());

    let overflowed = || {
        let metrics = node.host().run(metrics).unwrap();
        let line = metrics.lines().find(|line| line.starts_with("cilium_policy_endpoints_overflowed"));
        line.map(|line| line.rsplit(' ').next().unwrap().to_owned())
    };
    // Packets that deny rows have dropped, in both directions.
    let denied = || {
        let metrics = node.host().run(metrics).unwrap();
        let dropped = metrics.lines().filter(|line| {
            line.starts_with("cilium_drop_count_total{") && line.contains("\"Policy denied by denylist\"")
        });
        dropped.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum::<u64>()
    };
    assert_eq!(denied(), 0);
    node.apply("policy.yaml", &many.to_string());
    wait_until("the table reports the full map", LIMIT, || {
        row(&node, "endpoint-policies", &["Full", "bpf-policy-map-max"]).is_some()
    });
    assert_eq!(reach([&friend, &other], &server), [false, false], "{}", node.log());
    assert!(!passes(&server, &friend, friend.ipv4), "also what it sends\n{}", node.log());
    assert!(passes(&other, &friend, friend.ipv4), "others go on\n{}", node.log());
    assert_eq!(overflowed().as_deref(), Some("1"));
    assert_eq!(denied() > 0, lockdown, "{}", node.host().run(metrics).unwrap());

    node.apply("policy.yaml", &few.to_string());
    node.wait_rules("version", &["few"]);
    assert_eq!(reach([&friend, &other], &server), [true, false], "{}", node.log());
    assert_eq!(overflowed().as_deref(), Some("0"));
}
