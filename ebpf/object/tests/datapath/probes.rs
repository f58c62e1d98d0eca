//! Health probes (`bpf-lb-ipip-sock-mark`): packets of a socket of the host that names its backend leave in an outer header
//! to that backend, with the frontend as their destination.

use crate::ipip::by_ipip;
use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::service::*;
use anyhow::{Context as _, Result};
use aya::programs::TcAttachType;
use datapath_abi::{LbBackend, NodeConfig, Pod as Plain, direction, drop, ipv4_word, ipv6_words};
use datapath_object::TO_NETDEV;
use socket2::{Domain, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;
use test_kit::{NetNs, try_wait_until};

/// Kernels without devices of IPIP have those of VXLAN, which read the same key.
const PORT: u16 = 4789;
/// Of the next hop to the frontend, which does not exist, and of the device that packets come out of.
const MAC: &str = "02:00:00:00:00:aa";

/// A node whose route to the frontend leads nowhere, and a machine with the frontend's address behind the other device.
struct Network {
    host: NetNs,
    machine: NetNs,
}

impl Network {
    fn new() -> Result<Self> {
        let (host, machine) = (NetNs::detached()?, NetNs::detached()?);
        host.veth("out0", &machine, "eth0")?;
        host.ip_batch(&format!(
            "addr add 203.0.113.1/24 dev out0
             addr add 2001:db8:1::1/64 dev out0 nodad
             link set lo up
             neigh replace 203.0.113.77 lladdr {MAC} dev out0 nud permanent
             neigh replace 2001:db8:1::77 lladdr {MAC} dev out0 nud permanent
             route add {vip_v4}/32 via 203.0.113.77
             route add {vip_v6}/128 via 2001:db8:1::77
             route add {REMOTE_V4}/32 via 203.0.113.9
             route add {REMOTE_V6}/128 via 2001:db8:1::9
             link add vx0 type vxlan external dstport {PORT} udp6zerocsumrx
             link add l3 type vxlan external gpe dstport 4790
             link set vx0 up
             link set l3 up",
            vip_v4 = Family::V4.vip().ip(),
            vip_v6 = Family::V6.vip().ip(),
        ))?;
        machine.ip_batch(&format!(
            "addr add 203.0.113.9/24 dev eth0
             addr add 2001:db8:1::9/64 dev eth0 nodad
             link set lo up
             addr add {REMOTE_V4}/32 dev lo
             addr add {REMOTE_V6}/128 dev lo nodad
             addr add {}/32 dev lo
             addr add {}/128 dev lo nodad
             link add vx0 type vxlan external dstport {PORT} udp6zerocsumrx
             link set vx0 address {MAC} up",
            Family::V4.vip().ip(),
            Family::V6.vip().ip(),
        ))?;
        Ok(Self { host, machine })
    }

    /// The programs at the device by which the node reaches the frontend.
    fn node(&self, family: Family, device: &str) -> Result<Node> {
        let index = self.host.run(|| ifindex(device))?;
        let devices = NodeConfig { ipip_ifindex_ipv4: index, ipip_ifindex_ipv6: index, ..by_ipip() };
        let config = NodeConfig { probes: 1, ..devices };
        let mut node = Node::frontend(&config, family, UDP, &[family.remote()])?;
        self.host.run(|| node.datapath.attach(TO_NETDEV, "out0", TcAttachType::Egress))?;
        Ok(node)
    }

    /// A socket of the host that sends by the device, to the frontend.
    fn prober(&self, family: Family) -> Result<Socket> {
        self.host.run(|| {
            let (domain, any): (_, IpAddr) = match family {
                Family::V4 => (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into()),
                Family::V6 => (Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()),
            };
            let socket = Socket::new(domain, Type::DGRAM, None)?;
            socket.bind_device(Some(b"out0"))?;
            socket.bind(&SocketAddr::new(any, 0).into())?;
            socket.connect(&family.vip().into())?;
            socket.set_read_timeout(Some(Duration::from_secs(10)))?;
            Ok(socket)
        })
    }
}

/// Names the backend of a socket, as the program of bind(2) does.
fn name(datapath: &mut Datapath, socket: &Socket, backend: SocketAddr) -> Result<()> {
    let (cookie, port) = (socket.cookie()?, backend.port().to_be());
    match backend.ip() {
        IpAddr::V4(ip) => {
            let row = LbBackend { address: ipv4_word(ip), port, proto: UDP, ..Plain::zeroed() };
            datapath.put::<8, 12>("cilium_lb4_health", &cookie, &row)
        }
        IpAddr::V6(ip) => {
            let row = LbBackend { address: ipv6_words(ip), port, proto: UDP, ..Plain::zeroed() };
            datapath.put::<8, 24>("cilium_lb6_health", &cookie, &row)
        }
    }
}

/// A prober's datagrams must be the first that the server at the frontend's address gets; it answers.
fn is_answered(server: &UdpSocket, prober: &Socket) -> Result<()> {
    server.set_read_timeout(Some(Duration::from_millis(200)))?;
    try_wait_until(Duration::from_secs(10), || {
        prober.send(b"probe").map_err(|error| error.to_string())?;
        let mut buffer = [0; 16];
        let (len, from) = server.recv_from(&mut buffer).map_err(|error| error.to_string())?;
        assert_eq!(&buffer[..len], b"probe", "only probes come by the device");
        server.send_to(b"well", from).map_err(|error| error.to_string())?;
        Ok(())
    })
    .map_err(anyhow::Error::msg)?;
    let mut answer = [std::mem::MaybeUninit::uninit(); 16];
    assert_eq!(prober.recv(&mut answer)?, 4);
    Ok(())
}

/// Scenario 83, a backend elsewhere: the outer packet has the socket of the inner one and leaves by the same device, where
/// it is not one more probe.
#[test]
fn a_probe_leaves_in_an_outer_header_to_its_backend() -> Result<()> {
    test_kit::require_root!();
    let network = Network::new()?;
    for family in FAMILIES {
        let mut node = network.node(family, "vx0")?;
        let server = network.machine.run(|| UdpSocket::bind(family.vip()))?;
        let (prober, other) = (network.prober(family)?, network.prober(family)?);
        name(&mut node.datapath, &prober, family.remote())?;
        // The control, of which the route leads nowhere.
        other.send(b"other")?;
        is_answered(&server, &prober)
            .with_context(|| format!("{family:?} {:?}", node.datapath.counters()))?;
        let drops = node.datapath.counters()?.into_iter().filter(|(key, ..)| key.is_drop());
        assert_eq!(drops.count(), 0, "{family:?}");
    }
    Ok(())
}

/// Scenario 83, a backend of this node: the packet enters as if the device had removed an outer header.
#[test]
fn a_probe_of_the_nodes_own_backend_enters_by_the_device() -> Result<()> {
    test_kit::require_root!();
    let network = Network::new()?;
    let vips = FAMILIES.map(|family| family.vip().ip());
    network
        .host
        .ip_batch(&format!("addr add {}/32 dev lo\naddr add {}/128 dev lo nodad", vips[0], vips[1]))?;
    for (key, value) in [("accept_local", "1"), ("rp_filter", "0")] {
        network.host.set_sysctl(&format!("net/ipv4/conf/l3/{key}"), value)?;
    }
    for family in FAMILIES {
        let mut node = network.node(family, "l3")?;
        let server = network.host.run(|| UdpSocket::bind(family.vip()))?;
        let (prober, other) = (network.prober(family)?, network.prober(family)?);
        name(&mut node.datapath, &prober, family.host(BACKEND_PORT))?;
        other.send(b"other")?;
        server.set_read_timeout(Some(Duration::from_millis(200)))?;
        try_wait_until(Duration::from_secs(10), || {
            prober.send(b"probe").map_err(|error| error.to_string())?;
            let mut buffer = [0; 16];
            let len = server.recv(&mut buffer).map_err(|error| error.to_string())?;
            assert_eq!(&buffer[..len], b"probe", "only probes come by the device");
            Ok(())
        })
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("{family:?} {:?}", node.datapath.counters()))?;
    }
    Ok(())
}

/// Without the device a probe goes nowhere, and is counted: by its route it would reach another backend.
#[test]
fn a_probe_without_the_device_is_dropped() -> Result<()> {
    test_kit::require_root!();
    let network = Network::new()?;
    for family in FAMILIES {
        let config = NodeConfig { probes: 1, ipip_ifindex_ipv4: 0, ipip_ifindex_ipv6: 0, ..by_ipip() };
        let mut node = Node::frontend(&config, family, UDP, &[family.remote()])?;
        network.host.run(|| node.datapath.attach(TO_NETDEV, "out0", TcAttachType::Egress))?;
        let prober = network.prober(family)?;
        prober.send(b"before it names one")?;
        assert_eq!(node.datapath.counted(drop::NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT, direction::EGRESS)?, 0);
        name(&mut node.datapath, &prober, family.remote())?;
        let _ = prober.send(b"probe");
        assert_eq!(node.datapath.counted(drop::NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT, direction::EGRESS)?, 1);
    }
    Ok(())
}
