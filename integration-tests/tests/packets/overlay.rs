//! The tunnel between nodes: its frames byte by byte, forged ones, two agents, a device that others change.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use integration_tests::cast::identity;
use integration_tests::frames::{Mac, Packet, UDP, checksum};
use integration_tests::{Node, Pod};
use test_kit::{NetNs, PacketSocket, TcpFlow, UdpFlow, require_root, try_wait_until, wait_until};

const LIMIT: Duration = Duration::from_secs(20);
/// How long a packet that must not arrive is waited for; a later one that must arrive follows on the same path.
const PATIENCE: Duration = Duration::from_secs(5);
const DEVICE: &str = "cilium_vxlan";
/// The port of the tunnel.
pub(crate) const PORT: u16 = 8472;
/// The destination port of a [`question`].
pub(crate) const SERVER: u16 = 5000;
/// Its source port.
pub(crate) const PEER: u16 = 4000;
/// The identity of the other node's pod.
const REMOTE: u32 = 0xcdef;
/// The identity of nodes' health endpoints.
const HEALTH: u32 = 4;
const REMOTE_IPS: [&str; 2] = ["10.1.0.20", "fd01::20"];
const MAC: Mac = [2, 0, 0, 0, 0, 0x51];
const INNER: usize = 8;

/// Makes a pod of another node known.
fn announce(node: &Node, name: &str, identity: u32, host: &str, ips: [&str; 2]) {
    let [ipv4, ipv6] = ips;
    let endpoint = serde_json::json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint",
        "metadata": {"namespace": "default", "name": name},
        "status": {"identity": {"id": identity}, "networking": {"node": host, "addressing": [{"ipv4": ipv4, "ipv6": ipv6}]}},
    });
    node.apply(&format!("{name}.yaml"), &endpoint.to_string());
    let known = || node.apiary(&["bpf", "ipcache", "list"]).contains(ipv4);
    wait_until("the pod of another node is known", LIMIT, known);
}

/// Returns a VXLAN packet (RFC 7348) with a network identifier.
pub(crate) fn vxlan(id: u32, inner: &[u8]) -> Vec<u8> {
    [&[8, 0, 0, 0][..], &(id << 8).to_be_bytes(), inner].concat()
}

fn id_of(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[4..8].try_into().unwrap()) >> 8
}

