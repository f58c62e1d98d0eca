//! Services: what pods send to them goes to a backend, answers come back in their name, every checksum right.

use crate::kit::*;
use crate::l4::*;
use crate::packet::{FIN, RST};
use crate::service::*;
use anyhow::Result;
use datapath_abi::{NodeConfig, direction, drop, lb_backend_state, lb_flag2, mark};
use std::collections::BTreeSet;
use std::net::SocketAddr;

#[test]
fn a_packet_to_a_service_goes_to_its_backend() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let mut node = Node::new(family, protocol, &[family.b(8080)])?;
            let outcome = node.send(SYN)?;
            let seen = seen_at(&outcome);
            assert_eq!(
                (outcome.verdict, seen.destination),
                (REDIRECT, family.b(8080)),
                "{family:?} {protocol}"
            );
            assert_eq!(seen.source, family.client(), "{family:?} {protocol}");
            assert!(seen.checksums, "{family:?} {protocol}");
            // The control: without the service's row the packet is left to the routes of the node, as it was sent.
            node.remove_frontend()?;
            let outcome = node.send(ACK)?;
            assert_eq!((outcome.verdict, seen_at(&outcome).destination), (PASS, family.vip()));
        }
    }
    Ok(())
}

/// The proxy of a service gets packets as they were sent, whatever the client's policy; with it they change their way in
/// the middle of a connection.
#[test]
fn a_proxy_has_the_packets_of_its_service() -> Result<()> {
    const PROXY_PORT: u16 = 10_080;
    const TO_PROXY: u32 = mark::to_proxy(PROXY_PORT.to_be());
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let mut node = Node::new(family, protocol, &[family.b(8080)])?;
            assert_eq!(seen_at(&node.send(SYN)?).destination, family.b(8080), "the control");
            node.set_proxy(0, PROXY_PORT)?;
            for flags in [ACK, SYN] {
                let outcome = node.send(flags)?;
                assert_eq!((outcome.verdict, outcome.mark), (PASS, TO_PROXY), "{family:?} {protocol}");
                assert_eq!(seen_at(&outcome).destination, family.vip(), "{family:?} {protocol}");
            }
            node.datapath.deny(&A)?;
            assert_eq!(node.send(ACK)?.mark, TO_PROXY, "policy is the proxy's");
            let direct = frame(A.node_mac, A.mac, &segment(family.client(), family.b(8080), protocol, SYN));
            assert_eq!(node.datapath.sends(&direct)?.verdict, SHOT, "the twin");
            node.set_backends(&[])?;
            node.set_proxy(0, PROXY_PORT)?;
            assert_eq!(node.send(SYN)?.mark, TO_PROXY, "the proxy answers without backends, too");
        }
    }
    Ok(())
}

/// A checksum of zero says that there is none (IPv4): there is none afterwards.
#[test]
fn a_udp_packet_without_checksum_stays_without() -> Result<()> {
    test_kit::require_root!();
    let family = Family::V4;
    let node = Node::new(family, UDP, &[family.b(8080)])?;
    let mut packet = family.packet(UDP, 0);
    let at = l4_offset(&packet) + 6;
    packet[at..at + 2].fill(0);
    let outcome = node.datapath.sends(&packet)?;
    assert_eq!(seen_at(&outcome).destination, family.b(8080));
    assert_eq!(outcome.packet[at..at + 2], [0, 0]);
    Ok(())
}

/// SCTP's checksum covers its ports: they stay, as in Cilium.
#[test]
fn sctp_keeps_its_port() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let config = NodeConfig { sctp: 1, ..default_config() };
        let node = Node::with(&config, family, SCTP, &[family.b(8080)])?;
        let seen = seen_at(&node.send(0)?);
        assert_eq!(seen.destination, family.b(SERVICE_PORT), "{family:?}");
        assert!(seen.checksums);
    }
    Ok(())
}

#[test]
fn an_answer_comes_in_the_name_of_the_service() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let node = Node::new(family, protocol, &[family.b(8080)])?;
            assert_eq!(node.send(SYN)?.verdict, REDIRECT);
            let outcome = node.answer(family.b(8080), family.client(), SYN | ACK)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.source), (PASS, family.vip()), "{family:?} {protocol}");
            assert_eq!(seen.destination, family.client(), "{family:?} {protocol}");
            assert!(seen.checksums, "{family:?} {protocol}");
            // The twin: another port of the same pod has not been asked through the service.
            let other = node.answer(family.b(8081), family.client(), SYN | ACK)?;
            assert_eq!(seen_at(&other).source, family.b(8081), "{family:?} {protocol}");
        }
    }
    Ok(())
}

