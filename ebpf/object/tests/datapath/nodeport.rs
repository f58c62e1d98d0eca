//! Services for clients outside the cluster: packets that a device receives, and replies of backends of this node.

use crate::kit::*;
use crate::l4::*;
use crate::packet::{FIN, RST};
use crate::service::*;
use crate::uplink::routed;
use anyhow::{Context as _, Result};
use datapath_abi::{NodeConfig, direction, drop, identity, lb_backend_state, lb_flag, lb_flag2, mark};
use datapath_object::{FROM_CONTAINER, FROM_NETDEV, TO_NETDEV};
use std::net::SocketAddr;
use test_kit::NetNs;

pub(crate) use crate::entry::{BACKEND_PORT, DEVICE, NODE_PORT, ROUTER_MAC};

pub(crate) const CLIENT_PORT: u16 = 41000;

fn bypassing() -> NodeConfig {
    NodeConfig { nodeport: 1, ..host_routing_config() }
}

fn through_the_stack() -> NodeConfig {
    NodeConfig { host_routing: 0, ..bypassing() }
}

impl Family {
    pub(crate) fn remote_client(self) -> SocketAddr {
        SocketAddr::new(self.outside(), CLIENT_PORT)
    }

    fn a(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.client().ip(), port)
    }
}

/// A packet from the network.
pub(crate) fn from_network(source: SocketAddr, destination: SocketAddr, protocol: u8, flags: u8) -> Vec<u8> {
    frame(DEVICE, ROUTER_MAC, &segment(source, destination, protocol, flags))
}

impl Node {
    pub(crate) fn frontend(
        config: &NodeConfig,
        family: Family,
        protocol: u8,
        backends: &[SocketAddr],
    ) -> Result<Node> {
        let mut node = Node::with(config, family, protocol, backends)?;
        node.set_flags(NODE_PORT, 0)?;
        Ok(node)
    }

    /// A client's packet to the frontend, at a device.
    fn request(&self, family: Family, protocol: u8, flags: u8) -> Result<Outcome> {
        self.arrive(&from_network(family.remote_client(), family.vip(), protocol, flags))
    }

    pub(crate) fn arrive(&self, packet: &[u8]) -> Result<Outcome> {
        self.datapath.run(FROM_NETDEV, packet)
    }

    /// The reason for which the packet is dropped.
    pub(crate) fn refused(&mut self, packet: &[u8]) -> Result<Option<u8>> {
        self.datapath.dropped(direction::INGRESS, |datapath| datapath.run(FROM_NETDEV, packet))
    }
}

/// Scenarios 1 and 2: source and source port stay, MAC addresses are those of the node and the pod.
#[test]
fn a_clients_packet_goes_to_a_pod_of_the_node() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            for (config, verdict) in [(bypassing(), REDIRECT), (through_the_stack(), PASS)] {
                let mut node = Node::frontend(&config, family, protocol, &[family.b(BACKEND_PORT)])?;
                let outcome = node.request(family, protocol, SYN)?;
                let seen = seen_at(&outcome);
                assert_eq!(
                    (outcome.verdict, seen.destination),
                    (verdict, family.b(BACKEND_PORT)),
                    "{family:?}"
                );
                assert_eq!(seen.source, family.remote_client());
                assert!(seen.checksums, "{family:?} {protocol}");
                let macs = if verdict == REDIRECT { [B.mac, B.node_mac] } else { [DEVICE, ROUTER_MAC] };
                assert_eq!(outcome.packet[..12], macs.concat());
                // The twin: another port of the address is not the service's. Nor is it without its row.
                let beside = SocketAddr::new(family.vip().ip(), SERVICE_PORT + 1);
                let packet = from_network(family.remote_client(), beside, protocol, SYN);
                let outcome = node.arrive(&packet)?;
                assert_eq!((outcome.verdict, outcome.packet), (PASS, packet));
                node.remove_frontend()?;
                assert_eq!(seen_at(&node.request(family, protocol, ACK)?).destination, family.vip());
            }
        }
    }
    Ok(())
}

