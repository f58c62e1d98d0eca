//! Contents of the perf ring: the exact bytes of drop and trace events.

use crate::kit::*;
use crate::l4::{SYN, TCP, addresses};
use crate::packet::{ACK, eth, ipv4, ipv6};
use crate::service::{FAMILIES, Node};
use anyhow::{Context as _, Result};
use bpf::perf::{Record, Rings, Wakeups};
use datapath_abi::event::{self, CaptureHeader, DropNotify, TraceNotify};
use datapath_abi::{
    NodeConfig, Pod as Plain, drop, ep_flag, file, identity, ipv4_word, ipv6_words, mark, slot, trace,
};
use datapath_object::{FROM_CONTAINER, FROM_HOST, FROM_NETDEV, TO_CONTAINER};
use std::net::IpAddr;

/// The reader's end of the rings.
pub(crate) struct Ring(Rings);

impl Ring {
    pub(crate) fn open(datapath: &mut Datapath) -> Result<Self> {
        Self::open_map(datapath, "cilium_events")
    }

    /// Opens the rings of a map.
    pub(crate) fn open_map(datapath: &mut Datapath, map: &str) -> Result<Self> {
        let map = datapath.map_id(map)?;
        Ok(Self(Rings::open(bpf::RawMap::open_id(map)?, 2, Wakeups::EachRecord)?))
    }

    /// All events that came since the last call.
    pub(crate) fn read(&mut self) -> Vec<Vec<u8>> {
        let mut events = Vec::new();
        let read = self.0.read(|_, record| match record {
            Record::Sample { head, tail } => events.push([head, tail].concat()),
            Record::Lost { count } => panic!("{count} events lost"),
        });
        read.unwrap();
        events
    }
}

/// The struct of an event, and the packet bytes behind it.
pub(crate) fn split<T: Plain>(event: &[u8], captured: u16) -> Result<(T, &[u8])> {
    let end = size_of::<T>() + usize::from(captured);
    Ok((
        T::from_bytes(event).context("short event")?,
        event.get(size_of::<T>()..end).context("short capture")?,
    ))
}

/// A node that tells of drops and traces only.
fn no_verdicts() -> NodeConfig {
    NodeConfig { policy_verdict_notify: 0, ..default_config() }
}

fn from_a_to_b() -> Vec<u8> {
    eth(A.node_mac, A.mac, 0x86dd, &ipv6(A.ipv6, B.ipv6, 64))
}

#[test]
fn a_drop_says_who_whom_and_why() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&NodeConfig { trace_payload_len: 40, ..default_config() })?;
    let mut ring = Ring::open(&mut datapath)?;
    let sent = eth(A.node_mac, A.mac, 0x86dd, &ipv6(HOST_V6, B.ipv6, 64));
    assert_eq!(datapath.run(FROM_CONTAINER, &sent)?.verdict, SHOT);
    let events = ring.read();
    assert_eq!(events.len(), 1);
    let (found, captured) = split::<DropNotify>(&events[0], 40)?;
    assert!(found.line > 0 && found.header.hash != 0);
    let expected = DropNotify {
        header: CaptureHeader {
            kind: event::DROP,
            subtype: drop::INVALID_SOURCE_IP,
            source: A.id,
            hash: found.header.hash,
            len_orig: sent.len() as u32,
            len_cap: 40,
            version: 3,
            ext_version: 0,
        },
        src_label: A.identity,
        dst_label: B.identity,
        dst_id: 0,
        line: found.line,
        file: file::BPF_LXC,
        ext_error: 0,
        ifindex: IFINDEX,
        flags: event::flag::IPV6,
        pad: [0; 3],
        ip_trace_id: 0,
    };
    assert_eq!(found, expected);
    assert_eq!(captured, &sent[..40]);
    Ok(())
}

#[test]
fn a_trace_says_who_whom_and_where() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { monitor_aggregation: trace::aggregation::NONE, ..no_verdicts() };
    let mut datapath = Datapath::with_pods(&config)?;
    let mut ring = Ring::open(&mut datapath)?;
    let sent = from_a_to_b();
    let arrived = datapath.run(FROM_CONTAINER, &sent)?.packet;
    let events = ring.read();
    assert_eq!(events.len(), 2);
    let len = sent.len();
    let expected = |point, source, dst_label, dst_id, ifindex, reason| TraceNotify {
        header: CaptureHeader {
            kind: event::TRACE,
            subtype: point,
            source,
            hash: 0,
            len_orig: len as u32,
            len_cap: len as u16,
            version: 2,
            ext_version: 0,
        },
        src_label: A.identity,
        dst_label,
        dst_id,
        reason,
        flags: event::flag::IPV6,
        ifindex,
        // Where reverse translation is behind it the event names the source that came.
        orig_ip: if point == trace::TO_LXC { ipv6_words(A.ipv6) } else { [0; 4] },
        ip_trace_id: 0,
    };
    let points = [
        (expected(trace::FROM_LXC, A.id, identity::UNKNOWN, 0, 0, trace::reason::UNKNOWN), sent),
        (expected(trace::TO_LXC, B.id, B.identity, B.id, B.ifindex, trace::reason::POLICY), arrived),
    ];
    for (event, (mut expected, bytes)) in events.iter().zip(points) {
        let (found, captured) = split::<TraceNotify>(event, len as u16)?;
        expected.header.hash = found.header.hash;
        assert_eq!(found, expected);
        assert_eq!(captured, bytes);
    }
    Ok(())
}