/// A direct connection beside one through the service is answered in the pod's own name.
#[test]
fn a_direct_connection_stays_direct() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::new(family, TCP, &[family.b(8080)])?;
        let direct = SocketAddr::new(family.client().ip(), 41000);
        let packet = frame(A.node_mac, A.mac, &segment(direct, family.b(8080), TCP, SYN));
        assert_eq!(seen_at(&node.datapath.sends(&packet)?).destination, family.b(8080));
        assert_eq!(seen_at(&node.answer(family.b(8080), direct, SYN | ACK)?).source, family.b(8080));
    }
    Ok(())
}

/// Packets to a service without backends are left to the node's routes only if policy lets them out.
#[test]
fn policy_judges_packets_to_services_without_backends() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let routed = NodeConfig { empty_services_drop: 0, ..default_config() };
        let mut node = Node::with(&routed, family, TCP, &[])?;
        assert_eq!(node.send(SYN)?.verdict, PASS, "{family:?}, the control");
        node.datapath.deny(&A)?;
        assert_eq!(node.send(SYN)?.verdict, SHOT, "{family:?}");
        assert_eq!(node.datapath.counted(drop::POLICY_DENIED, direction::EGRESS)?, 1, "{family:?}");
    }
    Ok(())
}

/// A client that opens a connection on the ports of one that has ended is sent to any backend, at once and not to the old
/// one, which may be on its way out.
#[test]
fn a_new_connection_on_closed_ports_chooses_a_backend_anew() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for end in [FIN | ACK, RST] {
            let mut node = Node::new(family, TCP, &[family.b(8080)])?;
            for flags in [SYN, ACK] {
                node.send(flags)?;
            }
            // The old backend still serves those that it has.
            node.set_backends(&[family.b(8081)])?;
            let goes_to =
                |node: &Node, flags| Ok::<_, anyhow::Error>(seen_at(&node.send(flags)?).destination);
            assert_eq!(goes_to(&node, SYN)?, family.b(8080), "the control: it has not ended");
            node.send(end)?;
            assert_eq!(goes_to(&node, ACK)?, family.b(8080), "the last packets of the connection");
            assert_eq!(goes_to(&node, SYN | ACK)?, family.b(8080), "which this opens none");
            assert_eq!(goes_to(&node, SYN)?, family.b(8081), "{family:?}, ended by {end}");
            assert_eq!(goes_to(&node, ACK)?, family.b(8081), "{family:?}, ended by {end}");
        }
    }
    Ok(())
}

/// A SYN|ACK may belong to the connection that has ended, until the grace time is over.
#[test]
fn a_syn_ack_stays_with_a_closed_connection_for_the_grace_time() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for (ct_service_tcp_grace, expected) in [(60, 8080), (0, 8081)] {
            let config = NodeConfig { ct_service_tcp_grace, ..default_config() };
            let mut node = Node::with(&config, family, TCP, &[family.b(8080)])?;
            node.send(SYN)?;
            node.send(RST)?;
            node.set_backends(&[family.b(8081)])?;
            assert_eq!(seen_at(&node.send(SYN | ACK)?).destination, family.b(expected), "{family:?}");
        }
    }
    Ok(())
}

/// Scenario 73.
#[test]
fn a_service_without_backends_refuses_or_drops() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let silent = NodeConfig { empty_services_reject: 0, ..default_config() };
            let mut node = Node::with(&silent, family, protocol, &[])?;
            assert_eq!(node.send(SYN)?.verdict, SHOT);
            let counted = node.datapath.counted(drop::SERVICE_BACKEND_NOT_FOUND, direction::EGRESS)?;
            assert_eq!(counted, 1, "{family:?} {protocol}");
            // The twin with a backend passes.
            node.set_backends(&[family.b(8080)])?;
            assert_eq!(node.send(SYN)?.verdict, REDIRECT, "{family:?} {protocol}");

            // Told by ICMP, from the service to the sender, about the packet that was sent.
            let node = Node::new(family, protocol, &[])?;
            let outcome = node.send(SYN)?;
            assert_eq!(outcome.verdict, REDIRECT, "{family:?} {protocol}");
            let error = seen_at(&outcome);
            assert_eq!(error.source.ip(), family.vip().ip());
            assert_eq!((error.destination.ip(), error.protocol), (family.client().ip(), family.icmp()));
            assert!(error.checksums, "{family:?} {protocol}");
            assert_eq!(outcome.packet[..12], [A.mac, A.node_mac].concat());
            let message = l4_offset(&outcome.packet);
            assert_eq!(outcome.packet[message..message + 2], family.port_unreachable());
            assert_eq!(quoted(&outcome.packet), (family.client(), family.vip()));

            // Or left to the routes of the node.
            let routed = NodeConfig { empty_services_drop: 0, ..default_config() };
            let outcome = Node::with(&routed, family, protocol, &[])?.send(SYN)?;
            assert_eq!((outcome.verdict, seen_at(&outcome).destination), (PASS, family.vip()));
        }
    }
    Ok(())
}