fn socket(ns: &NetNs, ip: IpAddr, port: u16) -> UdpSocket {
    let socket = ns.run(|| UdpSocket::bind(SocketAddr::new(ip, port))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn received(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut buffer = [0; 2048];
    socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())
}

/// Returns a frame with UDP from another node's pod.
pub(crate) fn question(payload: &[u8], source: IpAddr, destination: IpAddr) -> Vec<u8> {
    let header = [PEER, SERVER, 8 + payload.len() as u16, 0].map(u16::to_be_bytes).concat();
    Packet::new(source, destination, UDP, [&header, payload].concat()).frame(MAC, MAC)
}

/// A node with a pod, and a peer that is a plain socket: pods of the peer have [`REMOTE_IPS`].
struct Stage {
    node: Node,
    pod: Pod,
    peer: UdpSocket,
}

impl Stage {
    fn new() -> Self {
        let mut node = Node::started();
        let pod = node.add_pod("local");
        announce(&node, "remote", REMOTE, Node::WORLD_IPV4, REMOTE_IPS);
        let peer = socket(node.world(), Node::WORLD_IPV4.parse().unwrap(), PORT);
        let stage = Self { node, pod, peer };
        stage.until_device();
        stage
    }

    fn until_device(&self) {
        wait_until("the tunnel device is up", LIMIT, || has_programs(&self.node));
    }

    /// Sends a packet of the tunnel to the node.
    fn send(&self, packet: &[u8]) {
        self.peer.send_to(packet, (Node::IPV4, PORT)).unwrap();
    }

    /// Sends a pod's question with this identity.
    fn ask(&self, id: u32, payload: &[u8], destination: IpAddr) {
        let source = remote(destination);
        self.send(&vxlan(id, &question(payload, source, destination)));
    }

    /// Returns the next packet of the tunnel with this payload.
    fn arrives(&self, payload: &[u8]) -> Vec<u8> {
        for _ in 0..100 {
            let Some(packet) = received(&self.peer) else { break };
            if packet.ends_with(payload) {
                return packet;
            }
        }
        panic!("{payload:?} does not arrive\n{}", self.node.log());
    }
}

/// Returns an address without identity of the same family.
fn stranger(local: IpAddr) -> IpAddr {
    ["10.9.9.9", "fd09::9"][usize::from(local.is_ipv6())].parse().unwrap()
}

/// Returns the remote pod's address of the same family.
fn remote(local: IpAddr) -> IpAddr {
    REMOTE_IPS[usize::from(local.is_ipv6())].parse().unwrap()
}

fn has_programs(node: &Node) -> bool {
    let pins = node.sandbox().bpf_root().join("cilium/devices").join(DEVICE).join("links");
    let tcx = ["cil_from_overlay", "cil_to_overlay"].iter().all(|name| pins.join(name).exists());
    tcx || node
        .host()
        .exec(&format!("tc filter show dev {DEVICE} ingress"))
        .is_ok_and(|text| text.contains("cil_"))
}

#[test]
fn packets_of_the_tunnel_are_ciliums() {
    require_root!();
    let stage = Stage::new();
    let wire = PacketSocket::open(stage.node.world(), "eth0").unwrap();
    let id = identity(&stage.node, &stage.pod) as u32;
    for local in stage.pod.addresses() {
        let pod = socket(&stage.pod.ns, local, SERVER);
        wire.received();
        pod.send_to(b"to another node", (remote(local), PEER)).unwrap();
        let packet = stage.arrives(b"to another node");
        assert_eq!((&packet[..4], id_of(&packet), packet[7]), (&[8, 0, 0, 0][..], id, 0));
        // The pod's own frame: the receiving node routes it.
        let inner = &packet[INNER..];
        let hops = 14 + if local.is_ipv4() { 8 } else { 7 };
        assert_eq!(inner[hops], 64);
        let link = stage.pod.ns.ip("-o link show eth0").unwrap();
        let source: Vec<String> = inner[6..12].iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(link.contains(&format!("link/ether {}", source.join(":"))), "{source:?}: {link}");
        // The outer headers.
        let frames = wire.received();
        let outer = frames.iter().find(|frame| frame.ends_with(b"to another node")).unwrap();
        let (ip, udp) = (&outer[14..34], &outer[34..42]);
        assert_eq!((ip[0], ip[8], ip[9]), (0x45, 64, 17), "no options, hop limit, UDP");
        assert_eq!(checksum(ip), 0);
        assert_eq!((&udp[2..4], &udp[6..8]), (&PORT.to_be_bytes()[..], &[0, 0][..]), "port, no checksum");
        // The answer.
        stage.ask(REMOTE, b"answer", local);
        assert_eq!(received(&pod).as_deref(), Some(&b"answer"[..]), "{}", stage.node.log());
    }
    let devices = stage.node.host().ip(&format!("-d -o link show {DEVICE}")).unwrap();
    for word in ["vxlan external", "dstport 8472", "nolearning", " udpcsum", "mtu 1500", "UP"] {
        assert!(devices.contains(word), "{word}: {devices}");
    }
    let status = stage.node.get("/v1/healthz");
    assert_eq!(status["routing"]["inter-host-routing-mode"], "Tunnel", "{status}");
    assert_eq!(status["routing"]["tunnel-protocol"], "vxlan", "{status}");
    assert!(stage.node.apiary(&["status"]).contains("Network: Tunnel [vxlan]"));
    let config = stage.node.get("/v1/config");
    assert_eq!((&config["status"]["deviceMTU"], &config["status"]["routeMTU"]), (&1500.into(), &1450.into()));
    let routes = stage.pod.ns.ip("route show default").unwrap();
    assert!(routes.contains("mtu 1450"), "{routes}");
    assert!(stage.node.pin("cilium_calls_overlay_2").exists());
}

#[test]
fn forged_and_cut_packets_of_the_tunnel_reach_no_pod() {
    require_root!();
    let stage = Stage::new();
    for local in stage.pod.addresses() {
        let pod = socket(&stage.pod.ns, local, SERVER);
        stage.ask(1, b"of the host", local);
        let whole = vxlan(REMOTE, &question(b"cut", remote(local), local));
        for length in 0..whole.len() - 1 {
            stage.send(&whole[..length]);
        }
        // The other family, loops, a mangled header, no identifier.
        stage.send(&vxlan(REMOTE, &question(b"nowhere", remote(local), remote(local))));
        let mut other_type = vxlan(REMOTE, &question(b"no ARP", remote(local), local));
        other_type[INNER + 12..INNER + 14].copy_from_slice(&[8, 6]);
        stage.send(&other_type);
        let mut without = vxlan(REMOTE, &question(b"no identifier", remote(local), local));
        without[0] = 0;
        stage.send(&without);
        stage.ask(REMOTE, b"good", local);
        assert_eq!(received(&pod).as_deref(), Some(&b"good"[..]), "{}", stage.node.log());
    }
    let metrics = stage.node.apiary(&["bpf", "metrics", "list"]);
    assert!(metrics.contains("Invalid identity"), "{metrics}");
    assert!(!stage.node.log().contains("panic"));
}

#[test]
fn policy_is_about_the_identity_of_the_tunnel() {
    require_root!();
    let stage = Stage::new();
    let policy = serde_json::json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": "default", "name": "health"},
        "spec": {"endpointSelector": {"matchLabels": {"name": "local"}}, "ingress": [{"fromEntities": ["health"]}]},
    });
    stage.node.apply("policy.yaml", &policy.to_string());
    for local in stage.pod.addresses() {
        let pod = socket(&stage.pod.ns, local, SERVER);
        pod.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let denied = || {
            stage.ask(REMOTE, b"denied", local);
            let got = received(&pod).is_some();
            // What arrived before the policy was in force.
            while received(&pod).is_some() {}
            if got { Err("still allowed".to_owned()) } else { Ok(()) }
        };
        if let Err(error) = try_wait_until(LIMIT, denied) {
            panic!("{error}\n{}", stage.node.log());
        }
        pod.set_read_timeout(Some(PATIENCE)).unwrap();
        stage.ask(REMOTE, b"denied", local);
        // The control: an identity that is allowed, whatever the ipcache has of the address.
        stage.send(&vxlan(HEALTH, &question(b"of health", stranger(local), local)));
        assert_eq!(received(&pod).as_deref(), Some(&b"of health"[..]), "{}", stage.node.log());
    }
}

