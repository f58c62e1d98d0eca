//! Pods reach a network that has no route back to them, by the addresses of the node's devices.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use integration_tests::{Node, Pod};
use test_kit::{NetNs, TcpFlow, UdpFlow, require_command, require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(20);
const WORLD: [&str; 2] = [Node::WORLD_IPV4, Node::WORLD_IPV6];
const OWN: [&str; 2] = [Node::IPV4, Node::IPV6];
/// Addresses behind the world, where packets have to be smaller.
const FAR: [&str; 2] = ["198.51.100.2", "2001:db8:5::2"];
const FAR_MTU: u32 = 1300;

fn ips(texts: [&str; 2]) -> [IpAddr; 2] {
    texts.map(|ip| ip.parse().unwrap())
}

/// Returns a node that masquerades with the programs, and a world that has no route but that of its link.
fn node(options: &[(&str, &str)]) -> Node {
    let mut node = Node::new();
    let world = node.world();
    world.ip("route del default").unwrap();
    world.ip("-6 route del default").unwrap();
    // Packets from pods arrive although there is no route back, so that a test sees their addresses.
    for key in ["net/ipv4/conf/all/rp_filter", "net/ipv4/conf/eth0/rp_filter"] {
        world.set_sysctl(key, "0").unwrap();
    }
    node.config.insert("enable-bpf-masquerade".to_owned(), "true".to_owned());
    for (key, value) in options {
        node.config.insert((*key).to_owned(), (*value).to_owned());
    }
    node
}

/// Returns the source address of a datagram from the pod as the world sees it, and whether the answer finds the pod.
fn seen(node: &Node, pod: &Pod, to: IpAddr) -> Option<(IpAddr, bool)> {
    let server = node.world().run(|| UdpSocket::bind(SocketAddr::new(to, 0))).unwrap();
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let client = pod.ns.run(|| UdpSocket::bind(any)).unwrap();
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    }
    client.send_to(b"question", server.local_addr().unwrap()).ok()?;
    let mut buffer = [0; 16];
    let (_, from) = server.recv_from(&mut buffer).ok()?;
    let answered = server.send_to(b"answer", from).is_ok()
        && client.recv_from(&mut buffer).is_ok_and(|(length, _)| buffer[..length] == *b"answer");
    Some((from.ip(), answered))
}

/// Waits until the world sees packets of the pod from these addresses, and answers them.
fn wait_seen(node: &Node, pod: &Pod, desired: [IpAddr; 2]) {
    for (to, from) in ips(WORLD).into_iter().zip(desired) {
        let is_own = pod.addresses().contains(&from);
        wait_until(&format!("packets to {to} come from {from}"), LIMIT, || {
            seen(node, pod, to) == Some((from, !is_own))
        });
    }
}

/// Checks that `apiary why` explains packets of the pod to each address of the world by these texts.
fn assert_explained(node: &Node, pod: &Pod, texts: [String; 2]) {
    for ((from, to), text) in pod.addresses().into_iter().zip(WORLD).zip(texts) {
        let why = node.apiary(&["why", &from.to_string(), to, "4000/UDP"]);
        assert!(why.contains(&text), "{text}\n{why}");
    }
}

/// Ends the agent.
fn end(node: &mut Node, is_kill: bool) {
    if is_kill {
        node.kill();
    } else {
        node.stop();
    }
}

fn assert_perfect(node: &Node, udp: [UdpFlow; 2], tcp: [TcpFlow; 2]) {
    for report in udp.map(UdpFlow::stop) {
        assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    }
    for report in tcp.map(TcpFlow::stop) {
        assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    }
}

fn flows(node: &Node, pod: &Pod) -> ([UdpFlow; 2], [TcpFlow; 2]) {
    (
        ips(WORLD).map(|to| UdpFlow::start(&pod.ns, node.world(), to).unwrap()),
        ips(WORLD).map(|to| TcpFlow::start(&pod.ns, node.world(), to).unwrap()),
    )
}

