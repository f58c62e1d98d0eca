//! Connections between pods and the network by direct routing, through a firewall of the node that tracks them.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::json;
use test_kit::{TcpFlow, UdpFlow, require_command, require_root};

use crate::nodeport::{State, both, frontends, serve, world_asks};
use crate::services::serve_at;

const PATIENCE: Duration = Duration::from_secs(1);
const PORT: u16 = 7000;

/// Rules of kube-proxy and common firewalls: packets of no known connection are dropped, connections that begin in pods
/// get the node's address.
const FIREWALL: &str = "table inet firewall {
    chain forward {
        type filter hook forward priority 0; policy accept;
        ct state invalid counter drop
        iifname eth0 ct state new meta l4proto { tcp, udp } counter
    }
    chain postrouting {
        type nat hook postrouting priority 100;
        oifname eth0 ip saddr 10.244.0.0/24 masquerade
        oifname eth0 ip6 saddr fd00:10:244::/112 masquerade
    }
}
";
/// The same firewall does not let connections in.
const CLOSED: &str = "add rule inet firewall forward iifname eth0 ct state established accept
insert rule inet firewall forward iifname eth0 ct state new drop
";

fn apply(node: &Node, rules: &str) {
    let file = node.sandbox().dir().join("rules.nft");
    std::fs::write(&file, rules).unwrap();
    node.host().exec(&format!("nft -f {}", file.display())).unwrap();
}

/// Whether a client outside gets the reply of a UDP server in the pod, from the requested address.
fn udp(node: &Node, pod: &Pod, address: IpAddr) -> bool {
    let server = pod.ns.run(|| UdpSocket::bind(SocketAddr::new(address, PORT))).unwrap();
    let any: SocketAddr = if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let client = node.world().run(|| UdpSocket::bind(any)).unwrap();
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    client.connect((address, PORT)).unwrap();
    client.send(b"question").unwrap();
    let mut buffer = [0; 16];
    let Ok((_, from)) = server.recv_from(&mut buffer) else { return false };
    server.send_to(b"answer", from).unwrap();
    client.recv(&mut buffer).is_ok_and(|length| buffer[..length] == *b"answer")
}

/// Whether a client outside gets the reply of a TCP server in the pod.
fn tcp(node: &Node, pod: &Pod, address: IpAddr) -> bool {
    let server = pod.ns.run(|| TcpListener::bind(SocketAddr::new(address, PORT))).unwrap();
    let connect = || TcpStream::connect_timeout(&SocketAddr::new(address, PORT), PATIENCE);
    let mut client = match node.world().run(connect) {
        Ok(client) => client,
        Err(error) if [ErrorKind::TimedOut, ErrorKind::WouldBlock].contains(&error.kind()) => return false,
        Err(error) => panic!("{error}"),
    };
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    accepted.write_all(b"answer").unwrap();
    drop(accepted);
    let mut answer = String::new();
    client.read_to_string(&mut answer).is_ok() && answer == "answer"
}

/// Whether the pod gets the reply of a UDP server outside, which sees an address of the node.
fn reaches_world(node: &Node, pod: &Pod, (world, own): (&str, &str)) -> bool {
    let server = node.world().run(|| UdpSocket::bind((world, PORT))).unwrap();
    let any = if world.contains(':') { "::" } else { "0.0.0.0" };
    let client = pod.ns.run(|| UdpSocket::bind((any, 0))).unwrap();
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    client.send_to(b"question", (world, PORT)).unwrap();
    let mut buffer = [0; 16];
    let Ok((_, from)) = server.recv_from(&mut buffer) else { return false };
    assert_eq!(from.ip().to_string(), own, "masqueraded");
    server.send_to(b"answer", from).unwrap();
    client.recv(&mut buffer).is_ok_and(|length| buffer[..length] == *b"answer")
}

fn passed(node: &Node, pod: &Pod) -> Vec<String> {
    let mut passed = Vec::new();
    for address in pod.addresses() {
        if tcp(node, pod, address) {
            passed.push(format!("TCP to {address}"));
        }
        if udp(node, pod, address) {
            passed.push(format!("UDP to {address}"));
        }
    }
    passed
}

