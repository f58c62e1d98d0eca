//! Translation between the families: services with backends of the other one, and the gateway (balancing.md 4.6).

use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::nodeport_remote::{native, with_hops};
use crate::packet::{self, ETH_LEN};
use crate::service::*;
use crate::uplink::routed;
use anyhow::Result;
use datapath_abi::nat46x64::{mapped, prefixed};
use datapath_abi::{
    CtTuple6, DIRECT_ROUTING, LbBackend, LbReverseNat, LbService, LbServiceKey, MasqueradeAddresses,
    NatEntry6, NodeConfig, Pod as Plain, direction, drop, ipv4_word, ipv6_from_words, ipv6_words, lb_flag2,
    mark, tuple_flag,
};
use datapath_object::{FROM_CONTAINER, FROM_NETDEV};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use test_kit::NetNs;

const SERVER_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 80);
const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xaaaa, 0, 0, 0, 0, 0x80);
const VIP_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);
const VIP_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x200);
const PORT: u16 = 8080;

const ROUTER_OF_CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// An ICMP error about a packet of the IPv4 frontend that is too long for the path to its client.
fn narrow(quote: Vec<u8>) -> Vec<u8> {
    let message = [&[3, 4, 0, 0, 0, 0, 5, 120][..], &quote].concat();
    Family::V4.icmp_packet(ROUTER_OF_CLIENT.into(), VIP_V4.into(), message)
}

fn under_prefix(ip: Ipv4Addr) -> IpAddr {
    ipv6_from_words(prefixed(ipv4_word(ip))).into()
}

fn as_mapped(ip: Ipv4Addr) -> Ipv6Addr {
    ipv6_from_words(mapped(ipv4_word(ip)))
}

fn services() -> NodeConfig {
    NodeConfig { nat46x64: 1, ..native() }
}

fn gateway() -> NodeConfig {
    NodeConfig { nat46x64_gateway: 1, ..services() }
}

/// A node with its routes.
struct Translator {
    datapath: Datapath,
    ns: NetNs,
}

impl Translator {
    fn new(config: &NodeConfig) -> Result<Self> {
        let mut datapath = Datapath::with_pods(config)?;
        let row = MasqueradeAddresses {
            ipv4: ipv4_word(HOST_V4),
            ipv6: ipv6_words(HOST_V6),
            ..MasqueradeAddresses::default()
        };
        datapath.put::<4, 64>("ep_masquerade", &DIRECT_ROUTING, &row)?;
        Ok(Self { datapath, ns: routed()? })
    }

    fn run(&self, program: &str, packet: &[u8]) -> Result<Outcome> {
        self.ns.run(|| self.datapath.run(program, &frame(DEVICE, ROUTER_MAC, packet)))
    }

    fn arrive(&self, packet: &[u8]) -> Result<Outcome> {
        self.run(FROM_NETDEV, packet)
    }

    /// A packet that must leave; its ends.
    fn leaves(&self, packet: &[u8]) -> Result<(SocketAddr, SocketAddr)> {
        let outcome = self.arrive(packet)?;
        left(&outcome, packet)
    }

    fn dropped(&mut self, direction: u8, packet: &[u8]) -> Result<Option<u8>> {
        let (packet, ns) = (frame(DEVICE, ROUTER_MAC, packet), &self.ns);
        self.datapath.dropped(direction, |datapath| ns.run(|| datapath.run(FROM_NETDEV, &packet)))
    }

    /// Rows of a frontend with the id, as the agent writes them: with IPv6 backends, or IPv4 ones as mapped addresses.
    fn serve(&mut self, address: Ipv6Addr, id: u16, protocol: u8, backend: SocketAddr) -> Result<()> {
        let (dport, rev_nat_index) = (SERVICE_PORT.to_be(), id.to_be());
        let key = |backend_slot| LbServiceKey {
            address: ipv6_words(address),
            dport,
            backend_slot,
            proto: protocol,
            ..Plain::zeroed()
        };
        let flags2 = lb_flag2::NAT_46X64;
        let frontend = LbService { count: 1, rev_nat_index, flags: NODE_PORT, flags2, ..Plain::zeroed() };
        let backend_id = 500 + u32::from(id);
        let slot = LbService { backend_id, rev_nat_index, ..Plain::zeroed() };
        self.datapath.put::<24, 12>("cilium_lb6_services_v2", &key(0), &frontend)?;
        self.datapath.put::<24, 12>("cilium_lb6_services_v2", &key(1), &slot)?;
        let address = match backend.ip() {
            IpAddr::V4(ip) => mapped(ipv4_word(ip)),
            IpAddr::V6(ip) => ipv6_words(ip),
        };
        let row = LbBackend { address, port: backend.port().to_be(), proto: protocol, ..Plain::zeroed() };
        self.datapath.put::<4, 24>("cilium_lb6_backends_v3", &backend_id, &row)?;
        let row = LbReverseNat { address: key(0).address, port: dport };
        self.datapath.put::<2, 18>("cilium_lb6_reverse_nat", &rev_nat_index, &row)
    }

