//! Packets of pods that leave by a device get an address of the node, replies and ICMP errors find the pod again.

use crate::kit::*;
use crate::l4::*;
use crate::service::{FAMILIES, Family, quoted};
use anyhow::{Context as _, Result};
use aya::maps::{LpmTrie, PerCpuArray, lpm_trie};
use datapath_abi::{
    CtTuple4, CtTuple6, EndpointInfo, MasqueradeAddresses, NatEntry4, NatEntry6, NatKey4, NatKey6,
    NodeConfig, Pod as Plain, direction, drop, identity, ipcache_flag, ipv4_from_word, ipv4_word,
    ipv6_from_words, ipv6_words, lxc_flag, mark, tuple_flag,
};
use datapath_object::{FROM_NETDEV, TO_NETDEV};
use std::net::{IpAddr, SocketAddr};

const MIN_PORT: u16 = 32768;

pub(crate) fn config() -> NodeConfig {
    NodeConfig {
        masquerade_ipv4: 1,
        masquerade_ipv6: 1,
        snat_min_port: MIN_PORT,
        sctp: 1,
        ..default_config()
    }
}

/// The addresses of the device behind [`IFINDEX`]; the pods' range is excluded.
pub(crate) fn addresses() -> MasqueradeAddresses {
    MasqueradeAddresses {
        ipv4: ipv4_word(HOST_V4),
        excluded_ipv4: ipv4_word([10, 0, 0, 0].into()),
        excluded_ipv4_mask: ipv4_word([255, 0, 0, 0].into()),
        pad: 0,
        ipv6: ipv6_words(HOST_V6),
        excluded_ipv6: ipv6_words("fd00::".parse().unwrap()),
        excluded_ipv6_mask: ipv6_words("ffff::".parse().unwrap()),
    }
}

/// A row of the NAT map: flags, source, destination, new socket, `needs_ct`.
pub(crate) type NatRow = (u8, SocketAddr, SocketAddr, SocketAddr, u64);

pub(crate) struct Node {
    pub(crate) datapath: Datapath,
    family: Family,
}

impl Node {
    pub(crate) fn new(family: Family) -> Result<Self> {
        Self::with(family, &config())
    }

    pub(crate) fn with(family: Family, config: &NodeConfig) -> Result<Self> {
        let mut datapath = Datapath::with_pods(config)?;
        datapath.put::<4, 64>("ep_masquerade", &IFINDEX, &addresses())?;
        Ok(Self { datapath, family })
    }

    fn set_addresses(&mut self, addresses: &MasqueradeAddresses) -> Result<()> {
        self.datapath.put::<4, 64>("ep_masquerade", &IFINDEX, addresses)
    }

