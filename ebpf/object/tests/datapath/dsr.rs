//! Direct server return: the node that a client asks names the frontend to the backend's node, which replies to the
//! client itself.

use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::nodeport_remote::{Entry, assert_time_exceeded, native, with_hops};
use crate::packet::checksum;
use crate::service::*;
use crate::uplink::routed;
use anyhow::{Context as _, Result};
use datapath_abi::{
    CtEntry, CtTuple4, CtTuple6, NatEntry4, NatEntry6, NodeConfig, Pod as Plain, ct_flag, direction, drop,
    dsr, identity, ipv4_from_word, ipv4_word, ipv6_from_words, ipv6_words, lb_flag2, mark, tuple_flag,
};
use datapath_object::{FROM_CONTAINER, FROM_NETDEV, TO_NETDEV};
use std::net::{IpAddr, SocketAddr};
use test_kit::NetNs;

pub(crate) fn direct() -> NodeConfig {
    NodeConfig { dsr: dsr::ALL, ..native() }
}

/// The backend, a pod of the other node.
pub(crate) const BACKEND: Pod = Pod { ipv4: REMOTE_V4, ipv6: REMOTE_V6, ..A };

/// The option in a frame, and the frame without it.
pub(crate) fn without_option(family: Family, outcome: &Outcome) -> (Vec<u8>, Vec<u8>) {
    let (mac, packet) = outcome.packet.split_at(14);
    let at = if family == Family::V4 { 20 } else { 40 };
    let option = packet[at..at + family.option_len()].to_vec();
    (option, [mac, &without_longer_header(packet, family.option_len())].concat())
}

/// The node of the backend.
pub(crate) struct BackendNode {
    pub(crate) datapath: Datapath,
    family: Family,
    protocol: u8,
}

impl BackendNode {
    pub(crate) fn new(config: &NodeConfig, family: Family, protocol: u8) -> Result<Self> {
        let mut datapath = Datapath::load(config)?;
        datapath.add(&BACKEND)?;
        for ip in [IpAddr::from(HOST_V4), HOST_V6.into()] {
            datapath.add_host(ip)?;
        }
        Ok(Self { datapath, family, protocol })
    }

    /// A packet of the network, up to the pod.
    fn receives(&self, packet: &[u8]) -> Result<Outcome> {
        let outcome = self.datapath.run(FROM_NETDEV, &frame(DEVICE, ROUTER_MAC, packet))?;
        if outcome.verdict == REDIRECT {
            return Ok(outcome);
        }
        anyhow::ensure!(outcome.verdict == PASS, "{outcome:?}");
        anyhow::ensure!(&outcome.packet[14..] == packet, "the packet stays as it is: {outcome:?}");
        self.datapath.receives(identity::WORLD, &frame(A.mac, A.node_mac, packet))
    }

    /// The pod's packet, as it leaves.
    pub(crate) fn sends(&self, ns: &NetNs, packet: &[u8]) -> Result<Outcome> {
        ns.run(|| self.datapath.run(FROM_CONTAINER, &frame(A.node_mac, A.mac, packet)))
    }