#[test]
fn streams_go_on_while_the_agent_restarts_or_is_gone() {
    require_root!();
    let mut node = node(&[]);
    node.start();
    let pod = node.add_pod("client");
    wait_seen(&node, &pod, ips(OWN));
    for to in WORLD {
        wait_until("a ping", LIMIT, || pod.ns.exec(&format!("ping -c 1 -W 1 {to}")).is_ok());
    }
    let (udp, tcp) = flows(&node, &pod);
    for is_kill in [false, true] {
        sleep(Duration::from_millis(100));
        end(&mut node, is_kill);
        // Programs translate without an agent.
        wait_seen(&node, &pod, ips(OWN));
        node.start();
    }
    sleep(Duration::from_millis(100));
    assert_perfect(&node, udp, tcp);
}

#[test]
fn new_connections_take_a_new_address_of_the_device() {
    require_root!();
    let mut node = node(&[]);
    node.start();
    let pod = node.add_pod("client");
    wait_seen(&node, &pod, ips(OWN));
    let loads = node.log().matches("Loaded the datapath").count();
    let (udp, tcp) = flows(&node, &pod);
    let other = ["192.0.2.9", "2001:db8::9"];
    node.host()
        .ip_batch(&format!(
            "addr flush dev eth0 scope global\naddr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\n\
             route replace default via {}\nroute replace default via {}\n",
            other[0], other[1], WORLD[0], WORLD[1]
        ))
        .unwrap();
    wait_seen(&node, &pod, ips(other));
    // Streams of the old address have ended: their ports are those of an address that the node does not have any more.
    drop((udp.map(UdpFlow::stop), tcp.map(TcpFlow::stop)));
    let (udp, tcp) = flows(&node, &pod);
    sleep(Duration::from_millis(100));
    assert_perfect(&node, udp, tcp);
    assert_eq!(node.log().matches("Loaded the datapath").count(), loads, "{}", node.log());
}

#[test]
fn ranges_of_ip_masq_agent_are_followed() {
    require_root!();
    let mut node = node(&[("enable-ip-masq-agent", "true")]);
    let file = node.sandbox().dir().join("ip-masq-agent");
    let path = file.to_str().unwrap().to_owned();
    node.config.insert("ip-masq-agent-config-path".to_owned(), path);
    let write = |ranges: &str| fs::write(&file, format!("nonMasqueradeCIDRs: [{ranges}]\n")).unwrap();
    // Without a file reserved networks are reached by the pod's own address, and that is one of documentation.
    node.start();
    let pod = node.add_pod("client");
    let [ipv4, _] = pod.addresses();
    let [_, own_ipv6] = ips(OWN);
    wait_seen(&node, &pod, [ipv4, own_ipv6]);
    write("");
    wait_seen(&node, &pod, ips(OWN));
    assert_explained(&node, &pod, OWN.map(|own| format!("source becomes {own} by interface")));
    let (udp, tcp) = flows(&node, &pod);
    write("203.0.113.0/24");
    sleep(Duration::from_millis(100));
    end(&mut node, true);
    node.start();
    assert_perfect(&node, udp, tcp);
    write("192.0.2.0/30, '2001:db8::/64'");
    wait_seen(&node, &pod, pod.addresses());
    assert_explained(&node, &pod, ["ip-masq-agent excludes the destination"; 2].map(str::to_owned));
    let listed = node.apiary(&["bpf", "ipmasq", "list"]);
    assert!(listed.contains("192.0.2.0/30") && listed.contains("2001:db8::/64"), "{listed}");
    let masquerading = &node.get("/v1/healthz")["masquerading"];
    assert_eq!((&masquerading["mode"], &masquerading["ip-masq-agent"]), (&"BPF".into(), &true.into()));
    // A file that is wrong changes nothing.
    fs::write(&file, "nonMasqueradeCIDRs: nothing\n").unwrap();
    sleep(Duration::from_millis(100));
    wait_seen(&node, &pod, pod.addresses());
    end(&mut node, false);
    node.start();
    wait_seen(&node, &pod, pod.addresses());
    write("");
    wait_seen(&node, &pod, ips(OWN));
}