    pub(crate) fn host(&self) -> IpAddr {
        if self.family == Family::V4 { HOST_V4.into() } else { HOST_V6.into() }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.family.outside(), 443)
    }

    pub(crate) fn pod(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.family.client().ip(), port)
    }

    /// A packet of a pod as it leaves by the device.
    pub(crate) fn leaves(&self, packet: &[u8]) -> Result<Outcome> {
        let mark = mark::with_identity(mark::IDENTITY, A.identity);
        let incoming = Incoming { mark, ingress_ifindex: A.ifindex, ..Incoming::default() };
        self.datapath.run_with(TO_NETDEV, &frame(A.node_mac, A.mac, packet), incoming)
    }

    /// A packet of the host as it leaves by the device.
    pub(crate) fn leaves_host(&self, packet: &[u8]) -> Result<Outcome> {
        self.datapath.run_with(TO_NETDEV, &frame(A.node_mac, A.mac, packet), Incoming::of_host())
    }

    pub(crate) fn enters(&self, packet: &[u8]) -> Result<Outcome> {
        self.datapath.run(FROM_NETDEV, &frame(A.node_mac, A.mac, packet))
    }

    /// Sends a packet of the pod's port, which must leave translated; returns the socket that it comes from.
    pub(crate) fn translated(&self, from: SocketAddr, to: SocketAddr, protocol: u8) -> Result<SocketAddr> {
        let outcome = self.leaves(&segment(from, to, protocol, SYN))?;
        let seen = seen(&outcome.packet);
        anyhow::ensure!(outcome.verdict == PASS && seen.checksums, "{from} to {to}: {outcome:?}");
        anyhow::ensure!(
            seen.destination == to && seen.source.ip() == self.host(),
            "{from} to {to}: {seen:?}"
        );
        anyhow::ensure!(outcome.mark & mark::MAGIC_MASK == mark::SNAT_DONE, "mark {:x}", outcome.mark);
        Ok(seen.source)
    }

    /// Sends a reply to a socket of the node, and returns the socket that gets it.
    fn answered(&self, from: SocketAddr, to: SocketAddr, protocol: u8) -> Result<SocketAddr> {
        let outcome = self.enters(&segment(from, to, protocol, SYN | ACK))?;
        let seen = seen(&outcome.packet);
        anyhow::ensure!(outcome.verdict == PASS && seen.checksums && seen.source == from, "{outcome:?}");
        Ok(seen.destination)
    }

    /// The number of entries of connection tracking for protocols other than TCP.
    pub(crate) fn connections(&mut self) -> Result<usize> {
        Ok(match self.family {
            Family::V4 => self.datapath.rows::<14, 56>("cilium_ct_any4_global")?.len(),
            Family::V6 => self.datapath.rows::<38, 56>("cilium_ct_any6_global")?.len(),
        })
    }

    /// The rows of the NAT map.
    pub(crate) fn rows(&mut self) -> Result<Vec<NatRow>> {
        let mut rows: Vec<_> = match self.family {
            Family::V4 => {
                let rows = self.datapath.rows::<14, 40>("cilium_snat_v4_external")?.into_iter();
                rows.map(|(key, value)| {
                    let key = NatKey4::from_bytes(&key).unwrap();
                    let value = NatEntry4::from_bytes(&value).unwrap();
                    let ip = |word| IpAddr::from(ipv4_from_word(word));
                    let socket = |ip, port: u16| SocketAddr::new(ip, u16::from_be(port));
                    let (source, destination) =
                        (socket(ip(key.saddr), key.sport), socket(ip(key.daddr), key.dport));
                    (key.flags, source, destination, socket(ip(value.address), value.port), value.needs_ct)
                })
                .collect()
            }
            Family::V6 => {
                let rows = self.datapath.rows::<38, 56>("cilium_snat_v6_external")?.into_iter();
                rows.map(|(key, value)| {
                    let key = NatKey6::from_bytes(&key).unwrap();
                    let value = NatEntry6::from_bytes(&value).unwrap();
                    let ip = |words| IpAddr::from(ipv6_from_words(words));
                    let socket = |ip, port: u16| SocketAddr::new(ip, u16::from_be(port));
                    let (source, destination) =
                        (socket(ip(key.saddr), key.sport), socket(ip(key.daddr), key.dport));
                    (key.flags, source, destination, socket(ip(value.address), value.port), value.needs_ct)
                })
                .collect()
            }
        };
        rows.sort_unstable();
        Ok(rows)
    }

    /// Removes a row of the NAT map.
    fn lose(&mut self, flags: u8, source: SocketAddr, destination: SocketAddr, protocol: u8) -> Result<()> {
        let (sport, dport) = (source.port().to_be(), destination.port().to_be());
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let (saddr, daddr) = (ipv4_word(source), ipv4_word(destination));
                let key = CtTuple4 { saddr, daddr, sport, dport, nexthdr: protocol, flags };
                self.datapath.remove::<14, 40>("cilium_snat_v4_external", &key)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (saddr, daddr) = (ipv6_words(source), ipv6_words(destination));
                let key = CtTuple6 { saddr, daddr, sport, dport, nexthdr: protocol, flags };
                self.datapath.remove::<38, 56>("cilium_snat_v6_external", &key)
            }
            _ => anyhow::bail!("two families"),
        }
    }

    /// The reason of the drop of a packet that leaves.
    fn refused(&mut self, packet: &[u8]) -> Result<Option<u8>> {
        let sent = frame(A.node_mac, A.mac, packet);
        self.datapath.dropped(direction::EGRESS, |datapath| datapath.run(TO_NETDEV, &sent))
    }

    /// Asserts that a packet of the pod leaves as it is.
    fn unchanged(&self, packet: &[u8], why: &str) -> Result<()> {
        let outcome = self.leaves(packet)?;
        let sent = frame(A.node_mac, A.mac, packet);
        anyhow::ensure!((outcome.verdict, &outcome.packet) == (PASS, &sent), "{why}: {outcome:?}");
        Ok(())
    }
}