    /// Takes the frontend out of entries of direct server return.
    fn forget_frontends(&mut self) -> Result<()> {
        let forgotten = |value: &[u8]| -> Result<Option<CtEntry>> {
            let mut entry = CtEntry::from_bytes(value).context("short entry")?;
            entry.set_nat([0; 4], 0);
            Ok((entry.flags & ct_flag::DSR_INTERNAL != 0).then_some(entry))
        };
        match self.family {
            Family::V4 => {
                for map in ["cilium_ct4_global", "cilium_ct_any4_global"] {
                    for (key, value) in self.datapath.rows::<14, 56>(map)? {
                        if let Some(entry) = forgotten(&value)? {
                            let key = CtTuple4::from_bytes(&key).context("short key")?;
                            self.datapath.put::<14, 56>(map, &key, &entry)?;
                        }
                    }
                }
            }
            Family::V6 => {
                for map in ["cilium_ct6_global", "cilium_ct_any6_global"] {
                    for (key, value) in self.datapath.rows::<38, 56>(map)? {
                        if let Some(entry) = forgotten(&value)? {
                            let key = CtTuple6::from_bytes(&key).context("short key")?;
                            self.datapath.put::<38, 56>(map, &key, &entry)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The row of the NAT map that older versions of Cilium have for a backend's packets to a client.
    fn put_frontend_row(
        &mut self,
        backend: SocketAddr,
        client: SocketAddr,
        frontend: SocketAddr,
    ) -> Result<()> {
        let (sport, dport, port) = (backend.port().to_be(), client.port().to_be(), frontend.port().to_be());
        let (nexthdr, flags) = (self.protocol, tuple_flag::OUT);
        match (backend.ip(), client.ip(), frontend.ip()) {
            (IpAddr::V4(backend), IpAddr::V4(client), IpAddr::V4(frontend)) => {
                let (saddr, daddr) = (ipv4_word(backend), ipv4_word(client));
                let row = NatEntry4 { address: ipv4_word(frontend), port, ..Plain::zeroed() };
                let key = CtTuple4 { saddr, daddr, sport, dport, nexthdr, flags };
                self.datapath.put::<14, 40>("cilium_snat_v4_external", &key, &row)
            }
            (IpAddr::V6(backend), IpAddr::V6(client), IpAddr::V6(frontend)) => {
                let (saddr, daddr) = (ipv6_words(backend), ipv6_words(client));
                let row = NatEntry6 { address: ipv6_words(frontend), port, ..Plain::zeroed() };
                let key = CtTuple6 { saddr, daddr, sport, dport, nexthdr, flags };
                self.datapath.put::<38, 56>("cilium_snat_v6_external", &key, &row)
            }
            _ => anyhow::bail!("two families"),
        }
    }

    /// The entries with a frontend of another node.
    pub(crate) fn frontends(&mut self) -> Result<Vec<SocketAddr>> {
        let map = match (self.family, self.protocol) {
            (Family::V4, TCP) => "cilium_ct4_global",
            (Family::V4, _) => "cilium_ct_any4_global",
            (Family::V6, TCP) => "cilium_ct6_global",
            (Family::V6, _) => "cilium_ct_any6_global",
        };
        let values: Vec<[u8; 56]> = match self.family {
            Family::V4 => self.datapath.rows::<14, 56>(map)?.into_iter().map(|(_, value)| value).collect(),
            Family::V6 => self.datapath.rows::<38, 56>(map)?.into_iter().map(|(_, value)| value).collect(),
        };
        let entries = values.iter().map(|value| CtEntry::from_bytes(value).context("short entry"));
        let entries: Vec<CtEntry> = entries.collect::<Result<_>>()?;
        let direct = entries.iter().filter(|entry| entry.flags & ct_flag::DSR_INTERNAL != 0);
        Ok(direct
            .map(|entry| {
                let words = entry.nat_address();
                let ip = match self.family {
                    Family::V4 => IpAddr::from(ipv4_from_word(words[0])),
                    Family::V6 => ipv6_from_words(words).into(),
                };
                SocketAddr::new(ip, u16::from_be(entry.nat_port))
            })
            .collect())
    }
}

/// A request that leaves node 1 with the option; the packet as the network has it.
fn requested(entry: &Entry, family: Family, protocol: u8, client: SocketAddr) -> Result<Vec<u8>> {
    let outcome = entry.arrive(&segment(client, family.vip(), protocol, SYN))?;
    anyhow::ensure!(outcome.verdict == REDIRECT, "{family:?} {outcome:?}");
    let (option, rest) = without_option(family, &outcome);
    anyhow::ensure!(option == family.option(family.vip(), protocol), "{option:?}");
    let (seen, hops) = (seen(&rest), rest[if family == Family::V4 { 22 } else { 21 }]);
    anyhow::ensure!(
        (seen.source, seen.destination, seen.checksums, hops) == (client, family.remote(), true, 63),
        "{seen:?} {outcome:?}"
    );
    anyhow::ensure!(outcome.mark & mark::MAGIC_MASK == mark::SNAT_DONE, "{outcome:?}");
    // It leaves as it is.
    let left = Incoming { mark: outcome.mark, ..Incoming::default() };
    let left = entry.node.datapath.run_with(TO_NETDEV, &outcome.packet, left)?;
    anyhow::ensure!((left.verdict, &left.packet) == (PASS, &outcome.packet), "{client}: {left:?}");
    Ok(outcome.packet[14..].to_vec())
}

/// Scenarios 31 to 34, from the client by both nodes back to it.
#[test]
fn the_backends_node_replies_in_the_name_of_the_frontend() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for (protocol, host_routing) in [(TCP, 0), (TCP, 1), (UDP, 0), (UDP, 1), (SCTP, 0)] {
            // The ports of SCTP cannot change.
            let backend = if protocol == SCTP { SERVICE_PORT } else { BACKEND_PORT };
            let backend = SocketAddr::new(family.remote().ip(), backend);
            let config = NodeConfig { host_routing, ..direct() };
            let mut entry = Entry::new(&config, family, protocol)?;
            if protocol == SCTP {
                entry.node.set_backends(&[backend])?;
                entry.node.set_flags(NODE_PORT, 0)?;
                let outcome = entry.arrive(&segment(entry.client(CLIENT_PORT), family.vip(), SCTP, 0))?;
                let (option, rest) = without_option(family, &outcome);
                assert_eq!(option, family.option(family.vip(), SCTP));
                assert_eq!((outcome.verdict, seen(&rest).destination), (REDIRECT, backend));
                continue;
            }
            let client = entry.client(CLIENT_PORT);
            let request = requested(&entry, family, protocol, client)?;
            assert_eq!(entry.rows()?, [], "no translation of the source");
            assert_eq!(entry.node.connections()?, 1, "the choice of the backend alone");

            let mut other = BackendNode::new(&config, family, protocol)?;
            let arrived = other.receives(&request)?;
            let (option, rest) = without_option(family, &arrived);
            assert_eq!((option, seen(&rest).destination), (family.option(family.vip(), protocol), backend));
            assert_eq!(other.frontends()?, [family.vip()]);
            let reply = segment(backend, client, protocol, SYN | ACK);
            let outcome = other.sends(&entry.ns, &reply)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
            assert_eq!((seen.source, seen.destination), (family.vip(), client));
            assert_eq!(outcome.mark & mark::MAGIC_MASK, mark::SNAT_DONE);
            // Another port of the pod is not the service's.
            let own = segment(SocketAddr::new(backend.ip(), BACKEND_PORT + 1), client, protocol, SYN);
            assert_eq!(other.sends(&entry.ns, &own)?.packet[14..], own);
            if protocol != TCP {
                continue;
            }
            // Later packets of a connection do not name it.
            let outcome = entry.arrive(&segment(client, family.vip(), TCP, ACK))?;
            let later = seen_at(&outcome);
            assert_eq!((outcome.verdict, later.checksums), (REDIRECT, true));
            assert_eq!((later.source, later.destination), (client, backend));
            other.receives(&outcome.packet[14..])?;
            assert_eq!(other.frontends()?, [family.vip()]);
        }
    }
    Ok(())
}

/// The packet as a node sends it that has the frontend.
pub(crate) fn naming(family: Family, packet: &[u8], frontend: SocketAddr) -> Vec<u8> {
    let mut out = packet.to_vec();
    if family == Family::V4 {
        out[0] += 2;
        out.splice(20..20, family.option(frontend, 0));
        let (len, header) = (out.len() as u16, usize::from(out[0] & 0xf) * 4);
        out[2..4].copy_from_slice(&len.to_be_bytes());
        out[10..12].fill(0);
        let sum = checksum(&out[..header]);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        out.splice(40..40, family.option(frontend, packet[6]));
        out[6] = 60;
        let len = (out.len() - 40) as u16;
        out[4..6].copy_from_slice(&len.to_be_bytes());
    }
    out
}

/// Scenarios 33 to 35 for a backend in the host's network: by another device the reply is redirected first.
#[test]
fn a_reply_of_the_host_leaves_in_the_name_of_another_nodes_frontend() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    let out = ns.run(|| ifindex("out0"))?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let (backend, client) = (family.host(BACKEND_PORT), family.remote_client());
            let mut node = BackendNode::new(&direct(), family, protocol)?;
            let request = naming(family, &segment(client, backend, protocol, SYN), family.vip());
            let outcome = node.datapath.run(FROM_NETDEV, &frame(DEVICE, ROUTER_MAC, &request))?;
            assert_eq!((outcome.verdict, &outcome.packet[14..]), (PASS, &request[..]));
            assert_eq!(node.frontends()?, [family.vip()]);
            let answer = from_network(backend, client, protocol, SYN | ACK);
            let leaves = |at, packet: &[u8]| {
                let incoming = Incoming { at: Some(at), ..Incoming::of_host() };
                ns.run(|| node.datapath.run_with(TO_NETDEV, packet, incoming))
            };
            let outcome = leaves(out, &answer)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (PASS, true), "{family:?} {outcome:?}");
            assert_eq!((seen.source, seen.destination), (family.vip(), client));
            let outcome = leaves(IFINDEX, &answer)?;
            assert_eq!((outcome.verdict, &outcome.packet), (REDIRECT, &answer), "not this device");
            // The twin: the host's own connection.
            let own = from_network(family.host(BACKEND_PORT + 1), client, protocol, ACK);
            assert_eq!(leaves(out, &own)?.packet, own);
        }
    }
    Ok(())
}