    /// The same for an IPv4 frontend: its own row has no backends, those of its mapped address have.
    fn serve_ipv4(&mut self, protocol: u8, backend: SocketAddr) -> Result<()> {
        let key = LbServiceKey {
            address: ipv4_word(VIP_V4),
            dport: SERVICE_PORT.to_be(),
            proto: protocol,
            ..Plain::zeroed()
        };
        let (rev_nat_index, flags2) = (1u16.to_be(), lb_flag2::NAT_46X64);
        let row = LbService { rev_nat_index, flags: NODE_PORT, flags2, ..Plain::zeroed() };
        self.datapath.put::<12, 12>("cilium_lb4_services_v2", &key, &row)?;
        self.serve(as_mapped(VIP_V4), 2, protocol, backend)
    }

    /// The rows of translations: key and value.
    fn translations(&mut self) -> Result<Vec<(CtTuple6, NatEntry6)>> {
        assert!(self.datapath.rows::<14, 40>("cilium_snat_v4_external")?.is_empty());
        let rows = self.datapath.rows::<38, 56>("cilium_snat_v6_external")?;
        let read = |(key, value): &([u8; 38], [u8; 56])| {
            (CtTuple6::from_bytes(key).unwrap(), NatEntry6::from_bytes(value).unwrap())
        };
        let mut rows: Vec<_> = rows.iter().map(read).collect();
        rows.sort_by_key(|(key, _)| key.flags);
        Ok(rows)
    }
}

/// The ends of a packet that must leave by a route of the other family, with right checksums and one hop less.
fn left(outcome: &Outcome, before: &[u8]) -> Result<(SocketAddr, SocketAddr)> {
    let after = &outcome.packet[ETH_LEN..];
    let seen = seen_at(outcome);
    let is_ipv4 = after[0] >> 4 == 4;
    let (hops, ethertype, len) = if is_ipv4 {
        (after[8], ETH_IPV4, u16::from_be_bytes([after[2], after[3]]))
    } else {
        (after[7], ETH_IPV6, 40 + u16::from_be_bytes([after[4], after[5]]))
    };
    anyhow::ensure!((outcome.verdict, seen.checksums, hops) == (REDIRECT, true, 63), "{seen:?} {outcome:?}");
    anyhow::ensure!(outcome.packet[12..14] == ethertype.to_be_bytes() && usize::from(len) == after.len());
    anyhow::ensure!(is_ipv4 == (before[0] >> 4 == 6), "the same family: {seen:?}");
    anyhow::ensure!(outcome.mark & mark::MAGIC_MASK == mark::SNAT_DONE, "{outcome:?}");
    Ok((seen.source, seen.destination))
}

fn client_v6() -> SocketAddr {
    Family::V6.remote_client()
}

fn client_v4() -> SocketAddr {
    Family::V4.remote_client()
}

fn host(port: u16) -> SocketAddr {
    Family::V4.host(port)
}