pub(crate) fn echo(family: Family, from: IpAddr, to: IpAddr, reply: bool, id: u16) -> Vec<u8> {
    let kind = match (family, reply) {
        (Family::V4, false) => 8,
        (Family::V4, true) => 0,
        (Family::V6, false) => 128,
        (Family::V6, true) => 129,
    };
    let [high, low] = id.to_be_bytes();
    family.icmp_packet(from, to, vec![kind, 0, 0, 0, high, low, 0, 1, 1, 2, 3])
}

pub(crate) fn echo_id(frame: &[u8]) -> u16 {
    let at = l4_offset(frame) + 4;
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Scenario 64.
#[test]
fn a_flow_leaves_with_the_nodes_address_and_its_replies_find_the_pod() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP, SCTP] {
            let mut node = Node::new(family)?;
            let (pod, peer) = (node.pod(40000), node.peer());
            let outside = node.translated(pod, peer, protocol)?;
            assert_eq!(outside.port(), 40000, "a free port in the range stays");
            assert_eq!(node.answered(peer, outside, protocol)?, pod);
            assert_eq!(node.translated(pod, peer, protocol)?, outside);
            let rows = node.rows()?;
            let expected =
                [(tuple_flag::OUT, pod, peer, outside, 0), (tuple_flag::IN, peer, outside, pod, 0)];
            assert_eq!(rows, expected, "{family:?}, {protocol}");
            // A reply of another port, and one to a port without a mapping, are the host's.
            let other = SocketAddr::new(peer.ip(), 444);
            assert_eq!(node.answered(other, outside, protocol)?, outside);
            let unknown = SocketAddr::new(outside.ip(), 50000);
            assert_eq!(node.answered(peer, unknown, protocol)?, unknown);
            if protocol != SCTP {
                let low = node.translated(node.pod(1024), peer, protocol)?;
                assert!(low.port() >= MIN_PORT, "{low}");
                assert_eq!(node.answered(peer, low, protocol)?, node.pod(1024));
                // The port of another pod's flow to the same peer is taken.
                let b = family.b(40000);
                let moved = node.translated(b, peer, protocol)?;
                assert_ne!(moved, outside);
                assert_eq!(node.answered(peer, moved, protocol)?, b);
                assert_eq!(node.answered(peer, outside, protocol)?, pod);
            }
        }
    }
    Ok(())
}

/// A CRC over ports cannot be updated by a difference.
#[test]
fn sctp_keeps_its_port_or_is_dropped() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family)?;
        let low = segment(node.pod(1024), node.peer(), SCTP, 0);
        assert_eq!(node.refused(&low)?, Some(drop::ERROR_WHILE_CORRECTING_L4_CHECKSUM));
    }
    Ok(())
}

#[test]
fn pings_are_translated_by_their_identifier() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::new(family)?;
        let (pod, other, outside) = (node.pod(0).ip(), family.b(0).ip(), family.outside());
        let sends = |from, id| -> Result<u16> {
            let outcome = node.leaves(&echo(family, from, outside, false, id))?;
            let seen = seen(&outcome.packet);
            anyhow::ensure!(outcome.verdict == PASS && seen.checksums, "{outcome:?}");
            assert_eq!((seen.source.ip(), seen.destination.ip()), (node.host(), outside));
            Ok(echo_id(&outcome.packet))
        };
        let answered = |id| -> Result<(IpAddr, u16)> {
            let outcome = node.enters(&echo(family, outside, node.host(), true, id))?;
            let seen = seen(&outcome.packet);
            anyhow::ensure!(outcome.verdict == PASS && seen.checksums, "{outcome:?}");
            Ok((seen.destination.ip(), echo_id(&outcome.packet)))
        };
        let first = sends(pod, 7)?;
        assert_eq!(first, 7);
        let second = sends(other, 7)?;
        assert_ne!(second, 7, "both have the same identifier");
        assert_eq!(answered(first)?, (pod, 7));
        assert_eq!(answered(second)?, (other, 7));
        assert_eq!(answered(9)?, (node.host(), 9), "a ping of the host");
    }
    Ok(())
}

