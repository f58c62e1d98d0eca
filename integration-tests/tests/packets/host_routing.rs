//! Connections between pods and the network by direct routing, through a firewall of the node that tracks them.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use integration_tests::{Node, Pod};
use test_kit::{require_command, require_root};

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
    // The programs do not bypass the stack on egress, so they do not on ingress, either; reported as by Cilium.
    let status = node.get("/v1/healthz");
    assert_eq!(status["routing"]["intra-host-routing-mode"], "Legacy", "{status}");
    assert!(node.log().contains("legacy host routing"), "{}", node.log());
}
