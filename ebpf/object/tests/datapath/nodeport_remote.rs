//! Services for clients outside the cluster with backends on other nodes: requests leave with an address of the node,
//! replies and ICMP errors find the client.

use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::packet::checksum;
use crate::service::*;
use crate::uplink::routed;
use anyhow::Result;
use datapath_abi::{
    CtTuple4, CtTuple6, DIRECT_ROUTING, MasqueradeAddresses, NodeConfig, Pod as Plain, direction, drop,
    identity, ipcache_flag, ipv4_word, ipv6_words, mark, tuple_flag,
};
use datapath_object::{FROM_NETDEV, TO_NETDEV, TO_OVERLAY};
use std::net::{IpAddr, SocketAddr};
use test_kit::NetNs;

pub(crate) use crate::entry::{MIN_PORT, native, tunnel};

/// A node, with its routes, that has only a backend of another node.
pub(crate) struct Entry {
    pub(crate) node: Node,
    pub(crate) ns: NetNs,
    family: Family,
    protocol: u8,
}

impl Entry {
    pub(crate) fn new(config: &NodeConfig, family: Family, protocol: u8) -> Result<Self> {
        let mut node = Node::frontend(config, family, protocol, &[family.remote()])?;
        let row = MasqueradeAddresses {
            ipv4: ipv4_word(HOST_V4),
            ipv6: ipv6_words(HOST_V6),
            ..MasqueradeAddresses::default()
        };
        node.datapath.put::<4, 64>("ep_masquerade", &DIRECT_ROUTING, &row)?;
        node.datapath.add_host(family.router(0).ip())?;
        Ok(Self { node, ns: routed()?, family, protocol })
    }

    /// The backend is reached by the tunnel, unless the flags say otherwise.
    pub(crate) fn tunnelled(family: Family, protocol: u8, flags: u8) -> Result<Self> {
        let mut entry = Self::new(&tunnel(), family, protocol)?;
        let row = behind(REMOTE_IDENTITY, family.other_node(), flags);
        entry.node.datapath.set_ipcache(family.remote().ip(), &row)?;
        Ok(entry)
    }

    pub(crate) fn arrive(&self, packet: &[u8]) -> Result<Outcome> {
        self.ns.run(|| self.node.arrive(&frame(DEVICE, ROUTER_MAC, packet)))
    }

    /// A client's packet, which must leave to the backend; the socket that it comes from.
    fn requested(&self, client: SocketAddr) -> Result<SocketAddr> {
        let outcome = self.arrive(&segment(client, self.family.vip(), self.protocol, SYN))?;
        let seen = seen_at(&outcome);
        let hops = outcome.packet[if self.family == Family::V4 { 22 } else { 21 }];
        anyhow::ensure!(
            (outcome.verdict, seen.destination, seen.checksums, hops)
                == (REDIRECT, self.family.remote(), true, 63),
            "{client}: {seen:?} {outcome:?}"
        );
        anyhow::ensure!(outcome.mark & mark::MAGIC_MASK == mark::SNAT_DONE, "{client}: {outcome:?}");
        // It leaves as it is.
        let left = Incoming { mark: outcome.mark, ..Incoming::default() };
        let left = self.node.datapath.run_with(TO_NETDEV, &outcome.packet, left)?;
        anyhow::ensure!((left.verdict, &left.packet) == (PASS, &outcome.packet), "{client}: {left:?}");
        Ok(seen.source)
    }

    /// The backend's packet to a socket of the node, which must leave from the frontend; the client that gets it.
    fn answered(&self, to: SocketAddr) -> Result<SocketAddr> {
        let packet = segment(self.family.remote(), to, self.protocol, SYN | ACK);
        self.leaves_from_the_frontend(self.arrive(&packet)?)
    }

    fn leaves_from_the_frontend(&self, outcome: Outcome) -> Result<SocketAddr> {
        self.leaves_with_hops(outcome, 63)
    }

    fn leaves_with_hops(&self, outcome: Outcome, left: u8) -> Result<SocketAddr> {
        let seen = seen_at(&outcome);
        let hops = outcome.packet[if self.family == Family::V4 { 22 } else { 21 }];
        anyhow::ensure!(
            (outcome.verdict, seen.source, seen.checksums, hops) == (REDIRECT, self.family.vip(), true, left),
            "{seen:?} {outcome:?}"
        );
        anyhow::ensure!(outcome.mark & mark::MAGIC_MASK == mark::SNAT_DONE, "{outcome:?}");
        Ok(seen.destination)
    }