/// An LRU map evicts either row of a pair.
#[test]
fn a_lost_row_is_restored_from_the_other() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family)?;
        let (pod, peer) = (node.pod(40000), node.peer());
        let outside = node.translated(pod, peer, TCP)?;
        let whole = node.rows()?;
        node.lose(tuple_flag::IN, peer, outside, TCP)?;
        assert_eq!(node.translated(pod, peer, TCP)?, outside);
        assert_eq!(node.rows()?, whole);
        node.lose(tuple_flag::OUT, pod, peer, TCP)?;
        assert_eq!(node.answered(peer, outside, TCP)?, pod);
        assert_eq!(node.rows()?, whole);
        node.lose(tuple_flag::OUT, pod, peer, TCP)?;
        assert_eq!(node.translated(pod, peer, TCP)?, outside, "its own row of replies is no conflict");
        assert_eq!(node.rows()?, whole);

        // The port went to another flow meanwhile: the first one moves, and replies reach the right pods.
        node.lose(tuple_flag::IN, peer, outside, TCP)?;
        let other = family.b(40000);
        assert_eq!(node.translated(other, peer, TCP)?, outside);
        let moved = node.translated(pod, peer, TCP)?;
        assert_ne!(moved, outside);
        assert_eq!(node.answered(peer, outside, TCP)?, other);
        assert_eq!(node.answered(peer, moved, TCP)?, pod);
    }
    Ok(())
}

/// What a router has to say about a pod's packet: the frame of it that the router has seen.
pub(crate) fn error_about(family: Family, router: IpAddr, frame: &[u8], bytes: usize) -> Vec<u8> {
    let packet = &frame[14..];
    let (source, _) = crate::l4::addresses(packet);
    let quoted = &packet[..packet.len().min(bytes)];
    let kind: [u8; 8] =
        if family == Family::V4 { [3, 4, 0, 0, 0, 0, 5, 0] } else { [2, 0, 0, 0, 0, 0, 5, 0] };
    family.icmp_packet(router, source, [&kind[..], quoted].concat())
}

/// Scenario 70, from outside.
#[test]
fn errors_about_a_flow_reach_the_pod_with_the_packet_it_has_sent() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::new(family)?;
        let peer = node.peer();
        let router: IpAddr =
            if family == Family::V4 { "203.0.113.7".parse()? } else { "2001:db8:77::7".parse()? };
        let header = if family == Family::V4 { 20 } else { 40 };
        // Both keep all bytes of the quote, and the eight that every router quotes; ports in the range and moved.
        for protocol in [TCP, UDP, SCTP] {
            for (port, bytes) in [(40000, 512), (40000, header + 8), (1024, 512), (1024, header + 8)] {
                if protocol == SCTP && port < MIN_PORT {
                    continue;
                }
                let pod = node.pod(port);
                let sent = segment(pod, peer, protocol, ACK);
                let left = node.leaves(&sent)?;
                let outcome = node.enters(&error_about(family, router, &left.packet, bytes))?;
                let case = format!("{family:?}, protocol {protocol}, port {port}, {bytes} bytes");
                assert_eq!(outcome.verdict, PASS, "{case}");
                let error = seen(&outcome.packet);
                assert!(error.checksums, "{case}");
                assert_eq!((error.source.ip(), error.destination.ip()), (router, pod.ip()), "{case}");
                assert_eq!(quoted(&outcome.packet), (pod, peer), "{case}");
                if bytes == 512 {
                    let inner = &outcome.packet[l4_offset(&outcome.packet) + 8..];
                    assert_eq!(inner, sent, "{case}: the packet as the pod has sent it");
                }
            }
        }
        // A ping.
        let sent = echo(family, node.pod(0).ip(), peer.ip(), false, 7);
        node.leaves(&echo(family, family.b(0).ip(), peer.ip(), false, 7))?;
        let left = node.leaves(&sent)?;
        assert_ne!(echo_id(&left.packet), 7);
        let outcome = node.enters(&error_about(family, router, &left.packet, 512))?;
        assert!(seen(&outcome.packet).checksums);
        assert_eq!(seen(&outcome.packet).destination.ip(), node.pod(0).ip());
        assert_eq!(outcome.packet[l4_offset(&outcome.packet) + 8..], sent);
        // About a packet of the host, and of a flow without a mapping: the stack's.
        let of_host = segment(SocketAddr::new(node.host(), 22), peer, TCP, ACK);
        let error = error_about(family, router, &frame(A.mac, A.mac, &of_host), 512);
        assert_eq!(node.enters(&error)?.packet, frame(A.node_mac, A.mac, &error));
    }
    Ok(())
}