#[test]
fn new_connections_go_to_all_backends_and_stay_there() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let backends = [family.b(8080), family.b(8081), family.b(8082)];
        let node = Node::new(family, TCP, &backends)?;
        let mut reached = BTreeSet::new();
        for port in 30000..30100 {
            let client = SocketAddr::new(family.client().ip(), port);
            let send = |flags| -> Result<SocketAddr> {
                let packet = frame(A.node_mac, A.mac, &segment(client, family.vip(), TCP, flags));
                Ok(seen_at(&node.datapath.sends(&packet)?).destination)
            };
            let backend = send(SYN)?;
            assert_eq!([send(ACK)?, send(ACK)?], [backend; 2], "{family:?}");
            reached.insert(backend);
        }
        assert_eq!(reached, BTreeSet::from(backends), "{family:?}");
    }
    Ok(())
}

#[test]
fn a_backend_that_leaves_keeps_its_connections_until_it_is_gone() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family, TCP, &[family.b(8080)])?;
        assert_eq!(seen_at(&node.send(SYN)?).destination, family.b(8080));
        // It is about to leave, another one has come.
        node.set_state(0, lb_backend_state::TERMINATING)?;
        node.set_backends(&[family.b(8081)])?;
        assert_eq!(seen_at(&node.send(ACK)?).destination, family.b(8080), "{family:?}: stays");
        assert_eq!(seen_at(&node.send(SYN)?).destination, family.b(8081), "{family:?}: begins anew");
        assert_eq!(seen_at(&node.send(ACK)?).destination, family.b(8081), "{family:?}: and stays there");
        // Gone without a farewell.
        node.remove_backend(1)?;
        node.set_backends(&[family.b(8082)])?;
        assert_eq!(seen_at(&node.send(ACK)?).destination, family.b(8082), "{family:?}");
    }
    Ok(())
}

/// The agent takes a backend's row before its slot: a new connection that draws the slot goes to the next one.
#[test]
fn a_slot_without_backend_is_passed_over() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family, TCP, &[family.b(8080), family.b(8081)])?;
        node.remove_backend(0)?;
        for port in 30000..30050 {
            let client = SocketAddr::new(family.client().ip(), port);
            let packet = frame(A.node_mac, A.mac, &segment(client, family.vip(), TCP, SYN));
            let seen = seen_at(&node.datapath.sends(&packet)?);
            assert_eq!(seen.destination, family.b(8081), "{family:?}");
        }
    }
    Ok(())
}

/// Scenario 72: a pod that is its own backend: from the loopback address in, and back to itself in the name of the service.
/// No policy is asked.
#[test]
fn a_pod_reaches_itself_through_a_service() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let own = SocketAddr::new(family.client().ip(), 8080);
            let mut node = Node::new(family, protocol, &[own])?;
            node.datapath.deny(&A)?;
            let outcome = node.send(SYN)?;
            let inside = seen_at(&outcome);
            let stand_in = SocketAddr::new(family.loopback(), family.client().port());
            assert_eq!(outcome.verdict, REDIRECT, "{family:?} {protocol}");
            assert_eq!((inside.source, inside.destination), (stand_in, own), "{family:?} {protocol}");
            assert!(inside.checksums, "{family:?} {protocol}");
            assert_eq!(outcome.packet[..6], A.mac);

            let back = frame(A.node_mac, A.mac, &segment(own, stand_in, protocol, SYN | ACK));
            let outcome = node.datapath.sends(&back)?;
            let answer = seen_at(&outcome);
            assert_eq!(outcome.verdict, REDIRECT, "{family:?} {protocol}");
            assert_eq!((answer.source, answer.destination), (family.vip(), family.client()), "{family:?}");
            assert!(answer.checksums, "{family:?} {protocol}");
            assert_eq!(node.send(ACK)?.verdict, REDIRECT, "{family:?} {protocol}: goes on");

            // The twin: the same packets without a connection of its own behind them are for policy, which denies.
            let mut alone = Node::new(family, protocol, &[own])?;
            alone.datapath.deny(&A)?;
            assert_eq!(alone.datapath.sends(&back)?.verdict, SHOT, "{family:?} {protocol}");
        }
    }
    Ok(())
}