#[test]
fn packets_of_the_tunnel_reach_the_host() {
    require_root!();
    let stage = Stage::new();
    for host in [Node::IPV4, Node::IPV6] {
        let host: IpAddr = host.parse().unwrap();
        let server = socket(stage.node.host(), host, SERVER);
        stage.ask(6, b"to the host", host);
        assert_eq!(received(&server).as_deref(), Some(&b"to the host"[..]), "{host}\n{}", stage.node.log());
    }
}

#[test]
fn ipv6_is_between_nodes_if_asked_for() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("underlay-protocol".to_owned(), "ipv6".to_owned());
    node.start();
    let pod = node.add_pod("local");
    announce(&node, "remote", REMOTE, Node::WORLD_IPV6, REMOTE_IPS);
    wait_until("the tunnel device is up", LIMIT, || has_programs(&node));
    let wire = PacketSocket::open(node.world(), "eth0").unwrap();
    let server = socket(&pod.ns, pod.ipv4, SERVER);
    let mut outer = None;
    wait_until("a packet between nodes", LIMIT, || {
        server.send_to(b"to another node", (remote(pod.ipv4), PEER)).unwrap();
        sleep(Duration::from_millis(20));
        outer = wire.received().into_iter().find(|frame| frame.ends_with(b"to another node"));
        outer.is_some()
    });
    let outer = outer.unwrap();
    let (ip, udp, inner) = (&outer[14..54], &outer[54..62], &outer[62..]);
    assert_eq!((ip[0] >> 4, ip[6], ip[7]), (6, 17, 64), "UDP, hop limit");
    assert_eq!((&udp[2..4], &udp[6..8]), (&PORT.to_be_bytes()[..], &[0, 0][..]), "port, no checksum");
    assert_eq!(u64::from(id_of(inner)), identity(&node, &pod));
    // The answer has no checksum, either.
    let packet = vxlan(REMOTE, &question(b"answer", remote(pod.ipv4), pod.ipv4));
    let length = (packet.len() as u16 + 8).to_be_bytes();
    let udp = [&PORT.to_be_bytes()[..], &PORT.to_be_bytes(), &length, &[0, 0]].concat();
    let addresses = [&ip[24..40], &ip[8..24]].concat();
    let ip = [&[0x60, 0, 0, 0][..], &length, &[17, 64], &addresses].concat();
    wire.send(&[&outer[6..12], &outer[..6], &[0x86, 0xdd], &ip, &udp, &packet].concat()).unwrap();
    assert_eq!(received(&server).as_deref(), Some(&b"answer"[..]), "{}", node.log());
    assert_eq!(node.get("/v1/config")["status"]["routeMTU"], 1430);
}