/// Scenario 70, from inside.
#[test]
fn errors_of_the_pod_quote_what_its_peer_has_sent() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::new(family)?;
        let peer = node.peer();
        for (port, protocol) in [(40000, UDP), (1024, UDP), (1024, TCP)] {
            let pod = node.pod(port);
            let outside = node.translated(pod, peer, protocol)?;
            let reply = segment(peer, outside, protocol, ACK);
            let received = node.enters(&reply)?;
            let error = family.error_about(&received.packet[14..]);
            let outcome = node.leaves(&error)?;
            let seen = seen(&outcome.packet);
            assert!(seen.checksums, "{family:?}, port {port}: {outcome:?}");
            assert_eq!((seen.source.ip(), seen.destination.ip()), (node.host(), peer.ip()));
            assert_eq!(outcome.packet[l4_offset(&outcome.packet) + 8..], reply, "as the peer has sent it");
        }
    }
    Ok(())
}

#[test]
fn pieces_of_a_datagram_leave_and_return_together() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::new(family)?;
        let (pod, peer) = (node.pod(1024), node.peer());
        let pieces = |from: SocketAddr, to: SocketAddr, id| {
            let whole = transport(from, to, UDP, 0);
            let piece = |offset: u16, more, payload: &[u8]| {
                ip_fragment(from.ip(), to.ip(), UDP, (id, offset, more), payload)
            };
            [piece(0, true, &whole[..32]), piece(4, false, &whole[32..])]
        };
        let [first, later] = pieces(pod, peer, 5);
        // The pod's own programs have seen the first piece before.
        let left = node.leaves(&first)?;
        let at = l4_offset(&left.packet) + if family == Family::V4 { 0 } else { 8 };
        let port = u16::from_be_bytes([left.packet[at], left.packet[at + 1]]);
        assert!(port >= MIN_PORT);
        assert_eq!(crate::l4::addresses(&left.packet[14..]), (node.host(), peer.ip()));
        let left = node.leaves(&later)?;
        assert_eq!(left.verdict, PASS);
        assert_eq!(crate::l4::addresses(&left.packet[14..]), (node.host(), peer.ip()));
        for piece in pieces(peer, SocketAddr::new(node.host(), port), 6) {
            let entered = node.enters(&piece)?;
            assert_eq!(crate::l4::addresses(&entered.packet[14..]), (peer.ip(), pod.ip()));
        }
        // Pieces for the host without a first one are left to its stack.
        let [_, alone] = pieces(peer, SocketAddr::new(node.host(), port), 7);
        assert_eq!(node.enters(&alone)?.packet, frame(A.node_mac, A.mac, &alone));
    }
    Ok(())
}

