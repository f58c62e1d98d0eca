//! The state folder across runs, by its effect on packets: policies with files that are damaged while no agent runs.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{UdpFlow, require_root, wait_until};

const WHILE: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(120);

/// A policy of namespace `default` for `app: server`: what may reach it.
fn policy(name: &str, from: &Value) -> String {
    let manifest = json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": [from]},
    });
    manifest.to_string()
}

fn from(app: &str) -> Value {
    json!({"fromEndpoints": [{"matchLabels": {"app": app}}]})
}

/// Whether packets pass; all of them or none.
fn passes(from: &Pod, to: &Pod) -> bool {
    let flow = UdpFlow::start(&from.ns, &to.ns, to.ipv4).unwrap();
    sleep(WHILE);
    let report = flow.stop();
    assert!(report.is_perfect() || report.received == 0, "{report:?}");
    report.received > 0
}

/// The row of a table that has this member, as text.
fn row(node: &Node, table: &str, word: &str) -> String {
    let dump = node.get(&format!("/statedb/dump/{table}"));
    let rows = dump[table].as_array().cloned().unwrap_or_default();
    rows.iter().map(Value::to_string).find(|row| row.contains(word)).unwrap_or_default()
}

#[test]
fn what_breaks_while_no_agent_runs_stays_as_it_was() {
    require_root!();
    let mut node = Node::started();
    node.apply("policy.yaml", &policy("server", &from("friend")));
    let [server, friend, other] =
        ["server", "friend", "other"].map(|app| node.add_pod_with("default", app, &[("app", app)]));
    node.wait_policies(&["server"]);
    let reached = || [&friend, &other].map(|client| passes(client, &server));
    assert_eq!(reached(), [true, false], "{}", node.log());

    // Refused by the reader of YAML, of kinds, of rules; or not a regular file.
    let mut wrong = from("other");
    wrong["toPorts"] = json!([{"ports": [{"port": "70000"}]}]);
    let cluster = node.config["cluster-folder"].clone();
    let place = std::path::Path::new(&cluster).join("policy.yaml");
    let broken =
        ["kind: [\n".to_owned(), "kind: CiliumNetworkPolicyy\n".to_owned(), policy("server", &wrong)];
    for (n, content) in broken.iter().map(Some).chain([None]).enumerate() {
        match n % 2 {
            0 => node.stop(),
            _ => drop(node.kill()),
        }
        match content {
            Some(content) => drop(node.apply("policy.yaml", content)),
            None => {
                fs::remove_file(&place).unwrap();
                fs::create_dir(&place).unwrap();
            }
        }
        node.start();
        node.wait_policies(&["server"]);
        assert_eq!(reached(), [true, false], "{content:?}\n{}", node.log());
        let (source, status) = (row(&node, "k8s-sources", "policy.yaml"), row(&node, "policies", "server"));
        let health = node.get("/v1/healthz").to_string();
        match n {
            2 => {
                assert!(status.contains("70000") && status.contains("revious"), "{status}");
                assert!(health.contains("70000"), "{health}");
            }
            _ => {
                assert!(source.contains("\"kept\":1") || source.contains("\"Kept\":1"), "{source}");
                assert!(health.contains("policy.yaml"), "{health}");
            }
        }
    }

    // A pod's manifest as well: without labels it would be reserved:init, which this policy does not let in.
    node.stop();
    fs::remove_dir(&place).unwrap();
    node.apply("policy.yaml", &policy("server", &from("friend")));
    node.apply("pod-friend.yaml", "kind: Pod\nmetadata: {name: friend, labels: [app]}\n");
    node.start();
    node.wait_policies(&["server"]);
    assert_eq!(reached(), [true, false], "{}", node.log());

    // A missing file is a deletion: its policies are not restored.
    node.stop();
    node.withdraw("policy.yaml");
    node.start();
    assert_eq!(reached(), [true, true], "{}", node.log());
    node.stop();
    node.apply("policy.yaml", "kind: [\n");
    node.start();
    assert_eq!(reached(), [true, true], "{}", node.log());
    let state = node.endpoint_files();
    wait_until("nothing of it is left", LIMIT, || {
        fs::read_dir(state.join("policies")).unwrap().count() == 0
            && fs::read_dir(state.join("manifests/cluster-folder")).unwrap().count() == 3
    });
}

/// Requests an address. Returns the error text.
fn claim(node: &Node, ip: std::net::IpAddr) -> String {
    let answer = node.request("POST", &format!("/v1/ipam/{ip}?pool=default"), None).unwrap();
    if answer.status == 200 { String::new() } else { answer.body }
}