const NODES: [&str; 2] = ["198.51.100.1", "198.51.100.2"];

/// Two nodes with a link between them, each with a pod that the other knows.
fn two_nodes() -> ([Node; 2], [Pod; 2]) {
    let mut nodes = [Node::new(), Node::new()];
    nodes[0].host().veth("eth1", nodes[1].host(), "eth1").unwrap();
    let ranges = [("10.244.0.0/24", "fd00:10:244::/112"), ("10.245.0.0/24", "fd00:10:245::/112")];
    for ((node, ip), (ipv4, ipv6)) in nodes.iter_mut().zip(NODES).zip(ranges) {
        node.host().ip(&format!("addr add {ip}/24 dev eth1")).unwrap();
        for (key, value) in [("ipv4-node", ip), ("ipv4-range", ipv4), ("ipv6-range", ipv6)] {
            node.config.insert(key.to_owned(), value.to_owned());
        }
        node.start();
    }
    let pods = nodes.each_mut().map(|node| node.add_pod("pod"));
    for (here, there) in [(0, 1), (1, 0)] {
        let (ipv4, ipv6) = (pods[there].ipv4.to_string(), pods[there].ipv6.to_string());
        announce(&nodes[here], "other", 20_000 + there as u32, NODES[there], [&ipv4, &ipv6]);
        wait_until("the tunnel device is up", LIMIT, || has_programs(&nodes[here]));
    }
    (nodes, pods)
}

#[test]
fn pods_of_two_nodes_reach_each_other_while_an_agent_is_killed() {
    require_root!();
    let (mut nodes, [a, b]) = two_nodes();
    for ip in b.addresses() {
        let reaches = || a.ns.exec(&format!("ping -c 1 -W 2 {ip}")).map(drop).map_err(|e| e.to_string());
        if let Err(error) = try_wait_until(LIMIT, reaches) {
            panic!("{ip}: {error}\n{}\n{}", nodes[0].log(), nodes[1].log());
        }
        // A packet of the route's MTU leaves room for the headers of the tunnel.
        let headers = if ip.is_ipv4() { 28 } else { 48 };
        a.ns.exec(&format!("ping -M do -s {} -c 1 -W 5 {ip}", 1450 - headers)).unwrap();
    }
    for round in 0..4 {
        let udp = b.addresses().map(|ip| UdpFlow::start(&a.ns, &b.ns, ip).unwrap());
        let tcp = a.addresses().map(|ip| TcpFlow::start(&b.ns, &a.ns, ip).unwrap());
        sleep(Duration::from_millis(100));
        let node = &mut nodes[round % 2];
        node.kill();
        sleep(Duration::from_millis(50));
        node.start();
        sleep(Duration::from_millis(100));
        for report in udp.map(UdpFlow::stop) {
            assert!(report.is_perfect(), "{round}: {report:?}\n{}\n{}", nodes[0].log(), nodes[1].log());
        }
        for report in tcp.map(TcpFlow::stop) {
            assert!(report.is_perfect(), "{round}: {report:?}\n{}\n{}", nodes[0].log(), nodes[1].log());
        }
    }
}

