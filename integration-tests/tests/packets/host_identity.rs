//! Packets with the identity of the host, which most policies allow: only those that the host generates.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use integration_tests::{Node, Pod};
use test_kit::{FragmentedDatagram, NetNs, TcpFlow, UdpFlow, require_command, require_root, wait_until};

/// Sufficient time for a passing packet.
const PATIENCE: Duration = Duration::from_millis(400);
const PORT: u16 = 7000;
/// The node's port that leads to [`PORT`] of the pod, as kube-proxy does it.
const NODE_PORT: u16 = 30_700;

/// Lets the host in to the server, nothing else.
const HOST_ONLY: &str = r#"
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: host-only, namespace: default}
spec:
  endpointSelector: {matchLabels: {name: server}}
  ingress: [{fromEntities: [host]}]
"#;

/// Packets of the stack meet connection tracking, which reassembles fragments; packets to a port of the node go to the
/// pod with the node's address as source, as with kube-proxy and `externalTrafficPolicy: Cluster`.
fn kube_proxy(node: &Node, pod: &Pod) {
    let rules = format!(
        "table ip6 nat {{\n\
         chain prerouting {{ type nat hook prerouting priority -100; iifname eth0 udp dport {NODE_PORT} dnat to [{pod}]:{PORT}; }}\n\
         chain postrouting {{ type nat hook postrouting priority 100; ct status dnat masquerade; }}\n\
         chain forward {{ type filter hook forward priority 0; ct state new counter; }}\n}}\n",
        pod = pod.ipv6
    );
    let file = node.sandbox().dir().join("kube-proxy.nft");
    std::fs::write(&file, rules).unwrap();
    node.host().exec(&format!("nft -f {}", file.display())).unwrap();
}

fn server(node: &mut Node) -> Pod {
    let pod = node.add_pod("server");
    node.apply("policy.yaml", HOST_ONLY);
    node.wait_policies(&["host-only"]);
    pod
}

