//! Devices without Ethernet headers, as those of WireGuard: services for clients behind them.

use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::nodeport_remote::{native, tunnel};
use crate::service::*;
use anyhow::{Context as _, Result};
use aya::programs::TcAttachType;
use datapath_abi::{DIRECT_ROUTING, MasqueradeAddresses, NodeConfig, dsr, ipv4_word, ipv6_words};
use datapath_object::FROM_NETDEV;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use test_kit::{NetNs, try_wait_until};

/// A client whose packets look to a test run as if an Ethernet header were in front: the bytes in place of the Ethernet
/// type are in the source address.
fn client(family: Family) -> SocketAddr {
    let ip: IpAddr = match family {
        Family::V4 => [8, 0, 100, 9].into(),
        Family::V6 => "2001:db8:86dd::9".parse().unwrap(),
    };
    SocketAddr::new(ip, CLIENT_PORT)
}

fn without_device(config: NodeConfig) -> NodeConfig {
    NodeConfig { nodeport: 1, snat_min_port: 32768, ..config }
}

/// Scenarios 24 and 25: a header is added, with which a pod, the host and the tunnel get the packet.
#[test]
fn packets_get_an_ethernet_header() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let protocol = if family == Family::V4 { [8, 0] } else { [0x86, 0xdd] };
        for (config, backend, verdict) in [
            (host_routing_config(), family.b(BACKEND_PORT), REDIRECT),
            (default_config(), family.b(BACKEND_PORT), PASS),
            (host_routing_config(), family.host(BACKEND_PORT), PASS),
            (tunnel(), family.remote(), REDIRECT),
        ] {
            let mut node = Node::frontend(&without_device(config), family, TCP, &[backend])?;
            let row = behind(REMOTE_IDENTITY, family.other_node(), 0);
            node.datapath.set_ipcache(family.remote().ip(), &row)?;
            let request = segment(client(family), family.vip(), TCP, SYN);
            // The control: bytes that are parsed as Ethernet are none of a frontend.
            assert_eq!(node.arrive(&request)?.packet, request);
            node.datapath.set_l3_device(IFINDEX)?;
            let outcome = node.arrive(&request)?;
            let seen = seen_at(&outcome);
            assert_eq!(
                (outcome.verdict, seen.destination, seen.checksums),
                (verdict, backend, true),
                "{family:?}"
            );
            let source = if backend == family.remote() { family.router(CLIENT_PORT) } else { client(family) };
            assert_eq!(seen.source, source, "{family:?} {backend}");
            assert_eq!(outcome.packet[12..14], protocol);
            if verdict == REDIRECT && backend == family.b(BACKEND_PORT) {
                assert_eq!(outcome.packet[..12], [B.mac, B.node_mac].concat());
            }
        }
        // The host firewall does not see what leaves by such a device, so it must not deny the answers.
        let config = NodeConfig { host_firewall: 1, ..without_device(default_config()) };
        let mut node = Node::frontend(&config, family, TCP, &[family.b(BACKEND_PORT)])?;
        node.datapath.set_l3_device(IFINDEX)?;
        let request = segment(client(family), family.vip(), TCP, SYN);
        let outcome = node.arrive(&request)?;
        assert_eq!((outcome.verdict, outcome.packet), (PASS, request), "{family:?}");
    }
    Ok(())
}

/// MAC address of the pod and of the machine behind the node.
const MAC: &str = "02:00:00:00:00:b1";
const PORT: u16 = 4790;

/// A node with a device without Ethernet headers, a machine that sends to it, a pod, and a machine with a backend.
struct Network {
    host: NetNs,
    client: NetNs,
    pod: NetNs,
    machine: NetNs,
}

