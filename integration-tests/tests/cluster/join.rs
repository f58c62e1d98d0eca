//! A node joins a cluster with the chart's defaults: its CiliumNode, the operator's pod CIDRs, addresses of these.

use std::time::Duration;

use integration_tests::Cluster;
use k8s_types::schema::custom_resource_definitions;
use serde_json::{Value, json};
use test_kit::{require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(120);

/// A cluster whose Node has an address, and an agent without ranges of its own.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(&custom_resource_definitions());
    let status = json!({"status": {"addresses": [
        {"type": "InternalIP", "address": integration_tests::Node::IPV4}, {"type": "Hostname", "address": "node-1"},
    ]}});
    cluster
        .stage
        .kubectl(&[
            "patch",
            "node",
            Cluster::NODE,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status.to_string(),
        ])
        .unwrap();
    for option in ["ipv4-range", "ipv6-range"] {
        cluster.node.config.remove(option);
    }
    for (key, value) in [("ipam", "cluster-pool"), ("enable-ipv6", "false")] {
        cluster.node.config.insert(key.to_owned(), value.to_owned());
    }
    cluster
}

/// Starts the agent and waits until it answers: without a range it is not ready yet.
pub(crate) fn spawn(cluster: &mut Cluster) {
    let mut command = cluster.node.agent_command();
    command.env("K8S_NODE_NAME", Cluster::NODE);
    cluster.node.spawn_command(command);
    wait_until("the agent answers", LIMIT, || cluster.node.request("GET", "/v1/config", None).is_ok());
}

/// The node's CiliumNode; null if there is none.
pub(crate) fn object(cluster: &Cluster) -> Value {
    cluster.stage.get(&["ciliumnode", Cluster::NODE]).unwrap_or_default()
}

/// Writes the field as an operator does, over whatever the agent has written meanwhile.
fn assign(cluster: &Cluster, cidrs: &[&str]) {
    let patch = json!({"spec": {"ipam": {"podCIDRs": cidrs}}}).to_string();
    cluster.stage.kubectl(&["patch", "ciliumnode", Cluster::NODE, "--type=merge", "-p", &patch]).unwrap();
}

/// An address by the API, as the CNI plugin asks for it.
fn allocate(cluster: &Cluster, owner: &str) -> String {
    let path = format!("/v1/ipam?family=ipv4&owner={owner}");
    let answer = cluster.node.request("POST", &path, None).unwrap();
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    body["address"]["ipv4"].as_str().map_or_else(|| body.to_string(), str::to_owned)
}

fn router(object: &Value) -> Option<&str> {
    let addresses = object["spec"]["addresses"].as_array()?;
    addresses.iter().find(|address| address["type"] == "CiliumInternalIP")?["ip"].as_str()
}

#[test]
fn a_node_joins_with_the_ranges_of_an_operator_and_follows_them() {
    require_root!();
    let mut cluster = cluster();
    spawn(&mut cluster);
    wait_until("the CiliumNode is there", LIMIT, || {
        object(&cluster)["spec"]["addresses"][0]["ip"].is_string()
    });
    let made = object(&cluster);
    let node = cluster.stage.get(&["node", Cluster::NODE]).unwrap();
    let owner =
        json!([{"apiVersion": "v1", "kind": "Node", "name": Cluster::NODE, "uid": node["metadata"]["uid"]}]);
    assert_eq!(made["metadata"]["ownerReferences"], owner);
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let mut spec = json!({
        "addresses": [{"ip": integration_tests::Node::IPV4, "type": "InternalIP"}], "alibaba-cloud": {}, "azure": {},
        "bootid": boot_id.trim(), "encryption": {}, "eni": {}, "health": {}, "ingress": {}, "ipam": {"pools": {}},
    });
    assert_eq!(made["spec"], spec, "as recorded from Cilium before the operator answers");

    // What is awaited is said to those who look and to those who ask.
    let waits = format!("CiliumNode {} has no spec.ipam.podCIDRs", Cluster::NODE);
    wait_until("the wait is told", LIMIT, || cluster.unwell().iter().any(|row| row.contains(&waits)));
    let refused = allocate(&cluster, "default/early");
    assert!(refused.contains(&waits), "{refused}");

    assign(&cluster, &["10.0.7.0/24"]);
    wait_until("the router has an address", LIMIT, || router(&object(&cluster)).is_some());
    let known = object(&cluster);
    let address = router(&known).unwrap().to_owned();
    assert!(address.starts_with("10.0.7."), "{address}");
    let own = spec["addresses"].as_array_mut().unwrap();
    own.push(json!({"ip": address, "type": "CiliumInternalIP"}));
    spec["ipam"]["podCIDRs"] = json!(["10.0.7.0/24"]);
    assert_eq!(known["spec"], spec);
    cluster.node.wait_ready();
    let first = allocate(&cluster, "default/first");
    assert!(first.starts_with("10.0.7."), "{first}");
    cluster.until_well();

    // A conflict: the operator writes while the agent is about to. Neither loses.
    cluster.stage.kubectl(&["label", "node", Cluster::NODE, "zone=a"]).unwrap();
    assign(&cluster, &["10.0.7.0/24", "10.0.8.0/24"]);
    wait_until("the label is there", LIMIT, || object(&cluster)["metadata"]["labels"]["zone"] == "a");
    assert_eq!(object(&cluster)["spec"]["ipam"]["podCIDRs"], json!(["10.0.7.0/24", "10.0.8.0/24"]));

    // A restart adopts all of it, and serves before the server answers.
    let version = object(&cluster)["metadata"]["resourceVersion"].clone();
    cluster.node.stop();
    cluster.gate.hold();
    cluster.start();
    let again = allocate(&cluster, "default/again");
    assert!(again.starts_with("10.0."), "{again}");
    cluster.gate.cut();
    cluster.gate.open();
    cluster.until_well();
    let after = object(&cluster);
    assert_eq!((router(&after), &after["metadata"]["resourceVersion"]), (Some(&*address), &version));

    // The ranges are replaced: addresses in use stay, new ones are of the new range.
    let held = allocate(&cluster, "default/held");
    assign(&cluster, &["10.0.9.0/24"]);
    wait_until("the new range is in force", LIMIT, || {
        allocate(&cluster, "default/new").starts_with("10.0.9.")
    });
    assert!(cluster.unwell().iter().any(|row| row.contains("withdrawn-ranges")), "{:?}", cluster.unwell());
    assert_eq!(router(&object(&cluster)), Some(&*address), "pods have it as their gateway");
    let routes = cluster.node.host().ip("route show dev cilium_host").unwrap();
    let range = if held.starts_with("10.0.7.") { "10.0.7.0/24" } else { "10.0.8.0/24" };
    assert!(routes.contains(range) && routes.contains("10.0.9.0/24"), "{routes}");
}
