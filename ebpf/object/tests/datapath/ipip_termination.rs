//! Packets in an outer IP header to addresses of the node (`enable-ipip-termination`).

use crate::dsr::BACKEND;
use crate::ipip::{by_ipip, set_ecn, unwrapped};
use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::nodeport_remote::with_hops;
use crate::packet::checksum;
use crate::random::{Choices as _, Numbers};
use crate::service::*;
use crate::uplink::routed;
use crate::xdp;
use anyhow::Result;
use datapath_abi::{NodeConfig, before_services, direction, drop, identity, lb_flag, lb_flag2, mark};
use datapath_object::{FROM_CONTAINER, FROM_NETDEV, IPIP, TO_NETDEV};
use std::net::{IpAddr, SocketAddr};

fn terminating() -> NodeConfig {
    NodeConfig {
        before_services: before_services::IPIP,
        nodeport: 1,
        sctp: 1,
        ..NodeConfig { host_routing: 1, ..by_ipip() }
    }
}

/// The stack delivers: what is left as it is remains so.
fn through_the_stack() -> NodeConfig {
    NodeConfig { host_routing: 0, ..terminating() }
}

impl Family {
    /// A pod with the service's port: the outer header names no port.
    fn chosen(self) -> SocketAddr {
        SocketAddr::new(self.client().ip(), SERVICE_PORT)
    }

    /// The balancer that has chosen the backend.
    fn balancer(self) -> IpAddr {
        if self == Family::V4 { [192, 0, 2, 99].into() } else { "2001:db8:2::99".parse().unwrap() }
    }

    /// A packet as the balancer sends it to an address.
    fn wrapped(self, to: IpAddr, packet: &[u8]) -> Vec<u8> {
        ip(self.balancer(), to, self.outer().0, packet)
    }
}

fn arrive(node: &Node, packet: &[u8]) -> Result<Outcome> {
    node.arrive(&frame(DEVICE, ROUTER_MAC, packet))
}

/// Scenario 43: the backend is the one of the outer header, not one of the service's, and its reply has the frontend's
/// name.
#[test]
fn the_outer_header_names_the_backend() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    for family in FAMILIES {
        for (protocol, host_routing) in [(TCP, 1), (UDP, 1), (SCTP, 1), (TCP, 0), (UDP, 0)] {
            let config = NodeConfig { host_routing, ..terminating() };
            let mut node = Node::frontend(&config, family, protocol, &[family.b(BACKEND_PORT)])?;
            let (backend, client) = (family.chosen(), family.remote_client());
            for flags in [SYN, ACK] {
                let request = segment(client, family.vip(), protocol, flags);
                let outcome = arrive(&node, &family.wrapped(backend.ip(), &request))?;
                let verdict = if host_routing == 1 { REDIRECT } else { PASS };
                assert_eq!(outcome.verdict, verdict, "{family:?} {protocol} {outcome:?}");
                assert_eq!(outcome.packet.len(), 14 + request.len());
                let seen = seen_at(&outcome);
                assert_eq!((seen.source, seen.destination), (client, backend));
                assert!(seen.checksums, "{family:?} {protocol}");
                if host_routing == 0 {
                    let inside = node.datapath.receives(identity::WORLD, &outcome.packet)?;
                    assert_eq!((inside.verdict, seen_at(&inside).destination), (PASS, backend));
                }
            }
            assert_eq!(node.connections()?, 3, "of the device, and two of the pod; no choice of a backend");
            let reply = frame(A.node_mac, A.mac, &segment(backend, client, protocol, SYN | ACK));
            let outcome = ns.run(|| node.datapath.run(FROM_CONTAINER, &reply))?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.source, seen.destination), (REDIRECT, family.vip(), client));
            assert!(seen.checksums);
            // The twin: without the option the stack gets the packet as it is.
            let config = NodeConfig { before_services: 0, host_routing: 0, ..config };
            let node = Node::frontend(&config, family, protocol, &[family.b(BACKEND_PORT)])?;
            let packet = family.wrapped(backend.ip(), &segment(client, family.vip(), protocol, SYN));
            let outcome = arrive(&node, &packet)?;
            assert_eq!((outcome.verdict, &outcome.packet[14..]), (PASS, &packet[..]));
        }
    }
    Ok(())
}