impl Network {
    fn new() -> Result<Self> {
        let (host, client) = (NetNs::detached()?, NetNs::detached()?);
        let (pod, machine) = (NetNs::detached()?, NetNs::detached()?);
        host.veth("in0", &client, "eth0")?;
        host.veth("lxc0", &pod, "eth0")?;
        host.veth("out0", &machine, "eth0")?;
        for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            host.set_sysctl(key, "1")?;
        }
        host.ip_batch(&format!(
            "addr add 203.0.113.1/24 dev in0
             addr add 192.0.2.1/24 dev out0
             addr add 2001:db8::1/64 dev out0 nodad
             link add vx0 type vxlan external gpe dstport {PORT}
             link set vx0 up
             route add {b_v4}/32 dev lxc0
             route add {b_v6}/128 dev lxc0
             neigh replace {b_v4} lladdr {MAC} dev lxc0 nud permanent
             neigh replace {b_v6} lladdr {MAC} dev lxc0 nud permanent
             route add {remote_v4}/32 via 192.0.2.9
             route add {remote_v6}/128 via 2001:db8::9",
            b_v4 = B.ipv4,
            b_v6 = B.ipv6,
            remote_v4 = REMOTE_V4,
            remote_v6 = REMOTE_V6,
        ))?;
        host.set_sysctl("net/ipv4/conf/vx0/rp_filter", "0")?;
        host.set_sysctl("net/ipv4/conf/all/rp_filter", "0")?;
        client.ip("addr add 203.0.113.9/24 dev eth0")?;
        pod.ip_batch(&format!(
            "link set eth0 address {MAC}\naddr add {}/32 dev eth0\naddr add {}/128 dev eth0 nodad",
            B.ipv4, B.ipv6
        ))?;
        machine.ip_batch(&format!(
            "addr add 192.0.2.9/24 dev eth0
             addr add 2001:db8::9/64 dev eth0 nodad
             link set lo up
             addr add {REMOTE_V4}/32 dev lo
             addr add {REMOTE_V6}/128 dev lo nodad",
        ))?;
        for ns in [&pod, &machine] {
            // No route leads back to clients.
            ns.set_sysctl("net/ipv4/conf/all/rp_filter", "0")?;
            ns.set_sysctl("net/ipv4/conf/eth0/rp_filter", "0")?;
        }
        Ok(Self { host, client, pod, machine })
    }

    /// Attaches the program to the device; the backend's server gets a client's datagrams. Returns the sender it sees.
    fn reached(&self, config: &NodeConfig, family: Family, backend: SocketAddr) -> Result<IpAddr> {
        let mut node = Node::frontend(&without_device(*config), family, UDP, &[backend])?;
        let (device, lxc) = self.host.run(|| Ok::<_, anyhow::Error>((ifindex("vx0")?, ifindex("lxc0")?)))?;
        node.datapath.set_l3_device(device)?;
        node.datapath.add(&Pod { ifindex: lxc, ..B })?;
        let row = MasqueradeAddresses {
            ipv4: ipv4_word(HOST_V4),
            ipv6: ipv6_words(HOST_V6),
            ..MasqueradeAddresses::default()
        };
        node.datapath.put::<4, 64>("ep_masquerade", &DIRECT_ROUTING, &row)?;
        self.host.run(|| node.datapath.attach(FROM_NETDEV, "vx0", TcAttachType::Ingress))?;
        let ns = if backend.ip() == family.b(0).ip() { &self.pod } else { &self.machine };
        let server = ns.run(|| -> Result<UdpSocket> {
            let socket = UdpSocket::bind(backend)?;
            socket.set_read_timeout(Some(Duration::from_millis(200)))?;
            Ok(socket)
        })?;
        let sender = self.client.run(|| UdpSocket::bind("203.0.113.9:0"))?;
        let packet = segment(client(family), family.vip(), UDP, 0);
        // A VXLAN header with the protocol of what follows (draft-ietf-nvo3-vxlan-gpe): IPv4 or IPv6.
        let next = if family == Family::V4 { 1 } else { 2 };
        let datagram = [&[0x0c, 0, 0, next, 0, 0, 7, 0][..], &packet].concat();
        let mut from = None;
        try_wait_until(Duration::from_secs(10), || {
            sender.send_to(&datagram, ("203.0.113.1", PORT)).map_err(|error| error.to_string())?;
            let mut buffer = [0; 128];
            let (len, peer) = server.recv_from(&mut buffer).map_err(|error| error.to_string())?;
            if buffer[..len] != [0x5a; 64] {
                return Err(format!("{:02x?}", &buffer[..len]));
            }
            from = Some(peer.ip());
            Ok(())
        })
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("{family:?} {backend}: {:?}", node.datapath.counters()))?;
        from.context("no sender")
    }
}

/// Scenario 24 with real packets: the stack routes what it gets with the header, pods get it past the stack, and packets
/// leave to other nodes, with the option of direct server return as well.
#[test]
fn datagrams_of_such_devices_reach_backends() -> Result<()> {
    test_kit::require_root!();
    let network = Network::new()?;
    let direct = NodeConfig { dsr: dsr::ALL, ..native() };
    for family in FAMILIES {
        let (pod, remote) = (family.b(BACKEND_PORT), family.remote());
        for (name, config, backend, sender) in [
            ("by the stack", default_config(), pod, client(family).ip()),
            ("past the stack", host_routing_config(), pod, client(family).ip()),
            ("another node", native(), remote, family.host(0).ip()),
            ("another node, directly", direct, remote, client(family).ip()),
        ] {
            let from = network.reached(&config, family, backend).with_context(|| name)?;
            assert_eq!(from, sender, "{family:?} {name}");
        }
    }
    Ok(())
}