#[test]
fn to_the_stack_names_the_destination() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&no_verdicts())?;
    let mut ring = Ring::open(&mut datapath)?;
    for (destination, label) in [(HOST_V4, identity::HOST), (OUTSIDE_V4, identity::WORLD_IPV4)] {
        datapath.run(FROM_CONTAINER, &eth(A.node_mac, A.mac, 0x0800, &ipv4(A.ipv4, destination, 64)))?;
        let events = ring.read();
        assert_eq!(events.len(), 1, "aggregation hides where it came from");
        let (found, _) = split::<TraceNotify>(&events[0], 0)?;
        assert_eq!((found.header.subtype, found.dst_label, found.flags), (trace::TO_STACK, label, 0));
    }
    Ok(())
}

/// Switches decide what is told; what is counted stays the same.
#[test]
fn notifications_can_be_switched_off() -> Result<()> {
    test_kit::require_root!();
    let good = from_a_to_b();
    let bad = eth(A.node_mac, A.mac, 0x88cc, &[0; 50]);
    for (drop_notify, trace_notify, expected) in [(1, 1, 2), (1, 0, 1), (0, 1, 1), (0, 0, 0)] {
        let mut datapath = Datapath::with_pods(&NodeConfig { drop_notify, trace_notify, ..no_verdicts() })?;
        let mut ring = Ring::open(&mut datapath)?;
        datapath.run(FROM_CONTAINER, &good)?;
        datapath.run(FROM_CONTAINER, &bad)?;
        assert_eq!(ring.read().len(), expected, "drops {drop_notify}, traces {trace_notify}");
        assert_eq!(datapath.counters()?.len(), 3);
    }
    Ok(())
}

/// An endpoint's switches silence its own programs only.
#[test]
fn an_endpoint_can_be_silenced() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { monitor_aggregation: trace::aggregation::NONE, ..no_verdicts() };
    let (good, bad) = (from_a_to_b(), eth(A.node_mac, A.mac, 0x88cc, &[0; 50]));
    let stranger = eth(A.node_mac, A.mac, 0x86dd, &ipv6(HOST_V6, B.ipv6, 64));
    let outside = eth(A.node_mac, A.mac, 0x0800, &ipv4(A.ipv4, OUTSIDE_V4, 64));
    let lowest = ep_flag::with_aggregation(trace::aggregation::LOWEST);
    let maximum = ep_flag::with_aggregation(trace::aggregation::MAXIMUM);
    assert_eq!(ep_flag::aggregation(maximum | ep_flag::SOURCE_CHECK), trace::aggregation::MAXIMUM);
    // Switches decide what is told; what is counted stays the same.
    let mut counted = None;
    // Kinds with points or reasons, packet by packet.
    let (from, to) = ((event::TRACE, trace::FROM_LXC), (event::TRACE, trace::TO_LXC));
    let stack = (event::TRACE, trace::TO_STACK);
    let l3 = (event::DROP, drop::UNSUPPORTED_L3_PROTOCOL);
    let source = (event::DROP, drop::INVALID_SOURCE_IP);
    for (pod, flags, expected) in [
        (A, 0, vec![from, to, from, l3, from, source, from, stack]),
        (A, ep_flag::NO_TRACE_NOTIFY, vec![to, l3, source]),
        (A, ep_flag::NO_DROP_NOTIFY, vec![from, to, from, from, from, stack]),
        (A, lowest, vec![to, l3, source, stack]),
        (A, maximum, vec![to, l3, source, stack]),
        (B, ep_flag::NO_TRACE_NOTIFY, vec![from, from, l3, from, source, from, stack]),
    ] {
        let mut datapath = Datapath::with_pods(&config)?;
        let mut ring = Ring::open(&mut datapath)?;
        datapath.set_settings(&pod, ep_flag::LIVE | ep_flag::SOURCE_CHECK | flags)?;
        let mut found = Vec::new();
        for packet in [&good, &bad, &stranger, &outside] {
            datapath.run(FROM_CONTAINER, packet)?;
            found.extend(ring.read().iter().map(|event| (event[0], event[1])));
        }
        assert_eq!(found, expected, "flags {flags:#x} of endpoint {}", pod.id);
        let mut counters = datapath.counters()?;
        counters.sort_by_key(|(key, ..)| (key.reason, key.line));
        assert_eq!(*counted.get_or_insert_with(|| counters.clone()), counters, "flags {flags:#x}");
    }
    Ok(())
}