/// Returns a namespace behind the world, to which packets have to be smaller. It knows the node, not the pods.
fn far(node: &Node) -> NetNs {
    let far = node.sandbox().netns("far").unwrap();
    let world = node.world();
    world.veth("far", &far, "eth0").unwrap();
    world
        .ip_batch(&format!(
            "link set far mtu {FAR_MTU}\naddr add 198.51.100.1/24 dev far\naddr add 2001:db8:5::1/64 dev far nodad\n"
        ))
        .unwrap();
    far.ip_batch(&format!(
        "addr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\n\
         route add 192.0.2.0/24 via 198.51.100.1\nroute add 2001:db8::/64 via 2001:db8:5::1\n",
        FAR[0], FAR[1]
    ))
    .unwrap();
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        world.set_sysctl(key, "1").unwrap();
    }
    for (ip, via) in FAR.into_iter().zip(WORLD) {
        node.host().ip(&format!("route replace {ip} via {via}")).unwrap();
    }
    far
}

#[test]
fn a_router_that_wants_smaller_packets_is_heard_by_the_pod() {
    require_root!();
    let mut node = node(&[]);
    node.start();
    let far = far(&node);
    let pod = node.add_pod("client");
    for ip in FAR {
        wait_until("a ping", LIMIT, || pod.ns.exec(&format!("ping -c 1 -W 1 {ip}")).is_ok());
        let ip: IpAddr = ip.parse().unwrap();
        let route = || pod.ns.ip(&format!("route get {ip}")).unwrap();
        let mtu = format!("mtu {FAR_MTU}");
        assert!(!route().contains(&mtu), "{}", route());
        let server = far.run(|| TcpListener::bind(SocketAddr::new(ip, 0))).unwrap();
        let target = server.local_addr().unwrap();
        let mut client = pod.ns.run(|| TcpStream::connect_timeout(&target, PATIENCE)).unwrap();
        let (mut accepted, from) = server.accept().unwrap();
        assert!(ips(OWN).contains(&from.ip()), "{from}");
        // The client's segments are too large for the router: they arrive only once it has heard of that.
        accepted.set_read_timeout(Some(LIMIT)).unwrap();
        let data = vec![7; 200_000];
        let received = std::thread::scope(|scope| {
            scope.spawn(|| {
                client.write_all(&data).unwrap();
                client.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut received = Vec::new();
            accepted.read_to_end(&mut received).unwrap();
            received.len()
        });
        assert_eq!(received, data.len());
        assert!(route().contains(&mtu), "{}", route());
    }
}

/// A rule as kube-proxy and firewalls have them. Without any such rule the kernel stops to track connections, and to
/// translate those that it knows, when the last rule of masquerading goes.
const TRACKING: &str = "table inet firewall {
    chain forward {
        type filter hook forward priority 0; policy accept;
        ct state invalid counter
    }
}
";

#[test]
fn connections_stay_when_the_programs_take_masquerading_over() {
    require_root!();
    require_command!("iptables-nft-save");
    require_command!("nft");
    let mut node = node(&[("enable-bpf-masquerade", "false"), ("install-iptables-rules", "true")]);
    let rules = node.sandbox().dir().join("tracking.nft");
    fs::write(&rules, TRACKING).unwrap();
    node.host().exec(&format!("nft -f {}", rules.display())).unwrap();
    node.start();
    let pod = node.add_pod("client");
    wait_seen(&node, &pod, ips(OWN));
    let (udp, tcp) = flows(&node, &pod);
    sleep(Duration::from_millis(100));
    assert!(node_rules(node.host()).contains("MASQUERADE"));
    node.stop();
    node.config.insert("enable-bpf-masquerade".to_owned(), "true".to_owned());
    node.start();
    let host = node.host().clone();
    wait_until("the rules to go", LIMIT, || !node_rules(&host).contains("MASQUERADE"));
    wait_seen(&node, &pod, ips(OWN));
    // The kernel goes on with the translations of connections that it knows; the programs reserve their ports.
    sleep(Duration::from_millis(100));
    assert_perfect(&node, udp, tcp);
    // Back: the kernel has no translation for connections of the programs, which end; new ones get one.
    node.stop();
    node.config.insert("enable-bpf-masquerade".to_owned(), "false".to_owned());
    node.start();
    wait_until("the rules to be back", LIMIT, || node_rules(&host).contains("MASQUERADE"));
    wait_seen(&node, &pod, ips(OWN));
    let (udp, tcp) = flows(&node, &pod);
    sleep(Duration::from_millis(100));
    assert_perfect(&node, udp, tcp);
}

fn node_rules(host: &NetNs) -> String {
    host.exec("iptables-nft-save").unwrap()
}
