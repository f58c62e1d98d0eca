//! Packets for proxies that programs give to sockets (`enable-bpf-tproxy`): real ones without a rule of iptables, and drops.

use crate::fragments::pieces;
use crate::kit::*;
use crate::packet::*;
use crate::service::{self, FAMILIES, Family};
use crate::traffic::{Node, link};
use anyhow::{Context as _, Result};
use datapath_abi::{NodeConfig, direction, drop, lb_flag, mark};
use socket2::{Domain, Socket, Type};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use test_kit::NetNs;

const WEB: u16 = 80;
const DNS: u16 = 53;
const CLIENT: u16 = 40_000;
const PROXY_PORT: u16 = 10_053;
/// Only packets that get lost wait for so long.
const PATIENCE: Duration = Duration::from_secs(5);

fn assigning(config: NodeConfig) -> NodeConfig {
    NodeConfig { bpf_tproxy: 1, ..config }
}

/// Redirects TCP and UDP of a pod in both directions.
fn redirect(datapath: &mut Datapath, pod: &Pod) -> Result<()> {
    let mut rows = ALLOW_ALL.to_vec();
    for (protocol, port) in [(TCP, WEB), (UDP, DNS)] {
        rows.extend([OUT, IN].map(|way| row(way, 0, protocol, Some((port, 16)), Kind::Proxy(PROXY_PORT))));
    }
    datapath.set_policy(pod, &rows)
}

/// A node whose first pod has its traffic redirected, with the rules of routing and no rule of iptables.
fn node(config: NodeConfig) -> Result<(Node, Datapath)> {
    on(Node::new()?, config)
}

fn on(node: Node, config: NodeConfig) -> Result<(Node, Datapath)> {
    let host = node.sandbox.host();
    // As the agent does. Without its rule that matches sockets, early demultiplexing would set the socket of packets that the
    // stack forwards to the pod's interface, and it drops such.
    host.set_sysctl("net/ipv4/conf/cilium_net/accept_local", "1")?;
    host.set_sysctl("net/ipv4/ip_early_demux", "0")?;
    for family in ["-4", "-6"] {
        for command in [
            "rule add pref 9 fwmark 0x200/0xf00 lookup 2004",
            "rule add pref 100 lookup local",
            "rule del pref 0 lookup local",
            "route add local default dev lo table 2004",
        ] {
            host.ip(&format!("{family} {command}"))?;
        }
    }
    let (host_ifindex, _) = link(host, "cilium_host")?;
    let (net_ifindex, _) = link(host, "cilium_net")?;
    let has_endpoint_routes = config.endpoint_routes != 0;
    let mut datapath = node.datapath(&NodeConfig { host_ifindex, net_ifindex, ..config })?;
    redirect(&mut datapath, &node.pods[0].1)?;
    node.attach(&mut datapath, has_endpoint_routes)?;
    Ok((node, datapath))
}

/// A socket of a proxy, by its mark, that may have addresses that are not the host's.
fn transparent(at: SocketAddr, kind: Type) -> Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), kind, None)?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // The option of IPv4 is the same flag of the socket for both families.
    socket.set_ip_transparent_v4(true)?;
    socket.set_reuse_address(true)?;
    socket.set_mark(mark::PROXY_EGRESS)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.bind(&at.into())?;
    Ok(socket)
}