/// Scenario 36: an entry of older versions of Cilium has no port, and the frontend is in a row of the NAT map. Such connections
/// go on after the node has changed to this agent.
#[test]
fn an_entry_without_a_port_leads_to_the_row_with_its_frontend() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    let out = ns.run(|| ifindex("out0"))?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            for (pod, host) in [(family.remote(), false), (family.host(BACKEND_PORT), true)] {
                let (backend, client) = (pod, family.remote_client());
                let mut node = BackendNode::new(&direct(), family, protocol)?;
                let request = naming(family, &segment(client, backend, protocol, SYN), family.vip());
                node.datapath.run(FROM_NETDEV, &frame(DEVICE, ROUTER_MAC, &request))?;
                if !host {
                    node.receives(&request)?;
                }
                node.forget_frontends()?;
                let unspecified = if family == Family::V4 { "0.0.0.0:0" } else { "[::]:0" };
                assert_eq!(node.frontends()?, [unspecified.parse()?]);
                let answer = frame(A.node_mac, A.mac, &segment(backend, client, protocol, SYN | ACK));
                let leaves = |node: &BackendNode| match host {
                    false => ns.run(|| node.datapath.run(FROM_CONTAINER, &answer)),
                    true => {
                        let incoming = Incoming { at: Some(out), ..Incoming::of_host() };
                        ns.run(|| node.datapath.run_with(TO_NETDEV, &answer, incoming))
                    }
                };
                // The control: neither entry nor row.
                assert_ne!(seen_at(&leaves(&node)?).source, family.vip(), "{family:?} {protocol}");
                node.put_frontend_row(backend, client, family.vip())?;
                let outcome = leaves(&node)?;
                let seen = seen_at(&outcome);
                let verdict = if host { PASS } else { REDIRECT };
                assert_eq!((outcome.verdict, seen.source), (verdict, family.vip()), "{family:?} {protocol}");
                assert_eq!((seen.destination, seen.checksums), (client, true));
            }
        }
    }
    Ok(())
}