/// An IPv6 client reaches an IPv4 machine under the prefix, in the name of the node, and its reply comes back.
#[test]
fn the_gateway_leads_ipv6_clients_to_ipv4_machines_and_back() -> Result<()> {
    test_kit::require_root!();
    let server = SocketAddr::new(SERVER_V4.into(), 443);
    let seen_as = SocketAddr::new(under_prefix(SERVER_V4), 443);
    for (protocol, host_routing) in [(TCP, 0), (UDP, 0), (TCP, 1)] {
        let mut node = Translator::new(&NodeConfig { host_routing, ..gateway() })?;
        let request = segment(client_v6(), seen_as, protocol, SYN);
        assert_eq!(node.leaves(&request)?, (host(CLIENT_PORT), server));
        let reply = segment(server, host(CLIENT_PORT), protocol, SYN | ACK);
        assert_eq!(node.leaves(&reply)?, (seen_as, client_v6()));
        // Another client with the same port, and a port below the range.
        let other = SocketAddr::new("2001:db8::77".parse()?, CLIENT_PORT);
        let (moved, _) = node.leaves(&segment(other, seen_as, protocol, SYN))?;
        assert!(moved.ip() == host(0).ip() && moved.port() != CLIENT_PORT && moved.port() >= 32768);
        assert_eq!(node.leaves(&segment(server, moved, protocol, ACK))?, (seen_as, other));
        assert_eq!(node.leaves(&request)?, (host(CLIENT_PORT), server), "the mapping stays");
        // The twin of the reply, to a port without a mapping, is the host's.
        let stray = segment(server, host(50000), protocol, ACK);
        let outcome = node.arrive(&stray)?;
        assert_eq!((outcome.verdict, &outcome.packet[ETH_LEN..]), (PASS, &stray[..]));

        let rows = node.translations()?;
        assert_eq!(rows.len(), 4, "two of each flow");
        let own = mapped(ipv4_word(HOST_V4));
        let (key, value) = rows.iter().find(|(key, _)| { key.saddr } == ipv6_words(OUTSIDE_V6)).unwrap();
        assert_eq!((key.daddr, key.flags), (prefixed(ipv4_word(SERVER_V4)), tuple_flag::OUT));
        assert_eq!((value.address, value.port, value.needs_ct), (own, CLIENT_PORT.to_be(), 1));
        let back = rows.iter().filter(|(key, _)| key.flags == tuple_flag::IN);
        assert!(back.clone().count() == 2 && back.clone().all(|(key, _)| { key.daddr } == own));
        let map = if protocol == TCP { "cilium_ct6_global" } else { "cilium_ct_any6_global" };
        assert_eq!(node.datapath.rows::<38, 56>(map)?.len(), 2, "entries that the rows live with");
    }
    Ok(())
}

fn echo(source: IpAddr, destination: IpAddr, kind: u8) -> Vec<u8> {
    let family = if source.is_ipv4() { Family::V4 } else { Family::V6 };
    let message = [&[kind, 0, 0, 0, 0x9c, 0x40, 0, 1][..], b"payload of an odd len"].concat();
    family.icmp_packet(source, destination, message)
}

#[test]
fn the_gateway_translates_echoes() -> Result<()> {
    test_kit::require_root!();
    let node = Translator::new(&gateway())?;
    let (client, server) = (client_v6().ip(), IpAddr::from(SERVER_V4));
    let outcome = node.arrive(&echo(client, under_prefix(SERVER_V4), 128))?;
    let (source, destination) = left(&outcome, &[0x60])?;
    assert_eq!((source.ip(), destination.ip()), (host(0).ip(), server));
    let message = &outcome.packet[ETH_LEN + 20..];
    assert_eq!((&message[..2], &message[4..]), (&[8, 0][..], &echo(host(0).ip(), server, 8)[24..]));
    let outcome = node.arrive(&echo(server, host(0).ip(), 0))?;
    let (source, destination) = left(&outcome, &[0x40])?;
    assert_eq!((source.ip(), destination.ip()), (under_prefix(SERVER_V4), client));
    assert_eq!(outcome.packet[ETH_LEN + 40..][..2], [129, 0]);
    Ok(())
}