/// Without kube-proxy replacement devices leave services alone.
#[test]
fn devices_serve_nothing_without_kube_proxy_replacement() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for host_routing in [0, 1] {
            let config = NodeConfig { host_routing, ..default_config() };
            let mut node = Node::frontend(&config, family, TCP, &[family.b(BACKEND_PORT)])?;
            let outcome = node.request(family, TCP, SYN)?;
            assert_eq!((outcome.verdict, seen_at(&outcome).destination), (PASS, family.vip()));
            assert_eq!(node.connections()?, 0);
        }
    }
    Ok(())
}

/// Runs a packet of a client through the device and into pod A, as both programs see it.
fn deliver(node: &Node, family: Family, protocol: u8, flags: u8) -> Result<Outcome> {
    let arrived = node.request(family, protocol, flags)?;
    assert_eq!(seen_at(&arrived).destination, family.a(BACKEND_PORT));
    if node.datapath.takes_over(&arrived) {
        Ok(arrived)
    } else {
        node.datapath.receives(identity::WORLD, &arrived.packet)
    }
}

impl Datapath {
    /// True if the device's program has delivered the packet itself.
    fn takes_over(&self, outcome: &Outcome) -> bool {
        outcome.verdict == REDIRECT
    }
}

/// Scenario 3, at the pod: the reply has the frontend's address and leaves by the host's route, past the stack.
#[test]
fn a_pods_reply_leaves_in_the_name_of_the_frontend() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            for config in [bypassing(), through_the_stack()] {
                let node = Node::frontend(&config, family, protocol, &[family.a(BACKEND_PORT)])?;
                deliver(&node, family, protocol, SYN)?;
                let answer = segment(family.a(BACKEND_PORT), family.remote_client(), protocol, SYN | ACK);
                let answer = frame(A.node_mac, A.mac, &answer);
                let outcome = ns.run(|| node.datapath.run(FROM_CONTAINER, &answer))?;
                let seen = seen_at(&outcome);
                assert_eq!(outcome.verdict, REDIRECT, "{family:?} {protocol}");
                assert_eq!((seen.source, seen.destination), (family.vip(), family.remote_client()));
                assert!(seen.checksums, "{family:?} {protocol}");
                assert_eq!(outcome.mark & mark::MAGIC_MASK, mark::SNAT_DONE);
                let hops = outcome.packet[if family == Family::V4 { 22 } else { 21 }];
                assert_eq!(hops, 63, "it was routed");
                // The twin: another port of the pod is not the service's.
                let other = segment(family.a(BACKEND_PORT + 1), family.remote_client(), protocol, ACK);
                let outcome =
                    ns.run(|| node.datapath.run(FROM_CONTAINER, &frame(A.node_mac, A.mac, &other)))?;
                assert_eq!(seen_at(&outcome).source, family.a(BACKEND_PORT + 1));
            }
        }
    }
    Ok(())
}

/// Without a route to the client the reply is dropped, with the kernel's reason.
#[test]
fn a_reply_without_route_is_dropped() -> Result<()> {
    test_kit::require_root!();
    let ns = NetNs::detached()?;
    for family in FAMILIES {
        let mut node = Node::frontend(&through_the_stack(), family, TCP, &[family.a(BACKEND_PORT)])?;
        deliver(&node, family, TCP, SYN)?;
        let answer = segment(family.a(BACKEND_PORT), family.remote_client(), TCP, SYN | ACK);
        let answer = frame(A.node_mac, A.mac, &answer);
        let why = node
            .datapath
            .dropped(direction::EGRESS, |datapath| ns.run(|| datapath.run(FROM_CONTAINER, &answer)))?;
        assert_eq!(why, Some(drop::FIB_LOOKUP_FAILED), "{family:?}");
    }
    Ok(())
}