/// A pod with a damaged record: denied, reported by name, and removed by the runtime's deletion; other pods are
/// unaffected.
#[test]
fn a_damaged_record_closes_its_pod_and_is_told_until_the_pod_is_deleted() {
    require_root!();
    let mut node = Node::started();
    let [client, server, other] =
        ["client", "server", "other"].map(|app| node.add_pod_with("default", app, &[("app", app)]));
    assert!(passes(&client, &server) && passes(&client, &other));
    let rows = node.get("/v1/endpoint");
    let named = |row: &&Value| row["status"]["external-identifiers"]["pod-name"] == "default/server";
    let id = rows.as_array().unwrap().iter().find(named).unwrap()["id"].to_string();
    node.stop();
    let directory = node.endpoint_files().join(&id);
    fs::write(directory.join("ep_config.json"), "{\"ID\":").unwrap();
    node.start();

    let quarantined = node.endpoint_files().join(format!("{id}.unreadable"));
    assert!(!directory.exists() && quarantined.join("ep_config.json").exists());
    let reported =
        |node: &Node| node.get("/v1/healthz").to_string().contains(&format!("endpoint {id} (interface "));
    wait_until("health names it", LIMIT, || reported(&node));
    wait_until("its pod is closed", LIMIT, || !passes(&client, &server) && !passes(&server, &client));
    assert!(passes(&client, &other), "{}", node.log());
    assert!(!node.endpoints().iter().any(|row| row.starts_with(&format!("{id} "))));

    // It does not come back, is reported by every run, and its addresses are not allocated again.
    assert!(server.addresses().into_iter().all(|ip| claim(&node, ip).contains("allocated")));
    node.stop();
    node.start();
    assert!(!passes(&client, &server) && passes(&client, &other), "{}", node.log());
    wait_until("health names it again", LIMIT, || reported(&node));
    assert!(server.addresses().into_iter().all(|ip| claim(&node, ip).contains("allocated")));

    // The runtime's deletion ends it: no report is left, and the addresses are free.
    let addresses = server.addresses();
    server.cni(&node, "DEL").unwrap();
    wait_until("health is well", LIMIT, || !reported(&node));
    assert!(quarantined.join("ep_config.json").exists(), "kept for inspection");
    for ip in addresses {
        wait_until("the address is free", LIMIT, || claim(&node, ip).is_empty());
    }
    assert!(passes(&client, &other), "{}", node.log());
    node.stop();
    node.start();
    assert!(!node.get("/v1/healthz").to_string().contains("records are damaged"));
}

/// An interface belongs to one endpoint.
#[test]
fn another_endpoints_interface_is_refused() {
    require_root!();
    let mut node = Node::started();
    let pods = node.add_pods(2);
    let rows = node.get("/v1/endpoint");
    let row = rows.as_array().unwrap().iter().find(|row| row["status"]["identity"]["id"] != 1).unwrap();
    let request = json!({
        "container-id": "thief",
        "interface-name": row["status"]["networking"]["interface-name"],
        "interface-index": row["status"]["networking"]["interface-index"],
        "addressing": {"ipv4": node.unused_ipv4().to_string()},
        "state": "waiting-for-identity",
        "sync-build-endpoint": true,
    });
    let answer = node.request("PUT", "/v1/endpoint/0", Some(&request.to_string())).unwrap();
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.body.contains(&format!("is endpoint {}'s", row["id"])), "{answer:?}");
    assert!(passes(&pods[0], &pods[1]) && passes(&pods[1], &pods[0]), "{}", node.log());
}

/// Rules that change while no agent runs, so that an allowed address is in another prefix: never a wrongful denial.
#[test]
fn a_prefix_that_another_replaces_while_no_agent_runs_is_never_denied() {
    require_root!();
    let mut node = Node::started();
    let allowed = |prefixes: &[&str]| {
        let manifest = json!({
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumNetworkPolicy",
            "metadata": {"name": "world", "namespace": "default"},
            "spec": {"endpointSelector": {}, "egress": [{"toCIDR": prefixes}]},
        });
        manifest.to_string()
    };
    let world = Node::WORLD_IPV4;
    let octets: Vec<&str> = world.split('.').collect();
    let wide = format!("{}.{}.0.0/16", octets[0], octets[1]);
    let narrow = format!("{world}/32");
    let middle = format!("{}.{}.{}.0/24", octets[0], octets[1], octets[2]);
    node.apply("policy.yaml", &allowed(&[&wide]));
    let pod = node.add_pod_with("default", "client", &[("app", "client")]);
    node.wait_policies(&["world"]);
    let outside = node.world().clone();
    let to_world = || UdpFlow::start(&pod.ns, &outside, world.parse().unwrap()).unwrap();
    let flow = to_world();
    for prefix in [&narrow, &wide, &middle, &narrow, &middle] {
        node.kill();
        node.apply("policy.yaml", &allowed(&[prefix]));
        node.start();
        node.wait_policies(&["world"]);
        sleep(WHILE);
    }
    let report = flow.stop();
    assert!(report.is_perfect(), "{report:?}\n{}", node.log());

    // The twin: of what is not allowed any more nothing passes, and the tables have the same selectors as the API.
    node.stop();
    node.apply("policy.yaml", &allowed(&["198.51.100.0/24"]));
    node.start();
    node.wait_policies(&["world"]);
    let flow = to_world();
    sleep(WHILE);
    assert_eq!(flow.stop().received, 0, "{}", node.log());
    for (table, path) in
        [("selectors", "/v1/policy/selectors"), ("subject-selectors", "/v1/policy/subject-selectors")]
    {
        let rows = node.get(&format!("/statedb/dump/{table}"))[table].clone();
        assert_eq!(rows, node.get(path), "{table}");
        assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
    }
    assert!(node.apiary(&["statedb", "selectors"]).contains("cidr:198.51.100.0/24"));
}