/// Scenarios 63, 66 and 67.
#[test]
fn packets_that_stay_in_the_cluster_keep_their_address() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family)?;
        let (pod, peer) = (node.pod(40000), node.peer());
        let packet = |to: SocketAddr| segment(pod, to, UDP, 0);
        node.unchanged(&packet(family.b(53)), "to the excluded range")?;
        // A remote node, with native routing.
        let remote = |datapath: &mut Datapath, flags| {
            let node: IpAddr = "192.0.2.77".parse().unwrap();
            let row = behind(identity::REMOTE_NODE, node, flags);
            datapath.set_ipcache(peer.ip(), &row)
        };
        remote(&mut node.datapath, 0)?;
        node.unchanged(&packet(peer), "to another node, natively")?;
        let mut always = Node::with(family, &NodeConfig { remote_node_masquerade: 1, ..config() })?;
        remote(&mut always.datapath, 0)?;
        always.translated(pod, peer, UDP)?;
        let tunnel = NodeConfig { tunnel: 1, ..config() };
        let mut tunnelled = Node::with(family, &tunnel)?;
        remote(&mut tunnelled.datapath, 0)?;
        tunnelled.translated(pod, peer, UDP)?;
        remote(&mut tunnelled.datapath, ipcache_flag::SKIP_TUNNEL)?;
        tunnelled.unchanged(&packet(peer), "to another node past the tunnel")?;

        // Pods without masquerading.
        let mut node = Node::new(family)?;
        let flags = lxc_flag::SKIP_MASQUERADE_V4 | lxc_flag::SKIP_MASQUERADE_V6;
        let row = EndpointInfo { ifindex: A.ifindex, lxc_id: A.id, flags, ..Plain::zeroed() };
        node.datapath.set_address(pod.ip(), &row)?;
        node.unchanged(&packet(peer), "of a pod that keeps its address")?;
        // Forwarded packets of others, and packets with the mark of a translation or an encapsulation.
        let other =
            SocketAddr::new(if family == Family::V4 { "203.0.113.8" } else { "2001:db8:78::8" }.parse()?, 9);
        node.unchanged(&segment(other, peer, UDP, 0), "of another machine")?;
        let node = Node::new(family)?;
        for mark in [mark::SNAT_DONE, mark::OVERLAY, mark::ENCRYPT] {
            let sent = frame(A.node_mac, A.mac, &packet(peer));
            let incoming = Incoming { mark, ..Incoming::default() };
            assert_eq!(node.datapath.run_with(TO_NETDEV, &sent, incoming)?.packet, sent, "{mark:x}");
        }
        // The twin.
        node.translated(pod, peer, UDP)?;
    }
    Ok(())
}

#[test]
fn ranges_of_the_agent_are_not_masqueraded() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::with(family, &NodeConfig { ip_masq_agent: 1, ..config() })?;
        let (pod, peer) = (node.pod(40000), node.peer());
        node.translated(pod, peer, UDP)?;
        match family {
            Family::V4 => {
                let mut map =
                    LpmTrie::<_, [u8; 4], u8>::try_from(node.datapath.take_map("cilium_ipmasq_v4")?)?;
                map.insert(&lpm_trie::Key::new(24, [198, 51, 100, 0]), 0, 0)?;
            }
            Family::V6 => {
                let mut map =
                    LpmTrie::<_, [u8; 16], u8>::try_from(node.datapath.take_map("cilium_ipmasq_v6")?)?;
                let net: std::net::Ipv6Addr = "2001:db8:ffff::".parse()?;
                map.insert(&lpm_trie::Key::new(48, net.octets()), 0, 0)?;
            }
        }
        node.unchanged(&segment(pod, peer, UDP, 0), "to a range of the agent")?;
    }
    Ok(())
}

/// With `routing-mode=hybrid`: receivers know a pod that is routed natively by its address alone.
#[test]
fn packets_within_a_group_of_subnets_are_not_masqueraded() -> Result<()> {
    test_kit::require_root!();
    for (remote_node_masquerade, is_node) in [(0, false), (0, true), (1, true)] {
        for family in FAMILIES {
            let config = NodeConfig { hybrid: 1, tunnel: 1, remote_node_masquerade, ..config() };
            let mut node = Node::with(family, &config)?;
            let (pod, peer) = (node.pod(40000), node.peer());
            if is_node {
                node.datapath.set_identity(peer.ip(), identity::REMOTE_NODE)?;
            }
            node.datapath.set_subnet(pod.ip(), 24, 1)?;
            node.datapath.set_subnet(peer.ip(), 24, 2)?;
            node.translated(pod, peer, UDP)?;
            node.datapath.set_subnet(peer.ip(), 24, 1)?;
            if remote_node_masquerade == 0 {
                node.unchanged(&segment(pod, peer, UDP, 0), "within a group")?;
            } else {
                node.translated(pod, peer, UDP)?;
            }
        }
    }
    Ok(())
}