/// An address of the host is a backend as well; its reply is translated at the device.
#[test]
fn an_address_of_the_host_is_a_backend() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    let out = ns.run(|| ifindex("out0"))?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let node = Node::frontend(&terminating(), family, protocol, &[family.b(BACKEND_PORT)])?;
            let (backend, client) = (family.host(SERVICE_PORT), family.remote_client());
            let request = segment(client, family.vip(), protocol, SYN);
            let outcome = arrive(&node, &family.wrapped(backend.ip(), &request))?;
            assert_eq!((outcome.verdict, seen_at(&outcome).destination), (PASS, backend), "{family:?}");
            let answer = from_network(backend, client, protocol, SYN | ACK);
            let incoming = Incoming { at: Some(out), ..Incoming::of_host() };
            let outcome = ns.run(|| node.datapath.run_with(TO_NETDEV, &answer, incoming))?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.source, seen.checksums), (PASS, family.vip(), true));
        }
    }
    Ok(())
}

/// Scenario 44: the proxy of the service on this node gets the packet with the frontend's address.
#[test]
fn a_proxy_of_the_node_gets_the_frontends_address() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::frontend(&terminating(), family, TCP, &[family.b(BACKEND_PORT)])?;
        let request = segment(family.remote_client(), family.vip(), TCP, SYN);
        let packet = family.wrapped(family.chosen().ip(), &request);
        node.set_flags(NODE_PORT, lb_flag2::LOOPBACK)?;
        let outcome = arrive(&node, &packet)?;
        assert_eq!((outcome.verdict, &outcome.packet[14..], outcome.mark), (PASS, &request[..], 0));
        assert_eq!(node.connections()?, 0);
        node.set_proxy(NODE_PORT, 10_080)?;
        let outcome = arrive(&node, &packet)?;
        assert_eq!((outcome.verdict, &outcome.packet[14..]), (PASS, &request[..]));
        assert_eq!(outcome.mark, mark::to_proxy(10_080_u16.to_be()));
    }
    Ok(())
}

/// Scenario 45: the word of an XDP program about the outer packet says nothing about the one inside.
#[test]
fn flags_of_xdp_about_the_outer_packet_are_ignored() -> Result<()> {
    test_kit::require_root!();
    const LOOKED_UP: [u32; 5] = [0, 0, 1, 0, 0];
    for (family, program) in FAMILIES.into_iter().zip(IPIP) {
        let config =
            NodeConfig { before_services: before_services::IPIP | before_services::XDP, ..terminating() };
        let node = Node::frontend(&config, family, TCP, &[family.b(BACKEND_PORT)])?;
        let request = segment(family.remote_client(), family.vip(), TCP, SYN);
        let packet = frame(DEVICE, ROUTER_MAC, &family.wrapped(family.chosen().ip(), &request));
        let run = |program: &str| {
            let incoming = Incoming { ingress_ifindex: IFINDEX, cb: LOOKED_UP, ..Incoming::default() };
            node.datapath.run_with(program, &packet, incoming)
        };
        assert_eq!(seen_at(&run(program)?).destination, family.chosen(), "{family:?}");
        // The control: the next program believes it.
        let next = datapath_object::PROGRAMS.iter().find(|program| {
            program.name
                == if family == Family::V4 { "tail_ipv4_from_netdev" } else { "tail_ipv6_from_netdev" }
        });
        let outcome = run(next.unwrap().name)?;
        assert_eq!(
            (outcome.packet.len(), addresses(&outcome.packet[14..]).0),
            (packet.len(), family.balancer())
        );
    }
    Ok(())
}