/// Scenarios 3 to 5 for a backend in the host's network: translated at the device that the route of the frontend's
/// address leads to, redirected to it unchanged from any other.
#[test]
fn a_reply_of_the_host_leaves_in_the_name_of_the_frontend() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    let out = ns.run(|| ifindex("out0"))?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let backend = family.host(BACKEND_PORT);
            let node = Node::frontend(&through_the_stack(), family, protocol, &[backend])?;
            let arrived = node.request(family, protocol, SYN)?;
            assert_eq!((arrived.verdict, seen_at(&arrived).destination), (PASS, backend));
            let answer = from_network(backend, family.remote_client(), protocol, SYN | ACK);
            let leaves = |at| {
                let incoming = Incoming { at: Some(at), ..Incoming::of_host() };
                ns.run(|| node.datapath.run_with(TO_NETDEV, &answer, incoming))
            };
            let outcome = leaves(out)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.source), (PASS, family.vip()), "{family:?} {protocol}");
            assert!(seen.checksums);
            assert_eq!(outcome.mark & mark::MAGIC_MASK, mark::SNAT_DONE);
            let outcome = leaves(IFINDEX)?;
            assert_eq!(
                (outcome.verdict, &outcome.packet),
                (REDIRECT, &answer),
                "{family:?}: not this device"
            );
            // The twin: the host's own connection.
            let own = from_network(family.host(BACKEND_PORT + 1), family.remote_client(), protocol, ACK);
            let incoming = Incoming { at: Some(out), ..Incoming::of_host() };
            let outcome = ns.run(|| node.datapath.run_with(TO_NETDEV, &own, incoming))?;
            assert_eq!((outcome.verdict, outcome.packet), (PASS, own));
        }
    }
    Ok(())
}

/// Scenario 13: two services with the same backend and client port; each reply has the frontend that was asked last.
#[test]
fn a_connection_by_another_service_replaces_the_former() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::frontend(&bypassing(), family, UDP, &[family.a(BACKEND_PORT)])?;
        deliver(&node, family, UDP, 0)?;
        let rows = node.connections()?;
        for _ in 0..3 {
            node.request(family, UDP, 0)?;
        }
        assert_eq!(node.connections()?, rows, "the connection is known");
    }
    Ok(())
}

/// Scenario 22.
#[test]
fn a_cluster_ip_is_not_for_clients_outside() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::with(&bypassing(), family, TCP, &[family.b(BACKEND_PORT)])?;
        let packet = from_network(family.remote_client(), family.vip(), TCP, SYN);
        assert_eq!(node.refused(&packet)?, Some(drop::IS_A_CLUSTERIP));
        node.set_flags(lb_flag::ROUTABLE, 0)?;
        assert_eq!(node.refused(&packet)?, None, "with bpf-lb-external-clusterip");
    }
    Ok(())
}

/// Scenarios 17 to 20: an address with services only admits nothing else.
#[test]
fn an_address_of_services_admits_only_their_ports_and_protocols() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::frontend(&bypassing(), family, TCP, &[family.b(BACKEND_PORT)])?;
        node.reserve_address()?;
        let (client, vip) = (family.remote_client(), family.vip());
        let beside = SocketAddr::new(vip.ip(), SERVICE_PORT + 1);
        for (to, protocol, why) in [
            (beside, TCP, Some(drop::SERVICE_BACKEND_NOT_FOUND)),
            (vip, UDP, Some(drop::SERVICE_BACKEND_NOT_FOUND)),
            (vip, TCP, None),
            (vip, TCP, None),
        ] {
            assert_eq!(node.refused(&from_network(client, to, protocol, SYN))?, why, "{to} {protocol}");
        }
    }
    Ok(())
}

#[test]
fn source_ranges_admit_or_refuse() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::frontend(&bypassing(), family, TCP, &[family.b(BACKEND_PORT)])?;
        let packet = from_network(family.remote_client(), family.vip(), TCP, SYN);
        let flags = NODE_PORT | lb_flag::SOURCE_RANGE;
        let denied = Some(drop::DENIED_BY_LB_SRC_RANGE_CHECK);
        for (flags2, expected) in [(0, denied), (lb_flag2::QUARANTINED_OR_DENY, None)] {
            node.set_flags(flags, flags2)?;
            assert_eq!(node.refused(&packet)?, expected, "a client outside of the ranges");
        }
        let bits = if family == Family::V4 { 24 } else { 64 };
        node.list_clients(family.outside(), bits)?;
        for (flags2, expected) in [(0, None), (lb_flag2::QUARANTINED_OR_DENY, denied)] {
            node.set_flags(flags, flags2)?;
            assert_eq!(node.refused(&packet)?, expected, "a client within");
        }
    }
    Ok(())
}