struct Proxy {
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Proxy {
    fn new(host: &NetNs, address: IpAddr) -> Result<Self> {
        let at = SocketAddr::new(address, PROXY_PORT);
        host.run(|| {
            let tcp = transparent(at, Type::STREAM)?;
            tcp.listen(8)?;
            Ok(Self { tcp: tcp.into(), udp: transparent(at, Type::DGRAM)?.into() })
        })
    }

    /// Connects, and exchanges bytes with the proxy in the place of the server.
    fn serves_tcp(&self, client: &NetNs, server: IpAddr) -> Result<IpAddr> {
        let server = SocketAddr::new(server, WEB);
        let mut sending = client.run(|| TcpStream::connect_timeout(&server, PATIENCE))?;
        // The kernel has accepted the connection: this does not block.
        let (mut accepted, from) = self.tcp.accept()?;
        assert_eq!(accepted.local_addr()?, server, "the proxy learns the destination");
        assert_eq!(from, sending.local_addr()?);
        for stream in [&sending, &accepted] {
            stream.set_read_timeout(Some(PATIENCE))?;
        }
        let mut buffer = [0; 6];
        for _ in 0..2 {
            sending.write_all(b"query ")?;
            accepted.read_exact(&mut buffer)?;
            accepted.write_all(b"answer")?;
            sending.read_exact(&mut buffer)?;
            assert_eq!(&buffer, b"answer");
        }
        Ok(from.ip())
    }

    /// Sends a packet, which the proxy answers from the server's address.
    fn serves_udp(&self, host: &NetNs, client: &NetNs, own: IpAddr, server: IpAddr) -> Result<()> {
        let server = SocketAddr::new(server, DNS);
        let sending = client.run(|| UdpSocket::bind((own, 0)))?;
        sending.set_read_timeout(Some(PATIENCE))?;
        sending.connect(server)?;
        sending.send(b"query")?;
        let mut buffer = [0; 16];
        let (length, from) = self.udp.recv_from(&mut buffer)?;
        assert_eq!((&buffer[..length], from), (&b"query"[..], sending.local_addr()?));
        let answering: UdpSocket = host.run(|| transparent(server, Type::DGRAM))?.into();
        answering.send_to(b"answer", from)?;
        assert_eq!(sending.recv(&mut buffer)?, 6, "from the server's address");
        Ok(())
    }
}

fn variants() -> [(&'static str, NodeConfig); 4] {
    [
        ("host routing", host_routing_config()),
        ("legacy host routing", NodeConfig { redirect_peer: 0, ..default_config() }),
        ("endpoint routes", NodeConfig { redirect_peer: 0, endpoint_routes: 1, ..default_config() }),
        ("endpoint routes and host routing", NodeConfig { endpoint_routes: 1, ..host_routing_config() }),
    ]
}

/// Packets from a pod, and to it from the host, the outside and another pod, with listeners at loopback and at any
/// address.
#[test]
fn redirected_packets_reach_sockets_without_rules() -> Result<()> {
    test_kit::require_root!();
    for (at, (what, config)) in variants().into_iter().enumerate() {
        let (node, mut datapath) = node(assigning(config))?;
        let host = node.sandbox.host();
        let [(a, pod_a), (b, pod_b)] = &node.pods;
        let outside: [IpAddr; 2] = [OUTSIDE_V4.into(), OUTSIDE_V6.into()];
        let pods: [[IpAddr; 2]; 2] = [pod_a, pod_b].map(|pod| [pod.ipv4.into(), pod.ipv6.into()]);
        let any = at % 2 != 0;
        let listeners: [IpAddr; 2] = if any {
            [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
        } else {
            [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
        };
        for family in 0..2 {
            let (own, other, server) = (pods[0][family], pods[1][family], outside[family]);
            let proxy = Proxy::new(host, listeners[family])?;
            let context = |from: &str| format!("{what}, {own}, {from}");
            let sent = proxy.serves_tcp(a, server).with_context(|| context("to the outside"))?;
            assert_eq!(sent, own);
            proxy.serves_udp(host, a, own, server).with_context(|| context("to the outside"))?;
            let from_pod = proxy.serves_tcp(b, own).with_context(|| context("of a pod"))?;
            assert_eq!(from_pod, other);
            proxy.serves_udp(host, b, other, own).with_context(|| context("of a pod"))?;
            let from_outside =
                proxy.serves_tcp(&node.world, own).with_context(|| context("of the outside"))?;
            assert_eq!(from_outside, server);
            proxy.serves_tcp(host, own).with_context(|| context("of the host"))?;
        }
        for reason in [drop::SOCKET_LOOKUP_FAILED, drop::SOCKET_ASSIGN_FAILED] {
            for way in [direction::INGRESS, direction::EGRESS] {
                assert_eq!(datapath.counted(reason, way)?, 0, "{what}: {reason}");
            }
        }
    }
    Ok(())
}

/// A node whose device is a bridge, where the kernel has rules of iptables see packets at the port, before programs.
fn bridged() -> Result<Node> {
    let node = Node::new()?;
    let host = node.sandbox.host();
    host.ip_batch(
        "link set ext0 down
         addr flush dev ext0
         link set ext0 name port0
         link add ext0 type bridge
         link set port0 master ext0
         link set port0 up
         link set ext0 up
         addr add 198.51.100.1/24 dev ext0
         addr add 2001:db8:ffff::1/64 dev ext0 nodad",
    )?;
    for family in ["iptables", "ip6tables"] {
        let key = format!("net/bridge/bridge-nf-call-{family}");
        if host.sysctl(&key).is_ok() {
            host.set_sysctl(&key, "1")?;
        }
    }
    Ok(node)
}

/// Scenario 79: a service with a proxy and a backend of this node, at a device and at a bridge. Programs give the packet to
/// the proxy's socket there, where Cilium sends it once more through `cilium_net`.
#[test]
fn packets_to_a_service_reach_its_proxy_at_devices_and_bridges() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { nodeport: 1, ..assigning(host_routing_config()) };
    for is_bridge in [false, true] {
        let (node, mut datapath) = on(if is_bridge { bridged()? } else { Node::new()? }, config)?;
        for family in FAMILIES {
            let mut service = service::Node::on(datapath, family, TCP, &[family.b(8080)])?;
            service.set_proxy(lb_flag::NODE_PORT | lb_flag::ROUTABLE, PROXY_PORT)?;
            datapath = service.datapath;
            let loopback: IpAddr = match family {
                Family::V4 => Ipv4Addr::LOCALHOST.into(),
                Family::V6 => Ipv6Addr::LOCALHOST.into(),
            };
            let proxy = Proxy::new(node.sandbox.host(), loopback)?;
            let vip = family.vip();
            assert_eq!(vip.port(), WEB);
            let client = proxy
                .serves_tcp(&node.world, vip.ip())
                .with_context(|| format!("{vip}, bridge: {is_bridge}"))?;
            let outside: [IpAddr; 2] = [OUTSIDE_V4.into(), OUTSIDE_V6.into()];
            assert!(outside.contains(&client), "{client}");
        }
    }
    Ok(())
}

/// The controls: without a listener packets are dropped, and without the option a listener gets none.
#[test]
fn packets_without_a_listener_are_dropped() -> Result<()> {
    test_kit::require_root!();
    const SHORT: Duration = Duration::from_millis(100);
    let outside: [IpAddr; 2] = [OUTSIDE_V4.into(), OUTSIDE_V6.into()];
    let (on, mut datapath) = node(assigning(host_routing_config()))?;
    let (pod, endpoint) = &on.pods[0];
    for server in outside {
        let before = datapath.counted(drop::SOCKET_LOOKUP_FAILED, direction::EGRESS)?;
        assert!(pod.run(|| TcpStream::connect_timeout(&(server, WEB).into(), SHORT)).is_err());
        let after = datapath.counted(drop::SOCKET_LOOKUP_FAILED, direction::EGRESS)?;
        assert!(after > before, "{server}");
        assert!(
            on.world
                .run(|| {
                    let own: IpAddr =
                        if server.is_ipv4() { endpoint.ipv4.into() } else { endpoint.ipv6.into() };
                    TcpStream::connect_timeout(&(own, WEB).into(), SHORT)
                })
                .is_err()
        );
        assert!(datapath.counted(drop::SOCKET_LOOKUP_FAILED, direction::INGRESS)? > 0, "{server}");
    }
    let (off, _datapath) = node(host_routing_config())?;
    for (server, loopback) in
        outside.into_iter().zip([IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()])
    {
        let proxy = Proxy::new(off.sandbox.host(), loopback)?;
        assert!(off.pods[0].0.run(|| TcpStream::connect_timeout(&(server, WEB).into(), SHORT)).is_err());
        proxy.tcp.set_nonblocking(true)?;
        assert!(proxy.tcp.accept().is_err(), "{server}: without the option nothing leads there");
    }
    Ok(())
}

/// A test run is not at tc ingress, where alone the kernel assigns sockets.
#[test]
fn packets_that_get_no_socket_have_reasons() -> Result<()> {
    test_kit::require_root!();
    let families: [(IpAddr, IpAddr, IpAddr); 2] = [
        (A.ipv4.into(), OUTSIDE_V4.into(), Ipv4Addr::LOCALHOST.into()),
        (A.ipv6.into(), OUTSIDE_V6.into(), Ipv6Addr::LOCALHOST.into()),
    ];
    let sandbox = test_kit::Sandbox::new()?;
    let host = sandbox.host();
    for (pod, peer, loopback) in families {
        let mut datapath = Datapath::with_pods(&assigning(default_config()))?;
        redirect(&mut datapath, &A)?;
        let query = ip(pod, peer, UDP, &udp_ports(CLIENT, DNS));
        let syn = ip(pod, peer, TCP, &tcp(CLIENT, WEB, SYN));
        let mut reason = |packet: &[u8]| {
            host.run(|| datapath.dropped(direction::EGRESS, |datapath| datapath.sends(packet)))
        };
        for packet in [&query, &syn] {
            assert_eq!(reason(packet)?, Some(drop::SOCKET_LOOKUP_FAILED), "{peer}");
        }
        // Reassembly would lose the socket.
        let [first, _] = pieces(pod.is_ipv6(), 1, UDP, &udp_ports(CLIENT, DNS));
        assert_eq!(reason(&first)?, Some(drop::IP_FRAGMENTATION_NOT_SUPPORTED), "{peer}");
        let _proxy = Proxy::new(host, loopback)?;
        for packet in [&query, &syn] {
            assert_eq!(reason(packet)?, Some(drop::SOCKET_ASSIGN_FAILED), "{peer}");
        }
    }
    Ok(())
}