    pub(crate) fn client(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.family.outside(), port)
    }

    /// The reason for which a packet is dropped.
    pub(crate) fn dropped(&mut self, direction: u8, packet: &[u8]) -> Result<Option<u8>> {
        let (packet, ns) = (frame(DEVICE, ROUTER_MAC, packet), &self.ns);
        self.node.datapath.dropped(direction, |datapath| ns.run(|| datapath.run(FROM_NETDEV, &packet)))
    }

    pub(crate) fn request(&self, client: SocketAddr) -> Vec<u8> {
        segment(client, self.family.vip(), self.protocol, SYN)
    }

    /// The flags of the rows of the NAT map.
    pub(crate) fn rows(&mut self) -> Result<Vec<u8>> {
        let datapath = &mut self.node.datapath;
        let mut flags: Vec<u8> = match self.family {
            Family::V4 => datapath
                .rows::<14, 40>("cilium_snat_v4_external")?
                .iter()
                .map(|(key, _)| CtTuple4::from_bytes(key).unwrap().flags)
                .collect(),
            Family::V6 => datapath
                .rows::<38, 56>("cilium_snat_v6_external")?
                .iter()
                .map(|(key, _)| CtTuple6::from_bytes(key).unwrap().flags)
                .collect(),
        };
        flags.sort_unstable();
        Ok(flags)
    }

    /// Removes the rows of the NAT map with these flags.
    fn lose(&mut self, flags: u8) -> Result<()> {
        let datapath = &mut self.node.datapath;
        match self.family {
            Family::V4 => {
                for (key, _) in datapath.rows::<14, 40>("cilium_snat_v4_external")? {
                    let key = CtTuple4::from_bytes(&key).unwrap();
                    if key.flags == flags {
                        datapath.remove::<14, 40>("cilium_snat_v4_external", &key)?;
                    }
                }
            }
            Family::V6 => {
                for (key, _) in datapath.rows::<38, 56>("cilium_snat_v6_external")? {
                    let key = CtTuple6::from_bytes(&key).unwrap();
                    if key.flags == flags {
                        datapath.remove::<38, 56>("cilium_snat_v6_external", &key)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn protocols(mut test: impl FnMut(Family, u8) -> Result<()>) -> Result<()> {
    FAMILIES.into_iter().try_for_each(|family| [TCP, UDP, SCTP].into_iter().try_for_each(|p| test(family, p)))
}

const PAIR: [u8; 2] = [tuple_flag::OUT, tuple_flag::IN];

/// Scenarios 6 to 9.
#[test]
fn a_request_leaves_with_the_nodes_address_and_its_reply_finds_the_client() -> Result<()> {
    test_kit::require_root!();
    protocols(|family, protocol| {
        let mut entry = Entry::new(&native(), family, protocol)?;
        // The ports of SCTP cannot change.
        if protocol == SCTP {
            let mut same = Node::frontend(&native(), family, protocol, &[family.remote()])?;
            let why = same.refused(&from_network(family.remote_client(), family.vip(), SCTP, SYN))?;
            assert_eq!(why, Some(drop::ERROR_WHILE_CORRECTING_L4_CHECKSUM));
            return Ok(());
        }
        let source = entry.requested(entry.client(CLIENT_PORT))?;
        assert_eq!(source, family.host(CLIENT_PORT), "a free port in the range stays");
        assert_eq!(entry.answered(source)?, entry.client(CLIENT_PORT));
        assert_eq!(entry.requested(entry.client(CLIENT_PORT))?, source);
        assert_eq!(entry.rows()?, PAIR);
        let low = entry.requested(entry.client(1024))?;
        assert!(low.port() >= MIN_PORT, "{low}");
        assert_eq!(entry.answered(low)?, entry.client(1024));
        // Another client with the same port.
        let neighbour = SocketAddr::new(family.other_node(), CLIENT_PORT);
        let moved = entry.requested(neighbour)?;
        assert_ne!(moved.port(), CLIENT_PORT);
        assert_eq!(entry.answered(moved)?, neighbour);
        assert_eq!(entry.answered(source)?, entry.client(CLIENT_PORT));
        // Packets without a mapping are the host's: another port of the node, another port of the backend.
        let other = SocketAddr::new(family.remote().ip(), BACKEND_PORT + 1);
        for (from, to) in [(family.remote(), family.host(50000)), (other, source)] {
            let packet = segment(from, to, protocol, ACK);
            let outcome = entry.arrive(&packet)?;
            assert_eq!((outcome.verdict, &outcome.packet[14..]), (PASS, &packet[..]));
        }
        Ok(())
    })
}

/// The same beside masquerading, and where devices deliver to pods themselves.
#[test]
fn requests_and_replies_pass_beside_masquerading_and_host_routing() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for (masquerade, host_routing) in [(0, 1), (1, 0), (1, 1)] {
            let config = NodeConfig {
                host_routing,
                masquerade_ipv4: masquerade,
                masquerade_ipv6: masquerade,
                ..native()
            };
            let entry = Entry::new(&config, family, TCP)?;
            let source = entry.requested(entry.client(CLIENT_PORT))?;
            assert_eq!(entry.answered(source)?, entry.client(CLIENT_PORT));
            let packet = segment(family.remote(), family.host(50000), TCP, ACK);
            let outcome = entry.arrive(&packet)?;
            assert_eq!((outcome.verdict, &outcome.packet[14..]), (PASS, &packet[..]));
        }
    }
    Ok(())
}

/// Scenarios 10 to 12: the map evicts single rows.
#[test]
fn the_surviving_row_restores_the_other_one() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let mut entry = Entry::new(&native(), family, protocol)?;
            let client = entry.client(1024);
            let source = entry.requested(client)?;
            for lost in PAIR {
                entry.lose(lost)?;
                assert_eq!(entry.rows()?.len(), 1);
                if lost == tuple_flag::IN {
                    assert_eq!(entry.requested(client)?, source, "the port stays");
                } else {
                    assert_eq!(entry.answered(source)?, client);
                }
                assert_eq!(entry.rows()?, PAIR);
                assert_eq!(entry.answered(source)?, client);
                assert_eq!(entry.requested(client)?, source);
            }
            // Both rows: a new translation, and the reply to the former one is the host's.
            entry.lose(tuple_flag::IN)?;
            entry.lose(tuple_flag::OUT)?;
            let packet = segment(family.remote(), source, protocol, ACK);
            let outcome = entry.arrive(&packet)?;
            assert_eq!((outcome.verdict, &outcome.packet[14..]), (PASS, &packet[..]));
            let again = entry.requested(client)?;
            assert_eq!(entry.answered(again)?, client);
        }
    }
    Ok(())
}