/// A packet inside that is to no frontend is the node's like any other: to a pod, to the host, or a frontend that drops it.
#[test]
fn packets_inside_are_handled_like_others() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::frontend(&terminating(), family, TCP, &[family.b(BACKEND_PORT)])?;
        let (client, host) = (family.remote_client(), family.host(22));
        let to = |destination| family.wrapped(host.ip(), &segment(client, destination, TCP, SYN));
        let outcome = arrive(&node, &to(family.b(1234)))?;
        assert_eq!((outcome.verdict, seen_at(&outcome).destination), (REDIRECT, family.b(1234)));
        assert_eq!(outcome.packet[..6], B.mac);
        let outcome = arrive(&node, &to(host))?;
        assert_eq!((outcome.verdict, seen_at(&outcome).destination), (PASS, host));
        // An ICMP error about a reply of the backend.
        arrive(&node, &family.wrapped(family.b(0).ip(), &segment(client, family.vip(), TCP, SYN)))?;
        let about = family.error_about(&segment(family.vip(), client, TCP, ACK));
        let outcome = arrive(&node, &family.wrapped(host.ip(), &about))?;
        assert_eq!(outcome.packet.len(), 14 + about.len(), "{family:?}");
        // A service that is not for clients outside, and one that is closed to this client.
        let packet = frame(DEVICE, ROUTER_MAC, &to(family.vip()));
        node.set_flags(0, 0)?;
        assert_eq!(node.refused(&packet)?, Some(drop::IS_A_CLUSTERIP));
        node.set_flags(NODE_PORT | lb_flag::SOURCE_RANGE, 0)?;
        assert_eq!(node.refused(&packet)?, Some(drop::DENIED_BY_LB_SRC_RANGE_CHECK));
        // One header is removed, not those inside of it.
        let twice = family.wrapped(host.ip(), &family.wrapped(host.ip(), &segment(client, host, TCP, SYN)));
        let outcome = arrive(&node, &twice)?;
        assert_eq!((outcome.verdict, unwrapped(family, &outcome.packet[14..]).0.1), (PASS, host.ip()));
    }
    Ok(())
}

/// Fragments of the packet inside have the backend of their own outer headers.
#[test]
fn fragments_inside_go_to_the_backend() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::frontend(&terminating(), family, UDP, &[family.b(BACKEND_PORT)])?;
        let (client, vip, backend) = (family.remote_client(), family.vip(), family.chosen());
        let udp = transport(client, vip, UDP, 0);
        for (offset, part) in [(0, &udp[..48]), (6, &udp[48..])] {
            let inner = ip_fragment(client.ip(), vip.ip(), UDP, (7, offset, offset == 0), part);
            let outcome = arrive(&node, &family.wrapped(backend.ip(), &inner))?;
            assert_eq!(outcome.verdict, REDIRECT, "{family:?} {offset} {outcome:?}");
            assert_eq!(addresses(&outcome.packet[14..]), (client.ip(), backend.ip()));
        }
        // The last one alone has no port: the ordinary way decides, and leaves it to the stack.
        let inner = ip_fragment(client.ip(), vip.ip(), UDP, (8, 6, false), &udp[48..]);
        let outcome = arrive(&node, &family.wrapped(backend.ip(), &inner))?;
        assert_eq!((outcome.verdict, &outcome.packet[14..]), (PASS, &inner[..]), "{family:?}");
    }
    Ok(())
}