/// An error about a packet to a service, from the backend: the pod gets it from the service, about what it has sent.
#[test]
fn an_icmp_error_speaks_of_the_service() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let node = Node::new(family, protocol, &[family.b(8080)])?;
            let arrived = node.send(SYN)?.packet;
            let error = family.error_about(&arrived[14..]);
            let outcome = node.receive(&error)?;
            let seen = seen_at(&outcome);
            assert_eq!(
                (outcome.verdict, seen.source.ip()),
                (PASS, family.vip().ip()),
                "{family:?} {protocol}"
            );
            assert!(seen.checksums, "{family:?} {protocol}");
            assert_eq!(quoted(&outcome.packet), (family.client(), family.vip()), "{family:?} {protocol}");
            let quoted_packet = &outcome.packet[l4_offset(&outcome.packet) + 8..];
            if family == Family::V4 {
                assert_eq!(crate::packet::checksum(&quoted_packet[..20]), 0, "header in the error");
            }
        }
    }
    Ok(())
}

/// A service is for its protocol and port; ICMP has none.
#[test]
fn what_is_no_service_is_not_translated() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::new(family, TCP, &[family.b(8080)])?;
        let other_port = SocketAddr::new(family.vip().ip(), 81);
        let packets = [
            ("another port", segment(family.client(), other_port, TCP, SYN)),
            ("another protocol", segment(family.client(), family.vip(), UDP, 0)),
            ("an echo", family.echo()),
        ];
        for (what, packet) in packets {
            let outcome = node.datapath.sends(&frame(A.node_mac, A.mac, &packet))?;
            assert_eq!(outcome.verdict, PASS, "{family:?}: {what}");
            assert_eq!(seen_at(&outcome).destination.ip(), family.vip().ip(), "{family:?}: {what}");
        }
        assert_eq!(seen_at(&node.send(SYN)?).destination, family.b(8080), "{family:?}: the control");
    }
    Ok(())
}

/// Scenario 89: inside of the cluster the row of that scope counts, where there are two.
#[test]
fn a_service_with_two_scopes_is_seen_from_inside() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family, TCP, &[family.b(8080)])?;
        node.add_scope(&[family.b(8090)])?;
        assert_eq!(seen_at(&node.send(SYN)?).destination, family.b(8090), "{family:?}");
    }
    Ok(())
}

#[test]
fn clients_of_a_service_with_affinity_come_back() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let backends: Vec<SocketAddr> = (8080..8090).map(|port| family.b(port)).collect();
        let mut node = Node::new(family, TCP, &backends)?;
        let reached = |node: &Node, ports: std::ops::Range<u16>| -> Result<BTreeSet<SocketAddr>> {
            let mut reached = BTreeSet::new();
            for port in ports {
                let client = SocketAddr::new(family.client().ip(), port);
                let packet = frame(A.node_mac, A.mac, &segment(client, family.vip(), TCP, SYN));
                reached.insert(seen_at(&node.datapath.sends(&packet)?).destination);
            }
            Ok(reached)
        };
        assert!(reached(&node, 20000..20050)?.len() > 1, "{family:?}: the control");
        node.set_affinity(3600)?;
        let one = reached(&node, 21000..21050)?;
        assert_eq!(one.len(), 1, "{family:?}");
        // Its backend does not take it any more (nor is it kept there when it comes by chance): another one, for good.
        let left = one.first().copied().unwrap();
        node.refuse_affinity(left)?;
        let mut others = reached(&node, 22000..22050)?;
        others.remove(&left);
        assert_eq!(others.len(), 1, "{family:?}");
        // Nobody is remembered for no time at all.
        node.set_affinity(0)?;
        assert!(reached(&node, 23000..23050)?.len() > 1, "{family:?}");
    }
    Ok(())
}