/// A connection of the host with the address, the port and the peer of a translation: the later one gets another port.
#[test]
fn connections_of_the_host_keep_their_ports_apart() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for is_host_first in [true, false] {
            let entry = Entry::new(&native(), family, TCP)?;
            let (own, client) = (family.host(CLIENT_PORT), entry.client(CLIENT_PORT));
            let packet = frame(ROUTER_MAC, DEVICE, &segment(own, family.remote(), TCP, SYN));
            let leaves = || -> Result<SocketAddr> {
                let outcome = entry.node.datapath.run_with(TO_NETDEV, &packet, Incoming::of_host())?;
                let seen = seen_at(&outcome);
                anyhow::ensure!(outcome.verdict == PASS && seen.checksums, "{outcome:?}");
                Ok(seen.source)
            };
            let (hosts, clients) = if is_host_first {
                let hosts = leaves()?;
                (hosts, entry.requested(client)?)
            } else {
                let clients = entry.requested(client)?;
                (leaves()?, clients)
            };
            assert_ne!(hosts, clients);
            assert_eq!(if is_host_first { hosts } else { clients }, own, "the first keeps its port");
            assert_eq!(entry.answered(clients)?, client);
            let outcome = entry.arrive(&segment(family.remote(), hosts, TCP, SYN | ACK))?;
            assert_eq!((outcome.verdict, seen_at(&outcome).destination), (PASS, own), "{is_host_first}");
            assert_eq!((leaves()?, entry.requested(client)?), (hosts, clients));
        }
        // Sockets that cannot have a conflict leave no rows: below the range, of other addresses, of pods.
        let mut entry = Entry::new(&native(), family, TCP)?;
        let pod = SocketAddr::new(family.client().ip(), CLIENT_PORT);
        for source in [family.host(MIN_PORT - 1), family.router(CLIENT_PORT), pod] {
            let packet = frame(ROUTER_MAC, DEVICE, &segment(source, family.remote(), TCP, SYN));
            let outcome = entry.node.datapath.run_with(TO_NETDEV, &packet, Incoming::of_host())?;
            assert_eq!((outcome.verdict, outcome.packet), (PASS, packet), "{source}");
        }
        assert_eq!(entry.rows()?, []);
    }
    Ok(())
}