#[test]
fn host_events_carry_the_host_endpoint() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    let mut ring = Ring::open(&mut datapath)?;
    let lost = eth(A.mac, A.mac, 0x0800, &ipv4(HOST_V4, OUTSIDE_V4, 64));
    datapath.run_with(FROM_HOST, &lost, Incoming::of_host())?;
    let events = ring.read();
    assert_eq!(events.len(), 1);
    let (found, _) = split::<DropNotify>(&events[0], 0)?;
    assert_eq!((found.header.subtype, found.file), (drop::STALE_OR_UNROUTABLE_IP, file::BPF_HOST));
    assert_eq!((u32::from(found.header.source), found.src_label), (HOST_ENDPOINT, identity::HOST));
    Ok(())
}

/// An address as events hold it.
fn words(ip: IpAddr) -> [u32; 4] {
    match ip {
        IpAddr::V4(ip) => [ipv4_word(ip), 0, 0, 0],
        IpAddr::V6(ip) => ipv6_words(ip),
    }
}

/// The only trace event of a point since the last call, and the packet in it.
fn only(ring: &mut Ring, point: u8, what: &str) -> Result<(TraceNotify, Vec<u8>)> {
    let mut found = Vec::new();
    for event in ring.read().iter().filter(|event| event[..2] == [event::TRACE, point]) {
        let (trace, _) = split::<TraceNotify>(event, 0)?;
        let (_, packet) = split::<TraceNotify>(event, trace.header.len_cap)?;
        found.push((trace, packet.to_vec()));
    }
    anyhow::ensure!(found.len() == 1, "{what}: {found:?}");
    found.pop().context("no event")
}

/// The packet in the event carries the service's address, `orig_ip` the backend's: monitors show both.
#[test]
fn a_reply_through_a_service_names_its_backend() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let backend = family.b(8080);
        let mut node = Node::with(&no_verdicts(), family, TCP, &[backend])?;
        let mut ring = Ring::open(&mut node.datapath)?;
        node.send(SYN)?;
        let (sent, packet) = only(&mut ring, trace::TO_LXC, "the client's packet")?;
        assert_eq!(addresses(&packet[14..]), (family.client().ip(), backend.ip()));
        assert_eq!(sent.orig_ip, words(family.client().ip()), "{family:?}");
        node.answer(backend, family.client(), SYN | ACK)?;
        let (reply, packet) = only(&mut ring, trace::TO_LXC, "the reply")?;
        assert_eq!(addresses(&packet[14..]), (family.vip().ip(), family.client().ip()));
        assert_eq!((reply.orig_ip, reply.src_label), (words(backend.ip()), B.identity), "{family:?}");
        // An error about the connection: from the backend, too.
        node.receive(&family.error_about(&crate::l4::segment(family.client(), backend, TCP, ACK)))?;
        let (error, _) = only(&mut ring, trace::TO_LXC, "an ICMP error")?;
        assert_eq!((error.orig_ip, error.reason), (words(backend.ip()), trace::reason::CT_RELATED));
    }
    Ok(())
}

/// A packet to pod A from an address, where the host or a device has it.
fn to_a(source: IpAddr) -> Vec<u8> {
    match source {
        IpAddr::V4(source) => eth(A.mac, B.mac, 0x0800, &ipv4(source, A.ipv4, 64)),
        IpAddr::V6(source) => eth(A.mac, B.mac, 0x86dd, &ipv6(source, A.ipv6, 64)),
    }
}