/// A client outside that reaches the pod by its own address expects replies from it.
#[test]
fn replies_of_a_pod_keep_its_address() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::new(family)?;
        let (pod, peer) = (node.pod(8080), node.peer());
        let world = if family == Family::V4 { identity::WORLD_IPV4 } else { identity::WORLD_IPV6 };
        let outcome =
            node.datapath.receives(world, &frame(A.mac, A.node_mac, &segment(peer, pod, TCP, SYN)))?;
        assert_ne!(outcome.verdict, SHOT);
        node.unchanged(&segment(pod, peer, TCP, SYN | ACK), "a reply")?;
        node.translated(node.pod(8081), peer, TCP)?;
    }
    Ok(())
}

/// Scenarios 59 to 61; trap 2 of Cilium: messages of the host pass.
#[test]
fn ports_of_the_host_are_reserved() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family)?;
        let (host, peer) = (SocketAddr::new(node.host(), 40000), node.peer());
        let sent = segment(host, peer, UDP, 0);
        assert_eq!(node.leaves_host(&sent)?.packet, frame(A.node_mac, A.mac, &sent), "the port stays");
        let rows = [(tuple_flag::OUT, host, peer, host, 1), (tuple_flag::IN, peer, host, host, 1)];
        assert_eq!(node.rows()?, rows);
        let pod = node.pod(40000);
        let moved = node.translated(pod, peer, UDP)?;
        assert_ne!(moved, host, "the pod has another port");
        assert_eq!(node.answered(peer, host, UDP)?, host);
        assert_eq!(node.answered(peer, moved, UDP)?, pod);

        // The other order: the socket of the host moves, and its replies find it.
        let mut node = Node::new(family)?;
        assert_eq!(node.translated(pod, peer, UDP)?, host);
        let outcome = node.leaves_host(&sent)?;
        let moved = seen(&outcome.packet).source;
        assert!(seen(&outcome.packet).checksums && moved != host && moved.ip() == host.ip(), "{moved}");
        assert_eq!(node.answered(peer, moved, UDP)?, host);
        assert_eq!(node.answered(peer, host, UDP)?, pod);
        // Below the range there is no conflict.
        let count = node.rows()?.len();
        let low = segment(SocketAddr::new(node.host(), 22), peer, TCP, SYN | ACK);
        assert_eq!(node.leaves_host(&low)?.packet, frame(A.node_mac, A.mac, &low));
        assert_eq!(node.rows()?.len(), count);
        // Other protocols and messages of the host pass.
        let ospf = ip(node.host(), peer.ip(), 89, &[0; 24]);
        assert_eq!(node.leaves_host(&ospf)?.packet, frame(A.node_mac, A.mac, &ospf));
        let kind = if family == Family::V4 { 13 } else { 130 };
        let message = family.icmp_packet(node.host(), peer.ip(), vec![kind, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(node.leaves_host(&message)?.packet, frame(A.node_mac, A.mac, &message));
    }
    Ok(())
}

/// Trap of Cilium: such packets leave with the source 0.0.0.0.
#[test]
fn without_an_address_packets_of_pods_are_dropped() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family)?;
        node.set_addresses(&MasqueradeAddresses { ipv4: 0, ipv6: [0; 4], ..addresses() })?;
        let packet = segment(node.pod(40000), node.peer(), UDP, 0);
        assert_eq!(node.refused(&packet)?, Some(drop::NO_MAPPING_FOR_NAT_MASQUERADE));
        // The host's own packets and those within the cluster pass.
        let of_host = segment(SocketAddr::new(node.host(), 22), node.peer(), UDP, 0);
        assert_eq!(node.refused(&of_host)?, None);
        assert_eq!(node.refused(&segment(node.pod(1), family.b(2), UDP, 0))?, None);
        // A new address is in force with the next packet; flows of the previous one move.
        node.set_addresses(&addresses())?;
        node.translated(node.pod(40000), node.peer(), UDP)?;
        let unsupported = if family == Family::V4 { 13 } else { 150 };
        let message =
            family.icmp_packet(node.pod(0).ip(), node.peer().ip(), vec![unsupported, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(node.refused(&message)?, Some(drop::UNSUPPORTED_PROTOCOL_FOR_NAT_MASQUERADE));
    }
    Ok(())
}