/// All pieces of a datagram go to the same backend; only the first has ports and a checksum to rewrite.
#[test]
fn fragments_follow_the_first() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family, UDP, &[family.b(8080), family.b(8081)])?;
        let datagram = transport(family.client(), family.vip(), UDP, 0);
        let (source, destination) = (family.client().ip(), family.vip().ip());
        let piece = |offset, more, bytes: &[u8]| {
            frame(A.node_mac, A.mac, &ip_fragment(source, destination, UDP, (77, offset, more), bytes))
        };
        let late = node.datapath.sends(&piece(4, false, &datagram[32..]))?;
        assert_eq!(late.verdict, SHOT, "{family:?}: nobody knows its ports");
        let reason = drop::FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND;
        assert_eq!(node.datapath.counted(reason, direction::EGRESS)?, 1, "{family:?}");

        let first = node.datapath.sends(&piece(0, true, &datagram[..32]))?;
        let later = node.datapath.sends(&piece(4, false, &datagram[32..]))?;
        assert_eq!((first.verdict, later.verdict), (REDIRECT, REDIRECT), "{family:?}");
        let headers = first.packet.len() - 32;
        let whole = [&first.packet[headers..], &later.packet[headers..]].concat();
        assert_eq!(later.packet[headers..], datagram[32..], "{family:?}: payload is not touched");
        let backend = addresses(&later.packet[14..]).1;
        let rebuilt = seen_packet(&ip(source, backend, UDP, &whole));
        assert!(rebuilt.checksums, "{family:?}");
        assert!([family.b(8080), family.b(8081)].contains(&rebuilt.destination), "{family:?}");
    }
    Ok(())
}

/// A forged source does not even make a row.
#[test]
fn a_forged_source_is_dropped_before_the_service() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family, TCP, &[family.b(8080)])?;
        let forged = SocketAddr::new(family.outside(), 40000);
        let packet = frame(A.node_mac, A.mac, &segment(forged, family.vip(), TCP, SYN));
        assert_eq!(node.datapath.sends(&packet)?.verdict, SHOT, "{family:?}");
        assert_eq!(node.datapath.counted(drop::INVALID_SOURCE_IP, direction::EGRESS)?, 1);
        assert_eq!(node.connections()?, 0, "{family:?}");
        // The twin with the pod's own address makes three: the service's, the connection's, both ways, and its errors'.
        assert_eq!(node.send(SYN)?.verdict, REDIRECT, "{family:?}");
        assert!(node.connections()? > 0, "{family:?}");
    }
    Ok(())
}

/// IPv4 options and IPv6 extension headers move the header that is rewritten.
#[test]
fn longer_headers_are_passed_over() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let node = Node::new(family, protocol, &[family.b(8080)])?;
            for longer in [8, 24] {
                let (client, vip) = (family.client(), family.vip());
                let sent = with_longer_header(&segment(client, vip, protocol, SYN), longer);
                let outcome = node.datapath.sends(&frame(A.node_mac, A.mac, &sent))?;
                let seen = seen_packet(&without_longer_header(&outcome.packet[14..], longer));
                assert_eq!(outcome.verdict, REDIRECT, "{family:?} {protocol} {longer}");
                assert_eq!(seen.destination, family.b(8080), "{family:?} {protocol} {longer}");
                assert!(seen.checksums, "{family:?} {protocol} {longer}");

                let back = segment(family.b(8080), client, protocol, SYN | ACK);
                let outcome = node.receive(&with_longer_header(&back, longer))?;
                let seen = seen_packet(&without_longer_header(&outcome.packet[14..], longer));
                assert_eq!((outcome.verdict, seen.source), (PASS, vip), "{family:?} {protocol} {longer}");
                assert!(seen.checksums, "{family:?} {protocol} {longer}");
            }
        }
    }
    Ok(())
}

/// Scenario 78, per packet: the pod that a policy redirects a frontend to reaches the frontend itself, where the policy says
/// so (`skipRedirectFromBackend`).
#[test]
fn a_backend_reaches_the_frontend_that_skips_its_redirection() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let own = SocketAddr::new(family.client().ip(), 8080);
            let mut node = Node::new(family, protocol, &[own])?;
            node.set_flags(0, lb_flag2::LOCAL_REDIRECT)?;
            // The controls: no row, and rows of another namespace and of another port.
            let redirected = |node: &Node| -> Result<()> {
                assert_eq!(seen_at(&node.send(SYN)?).destination, own, "{family:?} {protocol}");
                Ok(())
            };
            redirected(&node)?;
            let (vip, cookie) = (family.vip(), u64::from(A.netns_cookie));
            node.skip(cookie + 1, vip)?;
            node.skip(cookie, SocketAddr::new(vip.ip(), vip.port() + 1))?;
            redirected(&node)?;
            node.skip(cookie, vip)?;
            for flags in [SYN, ACK] {
                let outcome = node.send(flags)?;
                assert_eq!(
                    outcome.packet[14..],
                    family.packet(protocol, flags)[14..],
                    "{family:?} {protocol}"
                );
            }
            // Another service has no policy.
            node.set_flags(0, 0)?;
            redirected(&node)?;
        }
    }
    Ok(())
}