fn receiver(pod: &Pod, address: IpAddr) -> UdpSocket {
    let socket = pod.ns.run(|| UdpSocket::bind(SocketAddr::new(address, PORT))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Whether the payload arrives, ignoring other packets.
fn receives(socket: &UdpSocket, payload: &[u8]) -> bool {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) if buffer[..length] == *payload => return true,
            Ok(_) => {}
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                return false;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends a datagram in fragments from outside; returns whether the pod receives it.
fn arrives(
    node: &Node,
    socket: &UdpSocket,
    identification: u32,
    (source, destination): (&str, SocketAddr),
    first_has_options: bool,
) -> bool {
    let SocketAddr::V6(destination) = destination else { panic!("fragments are sent over IPv6") };
    let source = SocketAddrV6::new(source.parse().unwrap(), 40_000 + identification as u16, 0, 0);
    let mut payload = vec![identification as u8; 1024];
    payload[..4].copy_from_slice(&identification.to_be_bytes());
    let datagram = FragmentedDatagram {
        source,
        destination,
        identification,
        first_has_options,
        payload: payload.clone(),
    };
    datagram.send(node.world()).unwrap();
    receives(socket, &payload)
}

/// Linux fragments a packet again that was reassembled with an extension header in one fragment only: the new packets
/// have lost the interface that they came in by, so that they look like the host's own.
#[test]
fn fragments_of_others_are_not_the_hosts() {
    require_root!();
    require_command!("nft");
    let mut node = Node::new();
    // Packets for pods take the stack.
    node.config.insert("enable-host-legacy-routing".into(), "true".into());
    node.start();
    let pod = server(&mut node);
    kube_proxy(&node, &pod);
    let socket = receiver(&pod, pod.ipv6);
    let direct = SocketAddr::new(pod.ipv6, PORT);
    let node_port = SocketAddr::new(Node::IPV6.parse().unwrap(), NODE_PORT);
    let flows = [
        ("masqueraded", (Node::WORLD_IPV6, node_port)),
        ("with the node's address as source", (Node::IPV6, direct)),
        ("from outside", (Node::WORLD_IPV6, direct)),
    ];
    let mut identification = 1;
    let mut passed = |node: &Node| {
        let mut passed = Vec::new();
        for (name, flow) in flows {
            for options in [false, true] {
                identification += 1;
                if arrives(node, &socket, identification, flow, options) {
                    passed.push((name, options));
                }
            }
        }
        passed
    };
    let denied = passed(&node);
    // The control: the same packets arrive when the policy lets them.
    node.withdraw("policy.yaml");
    node.wait_policies(&[] as &[&str]);
    let allowed = passed(&node);
    assert_eq!(allowed.len(), 2 * flows.len(), "{allowed:?}\n{}", node.log());
    assert!(denied.is_empty(), "passed as the host's (with an extension header): {denied:?}");
}

/// Sends a datagram of this many bytes from the host; whether the pod gets it.
fn host_reaches(from: &NetNs, socket: &UdpSocket, to: IpAddr, length: usize) -> bool {
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let payload = vec![7; length];
    let out = from.run(|| UdpSocket::bind(any)).unwrap();
    out.send_to(&payload, SocketAddr::new(to, PORT)).unwrap();
    receives(socket, &payload)
}

fn assert_perfect(flows: Vec<UdpFlow>, node: &Node) {
    for flow in flows {
        let report = flow.stop();
        assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    }
}

#[test]
fn what_the_host_sends_is_the_hosts_also_over_restarts() {
    require_root!();
    require_command!("nft");
    let mut node = Node::started();
    let pod = server(&mut node);
    kube_proxy(&node, &pod);
    for address in pod.addresses() {
        let socket = receiver(&pod, address);
        for length in [100, 9_000] {
            assert!(host_reaches(node.host(), &socket, address, length), "{length} bytes to {address}");
        }
        let tcp = TcpFlow::start(node.host(), &pod.ns, address).unwrap();
        sleep(Duration::from_millis(100));
        let report = tcp.stop();
        assert!(report.is_perfect(), "{address}: {report:?}");
        // The control: what is not the host's does not pass.
        assert!(!host_reaches(node.world(), &socket, address, 100), "from outside to {address}");
    }
    let flows = || pod.addresses().map(|ip| UdpFlow::start(node.host(), &pod.ns, ip).unwrap()).into();
    let running: Vec<UdpFlow> = flows();
    for round in 0..3 {
        sleep(Duration::from_millis(100));
        if round == 0 {
            node.kill();
        } else {
            node.stop();
        }
        node.start();
    }
    sleep(Duration::from_millis(200));
    assert_perfect(running, &node);
}

/// Removing the rule that marks the host's packets fails closed: they count as the world's until it is restored.
#[test]
fn without_the_rule_the_hosts_packets_are_of_the_world() {
    require_root!();
    require_command!("nft");
    let mut node = Node::new();
    node.config.insert("endpoint-bpf-prog-watchdog-interval".into(), "1h".into());
    node.start();
    let pod = server(&mut node);
    let sockets = pod.addresses().map(|ip| (ip, receiver(&pod, ip)));
    let passed = |node: &Node| {
        let reached = |(ip, socket): &(IpAddr, UdpSocket)| host_reaches(node.host(), socket, *ip, 100);
        sockets.iter().filter(|target| reached(target)).count()
    };
    assert_eq!(passed(&node), 2);
    for removal in ["delete table inet apiary", "flush chain inet apiary host-packets", "flush ruleset"] {
        node.signal("STOP");
        node.host().exec(&format!("nft {removal}")).unwrap();
        let without = passed(&node);
        node.signal("CONT");
        assert_eq!(without, 0, "{removal}");
        // By the kernel's notification, not by the interval.
        wait_until("the rule", Duration::from_secs(10), || passed(&node) == 2);
    }
    // Without an agent it is not restored; the next one does so before it attaches its programs.
    node.kill();
    node.host().exec("nft flush ruleset").unwrap();
    assert_eq!(passed(&node), 0);
    node.start();
    assert_eq!(passed(&node), 2, "{}", node.log());
}