/// Scenario 15: the answer goes back where the packet came from.
#[test]
fn a_frontend_without_backends_refuses() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let mut node = Node::frontend(&bypassing(), family, protocol, &[])?;
            let packet = from_network(family.remote_client(), family.vip(), protocol, SYN);
            let outcome = node.arrive(&packet)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.protocol), (REDIRECT, family.icmp()));
            assert_eq!(outcome.packet[..12], [ROUTER_MAC, DEVICE].concat());
            assert_eq!((seen.source.ip(), seen.destination.ip()), (family.vip().ip(), family.outside()));
            let at = l4_offset(&outcome.packet);
            assert_eq!(outcome.packet[at..at + 2], family.port_unreachable());
            assert_eq!(quoted(&outcome.packet), (family.remote_client(), family.vip()));
            // It leaves as it is.
            let incoming = Incoming { mark: outcome.mark, ..Incoming::default() };
            let left = node.datapath.run_with(TO_NETDEV, &outcome.packet, incoming)?;
            assert_eq!((left.verdict, left.packet), (PASS, outcome.packet));
            node.reserve_address()?;
        }
        let silent = NodeConfig { empty_services_reject: 0, ..bypassing() };
        let mut node = Node::frontend(&silent, family, TCP, &[])?;
        let packet = from_network(family.remote_client(), family.vip(), TCP, SYN);
        assert_eq!(node.refused(&packet)?, Some(drop::SERVICE_BACKEND_NOT_FOUND));
    }
    Ok(())
}

/// Scenario 74, at a device: left to the stack, unless other nodes' backends do not count.
#[test]
fn frontends_without_backends_can_be_left_to_the_routes() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { empty_services_drop: 0, ..bypassing() };
    let none = Some(drop::SERVICE_BACKEND_NOT_FOUND);
    for family in FAMILIES {
        let mut node = Node::frontend(&config, family, TCP, &[])?;
        let packet = from_network(family.remote_client(), family.vip(), TCP, SYN);
        for (flags, flags2, expected) in [
            (NODE_PORT, 0, None),
            (NODE_PORT | lb_flag::EXT_LOCAL_SCOPE, 0, none),
            (NODE_PORT, lb_flag2::INT_LOCAL_SCOPE, None),
            (lb_flag::ROUTABLE, lb_flag2::INT_LOCAL_SCOPE, none),
            (lb_flag::HOST_PORT | lb_flag::ROUTABLE, lb_flag2::INT_LOCAL_SCOPE, none),
        ] {
            node.set_flags(flags, flags2)?;
            assert_eq!(node.refused(&packet)?, expected, "{flags:#x} {flags2:#x}");
        }
    }
    Ok(())
}

/// Scenario 16, and a backend that becomes unready: its connections stay, new ones do not come.
#[test]
fn connections_outlive_the_readiness_of_their_backend() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let backends = [family.a(BACKEND_PORT), family.b(BACKEND_PORT)];
        for protocol in [TCP, UDP] {
            let mut node = Node::frontend(&bypassing(), family, protocol, &backends[..1])?;
            deliver(&node, family, protocol, SYN)?;
            node.set_state(0, lb_backend_state::TERMINATING)?;
            node.set_backends(&[])?;
            node.set_flags(NODE_PORT, 0)?;
            let outcome = node.request(family, protocol, ACK)?;
            assert_eq!((outcome.verdict, seen_at(&outcome).destination), (REDIRECT, backends[0]));
            if protocol == TCP {
                // A new connection on the same ports is refused.
                assert_eq!(seen_at(&node.request(family, TCP, SYN)?).protocol, family.icmp());
            }
        }
    }
    Ok(())
}

/// The port of a pod is one of its node.
#[test]
fn a_port_of_a_pod_elsewhere_is_refused() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let remote = SocketAddr::new(if family == Family::V4 { REMOTE[0] } else { REMOTE[1] }, BACKEND_PORT);
        let mut node = Node::frontend(&bypassing(), family, TCP, &[remote])?;
        let packet = from_network(family.remote_client(), family.vip(), TCP, SYN);
        node.set_flags(lb_flag::HOST_PORT | lb_flag::ROUTABLE, 0)?;
        assert_eq!(node.refused(&packet)?, Some(drop::INVALID_PACKET_DROPPED), "a port of a pod elsewhere");
    }
    Ok(())
}