fn index(node: &Node) -> Option<String> {
    node.host().exec(&format!("cat /sys/class/net/{DEVICE}/ifindex")).ok()
}

#[test]
fn a_changed_tunnel_device_is_repaired_with_its_index() {
    require_root!();
    let stage = Stage::new();
    let host = stage.node.host();
    let programs = stage.node.log().matches("Loaded the datapath").count();
    let before = index(&stage.node);
    assert!(before.is_some());
    let local = stage.pod.ipv4;
    let pod = socket(&stage.pod.ns, local, SERVER);
    pod.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    for damage in [
        format!("link delete {DEVICE}"),
        format!("link set {DEVICE} down"),
        format!("link set {DEVICE} mtu 1000"),
        format!("link set {DEVICE} address 02:00:00:00:00:01"),
    ] {
        host.ip(&damage).unwrap();
        let works = || {
            stage.ask(REMOTE, b"after", local);
            let mtu = host.exec(&format!("cat /sys/class/net/{DEVICE}/mtu")).unwrap_or_default();
            let found = (index(&stage.node) == before, mtu.trim() == "1500", received(&pod).is_some());
            if found == (true, true, true) { Ok(()) } else { Err(format!("{found:?}")) }
        };
        if let Err(error) = try_wait_until(LIMIT, works) {
            panic!("{damage}: index, MTU, packets {error}\n{}", stage.node.log());
        }
        pod.send_to(b"out", (remote(local), PEER)).unwrap();
        stage.arrives(b"out");
    }
    // Only another MAC address is another constant of the programs.
    let loads = stage.node.log().matches("Loaded the datapath").count() - programs;
    assert!(loads <= 1, "{loads} loads\n{}", stage.node.log());
}

#[test]
fn another_device_on_the_port_is_named_and_blocks_nothing_else() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("endpoint-bpf-prog-watchdog-interval".to_owned(), "1s".to_owned());
    node.host().ip("link add others type vxlan id 7 dstport 8472 dev eth0").unwrap();
    node.host().ip("link set others up").unwrap();
    node.start();
    let pods = node.add_pods(2);
    let named = || {
        let health = node.get("/statedb/dump/health").to_string();
        let named = health.contains("UDP port 8472 of the tunnel is in use by device others");
        if named { Ok(()) } else { Err(health) }
    };
    if let Err(health) = try_wait_until(LIMIT, named) {
        panic!("{health}\n{}", node.log());
    }
    let udp = UdpFlow::start(&pods[0].ns, &pods[1].ns, pods[1].ipv4).unwrap();
    sleep(Duration::from_millis(50));
    assert!(udp.stop().is_perfect());
    node.host().ip("link delete others").unwrap();
    wait_until("the tunnel device is up", LIMIT, || has_programs(&node));
}

#[test]
fn options_change_the_device_at_the_next_start() {
    require_root!();
    let mut node = Node::started();
    wait_until("the tunnel device is up", LIMIT, || has_programs(&node));
    node.stop();
    node.config.insert("tunnel-port".to_owned(), "4789".to_owned());
    node.start();
    let port =
        || node.host().ip(&format!("-d link show {DEVICE}")).is_ok_and(|text| text.contains("dstport 4789"));
    wait_until("the device has another port", LIMIT, port);
    wait_until("the tunnel device is up", LIMIT, || has_programs(&node));
    node.stop();
    node.config.insert("routing-mode".to_owned(), "native".to_owned());
    node.start();
    wait_until("the device is gone", LIMIT, || index(&node).is_none());
    wait_until("its pin is gone", LIMIT, || !node.pin("cilium_calls_overlay_2").exists());
    let status = node.get("/v1/healthz");
    assert_eq!(status["routing"]["inter-host-routing-mode"], "Native", "{status}");
    assert_eq!(node.get("/v1/config")["status"]["routeMTU"], 1500);
}