/// Headers change alone between machines that both have an address under the prefix, and from IPv4 to other machines.
#[test]
fn the_gateway_translates_packets_between_gateways_without_state() -> Result<()> {
    test_kit::require_root!();
    let mut node = Translator::new(&gateway())?;
    let (a, b) = (SocketAddr::new(OUTSIDE_V4.into(), 4000), SocketAddr::new(SERVER_V4.into(), 443));
    let [a6, b6] = [a, b].map(|end| match end.ip() {
        IpAddr::V4(ip) => SocketAddr::new(under_prefix(ip), end.port()),
        IpAddr::V6(_) => unreachable!(),
    });
    for protocol in [TCP, UDP] {
        assert_eq!(node.leaves(&segment(a6, b6, protocol, ACK))?, (a, b));
        assert_eq!(node.leaves(&segment(a, b, protocol, ACK))?, (a6, b6));
    }
    for (kind, other) in [(8, 128), (0, 129)] {
        let outcome = node.arrive(&echo(a.ip(), b.ip(), kind))?;
        left(&outcome, &[0x40])?;
        assert_eq!(outcome.packet[ETH_LEN + 40], other);
        let outcome = node.arrive(&echo(a6.ip(), b6.ip(), other))?;
        left(&outcome, &[0x60])?;
        assert_eq!(outcome.packet[ETH_LEN + 20], kind);
    }
    // The traffic class, and what fragments would need.
    let mut classed = segment(a6, b6, UDP, 0);
    classed[..2].copy_from_slice(&[0x6b, 0x80]);
    let outcome = node.arrive(&classed)?;
    left(&outcome, &classed)?;
    assert_eq!((outcome.packet[ETH_LEN + 1], outcome.packet[ETH_LEN + 6]), (0xb8, 0), "may be fragmented");
    let long = |len: usize| {
        let mut packet = segment(a6, b6, UDP, 0);
        let missing = len - packet.len();
        packet.extend(std::iter::repeat_n(0, missing));
        let (payload, udp) = ((len - 40) as u16, (len - 40) as u16);
        packet[4..6].copy_from_slice(&payload.to_be_bytes());
        packet[44..46].copy_from_slice(&udp.to_be_bytes());
        packet
    };
    for (len, fragment) in [(1280, 0), (1281, 0x40)] {
        let outcome = node.arrive(&long(len))?;
        assert_eq!((outcome.verdict, outcome.packet[ETH_LEN + 6]), (REDIRECT, fragment), "{len}");
        assert_eq!(outcome.packet.len(), ETH_LEN + len - 20);
    }
    assert_eq!(node.translations()?.len(), 0);
    // Packets to pods, to the node and to other machines by IPv6 are nothing to the gateway.
    for packet in [
        segment(a, SocketAddr::new(A.ipv4.into(), 443), TCP, ACK),
        segment(a, host(443), TCP, ACK),
        segment(client_v6(), SocketAddr::new(SERVER_V6.into(), 443), TCP, ACK),
        segment(a, SocketAddr::new("224.0.0.5".parse()?, 443), UDP, 0),
    ] {
        let outcome = node.arrive(&packet)?;
        assert_eq!((outcome.verdict, &outcome.packet[ETH_LEN..]), (PASS, &packet[..]));
    }
    let exhausted = with_hops(segment(a6, b6, TCP, ACK), 1);
    assert_eq!(node.dropped(direction::INGRESS, &exhausted)?, Some(drop::TTL_EXCEEDED));
    let exhausted = with_hops(segment(a, b, TCP, ACK), 1);
    assert_eq!(node.dropped(direction::INGRESS, &exhausted)?, Some(drop::TTL_EXCEEDED));
    Ok(())
}

/// IPv6 needs 20 bytes more: a sender that forbids fragments learns the length that fits.
#[test]
fn packets_that_get_too_long_are_answered() -> Result<()> {
    test_kit::require_root!();
    let mut node = Translator::new(&gateway())?;
    let padded = |len: usize, fragment: u16| {
        let udp = transport(client_v4(), SocketAddr::new(SERVER_V4.into(), 443), UDP, 0);
        let payload = [&udp[..], &vec![0; len - 20 - udp.len()]].concat();
        packet::ipv4_with(OUTSIDE_V4, SERVER_V4, 64, UDP, [1, fragment], &payload)
    };
    const DONT_FRAGMENT: u16 = 0x4000;
    assert_eq!(node.arrive(&padded(1480, DONT_FRAGMENT))?.packet.len(), ETH_LEN + 1500);
    let outcome = node.arrive(&padded(1481, DONT_FRAGMENT))?;
    let seen = seen_at(&outcome);
    assert_eq!((outcome.verdict, seen.protocol, seen.checksums), (REDIRECT, ICMP, true));
    assert_eq!((seen.source.ip(), seen.destination.ip()), (host(0).ip(), client_v4().ip()));
    assert_eq!(outcome.packet[ETH_LEN + 20..][..2], [3, 4]);
    assert_eq!(outcome.packet[ETH_LEN + 24..][..4], 1480u32.to_be_bytes());
    assert_eq!(quoted(&outcome.packet).0, client_v4());
    assert_eq!(node.dropped(direction::INGRESS, &padded(1481, 0))?, Some(drop::FRAG_NEEDED));
    Ok(())
}

