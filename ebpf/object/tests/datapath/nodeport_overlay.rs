//! Services for clients behind other nodes: requests that arrive by the tunnel, and replies that leave by it.

use crate::events::{Ring, split};
use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::nodeport_remote::{Entry, tunnel, with_hops};
use crate::service::*;
use anyhow::Result;
use datapath_abi::event::TraceNotify;
use datapath_abi::{NodeConfig, direction, drop, identity, ipcache_flag, mark, trace};
use datapath_object::{FROM_CONTAINER, FROM_OVERLAY, TO_OVERLAY};
use std::net::{IpAddr, SocketAddr};
use test_kit::NetNs;

const CLIENT_IDENTITY: u32 = 4711;

impl Family {
    /// A pod of a third node.
    fn far_client(self) -> SocketAddr {
        let ip: IpAddr = if self == Self::V4 { [10, 2, 0, 9].into() } else { "fd02::9".parse().unwrap() };
        SocketAddr::new(ip, CLIENT_PORT)
    }

    fn world(self) -> u32 {
        if self == Self::V4 { identity::WORLD_IPV4 } else { identity::WORLD_IPV6 }
    }
}

/// The client's row in the ipcache.
fn know_client(datapath: &mut Datapath, family: Family, flags: u8) -> Result<()> {
    datapath.set_ipcache(family.far_client().ip(), &behind(CLIENT_IDENTITY, family.other_node(), flags))
}

fn from_tunnel(packet: &[u8]) -> Vec<u8> {
    frame(TUNNEL_MAC, ROUTER_MAC, packet)
}

/// The identity with which the only packet since the last call was sent by the tunnel.
fn sent_as(ring: &mut Ring) -> Result<u32> {
    let events = ring.read();
    let traces = events.iter().filter_map(|event| split::<TraceNotify>(event, 0).ok());
    let sent: Vec<u32> = traces
        .map(|(event, _)| event)
        .filter(|event| event.header.subtype == trace::TO_OVERLAY)
        .map(|event| event.src_label)
        .collect();
    anyhow::ensure!(sent.len() == 1, "{sent:?}");
    Ok(sent[0])
}

/// Scenario 30: in and out by the tunnel, both ways. No packet needs a route of the host.
#[test]
fn a_request_by_the_tunnel_goes_on_by_it_and_so_does_its_reply() -> Result<()> {
    test_kit::require_root!();
    let peer = Peer::new()?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let mut entry = Entry::tunnelled(family, protocol, 0)?;
            entry.ns = NetNs::detached()?;
            know_client(&mut entry.node.datapath, family, 0)?;
            let mut ring = Ring::open(&mut entry.node.datapath)?;
            let client = family.far_client();
            let by_tunnel = |entry: &Entry, id, packet: &[u8]| {
                entry.ns.run(|| peer.sends(&entry.node.datapath, id, &from_tunnel(packet)))
            };
            let request = segment(client, family.vip(), protocol, SYN);
            let outcome = by_tunnel(&entry, CLIENT_IDENTITY, &request)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
            assert_eq!((seen.source, seen.destination), (family.router(CLIENT_PORT), family.remote()));
            assert_eq!(outcome.mark & mark::MAGIC_MASK, mark::SNAT_DONE);
            assert_eq!(sent_as(&mut ring)?, family.world());

            let reply = segment(family.remote(), seen.source, protocol, SYN | ACK);
            let outcome = by_tunnel(&entry, REMOTE_IDENTITY, &reply)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
            assert_eq!((seen.source, seen.destination), (family.vip(), client));
            assert_eq!(sent_as(&mut ring)?, identity::REMOTE_NODE);

            // The twin: packets to the client are routed.
            know_client(&mut entry.node.datapath, family, ipcache_flag::SKIP_TUNNEL)?;
            let ns = &entry.ns;
            let why = entry.node.datapath.dropped(direction::INGRESS, |datapath| {
                ns.run(|| peer.sends(datapath, REMOTE_IDENTITY, &from_tunnel(&reply)))
            })?;
            assert_eq!(why, Some(drop::FIB_LOOKUP_FAILED));
        }
    }
    Ok(())
}

/// A hop limit that ends in the tunnel is answered by the router's address, about the packet that the sender knows.
#[test]
fn exhausted_hop_limits_are_answered_by_the_tunnel() -> Result<()> {
    test_kit::require_root!();
    let peer = Peer::new()?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let mut entry = Entry::tunnelled(family, protocol, 0)?;
            entry.ns = NetNs::detached()?;
            let mut ring = Ring::open(&mut entry.node.datapath)?;
            let client = family.far_client();
            let request = segment(client, family.vip(), protocol, SYN);
            let (expired, ns) = (from_tunnel(&with_hops(request.clone(), 1)), &entry.ns);
            let why = entry.node.datapath.dropped(direction::INGRESS, |datapath| {
                ns.run(|| peer.sends(datapath, CLIENT_IDENTITY, &expired))
            })?;
            assert_eq!(why, Some(drop::NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT), "an unknown client");
            know_client(&mut entry.node.datapath, family, 0)?;
            let by_tunnel = |packet: &[u8]| {
                entry.ns.run(|| peer.sends(&entry.node.datapath, CLIENT_IDENTITY, &from_tunnel(packet)))
            };
            let mut answers = |packet: &[u8], about: (SocketAddr, SocketAddr)| -> Result<()> {
                ring.read();
                let outcome = by_tunnel(packet)?;
                let (seen, kind) = (seen_at(&outcome), outcome.packet[l4_offset(&outcome.packet)]);
                assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
                assert_eq!((seen.protocol, kind), (family.icmp(), if family == Family::V4 { 11 } else { 3 }));
                assert_eq!((seen.source.ip(), seen.destination.ip()), (family.router(0).ip(), about.0.ip()));
                assert_eq!(quoted(&outcome.packet), about, "{family:?} {protocol}");
                assert_eq!(sent_as(&mut ring)?, identity::REMOTE_NODE);
                Ok(())
            };
            answers(&with_hops(request.clone(), 1), (client, family.vip()))?;
            let source = seen_at(&by_tunnel(&with_hops(request, 2))?).source;
            assert_eq!(source, family.router(CLIENT_PORT), "the twin with one hop more");
            let reply = segment(family.remote(), source, protocol, ACK);
            answers(&with_hops(reply.clone(), 1), (family.remote(), source))?;
            assert_eq!(seen_at(&by_tunnel(&with_hops(reply, 2))?).destination, client);
        }
    }
    Ok(())
}