/// Closed connections end at both sides: a packet after RST does not reopen, a SYN does.
#[test]
fn a_client_may_reuse_its_port() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::frontend(&bypassing(), family, TCP, &[family.a(BACKEND_PORT)])?;
        for flags in [SYN, ACK, FIN | ACK, RST, SYN, ACK] {
            let outcome = node.request(family, TCP, flags)?;
            assert_eq!((outcome.verdict, seen_at(&outcome).destination), (REDIRECT, family.a(BACKEND_PORT)));
        }
    }
    Ok(())
}

/// Trap 3: an ICMP error of a pod about a client's packet has to name the packet that the client has sent.
#[test]
fn an_error_of_a_pod_quotes_the_clients_packet() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    for family in FAMILIES {
        let node = Node::frontend(&through_the_stack(), family, UDP, &[family.a(BACKEND_PORT)])?;
        let entered = deliver(&node, family, UDP, 0)?;
        let error = family.error_about(&entered.packet[14..]);
        let error = frame(A.node_mac, A.mac, &error);
        let outcome = ns.run(|| node.datapath.run(FROM_CONTAINER, &error))?;
        let seen = seen_at(&outcome);
        assert_eq!((outcome.verdict, seen.source.ip()), (REDIRECT, family.vip().ip()), "{family:?}");
        assert_eq!(quoted(&outcome.packet), (family.remote_client(), family.vip()));
        assert!(seen.checksums, "{family:?}");
        // The twin: about a packet to another port of the pod.
        let direct = segment(family.remote_client(), family.a(BACKEND_PORT + 1), UDP, 0);
        let error = family.error_about(&direct);
        let error = frame(A.node_mac, A.mac, &error);
        let outcome = ns.run(|| node.datapath.run(FROM_CONTAINER, &error))?;
        assert_eq!((outcome.verdict, outcome.packet), (PASS, error));
    }
    Ok(())
}

/// The same at a device, for a backend in the host's network.
#[test]
fn an_error_of_the_host_quotes_the_clients_packet() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    let out = ns.run(|| ifindex("out0"))?;
    for family in FAMILIES {
        let node = Node::frontend(&through_the_stack(), family, UDP, &[family.host(BACKEND_PORT)])?;
        let arrived = node.request(family, UDP, 0)?;
        let error = frame(ROUTER_MAC, DEVICE, &family.error_about(&arrived.packet[14..]));
        let incoming = Incoming { at: Some(out), ..Incoming::of_host() };
        let outcome = ns.run(|| node.datapath.run_with(TO_NETDEV, &error, incoming))?;
        let seen = seen_at(&outcome);
        assert_eq!((outcome.verdict, seen.source.ip()), (PASS, family.vip().ip()), "{family:?}");
        assert_eq!(quoted(&outcome.packet), (family.remote_client(), family.vip()));
        assert!(seen.checksums, "{family:?}");
    }
    Ok(())
}

/// The other direction: an error about a reply reaches the backend, as one about its own packet.
#[test]
fn an_error_about_a_reply_reaches_the_backend() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for backend in [family.a(BACKEND_PORT), family.host(BACKEND_PORT)] {
            let node = Node::frontend(&through_the_stack(), family, TCP, &[backend])?;
            node.request(family, TCP, SYN)?;
            let reply = segment(family.vip(), family.remote_client(), TCP, ACK);
            let outcome = node.arrive(&frame(DEVICE, ROUTER_MAC, &family.error_about(&reply)))?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.destination.ip()), (PASS, backend.ip()), "{family:?}");
            assert_eq!(quoted(&outcome.packet), (backend, family.remote_client()));
            assert!(seen.checksums, "{family:?}");
            // The twin: about a packet that no connection of the service had.
            let other = SocketAddr::new(family.outside(), CLIENT_PORT + 1);
            let error = family.error_about(&segment(family.vip(), other, TCP, ACK));
            let error = frame(DEVICE, ROUTER_MAC, &error);
            let outcome = node.arrive(&error)?;
            assert_eq!((outcome.verdict, outcome.packet), (PASS, error));
        }
    }
    Ok(())
}