/// 1.2 q and 1.3, 4: an IPv6 frontend with an IPv4 backend on another node.
#[test]
fn ipv6_frontends_have_ipv4_backends() -> Result<()> {
    test_kit::require_root!();
    let (backend, vip) =
        (SocketAddr::new(SERVER_V4.into(), PORT), SocketAddr::new(VIP_V6.into(), SERVICE_PORT));
    for protocol in [TCP, UDP] {
        let mut node = Translator::new(&services())?;
        node.serve(VIP_V6, 3, protocol, backend)?;
        let request = segment(client_v6(), vip, protocol, SYN);
        assert_eq!(node.leaves(&request)?, (host(CLIENT_PORT), backend));
        let reply = segment(backend, host(CLIENT_PORT), protocol, SYN | ACK);
        assert_eq!(node.leaves(&reply)?, (vip, client_v6()));
        let rows = node.translations()?;
        let (own, peer) = (mapped(ipv4_word(HOST_V4)), mapped(ipv4_word(SERVER_V4)));
        let ends: Vec<_> = rows.iter().map(|(key, _)| (key.saddr, key.daddr, key.flags)).collect();
        let expected = [(ipv6_words(OUTSIDE_V6), peer, tuple_flag::OUT), (peer, own, tuple_flag::IN)];
        assert_eq!(ends, expected);
        assert!(rows.iter().all(|(_, value)| value.needs_ct == 0), "the service's entry keeps them");
        // The path to the backend is narrower than the client's.
        let about = Family::V4.icmp_packet(
            "198.51.100.1".parse()?,
            host(0).ip(),
            [&[3, 4, 0, 0, 0, 0, 5, 0][..], &segment(host(CLIENT_PORT), backend, protocol, ACK)].concat(),
        );
        let outcome = node.arrive(&about)?;
        let (source, destination) = left(&outcome, &about)?;
        assert_eq!((source.ip(), destination.ip()), (vip.ip(), client_v6().ip()));
        assert_eq!(outcome.packet[ETH_LEN + 40..][..2], [2, 0]);
        assert_eq!(outcome.packet[ETH_LEN + 44..][..4], 1300u32.to_be_bytes());
        assert_eq!(quoted(&outcome.packet), (client_v6(), vip));
        // Nor do pods reach them, nor anything without the feature.
        let from_pod = segment(Family::V6.client(), vip, protocol, SYN);
        let outcome = node.run(FROM_CONTAINER, &from_pod)?;
        assert_eq!(outcome.packet[ETH_LEN + 6], ICMPV6, "refused");
        let mut node = Translator::new(&native())?;
        node.serve(VIP_V6, 3, protocol, backend)?;
        let why = node.dropped(direction::INGRESS, &request)?;
        assert_eq!(why, Some(drop::SERVICE_BACKEND_NOT_FOUND));
    }
    Ok(())
}

/// 1.2 f: an IPv4 frontend with an IPv6 backend on another node.
#[test]
fn ipv4_frontends_have_ipv6_backends() -> Result<()> {
    test_kit::require_root!();
    let (backend, vip) =
        (SocketAddr::new(SERVER_V6.into(), PORT), SocketAddr::new(VIP_V4.into(), SERVICE_PORT));
    let own = Family::V6.host(CLIENT_PORT);
    for protocol in [TCP, UDP] {
        let mut node = Translator::new(&services())?;
        node.serve_ipv4(protocol, backend)?;
        let request = segment(client_v4(), vip, protocol, SYN);
        assert_eq!(node.leaves(&request)?, (own, backend));
        let reply = segment(backend, own, protocol, SYN | ACK);
        assert_eq!(node.leaves(&reply)?, (vip, client_v4()));
        let rows = node.translations()?;
        let clients: Vec<_> = rows.iter().map(|(_, value)| value.address).collect();
        assert_eq!(clients, [ipv6_words(HOST_V6), mapped(ipv4_word(OUTSIDE_V4))]);
        // The path to the backend is narrower than the client's.
        let quote = segment(own, backend, protocol, ACK);
        let message = [&[2, 0, 0, 0, 0, 0, 5, 0x14][..], &quote].concat();
        let about = Family::V6.icmp_packet("2001:db8:aaaa::1".parse()?, own.ip(), message);
        let outcome = node.arrive(&about)?;
        let (source, destination) = left(&outcome, &about)?;
        assert_eq!((source.ip(), destination.ip()), (vip.ip(), client_v4().ip()));
        assert_eq!(outcome.packet[ETH_LEN + 20..][..2], [3, 4]);
        assert_eq!(outcome.packet[ETH_LEN + 24..][..4], 1280u32.to_be_bytes());
        assert_eq!(quoted(&outcome.packet), (client_v4(), vip));
        // So is the client's: the backend learns it, in the name of this node.
        let outcome = node.arrive(&narrow(segment(vip, client_v4(), protocol, ACK)))?;
        let (source, destination) = left(&outcome, &narrow(Vec::new()))?;
        assert_eq!((source.ip(), destination.ip()), (own.ip(), backend.ip()));
        assert_eq!(outcome.packet[ETH_LEN + 40..][..2], [2, 0]);
        assert_eq!(outcome.packet[ETH_LEN + 44..][..4], 1420u32.to_be_bytes());
        assert_eq!(quoted(&outcome.packet), (backend, own));
        let mut node = Translator::new(&native())?;
        node.serve_ipv4(protocol, backend)?;
        let why = node.dropped(direction::INGRESS, &request)?;
        assert_eq!(why, Some(drop::SERVICE_BACKEND_NOT_FOUND));
    }
    Ok(())
}