/// Scenario 68: a pod's replies leave by the secondary interface of the node (of a cloud) that its peers reach it by, also
/// where the host's route leads to another device. Its own connections leave by the route.
#[test]
fn replies_leave_by_the_interface_of_the_pod() -> Result<()> {
    test_kit::require_root!();
    const PARENT: u32 = 4;
    for family in FAMILIES {
        let mut node = Node::new(family)?;
        let (peer, pod) = (node.peer(), node.pod(8080));
        let request = segment(peer, pod, TCP, SYN);
        node.datapath.receives(identity::WORLD, &frame(A.mac, A.node_mac, &request))?;
        let ping = echo(family, peer.ip(), pod.ip(), false, 7);
        node.datapath.receives(identity::WORLD, &frame(A.mac, A.node_mac, &ping))?;
        let answers = [segment(pod, peer, TCP, SYN | ACK), echo(family, pod.ip(), peer.ip(), true, 7)];
        for answer in &answers {
            node.unchanged(answer, "a reply by the host's route")?;
        }
        let row = |parent_ifindex| EndpointInfo {
            ifindex: A.ifindex,
            lxc_id: A.id,
            sec_id: A.identity,
            parent_ifindex,
            ..Plain::zeroed()
        };
        node.datapath.set_address(pod.ip(), &row(PARENT))?;
        for answer in &answers {
            let outcome = node.leaves(answer)?;
            // Cilium does this for IPv4 alone: such interfaces have no IPv6 addresses of pods.
            let verdict = if family == Family::V4 { REDIRECT } else { PASS };
            assert_eq!((outcome.verdict, &outcome.packet[14..]), (verdict, &answer[..]), "{family:?}");
        }
        node.translated(node.pod(40000), peer, TCP)?;
        // At that interface itself.
        node.datapath.set_address(pod.ip(), &row(IFINDEX))?;
        for answer in &answers {
            node.unchanged(answer, "a reply at the pod's interface")?;
        }
    }
    Ok(())
}

#[test]
fn retries_are_counted() -> Result<()> {
    test_kit::require_root!();
    let mut node = Node::new(Family::V4)?;
    let peer = node.peer();
    node.translated(node.pod(40000), peer, UDP)?;
    node.translated(Family::V4.b(40000), peer, UDP)?;
    let counts = PerCpuArray::<_, u32>::try_from(node.datapath.take_map("cilium_snat_v4_alloc_retries")?)?;
    let count = |row| -> Result<u32> { Ok(counts.get(&row, 0).context("no row")?.iter().sum()) };
    assert_eq!((count(0)?, count(1)?, count(32)?), (1, 1, 0));
    Ok(())
}

/// Packets of a device without Ethernet headers are not parsed as if they had them, whether they are reported or not.
/// Without services and host routing they are left to the stack.
#[test]
fn devices_without_ethernet_headers_are_left_alone() -> Result<()> {
    test_kit::require_root!();
    for trace_notify in [0, 1] {
        let mut node =
            Node::with(Family::V4, &NodeConfig { trace_notify, monitor_aggregation: 0, ..config() })?;
        let outside = node.translated(node.pod(40000), node.peer(), UDP)?;
        node.datapath.set_l3_device(IFINDEX)?;
        let reply = frame(A.node_mac, A.mac, &segment(node.peer(), outside, UDP, 0));
        assert_eq!(node.datapath.run(FROM_NETDEV, &reply)?.packet, reply);
        node.unchanged(&segment(node.pod(40000), node.peer(), UDP, 0), "by such a device")?;
    }
    Ok(())
}