/// Scenario 23: all pieces of a datagram go to the backend. In another order they are dropped where only services are,
/// and left to the stack elsewhere.
#[test]
fn pieces_of_a_datagram_go_to_one_backend() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::frontend(&through_the_stack(), family, UDP, &[family.b(BACKEND_PORT)])?;
        let (client, vip) = (family.remote_client(), family.vip());
        let datagram = transport(client, vip, UDP, 0);
        let piece = |id: u16, first: bool| {
            let (offset, payload) = if first { (0, &datagram[..48]) } else { (6, &datagram[48..]) };
            frame(DEVICE, ROUTER_MAC, &ip_fragment(client.ip(), vip.ip(), UDP, (id, offset, first), payload))
        };
        for first in [true, false] {
            let outcome = node.arrive(&piece(1, first))?;
            assert_eq!((outcome.verdict, addresses(&outcome.packet[14..]).1), (PASS, family.b(0).ip()));
        }
        assert_eq!(node.refused(&piece(2, false))?, None, "it may be the host's");
        node.reserve_address()?;
        let unknown = Some(drop::FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND);
        assert_eq!(node.refused(&piece(2, false))?, unknown);
    }
    Ok(())
}

/// What is nothing to services passes as before: other protocols, echoes, packets that are cut short.
#[test]
fn other_packets_of_devices_pass_unchanged() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let node = Node::frontend(&through_the_stack(), family, TCP, &[family.b(BACKEND_PORT)])?;
        let (client, vip) = (family.remote_client().ip(), family.vip().ip());
        let echo = vec![if family == Family::V4 { 8 } else { 128 }, 0, 0, 0, 0, 9, 0, 1];
        let mut packets = vec![frame(DEVICE, ROUTER_MAC, &family.icmp_packet(client, vip, echo))];
        for protocol in [2, 4, 41, 47, 50, 89] {
            packets.push(frame(DEVICE, ROUTER_MAC, &ip(client, vip, protocol, &[0x11; 40])));
        }
        packets.push(frame(DEVICE, ROUTER_MAC, &ip(client, vip, TCP, &[0, 1, 0, 80])));
        packets.push(frame(
            DEVICE,
            ROUTER_MAC,
            &ip(client, vip, family.icmp(), &[3, 3, 0, 0, 0, 0, 0, 0, 1]),
        ));
        for packet in packets {
            let outcome = node.arrive(&packet)?;
            assert_eq!((outcome.verdict, &outcome.packet), (PASS, &packet), "{family:?}");
            let left = node.datapath.run_with(TO_NETDEV, &packet, Incoming::of_host())?;
            assert_eq!((left.verdict, &left.packet), (PASS, &packet), "{family:?}");
        }
    }
    Ok(())
}

/// A frontend that another agent or a proxy handles keeps its address; the mark leads to the proxy.
#[test]
fn delegated_frontends_keep_their_address() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = Node::frontend(&through_the_stack(), family, TCP, &[family.b(BACKEND_PORT)])?;
        node.set_flags(NODE_PORT, lb_flag2::LOOPBACK)?;
        let outcome = node.request(family, TCP, SYN)?;
        assert_eq!((outcome.verdict, seen_at(&outcome).destination, outcome.mark), (PASS, family.vip(), 0));
        node.set_proxy(NODE_PORT, 10_080)?;
        let outcome = node.request(family, TCP, SYN)?;
        assert_eq!((outcome.verdict, seen_at(&outcome).destination), (PASS, family.vip()));
        assert_eq!(outcome.mark, mark::to_proxy(10_080_u16.to_be()));
        // With a port of a pod the bit means something else.
        node.set_flags(lb_flag::HOST_PORT | lb_flag::ROUTABLE, lb_flag2::LOOPBACK)?;
        assert_eq!(seen_at(&node.request(family, TCP, SYN)?).destination, family.b(BACKEND_PORT));
    }
    Ok(())
}

/// A client's connection by the pod's own address that goes on through the service.
#[test]
fn a_direct_connection_goes_on_through_the_service() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    for family in FAMILIES {
        let node = Node::frontend(&through_the_stack(), family, UDP, &[family.a(BACKEND_PORT)])?;
        let direct = from_network(family.remote_client(), family.a(BACKEND_PORT), UDP, 0);
        assert_eq!(node.datapath.receives(identity::WORLD, &direct)?.verdict, PASS);
        deliver(&node, family, UDP, 0)?;
        let answer =
            frame(A.node_mac, A.mac, &segment(family.a(BACKEND_PORT), family.remote_client(), UDP, 0));
        let outcome = ns.run(|| node.datapath.run(FROM_CONTAINER, &answer))?;
        assert_eq!((outcome.verdict, seen_at(&outcome).source), (REDIRECT, family.vip()));
    }
    Ok(())
}

