//! Policies of nodes: packets between the host, the world and pods.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{NetNs, UdpFlow, require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
/// Sufficient time for a connection that is allowed.
const PATIENCE: Duration = Duration::from_millis(500);
const OWN: [&str; 2] = [Node::IPV4, Node::IPV6];
const WORLD: [&str; 2] = [Node::WORLD_IPV4, Node::WORLD_IPV6];
/// Ports that the policy allows, and their twins.
const ALLOWED: u16 = 7000;
const DENIED: u16 = 7001;
/// How often the policy is replaced.
const REPLACEMENTS: usize = 40;

fn ips(texts: [&str; 2]) -> [IpAddr; 2] {
    texts.map(|ip| ip.parse().unwrap())
}

/// Allows TCP to one port in each direction, and UDP from the world. The versions have the same verdicts.
fn policy(version: usize) -> Value {
    let tcp = json!({"ports": [{"port": ALLOWED.to_string(), "protocol": "TCP"}]});
    let udp = json!({"ports": [{"port": "32768", "endPort": 65_535, "protocol": "UDP"}]});
    let (from_world, all) = match version % 3 {
        0 => (json!({"fromEntities": ["world"]}), json!(["all"])),
        1 => (json!({"fromCIDR": ["192.0.2.0/24", "2001:db8::/64"]}), json!(["world", "cluster"])),
        _ => (json!({"fromEntities": ["world", "remote-node"]}), json!(["all"])),
    };
    let mut streams = from_world;
    streams["toPorts"] = json!([udp]);
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy",
        "metadata": {"name": "nodes"},
        "spec": {
            "nodeSelector": {},
            "labels": [{"key": "version", "value": version.to_string()}],
            "ingress": [streams, {"fromEntities": all, "toPorts": [tcp]}],
            "egress": [{"toEntities": all, "toPorts": [tcp]}],
        },
    })
}

/// Listens on both ports in a namespace, for both families.
fn listen(ns: &NetNs) -> [TcpListener; 2] {
    ns.run(|| [ALLOWED, DENIED].map(|port| TcpListener::bind(("::", port)).unwrap()))
}

fn connects(from: &NetNs, to: IpAddr, port: u16) -> bool {
    from.run(|| TcpStream::connect_timeout(&SocketAddr::new(to, port), PATIENCE)).is_ok()
}

/// Returns who connects to which address, for both families.
fn pairs<'a>(node: &'a Node, pod: &'a Pod) -> Vec<(&'static str, &'a NetNs, IpAddr)> {
    let of = |family: usize| {
        [
            ("world to host", node.world(), ips(OWN)[family]),
            ("host to world", node.host(), ips(WORLD)[family]),
            ("pod to host", &pod.ns, ips(OWN)[family]),
            ("host to pod", node.host(), pod.addresses()[family]),
        ]
    };
    [of(0), of(1)].into_iter().flatten().collect()
}

fn check(node: &Node, pod: &Pod) {
    for (name, from, to) in pairs(node, pod) {
        assert!(connects(from, to, ALLOWED), "{name} {to}\n{}", node.log());
        assert!(!connects(from, to, DENIED), "{name} {to} is not denied\n{}", node.log());
    }
    assert!(connects(&pod.ns, ips(WORLD)[0], DENIED), "forwarded packets are not the host's");
}

#[test]
fn nodes_are_subject_to_their_policy() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("enable-host-firewall".to_owned(), "true".to_owned());
    node.start();
    let firewall = node.get("/v1/healthz")["host-firewall"].clone();
    assert_eq!(firewall, json!({"mode": "Enabled", "devices": ["eth0"]}));
    let pod = node.add_pod("pod");
    let _listeners = [node.host(), node.world(), &pod.ns].map(listen);
    for (name, from, to) in pairs(&node, &pod) {
        for port in [ALLOWED, DENIED] {
            wait_until(&format!("{name} {to}, without a policy"), LIMIT, || connects(from, to, port));
        }
    }

    node.apply("policy.json", &policy(0).to_string());
    wait_until("the policy is in force", LIMIT, || !connects(node.world(), ips(OWN)[0], DENIED));
    check(&node, &pod);

    // Replaced and restarted under traffic: nothing allowed is lost, nothing denied passes.
    let allowed = ips(OWN).map(|ip| UdpFlow::start(node.world(), node.host(), ip).unwrap());
    let denied = ips(OWN).map(|ip| UdpFlow::start(&pod.ns, node.host(), ip).unwrap());
    for version in 1..=REPLACEMENTS {
        node.apply("policy.json", &policy(version).to_string());
        std::thread::sleep(Duration::from_millis(20));
    }
    node.kill();
    node.start();
    for report in allowed.map(UdpFlow::stop) {
        assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    }
    for report in denied.map(UdpFlow::stop) {
        assert!(report.sent > 0 && report.received == 0, "{report:?}\n{}", node.log());
    }
    check(&node, &pod);

    node.withdraw("policy.json");
    wait_until("all ports are open again", LIMIT, || {
        pairs(&node, &pod).into_iter().all(|(_, ns, to)| connects(ns, to, DENIED))
    });
}