/// Damaged headers, options, fragments, other receivers and other families stay as they are.
#[test]
fn other_outer_headers_are_left_as_they_are() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::frontend(&through_the_stack(), family, UDP, &[family.b(BACKEND_PORT)])?;
        let (backend, header) = (family.chosen().ip(), family.outer().1);
        let request = segment(family.remote_client(), family.vip(), UDP, 0);
        let good = family.wrapped(backend, &request);
        let summed = |mut packet: Vec<u8>| {
            if family == Family::V4 {
                let len = usize::from(packet[0] & 0xf) * 4;
                packet[10..12].fill(0);
                let sum = checksum(&packet[..len]);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            packet
        };
        let with = |at: usize, byte: u8| {
            let mut packet = good.clone();
            packet[at] = byte;
            summed(packet)
        };
        let other = if family == Family::V4 { Family::V6 } else { Family::V4 };
        let foreign = segment(other.remote_client(), other.vip(), UDP, 0);
        let mut cases = vec![
            ("another receiver", family.wrapped(family.outside(), &request)),
            ("the other family inside", family.wrapped(backend, &foreign)),
            ("another version inside", with(header, 0x75)),
            ("nothing inside", family.wrapped(backend, &[])),
            ("a part of a header inside", family.wrapped(backend, &request[..header - 2])),
            ("cut off", good[..good.len() - 1].to_vec()),
            ("shorter than the packet inside", family.wrapped(backend, &request[..request.len() - 1])),
        ];
        if family == Family::V4 {
            let mut damaged = good.clone();
            damaged[10] ^= 1;
            cases.extend([
                ("a wrong checksum", damaged),
                ("options", summed(with_longer_header(&good, 4))),
                ("a first fragment", with(6, 0x20)),
                ("a later fragment", with(7, 1)),
                ("a short header inside", with(header, 0x44)),
                ("a length below that of a header inside", with(header + 3, 19)),
            ]);
        } else {
            let (a, b) = (family.balancer(), backend);
            cases.push(("a fragment", ip_fragment(a, b, 41, (1, 0, true), &request)));
            // A header of destination options with padding.
            let options = [&[41, 0, 1, 4, 0, 0, 0, 0][..], &request].concat();
            cases.push(("options", ip(a, b, 60, &options)));
        }
        for (name, packet) in cases {
            let outcome = arrive(&node, &packet)?;
            let same = (outcome.verdict, &outcome.packet[14..]) == (PASS, &packet[..]);
            assert!(same, "{family:?} {name}: {outcome:?}");
        }
        // The control; padding of a short frame is no fault.
        let padded = [&good[..], &[0; 9]].concat();
        for packet in [good, padded] {
            assert_eq!(seen_at(&arrive(&node, &packet)?).destination, family.chosen());
        }
    }
    Ok(())
}

/// RFC 6040, 4.2: marks of routers between the nodes arrive if the sender knows such marks.
#[test]
fn marks_of_congestion_are_those_of_the_packet_inside() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::frontend(&terminating(), family, UDP, &[family.b(BACKEND_PORT)])?;
        for (outer, inner, expected) in [
            (3, 1, Some(3)),
            (3, 2, Some(3)),
            (3, 3, Some(3)),
            (2, 1, Some(1)),
            (0, 3, Some(3)),
            (3, 0, None),
        ] {
            let mut request = segment(family.remote_client(), family.vip(), UDP, 0);
            set_ecn(family, &mut request, inner);
            let mut packet = family.wrapped(family.chosen().ip(), &request);
            set_ecn(family, &mut packet, outer);
            let packet = frame(DEVICE, ROUTER_MAC, &packet);
            let Some(expected) = expected else {
                assert_eq!(node.refused(&packet)?, Some(drop::INVALID_PACKET_DROPPED), "{family:?}");
                continue;
            };
            let outcome = node.arrive(&packet)?;
            assert_eq!(outcome.verdict, REDIRECT, "{family:?} {outer} {inner}");
            assert!(seen_at(&outcome).checksums, "{family:?} {outer} {inner}");
            let class = u16::from_be_bytes([outcome.packet[14], outcome.packet[15]]);
            let class = if family == Family::V4 { class } else { class >> 4 };
            assert_eq!(class & 3, expected, "{family:?} {outer} {inner}");
        }
    }
    Ok(())
}