/// Scenarios 32 and 46, and how a frontend changes: by the next packet that names one.
#[test]
fn an_entry_has_the_frontend_of_the_latest_first_packet() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let (backend, client) = (family.remote(), family.remote_client());
            let mut node = BackendNode::new(&direct(), family, protocol)?;
            let (plain, later) =
                (segment(client, backend, protocol, SYN), segment(client, backend, protocol, ACK));
            let answer = segment(backend, client, protocol, ACK);
            let replied =
                |node: &BackendNode| Ok::<_, anyhow::Error>(seen_at(&node.sends(&ns, &answer)?).source);
            // A packet without the option begins no such connection.
            node.receives(&later)?;
            assert_eq!((node.frontends()?, replied(&node)?), (vec![], backend));
            node.receives(&naming(family, &plain, family.vip()))?;
            assert_eq!((node.frontends()?, replied(&node)?), (vec![family.vip()], family.vip()));
            let second = SocketAddr::new(family.vip().ip(), SERVICE_PORT + 1);
            node.receives(&naming(family, &plain, second))?;
            assert_eq!((node.frontends()?, replied(&node)?), (vec![second], second));
            node.receives(&later)?;
            assert_eq!(replied(&node)?, second);
            node.receives(&plain)?;
            // Only of TCP does a packet without the option open another connection.
            let expected = if protocol == TCP { backend } else { second };
            assert_eq!(replied(&node)?, expected, "{family:?} {protocol}");
            // No frontend is without a port.
            let portless = naming(family, &plain, SocketAddr::new(second.ip(), 0));
            let packet = frame(DEVICE, ROUTER_MAC, &portless);
            let why =
                node.datapath.dropped(direction::INGRESS, |datapath| datapath.run(FROM_NETDEV, &packet))?;
            assert_eq!(why, Some(drop::INVALID_PACKET_DROPPED));
        }
    }
    Ok(())
}