/// Returns the index of an interface of the calling thread's namespace.
pub(crate) fn ifindex(name: &str) -> Result<u32> {
    let output = std::process::Command::new("ip").args(["-o", "link", "show", name]).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split(':').next().context("no interface")?.trim().parse()?)
}

/// Scenarios 75 to 77: a pod reaches a port of a node by the entry for all addresses, and is answered by that node.
#[test]
fn a_pod_reaches_ports_of_nodes_without_entries_of_their_own() -> Result<()> {
    test_kit::require_root!();
    let in_range = NodeConfig { nodeport_min: SERVICE_PORT, nodeport_max: SERVICE_PORT + 9, ..bypassing() };
    let beside = NodeConfig { nodeport_min: 30_000, nodeport_max: 32_767, ..bypassing() };
    let (port, host_port) = (NODE_PORT, lb_flag::HOST_PORT | lb_flag::ROUTABLE);
    let other_node = identity::REMOTE_NODE;
    for family in FAMILIES {
        for (config, receiver, flags, flags2, served) in [
            (in_range, other_node, port, 0, true),
            (in_range, identity::KUBE_APISERVER, port, 0, true),
            (in_range, identity::HOST, port, 0, true),
            (in_range, identity::WORLD, port, 0, false),
            (in_range, B.identity, port, 0, false),
            (in_range, identity::HOST, host_port, 0, false),
            (beside, identity::HOST, host_port, 0, true),
            (beside, identity::HOST, host_port, lb_flag2::LOOPBACK, false),
            (beside, identity::HOST, port, 0, false),
            (beside, other_node, host_port, 0, false),
            (NodeConfig { nodeport: 0, ..in_range }, other_node, port, 0, false),
        ] {
            let what = format!("{family:?} {receiver} {flags:#x} {flags2:#x} of {}", config.nodeport_min);
            let mut node = Node::with(&config, family, TCP, &[family.b(BACKEND_PORT)])?;
            node.at_any_address(flags, flags2)?;
            node.datapath.set_identity(family.vip().ip(), receiver)?;
            let sent = node.send(SYN)?;
            let expected = if served { family.b(BACKEND_PORT) } else { family.vip() };
            assert_eq!(seen_at(&sent).destination, expected, "{what}");
            if served {
                assert_eq!(sent.cb[mark::cb::FROM_HOST], 0, "{what}");
                let reply = node.answer(family.b(BACKEND_PORT), family.client(), SYN | ACK)?;
                let seen = seen_at(&reply);
                assert_eq!(
                    (reply.verdict, seen.source, seen.checksums),
                    (PASS, family.vip(), true),
                    "{what}"
                );
                assert_eq!(seen_at(&node.send(ACK)?).destination, expected, "{what}");
            }
        }
        // A flow that was there before the service stays as it is.
        let mut node = Node::with(&in_range, family, UDP, &[family.b(BACKEND_PORT)])?;
        node.remove_frontend()?;
        node.datapath.set_identity(family.vip().ip(), identity::REMOTE_NODE)?;
        assert_eq!(seen_at(&node.send(0)?).destination, family.vip());
        node.set_backends(&[family.b(BACKEND_PORT)])?;
        node.at_any_address(NODE_PORT, 0)?;
        assert_eq!(seen_at(&node.send(0)?).destination, family.vip());
    }
    Ok(())
}

/// A pod that is its own backend by a port of another node.
#[test]
fn a_pod_reaches_itself_by_a_port_of_another_node() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { nodeport_min: SERVICE_PORT, nodeport_max: SERVICE_PORT, ..bypassing() };
    for family in FAMILIES {
        let mut node = Node::with(&config, family, UDP, &[family.a(BACKEND_PORT)])?;
        node.at_any_address(NODE_PORT, 0)?;
        node.datapath.set_identity(family.vip().ip(), identity::REMOTE_NODE)?;
        let sent = seen_at(&node.send(0)?);
        let loopback = SocketAddr::new(family.loopback(), family.client().port());
        assert_eq!((sent.source, sent.destination, sent.checksums), (loopback, family.a(BACKEND_PORT), true));
    }
    Ok(())
}