/// Backends of this node: a pod's stack would refuse a packet from a mapped address, so an IPv4 client has one under the
/// prefix; an IPv6 client has the node's address.
#[test]
fn backends_of_this_node_serve_the_other_family() -> Result<()> {
    test_kit::require_root!();
    for (protocol, host_routing) in [(TCP, 0), (UDP, 0), (TCP, 1), (UDP, 1)] {
        let config = NodeConfig { host_routing, ..services() };
        let mut node = Translator::new(&config)?;
        let vip = SocketAddr::new(VIP_V4.into(), SERVICE_PORT);
        node.serve_ipv4(protocol, SocketAddr::new(A.ipv6.into(), PORT))?;
        let outcome = node.arrive(&segment(client_v4(), vip, protocol, SYN))?;
        let seen = seen_at(&outcome);
        let client = SocketAddr::new(under_prefix(OUTSIDE_V4), CLIENT_PORT);
        let pod = SocketAddr::new(A.ipv6.into(), PORT);
        assert_eq!((seen.source, seen.destination, seen.checksums), (client, pod, true));
        if host_routing == 0 {
            assert_eq!(outcome.verdict, PASS);
            node.datapath.receives(datapath_abi::identity::WORLD_IPV6, &outcome.packet)?;
        }
        let reply = segment(pod, client, protocol, SYN | ACK);
        assert_eq!(left(&node.run(FROM_CONTAINER, &reply)?, &reply)?, (vip, client_v4()));
        // A router of the client's about the reply; its twin is about a port that is no frontend.
        let outcome = node.arrive(&narrow(segment(vip, client_v4(), protocol, ACK)))?;
        assert_eq!(addresses(&outcome.packet[ETH_LEN..]), (under_prefix(ROUTER_OF_CLIENT), pod.ip()));
        assert!(seen_at(&outcome).checksums);
        assert_eq!(outcome.packet[ETH_LEN + 40..][..2], [2, 0]);
        assert_eq!(outcome.packet[ETH_LEN + 44..][..4], 1420u32.to_be_bytes());
        assert_eq!(quoted(&outcome.packet), (pod, client));
        let beside = SocketAddr::new(vip.ip(), SERVICE_PORT + 1);
        let outcome = node.arrive(&narrow(segment(beside, client_v4(), protocol, ACK)))?;
        assert_eq!(outcome.packet[ETH_LEN] >> 4, 4, "{outcome:?}");

        let vip = SocketAddr::new(VIP_V6.into(), SERVICE_PORT);
        let pod = SocketAddr::new(A.ipv4.into(), PORT);
        node.serve(VIP_V6, 3, protocol, pod)?;
        let outcome = node.arrive(&segment(client_v6(), vip, protocol, SYN))?;
        let seen = seen_at(&outcome);
        assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true));
        assert_eq!((seen.source, seen.destination), (host(CLIENT_PORT), pod));
        assert_eq!(outcome.packet[..12], [A.mac, A.node_mac].concat(), "into the pod");
        let reply = segment(pod, host(CLIENT_PORT), protocol, SYN | ACK);
        assert_eq!(left(&node.run(FROM_CONTAINER, &reply)?, &reply)?, (vip, client_v6()));
        // The pod's policy decides about the world, not about the node.
        node.datapath.deny(&A)?;
        let other = segment(SocketAddr::new(client_v6().ip(), 44444), vip, protocol, SYN);
        assert_eq!(node.dropped(direction::INGRESS, &other)?, Some(drop::POLICY_DENIED));
    }
    Ok(())
}