/// Scenarios 38 and 39: in hybrid mode and with annotations the service's entry decides.
#[test]
fn services_choose_where_the_mode_lets_them() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for (mode, flags2, is_direct) in [
            (dsr::BY_SERVICE, lb_flag2::FORWARDING_DSR, true),
            (dsr::BY_SERVICE, 0, false),
            (dsr::ALL, 0, true),
            (dsr::NONE, lb_flag2::FORWARDING_DSR, false),
        ] {
            let mut entry = Entry::new(&NodeConfig { dsr: mode, ..native() }, family, TCP)?;
            entry.node.set_flags(NODE_PORT, flags2)?;
            let client = entry.client(CLIENT_PORT);
            if is_direct {
                requested(&entry, family, TCP, client)?;
                continue;
            }
            let outcome = entry.arrive(&segment(client, family.vip(), TCP, SYN))?;
            assert_eq!((outcome.verdict, seen_at(&outcome).source), (REDIRECT, family.host(CLIENT_PORT)));
        }
        // A backend of this node needs no option.
        let local = SocketAddr::new(family.client().ip(), BACKEND_PORT);
        let mut entry = Entry::new(&direct(), family, TCP)?;
        entry.node.set_backends(&[local])?;
        entry.node.set_flags(NODE_PORT, 0)?;
        let outcome = entry.arrive(&segment(entry.client(CLIENT_PORT), family.vip(), TCP, SYN))?;
        assert_eq!((outcome.verdict, seen_at(&outcome).destination), (PASS, local));
    }
    Ok(())
}