#[test]
fn without_a_free_port_or_an_address_requests_are_dropped() -> Result<()> {
    test_kit::require_root!();
    let none = Some(drop::NO_MAPPING_FOR_NAT_MASQUERADE);
    for family in FAMILIES {
        let one_port = NodeConfig { snat_min_port: u16::MAX, ..native() };
        let mut entry = Entry::new(&one_port, family, UDP)?;
        let source = entry.requested(entry.client(1024))?;
        assert_eq!(source, family.host(u16::MAX));
        let other = entry.request(entry.client(1025));
        assert_eq!(entry.dropped(direction::EGRESS, &other)?, none);
        assert_eq!(entry.answered(source)?, entry.client(1024));

        let mut entry = Entry::new(&native(), family, UDP)?;
        let request = entry.request(entry.client(1024));
        let zero = MasqueradeAddresses::default();
        entry.node.datapath.put::<4, 64>("ep_masquerade", &DIRECT_ROUTING, &zero)?;
        assert_eq!(entry.dropped(direction::EGRESS, &request)?, none);
        entry.node.datapath.remove::<4, 64>("ep_masquerade", &DIRECT_ROUTING)?;
        assert_eq!(entry.dropped(direction::EGRESS, &request)?, none);
        assert_eq!(entry.rows()?, []);
    }
    Ok(())
}

/// A packet with this hop limit.
pub(crate) fn with_hops(mut packet: Vec<u8>, hops: u8) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        packet[8] = hops;
        packet[10..12].fill(0);
        let sum = checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[7] = hops;
    }
    packet
}

/// Checks that an outcome is "time exceeded" from the node, which quotes a packet by its source and destination.
pub(crate) fn assert_time_exceeded(outcome: &Outcome, family: Family, about: (SocketAddr, SocketAddr)) {
    let (seen, kind) = (seen_at(outcome), outcome.packet[l4_offset(&outcome.packet)]);
    assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
    assert_eq!((seen.protocol, kind), (family.icmp(), if family == Family::V4 { 11 } else { 3 }));
    assert_eq!((seen.source.ip(), seen.destination.ip()), (family.host(0).ip(), about.0.ip()));
    assert_eq!(quoted(&outcome.packet), about, "{family:?}");
    assert_eq!(outcome.packet[..12], [ROUTER_MAC, DEVICE].concat(), "where it came from");
    assert_eq!(outcome.mark & mark::MAGIC_MASK, mark::SNAT_DONE, "devices leave it as it is");
}

/// A hop limit that ends at the node is answered in its name, about the packet that the sender knows.
#[test]
fn exhausted_hop_limits_are_answered_in_both_directions() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        // The second port is below the range of translations.
        for (protocol, port) in [(TCP, CLIENT_PORT), (UDP, 1024)] {
            let mut entry = Entry::new(&native(), family, protocol)?;
            let client = entry.client(port);
            let outcome = entry.arrive(&with_hops(entry.request(client), 1))?;
            assert_time_exceeded(&outcome, family, (client, family.vip()));
            assert_eq!(entry.rows()?, [], "no port for a packet that does not leave");
            let source = entry.requested(client)?;
            let reply = segment(family.remote(), source, protocol, ACK);
            let outcome = entry.arrive(&with_hops(reply.clone(), 1))?;
            assert_time_exceeded(&outcome, family, (family.remote(), source));
            // The twins with one hop more.
            assert_eq!(entry.leaves_with_hops(entry.arrive(&with_hops(reply, 2))?, 1)?, client);
            let outcome = entry.arrive(&with_hops(entry.request(client), 2))?;
            assert_eq!((outcome.verdict, seen_at(&outcome).destination), (REDIRECT, family.remote()));
            // No error is sent about an error.
            let about = family.error_about(&segment(source, family.remote(), protocol, ACK));
            assert_eq!(entry.dropped(direction::INGRESS, &with_hops(about, 1))?, Some(drop::TTL_EXCEEDED));
            entry.node.datapath.remove::<4, 64>("ep_masquerade", &DIRECT_ROUTING)?;
            let request = with_hops(entry.request(client), 1);
            let why = entry.dropped(direction::INGRESS, &request)?;
            assert_eq!(why, Some(drop::TTL_EXCEEDED), "without an address of the node");
        }
    }
    Ok(())
}