/// A pod of this node is the backend of a client behind another node.
#[test]
fn a_pod_answers_a_client_behind_the_tunnel_in_the_name_of_the_frontend() -> Result<()> {
    test_kit::require_root!();
    let (peer, ns) = (Peer::new()?, NetNs::detached()?);
    let config = NodeConfig { redirect_peer: 0, ..tunnel() };
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let backend = SocketAddr::new(family.client().ip(), BACKEND_PORT);
            let mut node = Node::frontend(&config, family, protocol, &[backend])?;
            know_client(&mut node.datapath, family, 0)?;
            let client = family.far_client();
            let request = from_tunnel(&segment(client, family.vip(), protocol, SYN));
            let outcome = peer.sends(&node.datapath, CLIENT_IDENTITY, &request)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
            assert_eq!((seen.source, seen.destination), (client, backend));
            assert_eq!(outcome.packet[..12], [A.mac, A.node_mac].concat());

            let answer = frame(A.node_mac, A.mac, &segment(backend, client, protocol, SYN | ACK));
            let mut ring = Ring::open(&mut node.datapath)?;
            let outcome = ns.run(|| node.datapath.run(FROM_CONTAINER, &answer))?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {outcome:?}");
            assert_eq!((seen.source, seen.destination), (family.vip(), client));
            assert_eq!(sent_as(&mut ring)?, identity::REMOTE_NODE);
            // The twin: the pod's own connection.
            let other = SocketAddr::new(backend.ip(), BACKEND_PORT + 1);
            let own = frame(A.node_mac, A.mac, &segment(other, client, protocol, SYN));
            let outcome = ns.run(|| node.datapath.run(FROM_CONTAINER, &own))?;
            assert_eq!((outcome.verdict, outcome.packet), (REDIRECT, own));
            assert_eq!(sent_as(&mut ring)?, A.identity);
        }
    }
    Ok(())
}

/// A backend in the host's network: its reply is translated where it enters the tunnel.
#[test]
fn the_host_answers_a_client_behind_the_tunnel_in_the_name_of_the_frontend() -> Result<()> {
    test_kit::require_root!();
    let peer = Peer::new()?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let backend = family.host(BACKEND_PORT);
            let node = Node::frontend(&tunnel(), family, protocol, &[backend])?;
            let client = family.far_client();
            let request = from_tunnel(&segment(client, family.vip(), protocol, SYN));
            let outcome = peer.sends(&node.datapath, CLIENT_IDENTITY, &request)?;
            assert_eq!((outcome.verdict, seen_at(&outcome).destination), (REDIRECT, backend));
            assert_eq!(outcome.packet[..6], HOST_MAC, "to cilium_host");
            let answer = |from| from_tunnel(&segment(from, client, protocol, SYN | ACK));
            let leaves = |id, packet: &[u8]| peer.run(&node.datapath, TO_OVERLAY, (id, 0), packet);
            let outcome = leaves(identity::REMOTE_NODE, &answer(backend))?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.checksums), (PASS, true), "{family:?} {outcome:?}");
            assert_eq!((seen.source, seen.destination), (family.vip(), client));
            assert_eq!(outcome.mark & mark::MAGIC_MASK, mark::OVERLAY);
            // The twins: another port of the host, and a packet of a pod.
            let other = answer(family.host(BACKEND_PORT + 1));
            assert_eq!(leaves(identity::REMOTE_NODE, &other)?.packet, other);
            assert_eq!(leaves(A.identity, &answer(backend))?.packet, answer(backend));
        }
    }
    Ok(())
}

/// A client behind the tunnel learns that there are no backends.
#[test]
fn a_frontend_without_backends_refuses_clients_behind_the_tunnel() -> Result<()> {
    test_kit::require_root!();
    let peer = Peer::new()?;
    for family in FAMILIES {
        let mut node = Node::frontend(&tunnel(), family, TCP, &[])?;
        let request = from_tunnel(&segment(family.far_client(), family.vip(), TCP, SYN));
        let refused = |datapath: &Datapath| peer.run(datapath, FROM_OVERLAY, (CLIENT_IDENTITY, 0), &request);
        let why = node.datapath.dropped(direction::INGRESS, refused)?;
        assert_eq!(why, Some(drop::NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT), "an unknown client");
        know_client(&mut node.datapath, family, 0)?;
        let outcome = refused(&node.datapath)?;
        let seen = seen_at(&outcome);
        assert_eq!((outcome.verdict, seen.protocol, seen.checksums), (REDIRECT, family.icmp(), true));
        let ends = (family.vip().ip(), family.far_client().ip());
        assert_eq!((seen.source.ip(), seen.destination.ip()), ends);
    }
    Ok(())
}