/// A pod's packet to an IPv4 machine under the prefix, and its reply.
#[test]
fn pods_use_the_gateway() -> Result<()> {
    test_kit::require_root!();
    for host_routing in [0, 1] {
        let node = Translator::new(&NodeConfig { host_routing, ..gateway() })?;
        let pod = Family::V6.client();
        let server = SocketAddr::new(SERVER_V4.into(), 443);
        let seen_as = SocketAddr::new(under_prefix(SERVER_V4), 443);
        let request = segment(pod, seen_as, TCP, SYN);
        let (own, to) = left(&node.run(FROM_CONTAINER, &request)?, &request)?;
        assert_eq!((own.ip(), to), (host(0).ip(), server));
        let outcome = node.arrive(&segment(server, own, TCP, SYN | ACK))?;
        let seen = seen_at(&outcome);
        assert_eq!((seen.source, seen.destination, seen.checksums), (seen_as, pod, true));
        assert_eq!(outcome.verdict, if host_routing == 1 { REDIRECT } else { PASS });
    }
    Ok(())
}

/// Errors about the packets of a gateway's client, from the IPv4 side and from its own.
#[test]
fn errors_cross_the_gateway_in_both_directions() -> Result<()> {
    test_kit::require_root!();
    let server = SocketAddr::new(SERVER_V4.into(), 443);
    let seen_as = SocketAddr::new(under_prefix(SERVER_V4), 443);
    let router: Ipv4Addr = "198.51.100.1".parse()?;
    for protocol in [TCP, UDP] {
        let node = Translator::new(&gateway())?;
        let (own, _) = node.leaves(&segment(client_v6(), seen_as, protocol, SYN))?;
        for (error, expected, word) in [
            ([3, 3, 0, 0, 0, 0, 0, 0], [1, 4], 0),
            ([11, 0, 0, 0, 0, 0, 0, 0], [3, 0], 0),
            ([3, 4, 0, 0, 0, 0, 5, 120], [2, 0], 1420),
        ] {
            let message = [&error[..], &segment(own, server, protocol, ACK)].concat();
            let about = Family::V4.icmp_packet(router.into(), own.ip(), message);
            let outcome = node.arrive(&about)?;
            let (source, destination) = left(&outcome, &about)?;
            assert_eq!((source.ip(), destination.ip()), (under_prefix(router), client_v6().ip()));
            assert_eq!(outcome.packet[ETH_LEN + 40..][..2], expected);
            assert_eq!(outcome.packet[ETH_LEN + 44..][..4], u32::to_be_bytes(word));
            assert_eq!(quoted(&outcome.packet), (client_v6(), seen_as));
        }
        let quote = segment(seen_as, client_v6(), protocol, ACK);
        let message = [&[2, 0, 0, 0, 0, 0, 5, 0x14][..], &quote].concat();
        let about = Family::V6.icmp_packet("2001:db8::99".parse()?, seen_as.ip(), message);
        let outcome = node.arrive(&about)?;
        let (source, destination) = left(&outcome, &about)?;
        assert_eq!((source.ip(), destination.ip()), (own.ip(), server.ip()));
        assert_eq!(outcome.packet[ETH_LEN + 20..][..2], [3, 4]);
        assert_eq!(outcome.packet[ETH_LEN + 24..][..4], 1280u32.to_be_bytes());
        assert_eq!(quoted(&outcome.packet), (server, own));
    }
    // Of an echo.
    let node = Translator::new(&gateway())?;
    node.leaves(&echo(client_v6().ip(), under_prefix(SERVER_V4), 128))?;
    let quote = echo(host(0).ip(), SERVER_V4.into(), 8);
    let message = [&[3, 1, 0, 0, 0, 0, 0, 0][..], &quote].concat();
    let about = Family::V4.icmp_packet(router.into(), host(0).ip(), message);
    let outcome = node.arrive(&about)?;
    let (source, destination) = left(&outcome, &about)?;
    assert_eq!((source.ip(), destination.ip()), (under_prefix(router), client_v6().ip()));
    let quote = &outcome.packet[ETH_LEN + 48..];
    assert_eq!(addresses(quote), (client_v6().ip(), under_prefix(SERVER_V4)));
    assert_eq!((quote[6], quote[40], &quote[44..46]), (ICMPV6, 128, &[0x9c, 0x40][..]));
    Ok(())
}