/// Events of packets that come in name the sender that policy will see, and the interface they came by.
#[test]
fn incoming_packets_are_told_of_with_their_senders() -> Result<()> {
    test_kit::require_root!();
    const KNOWN: u32 = 20_000;
    const OTHER_V4: std::net::Ipv4Addr = std::net::Ipv4Addr::new(198, 51, 100, 10);
    let everything = NodeConfig { monitor_aggregation: trace::aggregation::NONE, ..no_verdicts() };
    for config in [everything, NodeConfig { redirect_peer: 0, endpoint_routes: 1, ..everything }] {
        let mut datapath = Datapath::with_pods(&config)?;
        datapath.set_identity(OUTSIDE_V4.into(), KNOWN)?;
        datapath.set_identity(OUTSIDE_V6.into(), KNOWN)?;
        let mut ring = Ring::open(&mut datapath)?;
        let marked = Incoming {
            mark: mark::with_identity(mark::IDENTITY, 777),
            ingress_ifindex: IFINDEX,
            ..Incoming::default()
        };
        let forwarded = Incoming { mark: 0, ..marked };
        let host = Incoming { mark: mark::HOST, ingress_ifindex: 0, ..marked };
        for (program, point, source, incoming, expected) in [
            (FROM_NETDEV, trace::FROM_NETWORK, IpAddr::from(OUTSIDE_V4), forwarded, KNOWN),
            (FROM_NETDEV, trace::FROM_NETWORK, OUTSIDE_V6.into(), forwarded, KNOWN),
            (FROM_NETDEV, trace::FROM_NETWORK, OTHER_V4.into(), forwarded, identity::WORLD_IPV4),
            (FROM_NETDEV, trace::FROM_NETWORK, HOST_V6.into(), forwarded, identity::WORLD_IPV6),
            (FROM_HOST, trace::FROM_HOST, OUTSIDE_V4.into(), forwarded, KNOWN),
            (FROM_HOST, trace::FROM_HOST, OUTSIDE_V6.into(), forwarded, KNOWN),
            (FROM_HOST, trace::FROM_HOST, HOST_V4.into(), forwarded, identity::WORLD_IPV4),
            (FROM_HOST, trace::FROM_HOST, HOST_V4.into(), host, identity::HOST),
            (FROM_HOST, trace::FROM_HOST, A.ipv6.into(), marked, 777),
            (TO_CONTAINER, trace::FROM_STACK, OUTSIDE_V4.into(), forwarded, KNOWN),
            (TO_CONTAINER, trace::FROM_STACK, OUTSIDE_V6.into(), marked, 777),
        ] {
            datapath.run_with(program, &to_a(source), incoming)?;
            let (found, _) = only(&mut ring, point, program)?;
            let what = format!("{program} from {source}, mark {:#x}", incoming.mark);
            assert_eq!((found.src_label, found.ifindex), (expected, incoming.ingress_ifindex), "{what}");
            let into_a = point == trace::FROM_STACK;
            let destination = if into_a { (A.identity, A.id) } else { (identity::UNKNOWN, 0) };
            assert_eq!((found.dst_label, found.dst_id), destination, "{what}");
        }
        // Other protocols have no sender that anybody knows.
        datapath.run(FROM_NETDEV, &eth(A.mac, B.mac, 0x88cc, &[0; 50]))?;
        assert_eq!(only(&mut ring, trace::FROM_NETWORK, "LLDP")?.0.src_label, identity::UNKNOWN);
        // A device without Ethernet headers: the IP header is at the beginning, so what a test run has there is one.
        datapath.set_l3_device(IFINDEX)?;
        let (v4, v6) = (to_a(OUTSIDE_V4.into()), to_a(OUTSIDE_V6.into()));
        for (packet, source) in [
            (&v4, IpAddr::from(<[u8; 4]>::try_from(&v4[12..16])?)),
            (&v6, IpAddr::from(<[u8; 16]>::try_from(&v6[8..24])?)),
        ] {
            datapath.set_identity(source, KNOWN + 1)?;
            datapath.run(FROM_NETDEV, packet)?;
            let (found, _) = only(&mut ring, trace::FROM_NETWORK, "without Ethernet")?;
            let l3 = found.flags & event::flag::L3_DEVICE;
            assert_eq!((found.src_label, l3), (KNOWN + 1, event::flag::L3_DEVICE), "{source}");
        }
    }
    Ok(())
}

/// Drops of what comes in name its sender as well.
#[test]
fn incoming_drops_name_their_senders() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&host_routing_config())?;
    datapath.set_identity(OUTSIDE_V4.into(), 20_000)?;
    let mut ring = Ring::open(&mut datapath)?;
    let received = |hops| eth(A.mac, B.mac, 0x0800, &ipv4(OUTSIDE_V4, A.ipv4, hops));
    let mut dropped = |datapath: &Datapath, program, hops, reason| -> Result<()> {
        assert_eq!(datapath.run(program, &received(hops))?.verdict, SHOT);
        let events = ring.read();
        let event = events.iter().find(|event| event[0] == event::DROP).context("no drop")?;
        let (found, _) = split::<DropNotify>(event, 0)?;
        assert_eq!((found.header.subtype, found.src_label), (reason, 20_000), "{program}");
        Ok(())
    };
    dropped(&datapath, FROM_HOST, 1, drop::TTL_EXCEEDED)?;
    datapath.empty_slot(slot::IPV4_POLICY)?;
    dropped(&datapath, FROM_NETDEV, 64, drop::EP_NOT_READY)
}
