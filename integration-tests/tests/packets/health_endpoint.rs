//! Two nodes probe each other: the nodes themselves, and their health endpoints through the tunnel.

use std::time::Duration;

use integration_tests::{Node, request};
use serde_json::{Value, json};
use test_kit::{require_root, try_wait_until};

const PATIENCE: Duration = Duration::from_secs(180);
const NODES: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
const RANGES: [(&str, &str); 2] =
    [("10.244.0.0/24", "fd00:10:244::/112"), ("10.245.0.0/24", "fd00:10:245::/112")];

/// Returns two nodes with a link between them, each with a health endpoint, which do not know each other yet.
fn two_nodes() -> [Node; 2] {
    let mut nodes = [Node::new(), Node::new()];
    nodes[0].host().veth("eth1", nodes[1].host(), "eth1").unwrap();
    for ((node, ip), (ipv4, ipv6)) in nodes.iter_mut().zip(NODES).zip(RANGES) {
        node.host().ip(&format!("addr add {ip}/24 dev eth1")).unwrap();
        for (key, value) in [("ipv4-node", ip), ("ipv4-range", ipv4), ("ipv6-range", ipv6)] {
            node.config.insert(key.to_owned(), value.to_owned());
        }
        node.config.remove("enable-health-checking");
        node.start();
    }
    nodes
}

/// Returns the health endpoint's addresses, once it is there.
fn health_endpoint(node: &Node) -> [String; 2] {
    let published = || {
        let added = node.get("/v1/cluster/nodes")["nodes-added"].clone();
        let own = added.as_array().into_iter().flatten().find(|node| node["source"] == "local").cloned();
        let addresses = own.map(|own| own["health-endpoint-address"].clone()).unwrap_or_default();
        let ip = |family: &str| addresses[family]["ip"].as_str().map(str::to_owned);
        ip("ipv4").zip(ip("ipv6")).map(<[String; 2]>::from).ok_or_else(|| added.to_string())
    };
    try_wait_until(PATIENCE, published).unwrap_or_else(|error| panic!("{error:?}\n{}", node.log()))
}

/// Makes the other node known, as its CiliumNode would.
fn introduce(node: &Node, other: usize, [ipv4, ipv6]: &[String; 2]) {
    let (v4, v6) = RANGES[other];
    let object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "other"},
        "spec": {
            "addresses": [{"type": "InternalIP", "ip": NODES[other]}],
            "health": {"ipv4": ipv4, "ipv6": ipv6}, "ipam": {"podCIDRs": [v4, v6]},
        },
    });
    node.apply("other.json", &object.to_string());
}

/// Probes until the paths to the other node are as wanted; returns its part of the answer.
fn until(node: &Node, wanted: impl Fn(&Value) -> bool) -> Value {
    let socket = node.socket().with_file_name("health.sock");
    let probe = || {
        let answer =
            request(&socket, "PUT", "/v1beta/status/probe", None).map_err(|error| error.to_string())?;
        let answer = answer.json();
        let other = answer["nodes"].as_array().into_iter().flatten().find(|node| node["name"] == "other");
        other.filter(|other| wanted(other)).cloned().ok_or_else(|| answer.to_string())
    };
    try_wait_until(PATIENCE, probe).unwrap_or_else(|error| panic!("{error:?}\n{}", node.log()))
}

fn is_answered(path: &Value) -> bool {
    ["icmp", "http"].iter().all(|check| path[check]["latency"].as_i64().is_some_and(|latency| latency > 0))
}

#[test]
fn two_nodes_probe_each_others_health_endpoints_through_the_tunnel() {
    require_root!();
    let mut nodes = two_nodes();
    let endpoints = [health_endpoint(&nodes[0]), health_endpoint(&nodes[1])];
    for (here, there) in [(0, 1), (1, 0)] {
        introduce(&nodes[here], there, &endpoints[there]);
    }
    for (here, there) in [(0, 1), (1, 0)] {
        let node = &nodes[here];
        let other = until(node, |other| {
            let endpoint = &other["health-endpoint"];
            is_answered(&other["host"]["primary-address"])
                && is_answered(&endpoint["primary-address"])
                && is_answered(&endpoint["secondary-addresses"][0])
        });
        assert_eq!(other["host"]["primary-address"]["ip"], NODES[there]);
        assert_eq!(other["health-endpoint"]["primary-address"]["ip"], endpoints[there][0].as_str());
        let socket = node.socket().with_file_name("health.sock");
        let lines = node.apiary(&["--host", socket.to_str().unwrap(), "health", "status", "--verbose"]);
        assert!(lines.contains("2/2 reachable"), "{lines}");
        for path in [
            format!("Host connectivity to {}:", NODES[there]),
            format!("Endpoint connectivity to {}:", endpoints[there][0]),
        ] {
            assert!(lines.contains(&path), "{path}\n{lines}");
        }
    }

    // An agent that is killed takes its endpoint with it; its node still answers pings. A restart brings both back.
    nodes[1].kill();
    let other = until(&nodes[0], |other| {
        let endpoint = &other["health-endpoint"]["primary-address"];
        endpoint["icmp"]["status"].is_string() && endpoint["http"]["status"].is_string()
    });
    let host = &other["host"]["primary-address"];
    assert!(host["icmp"]["latency"].as_i64().unwrap() > 0 && host["http"]["status"].is_string(), "{other}");
    nodes[1].start();
    assert_eq!(health_endpoint(&nodes[1]), endpoints[1]);
    until(&nodes[0], |other| is_answered(&other["health-endpoint"]["primary-address"]));
}
