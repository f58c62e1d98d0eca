//! Policies of nodes: packets between the host, the world and pods.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{NetNs, UdpFlow, require_root, wait_until};

use crate::nodeport::{State, both, frontends, serve, world_asks};
use crate::services::serve_at;

const LIMIT: Duration = Duration::from_secs(60);
/// Sufficient time for a connection that is allowed.
const PATIENCE: Duration = Duration::from_millis(500);
const OWN: [&str; 2] = [Node::IPV4, Node::IPV6];
const WORLD: [&str; 2] = [Node::WORLD_IPV4, Node::WORLD_IPV6];
/// Ports that the policy allows, and their twins.
const ALLOWED: u16 = 7000;
const DENIED: u16 = 7001;
/// A port of a service at the node, and that of its backends.
const NODE_PORT: u16 = 30_080;
const BACKEND_PORT: u16 = 8080;
/// How often the policy is replaced, and with `FULL=1`.
const REPLACEMENTS: usize = 200;
const ALL_REPLACEMENTS: usize = 1000;

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

/// Whether the map of the host has the rules of a version.
fn is_realized(node: &Node, version: usize) -> bool {
    let policy = node.get("/v1/policy");
    let text = policy["policy"].as_str().unwrap_or_default().replace([' ', '\n'], "");
    let has_version = text.contains(&format!(r#""value":"{version}""#));
    let endpoints = node.get("/v1/endpoint");
    let mut hosts = endpoints.as_array().into_iter().flatten().filter(|e| e["status"]["identity"]["id"] == 1);
    let is_current =
        |host: &Value| host["status"]["policy"]["realized"]["policy-revision"] == policy["revision"];
    has_version && hosts.next().is_some_and(is_current)
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
    let is_full = std::env::var_os("FULL").is_some_and(|full| !full.is_empty());
    for version in 1..=if is_full { ALL_REPLACEMENTS } else { REPLACEMENTS } {
        node.apply("policy.json", &policy(version).to_string());
        // Each one is in the kernel before the next is written: none may be skipped.
        wait_until("the replacement", LIMIT, || is_realized(&node, version));
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

/// Allows what is not from the world, and these ports of the node from everywhere.
fn ports_policy(ports: &[u16]) -> Value {
    let of = |port: &u16| {
        let [tcp, udp] =
            ["TCP", "UDP"].map(|protocol| json!({"port": port.to_string(), "protocol": protocol}));
        json!({"fromEntities": ["all"], "toPorts": [{"ports": [tcp, udp]}]})
    };
    let rules: Vec<Value> =
        std::iter::once(json!({"fromEntities": ["cluster"]})).chain(ports.iter().map(of)).collect();
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy",
        "metadata": {"name": "nodes"}, "spec": {"nodeSelector": {}, "ingress": rules},
    })
}

/// Allows pods requests to this port only.
fn pod_policy(port: u16) -> Value {
    let [tcp, udp] = ["TCP", "UDP"].map(|protocol| json!({"port": port.to_string(), "protocol": protocol}));
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "pods", "namespace": "default"},
        "spec": {"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [tcp, udp]}]}]},
    })
}

/// A request to a node port is the host's only if its backend is: with the port of the backend. Requests to pods are
/// subject to the pods' policies alone.
#[test]
fn node_ports_are_subject_to_the_policy_of_their_backend() {
    require_root!();
    let mut node = Node::with_cgroup();
    for option in ["kube-proxy-replacement", "enable-host-firewall"] {
        node.config.insert(option.to_owned(), "true".to_owned());
    }
    node.start();
    let pod = node.add_pod("one");
    serve_at(&pod.ns, &pod.addresses(), "one");
    serve_at(node.host(), &ips(OWN), "host");
    let ask_all = |node: &Node| frontends().into_iter().map(|to| world_asks(node, to)).collect::<Vec<_>>();
    let served = |name: &str| vec![both(name); frontends().len()];
    let denied = vec![(None, None); frontends().len()];
    // The host's own port from the world: the control of the policy itself.
    let wait_own_port = |node: &Node, open: bool| {
        let expected = if open { both("host") } else { (None, None) };
        wait_until("the policy is in force", LIMIT, || {
            ips(OWN).iter().all(|ip| world_asks(node, SocketAddr::new(*ip, BACKEND_PORT)) == expected)
        });
    };
    let own = [(ips(OWN), State::Ready)];
    let one = [(pod.addresses(), State::Ready)];

    for (backends, name) in [(&own, "host"), (&one, "one")] {
        serve(&node, backends, &json!({}));
        wait_until("the backend answers", LIMIT, || ask_all(&node) == served(name));
    }
    // Policies of the node with the pod as backend: neither the port of the node nor that of the pod counts.
    for ports in [&[][..], &[NODE_PORT], &[BACKEND_PORT]] {
        node.apply("policy.json", &ports_policy(ports).to_string());
        wait_own_port(&node, ports == [BACKEND_PORT]);
        assert_eq!(ask_all(&node), served("one"), "{ports:?}\n{}", node.log());
    }
    // Those of the pod do.
    for (port, answers) in [(BACKEND_PORT + 1, &denied), (BACKEND_PORT, &served("one"))] {
        node.apply("pods.json", &pod_policy(port).to_string());
        wait_until(&format!("the pod's policy of {port}"), LIMIT, || ask_all(&node) == *answers);
    }
    node.apply("pods.json", &pod_policy(BACKEND_PORT + 1).to_string());

    // The host as backend: the port of the backend counts, that of the node does not.
    serve(&node, &own, &json!({}));
    for (ports, answers) in [
        (&[BACKEND_PORT][..], &served("host")),
        (&[NODE_PORT], &denied),
        (&[], &denied),
        (&[BACKEND_PORT], &served("host")),
    ] {
        node.apply("policy.json", &ports_policy(ports).to_string());
        wait_own_port(&node, ports == [BACKEND_PORT]);
        assert_eq!(&ask_all(&node), answers, "{ports:?}\n{}", node.log());
    }
}