/// Packets without a form in the other family are dropped: stateless packets with the codes of the gateway (187, 188), others with
/// the reason itself.
#[test]
fn packets_without_a_form_in_the_other_family_are_dropped() -> Result<()> {
    test_kit::require_root!();
    let mut node = Translator::new(&gateway())?;
    let (a, b) = (SocketAddr::new(OUTSIDE_V4.into(), 4000), SocketAddr::new(SERVER_V4.into(), 443));
    let [a6, b6] = [OUTSIDE_V4, SERVER_V4].map(under_prefix);
    let udp = transport(a, b, UDP, 0);
    let mut no_checksum = segment(a, b, UDP, 0);
    no_checksum[26..28].fill(0);
    for packet in [
        with_longer_header(&segment(a, b, TCP, ACK), 8),
        ip_fragment(a.ip(), b.ip(), UDP, (7, 0, true), &udp),
        ip_fragment(a.ip(), b.ip(), UDP, (7, 20, false), &udp),
        segment(a, b, SCTP, 0),
        no_checksum,
        Family::V4.icmp_packet(a.ip(), b.ip(), vec![13, 0, 0, 0, 0, 9, 0, 1]),
        Family::V4.icmp_packet(
            a.ip(),
            b.ip(),
            [&[3, 15, 0, 0, 0, 0, 0, 0][..], &segment(b, a, TCP, 0)].concat(),
        ),
    ] {
        assert_eq!(node.dropped(direction::INGRESS, &packet)?, Some(drop::NAT46), "{packet:?}");
    }
    let (a6, b6) = (SocketAddr::new(a6, 4000), SocketAddr::new(b6, 443));
    let udp = transport(a6, b6, UDP, 0);
    for packet in [
        with_longer_header(&segment(a6, b6, TCP, ACK), 8),
        ip_fragment(a6.ip(), b6.ip(), UDP, (7, 0, true), &udp),
        segment(a6, b6, SCTP, 0),
        Family::V6.icmp_packet(a6.ip(), b6.ip(), vec![200, 0, 0, 0, 0, 9, 0, 1]),
    ] {
        assert_eq!(node.dropped(direction::EGRESS, &packet)?, Some(drop::NAT64), "{packet:?}");
    }
    let udp = transport(client_v6(), b6, UDP, 0);
    for (packet, why) in [
        (with_longer_header(&segment(client_v6(), b6, TCP, ACK), 8), drop::INVALID_IPV6_EXTENSION_HEADER),
        (
            ip_fragment(client_v6().ip(), b6.ip(), UDP, (7, 0, true), &udp),
            drop::INVALID_IPV6_EXTENSION_HEADER,
        ),
        (segment(client_v6(), b6, SCTP, 0), drop::UNKNOWN_L4_PROTOCOL),
    ] {
        assert_eq!(node.dropped(direction::EGRESS, &packet)?, Some(why), "{packet:?}");
    }
    // Clients of services.
    let mut node = Translator::new(&services())?;
    node.serve_ipv4(UDP, SocketAddr::new(SERVER_V6.into(), PORT))?;
    let vip = SocketAddr::new(VIP_V4.into(), SERVICE_PORT);
    let options = with_longer_header(&segment(a, vip, UDP, 0), 8);
    let why = Some(drop::INVALID_IPV6_EXTENSION_HEADER);
    assert_eq!(node.dropped(direction::INGRESS, &options)?, why);
    let first = ip_fragment(a.ip(), vip.ip(), UDP, (7, 0, true), &transport(a, vip, UDP, 0));
    let why = Some(drop::IP_FRAGMENTATION_NOT_SUPPORTED);
    assert_eq!(node.dropped(direction::INGRESS, &first)?, why);
    Ok(())
}

/// The controls: without the option, or with services alone, the prefix is an address as any other.
#[test]
fn without_the_option_there_is_no_gateway() -> Result<()> {
    test_kit::require_root!();
    for config in [native(), services()] {
        let mut node = Translator::new(&config)?;
        let (client, server) = (client_v4(), SocketAddr::new(SERVER_V4.into(), 443));
        for packet in [
            segment(client_v6(), SocketAddr::new(under_prefix(SERVER_V4), 443), TCP, SYN),
            segment(client, server, TCP, SYN),
            segment(server, host(CLIENT_PORT), TCP, ACK),
        ] {
            let outcome = node.arrive(&packet)?;
            assert_eq!((outcome.verdict, &outcome.packet[ETH_LEN..]), (PASS, &packet[..]));
        }
        assert!(node.translations()?.is_empty());
    }
    Ok(())
}