/// Whatever is in both headers: a packet is handled as one of them says, or dropped and counted.
#[test]
fn damaged_headers_are_handled_or_counted() -> Result<()> {
    test_kit::require_root!();
    const ROUNDS: usize = 4000;
    let mut numbers = Numbers::new(3);
    for family in FAMILIES {
        let config = NodeConfig { extended_protocols: 1, ..through_the_stack() };
        let mut node = Node::frontend(&config, family, UDP, &[family.b(BACKEND_PORT)])?;
        let request = segment(family.remote_client(), family.vip(), UDP, 0);
        let good = family.wrapped(family.chosen().ip(), &request);
        let headers = 2 * family.outer().1 + 8;
        let dropped = |node: &mut Node| -> Result<u64> {
            let drops = node.datapath.counters()?.into_iter().filter(|(key, ..)| key.is_drop());
            Ok(drops.map(|(_, packets, _)| packets).sum())
        };
        let before = dropped(&mut node)?;
        let (mut stripped, mut left, mut drops) = (0, 0, 0);
        for _ in 0..ROUNDS {
            let mut packet = good.clone();
            for _ in 0..numbers.below(3) {
                packet[numbers.below(headers)] = numbers.below(256) as u8;
            }
            packet.truncate(packet.len() - numbers.below(3) * numbers.below(packet.len() / 4));
            let outcome = arrive(&node, &packet)?;
            match outcome.packet.len() - 14 {
                _ if outcome.verdict == SHOT => drops += 1,
                len if len == packet.len() => {
                    anyhow::ensure!(outcome.packet[14..] == packet, "{packet:02x?} {outcome:?}");
                    left += 1;
                }
                len => {
                    anyhow::ensure!(len + family.outer().1 == packet.len(), "{packet:02x?} {outcome:?}");
                    stripped += 1;
                }
            }
        }
        assert!(stripped > 500 && left > 500, "{family:?} {stripped} {left} {drops}");
        assert_eq!(dropped(&mut node)? - before, drops);
    }
    Ok(())
}

/// A missing program drops the packet: the stack might do with the outer header what programs would not.
#[test]
fn a_missing_program_drops_the_packet() -> Result<()> {
    test_kit::require_root!();
    let mut node = Node::frontend(&terminating(), Family::V4, TCP, &[Family::V4.b(BACKEND_PORT)])?;
    let request = segment(Family::V4.remote_client(), Family::V4.vip(), TCP, SYN);
    let packet = frame(DEVICE, ROUTER_MAC, &Family::V4.wrapped(Family::V4.chosen().ip(), &request));
    node.datapath.empty_slot(datapath_abi::slot::IPV4_IPIP)?;
    let why = node.datapath.dropped(direction::INGRESS, |datapath| datapath.run(FROM_NETDEV, &packet))?;
    assert_eq!(why, Some(drop::MISSED_TAIL_CALL));
    Ok(())
}

/// From the client by both nodes back to it: what XDP of one node sends is what the other one's device receives.
#[test]
fn the_backends_node_replies_to_a_client_of_another_node() -> Result<()> {
    test_kit::require_root!();
    xdp::cases(|family, protocol| {
        let config = NodeConfig { before_services: before_services::XDP, ..by_ipip() };
        let backend = SocketAddr::new(family.remote().ip(), SERVICE_PORT);
        let first = xdp::Entry::new(&config, family, protocol, &[backend])?;
        let sent = first.arrive(&first.request(SYN))?;
        let mut second = Node::frontend(&terminating(), family, protocol, &[family.b(BACKEND_PORT)])?;
        second.datapath.add(&BACKEND)?;
        let outcome = arrive(&second, &sent.packet[14..])?;
        let seen = seen_at(&outcome);
        assert_eq!((outcome.verdict, seen.source, seen.destination), (REDIRECT, first.client(), backend));
        assert!(seen.checksums);
        // 63 of the first node, one less into the pod.
        assert_eq!(outcome.packet[14..20], with_hops(outcome.packet[14..].to_vec(), 62)[..6]);
        let reply = frame(A.node_mac, A.mac, &segment(backend, first.client(), protocol, SYN | ACK));
        let outcome = first.ns.run(|| second.datapath.run(FROM_CONTAINER, &reply))?;
        let seen = seen_at(&outcome);
        assert_eq!(
            (outcome.verdict, seen.source, seen.destination),
            (REDIRECT, family.vip(), first.client())
        );
        Ok(())
    })
}