/// The limits are the MTU of the route and the length of an IPv4 header.
#[test]
fn packets_that_get_too_long_are_dropped() -> Result<()> {
    test_kit::require_root!();
    const MTU: usize = 1280;
    for family in FAMILIES {
        let mut entry = Entry::new(&direct(), family, UDP)?;
        entry.ns.ip(&format!("link set out0 mtu {MTU}"))?;
        let (client, vip) = (entry.client(CLIENT_PORT), family.vip());
        let header = if family == Family::V4 { 28 } else { 48 };
        let of_length = |len: usize| {
            let mut udp = [client.port().to_be_bytes(), vip.port().to_be_bytes()].concat();
            udp.extend(((len - header + 8) as u16).to_be_bytes());
            udp.resize(len - header + 8, 0);
            ip(client.ip(), vip.ip(), UDP, &udp)
        };
        let largest = MTU - family.option_len();
        assert_eq!(entry.arrive(&of_length(largest))?.packet.len(), 14 + MTU);
        let why = entry.dropped(direction::EGRESS, &of_length(largest + 1))?;
        assert_eq!(why, Some(drop::FRAG_NEEDED), "{family:?}");
        // With enable-pmtu-discovery the client learns the length from the frontend.
        let config = NodeConfig { dsr_icmp: 1, ..direct() };
        let mut entry = Entry::new(&config, family, UDP)?;
        entry.ns.ip(&format!("link set out0 mtu {MTU}"))?;
        let outcome = entry.arrive(&of_length(largest + 1))?;
        let seen = seen_at(&outcome);
        assert_eq!((outcome.verdict, seen.protocol, seen.checksums), (REDIRECT, family.icmp(), true));
        assert_eq!((seen.source.ip(), seen.destination.ip()), (vip.ip(), client.ip()));
        assert_eq!(quoted(&outcome.packet), (client, vip));
        assert_eq!(outcome.packet[..12], [ROUTER_MAC, DEVICE].concat());
        let at = l4_offset(&outcome.packet);
        let (kind, length) = (&outcome.packet[at..at + 2], &outcome.packet[at + 4..at + 8]);
        assert_eq!(kind, if family == Family::V4 { [3, 4] } else { [2, 0] });
        assert_eq!(length, (largest as u32).to_be_bytes());
        assert_eq!(entry.node.datapath.counted(drop::FRAG_NEEDED, direction::EGRESS)?, 1);
        // A connection's later packets have their own length.
        let entry = Entry::new(&direct(), family, TCP)?;
        let client = entry.client(CLIENT_PORT);
        let outcome = entry.arrive(&with_hops(entry.request(client), 1))?;
        assert_time_exceeded(&outcome, family, (client, vip));
    }
    let entry = Entry::new(&direct(), Family::V4, UDP)?;
    let packet = segment(entry.client(CLIENT_PORT), Family::V4.vip(), UDP, 0);
    let arrived = entry.arrive(&with_longer_header(&packet, 32))?;
    assert_eq!((arrived.verdict, arrived.packet[14]), (REDIRECT, 0x4f));
    assert_eq!(arrived.packet[34..42], Family::V4.option(Family::V4.vip(), UDP), "before other options");
    assert_eq!(checksum(&arrived.packet[14..74]), 0);
    let mut entry = entry;
    let why = entry.dropped(direction::EGRESS, &with_longer_header(&packet, 36))?;
    assert_eq!(why, Some(drop::CT_TRUNCATED_OR_INVALID_HEADER));
    Ok(())
}

/// An error about a reply reaches the backend as its own node would have got it, one of the backend has the frontend's
/// name.
#[test]
fn errors_find_both_ends_of_a_direct_connection() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let entry = Entry::new(&direct(), family, protocol)?;
            let client = entry.client(CLIENT_PORT);
            let request = requested(&entry, family, protocol, client)?;
            let node = BackendNode::new(&direct(), family, protocol)?;
            node.receives(&request)?;
            let about = family.error_about(&segment(family.vip(), client, protocol, ACK));
            let outcome = entry.arrive(&about)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
            assert_eq!((seen.source.ip(), seen.destination.ip()), (client.ip(), family.remote().ip()));
            assert_eq!(quoted(&outcome.packet), (family.remote(), client));
            assert_eq!(node.receives(&outcome.packet[14..])?.verdict, PASS, "into the pod");

            let about = family.error_about(&segment(client, family.remote(), protocol, ACK));
            let outcome = node.sends(&entry.ns, &about)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
            assert_eq!((seen.source.ip(), seen.destination.ip()), (family.vip().ip(), client.ip()));
            assert_eq!(quoted(&outcome.packet), (client, family.vip()));
        }
    }
    Ok(())
}