/// Redirected past the stack in one direction only, answers would belong to no connection: dropped as invalid (TCP), or
/// sent with the node's address (UDP).
#[test]
fn connections_from_outside_pass_a_stateful_firewall() {
    require_root!();
    require_command!("nft");
    let mut node = Node::started();
    let pod = node.add_pod("server");
    apply(&node, FIREWALL);
    let open = passed(&node, &pod);
    let rules = node.host().exec("nft list table inet firewall").unwrap();
    assert_eq!(open.len(), 4, "{open:?}\n{rules}\n{}", node.log());
    // The control: the firewall is in their way.
    apply(&node, CLOSED);
    assert_eq!(passed(&node, &pod), [] as [&str; 0]);
    // Without kube-proxy replacement the programs bypass the stack in neither direction.
    let status = node.get("/v1/healthz");
    assert_eq!(status["routing"]["intra-host-routing-mode"], "Legacy", "{status}");
    assert!(node.log().contains("legacy host routing"), "{}", node.log());
}

/// Rules of the host that forward nothing.
const NO_FORWARDING: &str = "table inet closed {
    chain forward {
        type filter hook forward priority 0; policy drop;
    }
}
";

const WORLD: [(&str, &str); 2] = [(Node::WORLD_IPV4, Node::IPV4), (Node::WORLD_IPV6, Node::IPV6)];

/// With kube-proxy replacement, and without masquerading by iptables, the programs route: both ways past the stack.
/// Switched off and on again, streams of both directions lose nothing.
#[test]
fn with_kube_proxy_replacement_packets_bypass_the_stack() {
    require_root!();
    require_command!("nft");
    let mut node = Node::with_cgroup();
    for option in ["kube-proxy-replacement", "enable-bpf-masquerade"] {
        node.config.insert(option.to_owned(), "true".to_owned());
    }
    node.start();
    let (pod, other) = (node.add_pod("server"), node.add_pod("client"));
    let mode = |node: &Node, expected: &str, health: &str| {
        let status = node.get("/v1/healthz");
        assert_eq!(status["routing"]["intra-host-routing-mode"], expected, "{status}");
        let rows = node.get("/statedb/dump/health").to_string();
        assert!(rows.contains(health), "{health}");
    };
    apply(&node, NO_FORWARDING);
    assert_eq!(passed(&node, &pod).len(), 4, "{}", node.log());
    for world in WORLD {
        assert!(reaches_world(&node, &pod, world), "{world:?}\n{}", node.log());
    }
    mode(&node, "BPF", "bypass the host's stack");
    serve_at(&pod.ns, &pod.addresses(), "server");
    serve(&node, &[(pod.addresses(), State::Ready)], &json!({}));
    for frontend in frontends() {
        assert_eq!(world_asks(&node, frontend), both("server"), "{frontend}\n{}", node.log());
    }
    node.host().exec("nft delete table inet closed").unwrap();

    let [ipv4, ipv6] = pod.addresses();
    let [to_world, _] = WORLD.map(|(world, _)| world.parse().unwrap());
    let datagrams = [
        UdpFlow::start(node.world(), &pod.ns, ipv4).unwrap(),
        UdpFlow::start(node.world(), &pod.ns, ipv6).unwrap(),
        UdpFlow::start(&pod.ns, node.world(), to_world).unwrap(),
        UdpFlow::start(&other.ns, &pod.ns, ipv4).unwrap(),
    ];
    let streams = [
        TcpFlow::start(node.world(), &pod.ns, ipv6).unwrap(),
        TcpFlow::start(&pod.ns, node.world(), to_world).unwrap(),
    ];
    for (legacy, expected, health) in [
        ("true", "Legacy", "Legacy: enable-host-legacy-routing"),
        ("false", "BPF", "bypass the host's stack"),
    ] {
        node.stop();
        node.config.insert("enable-host-legacy-routing".to_owned(), legacy.to_owned());
        node.start();
        mode(&node, expected, health);
    }
    for report in datagrams.map(UdpFlow::stop) {
        assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    }
    for report in streams.map(TcpFlow::stop) {
        assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    }

    // The control: the stack forwards nothing.
    node.stop();
    node.config.insert("enable-host-legacy-routing".to_owned(), "true".to_owned());
    node.start();
    apply(&node, NO_FORWARDING);
    assert!(!udp(&node, &pod, ipv4) && !reaches_world(&node, &pod, WORLD[0]));
}
