//! Flows of the host beside those of pods that have its address, and errors about them.

use crate::kit::*;
use crate::l4::*;
use crate::masquerade::{Node, addresses, config, echo, echo_id, error_about};
use crate::nodeport::{self, BACKEND_PORT, NODE_PORT};
use crate::nodeport_remote::native;
use crate::service::{FAMILIES, Family, quoted};
use anyhow::Result;
use datapath_abi::{DIRECT_ROUTING, NodeConfig, direction, drop, lb_flag2, mark, tuple_flag};
use datapath_object::TO_NETDEV;
use std::net::{IpAddr, SocketAddr};

impl Family {
    /// An address of the host that pods do not leave with.
    fn second_host(self) -> IpAddr {
        if self == Family::V4 { [192, 0, 2, 50].into() } else { "2001:db8::50".parse().unwrap() }
    }
}

/// Scenario 62: the identifier of the host's ping is reserved like a port, and a pod's ping gets another one.
#[test]
fn identifiers_of_the_hosts_pings_are_reserved() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::new(family)?;
        let (host, peer) = (node.host(), node.peer().ip());
        let sent = echo(family, host, peer, false, 40_000);
        assert_eq!(node.leaves_host(&sent)?.packet, frame(A.node_mac, A.mac, &sent));
        let flags: Vec<_> = node.rows()?.into_iter().map(|row| (row.0, row.4)).collect();
        assert_eq!(flags, [(tuple_flag::OUT, 1), (tuple_flag::IN, 1)], "{family:?}");
        assert_eq!(node.connections()?, 1);
        let of_pod = node.leaves(&echo(family, node.pod(0).ip(), peer, false, 40_000))?;
        let moved = echo_id(&of_pod.packet);
        assert_ne!(moved, 40_000, "{family:?}");
        for (id, receiver) in [(40_000, host), (moved, node.pod(0).ip())] {
            let outcome = node.enters(&echo(family, peer, host, true, id))?;
            assert_eq!(seen(&outcome.packet).destination.ip(), receiver, "{family:?} {id}");
            assert_eq!(echo_id(&outcome.packet), 40_000);
        }
    }
    Ok(())
}

/// Scenario 65: flows of the host's other addresses and of its proxies have an entry of connection tracking by which their
/// rows live; the pod's own programs have that of a pod's.
#[test]
fn flows_of_the_host_have_entries_and_those_of_pods_have_their_own() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for carried in [0x4000 | mark::HOST, 0, mark::PROXY_EGRESS] {
            let mut node = Node::new(family)?;
            let (own, peer) = (SocketAddr::new(family.second_host(), 40_000), node.peer());
            node.datapath.add_host(own.ip())?;
            let sent = frame(A.node_mac, A.mac, &segment(own, peer, UDP, 0));
            let incoming = Incoming { mark: carried, ..Incoming::default() };
            let outcome = node.datapath.run_with(TO_NETDEV, &sent, incoming)?;
            assert_eq!((outcome.verdict, &outcome.packet), (PASS, &sent), "{family:?} {carried:x}");
            let rows = [(tuple_flag::OUT, own, peer, own, 1), (tuple_flag::IN, peer, own, own, 1)];
            assert_eq!(node.rows()?, rows, "{family:?} {carried:x}");
            assert_eq!(node.connections()?, 1, "{family:?} {carried:x}");
        }
        let mut node = Node::new(family)?;
        node.translated(node.pod(40_000), node.peer(), UDP)?;
        assert!(node.rows()?.iter().all(|row| row.4 == 0), "{family:?}");
        assert_eq!(node.connections()?, 0, "{family:?}");
    }
    Ok(())
}

/// Scenario 71: a router's MTU reaches the pod, also with a tunnel and with the host firewall.
#[test]
fn path_mtus_reach_pods_behind_the_nodes_address() -> Result<()> {
    test_kit::require_root!();
    let features: [fn(&mut NodeConfig); 4] = [
        |_| {},
        |c| (c.tunnel, c.tunnel_ifindex) = (1, 7),
        |c| c.host_firewall = 1,
        |c| (c.nodeport, c.host_routing) = (1, 1),
    ];
    for family in FAMILIES {
        let router: IpAddr =
            if family == Family::V4 { "203.0.113.254".parse()? } else { "2001:db8:78::254".parse()? };
        for (case, enable) in features.into_iter().enumerate() {
            for protocol in [TCP, UDP] {
                let mut config = config();
                enable(&mut config);
                let node = Node::with(family, &config)?;
                let (pod, peer) = (node.pod(1024), node.peer());
                let left = node.leaves(&segment(pod, peer, protocol, ACK))?;
                assert_eq!(seen(&left.packet).source.ip(), node.host(), "{family:?} {case}");
                let outcome = node.enters(&error_about(family, router, &left.packet, 512))?;
                let expected = if config.host_routing == 1 { REDIRECT } else { PASS };
                assert_eq!(outcome.verdict, expected, "{family:?} {case} {outcome:?}");
                let error = seen(&outcome.packet);
                assert!(error.checksums, "{family:?} {case}");
                assert_eq!((error.source.ip(), error.destination.ip()), (router, pod.ip()));
                assert_eq!(quoted(&outcome.packet), (pod, peer), "{family:?} {case}");
                let at = l4_offset(&outcome.packet);
                assert_eq!(outcome.packet[at + 6..at + 8], [5, 0], "{family:?}: the MTU");
            }
        }
    }
    Ok(())
}

/// Scenario 21: a frontend with backends for one of the two scopes serves clients outside, and drops those inside without
/// a choice of a backend.
#[test]
fn a_frontend_may_serve_clients_outside_alone() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let config = NodeConfig { empty_services_reject: 0, ..native() };
        let mut node = nodeport_node(&config, family)?;
        node.add_scope(&[])?;
        node.set_flags(NODE_PORT, lb_flag2::TWO_SCOPES)?;
        let packet = family.packet(TCP, SYN);
        let why = node.datapath.dropped(direction::EGRESS, |datapath| datapath.sends(&packet))?;
        assert_eq!(why, Some(drop::SERVICE_BACKEND_NOT_FOUND), "{family:?}");
        assert_eq!(node.connections()?, 0, "{family:?}");
        let request = nodeport::from_network(family.remote_client(), family.vip(), TCP, SYN);
        let outcome = node.arrive(&request)?;
        assert_eq!(seen(&outcome.packet).destination, family.b(BACKEND_PORT), "{family:?}");
        assert_eq!(node.connections()?, 2, "the choice, and the connection");
    }
    Ok(())
}

fn nodeport_node(config: &NodeConfig, family: Family) -> Result<crate::service::Node> {
    let mut node = crate::service::Node::frontend(config, family, TCP, &[family.b(BACKEND_PORT)])?;
    node.datapath.put::<4, 64>("ep_masquerade", &DIRECT_ROUTING, &addresses())?;
    Ok(node)
}