/// Scenario 14: with `enable-dynamic-source-lookup-nodeport` the source is that of the route.
#[test]
fn requests_leave_with_the_source_of_their_route() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let config = NodeConfig { dynamic_source: 1, ..native() };
        let mut entry = Entry::new(&config, family, TCP)?;
        let [first, second, third] = [1, 2, 3].map(|port| entry.client(CLIENT_PORT + port));
        let of_route = |port| {
            let ip: IpAddr =
                if family == Family::V4 { [203, 0, 113, 1].into() } else { "2001:db8:1::1".parse().unwrap() };
            SocketAddr::new(ip, port)
        };
        let direct = |client: SocketAddr| family.host(client.port());
        assert_eq!(entry.requested(first)?, direct(first), "not an address that replies come back to");
        entry.node.datapath.add_host(of_route(0).ip())?;
        let source = entry.requested(second)?;
        assert_eq!(source, of_route(second.port()));
        assert_eq!(entry.answered(source)?, second);
        // The host's own connection from that address gets another port.
        let own = frame(ROUTER_MAC, DEVICE, &segment(source, family.remote(), TCP, SYN));
        let outcome = entry.node.datapath.run_with(TO_NETDEV, &own, Incoming::of_host())?;
        assert_eq!(seen_at(&outcome).source.ip(), source.ip());
        assert_ne!(seen_at(&outcome).source, source);
        // A route of its own address.
        let (ip, router) = (family.remote().ip(), family.router(0).ip());
        let (via, nodad) =
            if family == Family::V4 { ("203.0.113.9", "") } else { ("2001:db8:1::9", "nodad") };
        entry.ns.ip_batch(&format!(
            "addr add {router} dev out0 {nodad}\nroute add {ip} via {via} src {router}\n"
        ))?;
        assert_eq!(entry.requested(third)?.ip(), router);
        let default = Entry::new(&native(), family, TCP)?;
        assert_eq!(default.requested(first)?, direct(first), "without the option");
    }
    Ok(())
}

#[test]
fn without_a_route_packets_are_dropped_in_both_directions() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut entry = Entry::new(&native(), family, TCP)?;
        let client = entry.client(CLIENT_PORT);
        let source = entry.requested(client)?;
        entry.ns = NetNs::detached()?;
        let request = entry.request(client);
        assert_eq!(entry.dropped(direction::EGRESS, &request)?, Some(drop::FIB_LOOKUP_FAILED));
        let reply = segment(family.remote(), source, TCP, ACK);
        assert_eq!(entry.dropped(direction::INGRESS, &reply)?, Some(drop::FIB_LOOKUP_FAILED));
    }
    Ok(())
}

/// Path MTUs and closed ports: an error about a request reaches the client in the name of the frontend, one about a
/// reply the backend in the name of the node; each quotes the packet that its receiver has sent.
#[test]
fn errors_reach_both_ends_of_a_connection() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for (protocol, port) in [(TCP, CLIENT_PORT), (UDP, CLIENT_PORT), (TCP, 1024), (UDP, 1024)] {
            let entry = Entry::new(&native(), family, protocol)?;
            let client = entry.client(port);
            let source = entry.requested(client)?;
            let about = family.error_about(&segment(source, family.remote(), protocol, ACK));
            let outcome = entry.arrive(&about)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
            assert_eq!((seen.source.ip(), seen.destination.ip()), (family.vip().ip(), client.ip()));
            assert_eq!(quoted(&outcome.packet), (client, family.vip()));

            let about = family.error_about(&segment(family.vip(), client, protocol, ACK));
            let outcome = entry.arrive(&about)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
            let ends = (family.host(0).ip(), family.remote().ip());
            assert_eq!((seen.source.ip(), seen.destination.ip()), ends);
            assert_eq!(quoted(&outcome.packet), (family.remote(), source));
            // The twin: about a packet to another port of the backend.
            let other = SocketAddr::new(family.remote().ip(), BACKEND_PORT + 1);
            let about = family.error_about(&segment(source, other, protocol, ACK));
            let outcome = entry.arrive(&about)?;
            assert_eq!((outcome.verdict, &outcome.packet[14..]), (PASS, &about[..]));
        }
    }
    Ok(())
}

/// Scenarios 26 to 28.
#[test]
fn a_backend_behind_the_tunnel_sees_the_router() -> Result<()> {
    test_kit::require_root!();
    let peer = Peer::new()?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let entry = Entry::tunnelled(family, protocol, 0)?;
            let client = entry.client(CLIENT_PORT);
            let source = entry.requested(client)?;
            assert_eq!(source, family.router(CLIENT_PORT));
            let by_tunnel = |packet: &[u8]| {
                let packet = frame(TUNNEL_MAC, ROUTER_MAC, packet);
                entry.ns.run(|| peer.sends(&entry.node.datapath, REMOTE_IDENTITY, &packet))
            };
            let reply = segment(family.remote(), source, protocol, SYN | ACK);
            assert_eq!(entry.leaves_from_the_frontend(by_tunnel(&reply)?)?, client);
            // An error of the backend, and the tunnel's own about the path.
            let about = family.error_about(&segment(source, family.remote(), protocol, ACK));
            let outcome = by_tunnel(&about)?;
            assert_eq!((outcome.verdict, seen_at(&outcome).checksums), (REDIRECT, true));
            assert_eq!(quoted(&outcome.packet), (client, family.vip()));
            // The twin: the host's own connection by the tunnel.
            let reply = segment(family.remote(), family.router(50000), protocol, ACK);
            let outcome = by_tunnel(&reply)?;
            assert_eq!((outcome.verdict, seen_at(&outcome).destination), (REDIRECT, family.router(50000)));
            assert_eq!(outcome.packet[..6], HOST_MAC, "to cilium_host");

            let direct = Entry::tunnelled(family, protocol, ipcache_flag::SKIP_TUNNEL)?;
            assert_eq!(direct.requested(client)?, family.host(CLIENT_PORT));
            assert_eq!(direct.answered(family.host(CLIENT_PORT))?, client);
        }
    }
    Ok(())
}

/// Scenario 29.
#[test]
fn the_hosts_connections_by_the_tunnel_keep_their_ports_apart() -> Result<()> {
    test_kit::require_root!();
    let peer = Peer::new()?;
    for family in FAMILIES {
        for is_host_first in [true, false] {
            let entry = Entry::tunnelled(family, TCP, 0)?;
            let (own, client) = (family.router(CLIENT_PORT), entry.client(CLIENT_PORT));
            let packet = frame(ROUTER_MAC, DEVICE, &segment(own, family.remote(), TCP, SYN));
            let leaves = || -> Result<SocketAddr> {
                let outcome =
                    peer.run(&entry.node.datapath, TO_OVERLAY, (identity::REMOTE_NODE, 0), &packet)?;
                let seen = seen_at(&outcome);
                anyhow::ensure!(outcome.verdict == PASS && seen.checksums, "{outcome:?}");
                Ok(seen.source)
            };
            let (hosts, clients) = if is_host_first {
                let hosts = leaves()?;
                (hosts, entry.requested(client)?)
            } else {
                let clients = entry.requested(client)?;
                (leaves()?, clients)
            };
            assert_ne!(hosts, clients);
            assert_eq!(if is_host_first { hosts } else { clients }, own, "the first keeps its port");
            let reply = frame(TUNNEL_MAC, ROUTER_MAC, &segment(family.remote(), hosts, TCP, SYN | ACK));
            let outcome = entry.ns.run(|| peer.sends(&entry.node.datapath, REMOTE_IDENTITY, &reply))?;
            assert_eq!(seen_at(&outcome).destination, own, "{is_host_first}");
            assert_eq!(outcome.packet[..6], HOST_MAC, "to cilium_host");
        }
    }
    Ok(())
}
