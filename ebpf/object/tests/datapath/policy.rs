//! Policy: which row decides, what is counted and told. Pod A, and peers with identities of their own.

use crate::events::{Ring, split};
use crate::kit::*;
use crate::packet::*;
use anyhow::{Context as _, Result};
use aya::maps::PerCpuHashMap;
use datapath_abi::event::{self, PolicyVerdictNotify, verdict_flag};
use datapath_abi::{
    NodeConfig, Pod as Plain, PolicyStatsKey, direction, drop, ep_flag, identity, policy_match,
};
use std::net::IpAddr;

const PEER: u32 = 70_000;
const DENIED: Option<u8> = Some(drop::POLICY_DENIED);
const DENY: Option<u8> = Some(drop::POLICY_DENY);
const AUTH: Option<u8> = Some(drop::AUTH_REQUIRED);

fn families() -> [(IpAddr, IpAddr); 2] {
    [(A.ipv4.into(), OUTSIDE_V4.into()), (A.ipv6.into(), OUTSIDE_V6.into())]
}

/// A datapath where the outside has the identity of the peer.
fn datapath(config: &NodeConfig) -> Result<Datapath> {
    let mut datapath = Datapath::load(config)?;
    datapath.add(&A)?;
    for (_, peer) in families() {
        datapath.set_identity(peer, PEER)?;
    }
    Ok(datapath)
}

/// The reason why TCP between pod and peer is dropped, both ways of the pod and in both families alike.
fn tcp_to(datapath: &mut Datapath, peer: u32, dport: u16, sport: u16) -> Result<[Option<u8>; 2]> {
    let mut reasons = Vec::new();
    for (pod, outside) in families() {
        datapath.set_identity(outside, peer)?;
        let sent = ip(pod, outside, TCP, &tcp(sport, dport, SYN));
        let received = ip(outside, pod, TCP, &tcp(sport, dport, SYN));
        let out = datapath.dropped(direction::EGRESS, |d| d.sends(&sent))?;
        let into = datapath.dropped(direction::INGRESS, |d| d.receives(peer, &received))?;
        reasons.push([out, into]);
    }
    assert_eq!(reasons[0], reasons[1], "both families");
    Ok(reasons[0])
}

/// Each case: rows as (peer, protocol, port, kind), and what becomes of TCP to ports 80 and 81 of the peer and of port 80
/// of another.
#[test]
fn the_right_row_decides() -> Result<()> {
    test_kit::require_root!();
    use Kind::{Allow, Auth, Deny, Proxy};
    type Row = (u32, u8, Option<(u16, u8)>, Kind);
    type Case<'a> = (&'a str, &'a [Row], [Option<u8>; 3]);
    let exact = Some((80, 16));
    // 80 to 95.
    let range = Some((80, 12));
    let cases: [Case<'_>; 24] = [
        ("nothing", &[], [DENIED, DENIED, DENIED]),
        ("everybody", &[(0, 0, None, Allow(0))], [None, None, None]),
        ("the peer", &[(PEER, 0, None, Allow(0))], [None, None, DENIED]),
        ("the peer's TCP", &[(PEER, TCP, None, Allow(0))], [None, None, DENIED]),
        ("the peer's UDP", &[(PEER, UDP, None, Allow(0))], [DENIED, DENIED, DENIED]),
        ("the peer's port", &[(PEER, TCP, exact, Allow(0))], [None, DENIED, DENIED]),
        ("a range", &[(PEER, TCP, range, Allow(0))], [None, None, DENIED]),
        ("a port", &[(0, TCP, exact, Allow(0))], [None, DENIED, None]),
        ("all TCP", &[(0, TCP, None, Allow(0))], [None, None, None]),
        ("deny the peer", &[(0, 0, None, Allow(0)), (PEER, 0, None, Deny(0))], [DENY, DENY, None]),
        ("deny the peer's port", &[(0, 0, None, Allow(0)), (PEER, TCP, exact, Deny(0))], [DENY, None, None]),
        ("deny a port", &[(PEER, 0, None, Allow(0)), (0, TCP, exact, Deny(0))], [DENY, None, DENY]),
        ("deny everybody", &[(PEER, TCP, exact, Allow(0)), (0, 0, None, Deny(0))], [DENY, DENY, DENY]),
        // The highest deny of the peer ends the search, even where the port's row is longer.
        ("final", &[(PEER, 0, None, Deny(0)), (0, TCP, exact, Allow(0))], [DENY, DENY, None]),
        // Priorities: the lower number wins, whoever it speaks of.
        ("peer first", &[(PEER, 0, None, Allow(1)), (0, TCP, exact, Deny(2))], [None, None, DENY]),
        ("port first", &[(PEER, 0, None, Deny(2)), (0, TCP, exact, Allow(1))], [None, DENY, None]),
        ("all first", &[(PEER, TCP, exact, Deny(2)), (0, 0, None, Allow(1))], [None, None, None]),
        ("deny wins of equals", &[(PEER, 0, None, Deny(3)), (0, TCP, exact, Allow(3))], [DENY, DENY, None]),
        // Of the same precedence the longer prefix wins, then the peer's.
        ("auth", &[(PEER, 0, None, Auth(2, true))], [AUTH, AUTH, DENIED]),
        ("longer port", &[(PEER, TCP, range, Auth(2, true)), (0, TCP, exact, Allow(0))], [AUTH, AUTH, None]),
        (
            "explicitly none",
            &[(PEER, TCP, range, Auth(2, true)), (0, TCP, exact, Auth(0, true))],
            [None, AUTH, None],
        ),
        (
            "derived, and the longer port wins nothing",
            &[(PEER, TCP, exact, Auth(0, false)), (0, TCP, range, Auth(1, true))],
            [AUTH, AUTH, AUTH],
        ),
        ("proxy", &[(PEER, TCP, exact, Proxy(10_000))], [None, DENIED, DENIED]),
        ("most specific", &[(PEER, TCP, exact, Deny(5)), (PEER, TCP, range, Allow(5))], [DENY, None, DENIED]),
    ];
    let config = NodeConfig { policy_verdict_notify: 0, ..default_config() };
    let mut datapath = datapath(&config)?;
    let mut sport = 1024;
    for (name, rows, expected) in cases {
        let rows = |egress| {
            rows.iter().map(move |(peer, proto, port, kind)| row(egress, *peer, *proto, *port, *kind))
        };
        datapath.set_policy(&A, &rows(OUT).chain(rows(IN)).collect::<Vec<_>>())?;
        for ((peer, dport), expected) in [(PEER, 80), (PEER, 81), (PEER + 1, 80)].into_iter().zip(expected) {
            sport += 1;
            let found = tcp_to(&mut datapath, peer, dport, sport)?;
            assert_eq!(found, [expected, expected], "{name}: port {dport} of {peer}");
        }
        // The twin of each case: rows of one direction say nothing about the other.
        datapath.set_policy(&A, &rows(OUT).collect::<Vec<_>>())?;
        sport += 1;
        assert_eq!(tcp_to(&mut datapath, PEER, 80, sport)?, [expected[0], DENIED], "{name}: out only");
    }
    Ok(())
}

/// An endpoint whose slot holds no map is denied everything; with an empty map as well, and with rows it is not.
#[test]
fn without_a_policy_map_nothing_passes() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { policy_verdict_notify: 0, ..default_config() };
    let mut datapath = datapath(&config)?;
    assert_eq!(tcp_to(&mut datapath, PEER, 80, 1)?, [None, None]);
    let elsewhere = Pod { id: 77, ..A };
    datapath.move_policy_slot(&A, elsewhere.id)?;
    assert_eq!(tcp_to(&mut datapath, PEER, 80, 2)?, [DENIED, DENIED], "empty slot");
    datapath.deny(&elsewhere)?;
    assert_eq!(tcp_to(&mut datapath, PEER, 80, 3)?, [DENIED, DENIED], "empty map");
    datapath.set_policy(&elsewhere, &ALLOW_ALL)?;
    assert_eq!(tcp_to(&mut datapath, PEER, 80, 4)?, [None, None]);
    Ok(())
}

#[test]
fn icmp_types_are_judged_like_ports() -> Result<()> {
    test_kit::require_root!();
    for (icmp_rules, other) in [(1, DENIED), (0, None)] {
        let config = NodeConfig { icmp_rules, policy_verdict_notify: 0, ..default_config() };
        let mut datapath = datapath(&config)?;
        for ((pod, peer), protocol, request) in
            families().into_iter().zip([(1, 8), (58, 128)]).map(|(family, icmp)| (family, icmp.0, icmp.1))
        {
            let kind = if icmp_rules == 1 { Some((u16::from(request), 16)) } else { None };
            datapath.set_policy(&A, &[row(OUT, 0, protocol, kind, Kind::Allow(0))])?;
            for (kind, expected) in [(request, None), (request + 5, other)] {
                let packet = ip(pod, peer, protocol, &icmp(kind, 0, 1));
                let reason = datapath.dropped(direction::EGRESS, |d| d.sends(&packet))?;
                assert_eq!(reason, expected, "rules {icmp_rules}, type {kind}");
            }
        }
    }
    Ok(())
}

/// Errors that ask a sender for smaller packets pass unless that is switched off; other errors ask policy.
#[test]
fn fragmentation_needed_passes_policy() -> Result<()> {
    test_kit::require_root!();
    for (allow_icmp_frag_needed, expected) in [(1, None), (0, DENIED)] {
        let config = NodeConfig { allow_icmp_frag_needed, policy_verdict_notify: 0, ..default_config() };
        let mut datapath = datapath(&config)?;
        datapath.set_policy(&A, &[])?;
        for (code, expected) in [(4, expected), (3, DENIED)] {
            let packet = ip(OUTSIDE_V4.into(), A.ipv4.into(), 1, &icmp(3, code, 0));
            let reason = datapath.dropped(direction::INGRESS, |d| d.receives(PEER, &packet))?;
            assert_eq!(reason, expected, "option {allow_icmp_frag_needed}, code {code}");
        }
    }
    Ok(())
}

#[test]
fn what_a_row_decides_is_counted() -> Result<()> {
    test_kit::require_root!();
    for policy_accounting in [1, 0] {
        let config = NodeConfig { policy_accounting, policy_verdict_notify: 0, ..default_config() };
        let mut datapath = datapath(&config)?;
        let rows = [
            row(OUT, PEER, TCP, Some((80, 12)), Kind::Allow(0)),
            row(OUT, 0, TCP, Some((443, 16)), Kind::Deny(0)),
            row(IN, 0, 0, None, Kind::Allow(0)),
        ];
        datapath.set_policy(&A, &rows)?;
        let (pod, peer) = families()[0];
        let packet = |dport| ip(pod, peer, TCP, &tcp(1024, dport, ACK));
        for dport in [80, 81, 95, 443, 1] {
            datapath.sends(&packet(dport))?;
        }
        datapath.receives(PEER, &ip(peer, pod, TCP, &tcp(1024, 9, ACK)))?;
        let stats = |prefix_len, sec_label, egress, protocol, dport: u16| PolicyStatsKey {
            endpoint_id: A.id,
            pad1: 0,
            prefix_len,
            sec_label,
            egress,
            protocol,
            dport: dport.to_be(),
        };
        // The port's bits that the row does not look at are zero; the packet to port 1 was nobody's.
        let mut expected = vec![
            (stats(20, PEER, OUT, TCP, 80), 3),
            (stats(24, 0, OUT, TCP, 443), 1),
            (stats(0, 0, IN, 0, 0), 1),
        ];
        let len = packet(80).len() as u64;
        let map = PerCpuHashMap::<_, [u8; 12], [u64; 2]>::try_from(datapath.take_map("cilium_policystats")?)?;
        let mut found = Vec::new();
        for row in map.iter() {
            let (key, values) = row?;
            let packets: u64 = values.iter().map(|value| value[0]).sum();
            assert_eq!(values.iter().map(|value| value[1]).sum::<u64>(), packets * len);
            found.push((PolicyStatsKey::from_bytes(&key).context("short key")?, packets));
        }
        found.sort_by_key(|row| row.0.as_bytes().to_vec());
        expected.sort_by_key(|row| row.0.as_bytes().to_vec());
        if policy_accounting == 0 {
            expected.clear();
        }
        assert_eq!(found, expected);
    }
    Ok(())
}

/// Packets count for the row that let them pass; an ICMP row's port is a type, which the packet's ports are not.
#[test]
fn icmp_counts_for_the_row_of_its_type() -> Result<()> {
    test_kit::require_root!();
    for ((pod, peer), protocol, request) in [(families()[0], 1, 8), (families()[1], 58, 128)] {
        let mut datapath = datapath(&default_config())?;
        let kind = u16::from(request);
        datapath.set_policy(&A, &[row(OUT, 0, protocol, Some((kind, 16)), Kind::Allow(0))])?;
        datapath.sends(&ip(pod, peer, protocol, &icmp(request, 0, 4711)))?;
        let stats =
            PerCpuHashMap::<_, [u8; 12], [u64; 2]>::try_from(datapath.take_map("cilium_policystats")?)?;
        let keys = stats.keys().collect::<Result<Vec<_>, _>>()?;
        let found = keys.iter().map(|key| PolicyStatsKey::from_bytes(key)).collect::<Option<Vec<_>>>();
        let found = found.context("short key")?.into_iter().map(|key| (key.protocol, key.dport));
        assert_eq!(found.collect::<Vec<_>>(), [(protocol, kind.to_be())]);
    }
    Ok(())
}

/// Monitors hear of drops and of new connections, with what decided.
#[test]
fn verdicts_are_told() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { trace_notify: 0, drop_notify: 0, ..default_config() };
    let mut datapath = datapath(&config)?;
    let mut ring = Ring::open(&mut datapath)?;
    let mut allowed = row(OUT, PEER, TCP, Some((80, 16)), Kind::Allow(0));
    allowed.1.cookie = 4242;
    let auth = row(IN, PEER, UDP, None, Kind::Auth(2, true));
    datapath.set_policy(&A, &[allowed, row(IN, 0, TCP, None, Kind::Deny(0)), auth])?;
    let told = |ring: &mut Ring| -> Result<Option<PolicyVerdictNotify>> {
        let events = ring.read();
        assert!(events.len() <= 1);
        events.first().map(|event| Ok(split::<PolicyVerdictNotify>(event, 0)?.0)).transpose()
    };
    for (family, (pod, peer)) in families().into_iter().enumerate() {
        let v6 = if family == 1 { verdict_flag::IPV6 } else { 0 };
        let of = |matched| v6 | matched << verdict_flag::MATCH_SHIFT;
        let sent = ip(pod, peer, TCP, &tcp(1024, 80, SYN));
        datapath.sends(&sent)?;
        let event = told(&mut ring)?.context("a new connection")?;
        let header = event.header;
        assert_eq!((header.kind, header.subtype, header.source), (event::POLICY_VERDICT, 0, A.id));
        assert_eq!((header.version, header.len_orig), (1, sent.len() as u32));
        assert_eq!((event.remote_label, event.verdict, event.cookie), (PEER, 0, 4242));
        assert_eq!((event.dport, event.proto, event.auth_type), (80, TCP, 0));
        assert_eq!(event.flags, verdict_flag::EGRESS | of(policy_match::L3_L4));
        datapath.sends(&sent)?;
        assert_eq!(told(&mut ring)?, None, "established");

        let refused = ip(pod, peer, TCP, &tcp(1024, 81, SYN));
        datapath.sends(&refused)?;
        let event = told(&mut ring)?.context("nothing matched")?;
        assert_eq!((event.verdict, event.dport), (-i32::from(drop::POLICY_DENIED), 81));
        assert_eq!(event.flags, verdict_flag::EGRESS | of(policy_match::NONE));

        datapath.receives(PEER, &ip(peer, pod, TCP, &tcp(1024, 22, SYN)))?;
        let event = told(&mut ring)?.context("denied")?;
        assert_eq!(event.verdict, -i32::from(drop::POLICY_DENY));
        assert_eq!(event.flags, verdict_flag::INGRESS | of(policy_match::PROTO_ONLY));

        datapath.receives(PEER, &ip(peer, pod, UDP, &udp_ports(1024, 53)))?;
        let event = told(&mut ring)?.context("authentication")?;
        assert_eq!((event.verdict, event.auth_type), (-i32::from(drop::AUTH_REQUIRED), 2));
        assert_eq!(event.flags, verdict_flag::INGRESS | of(policy_match::L3_PROTO));

        // The endpoint's own switch.
        let live = ep_flag::LIVE | ep_flag::SOURCE_CHECK;
        datapath.set_settings(&A, live | ep_flag::NO_POLICY_VERDICT_NOTIFY)?;
        datapath.sends(&refused)?;
        assert_eq!(told(&mut ring)?, None, "silenced");
        datapath.set_settings(&A, live)?;
    }
    Ok(())
}

/// In audit mode what would be dropped passes, and monitors hear so.
#[test]
fn audit_lets_through_and_tells() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { trace_notify: 0, drop_notify: 0, ..default_config() };
    let mut datapath = datapath(&config)?;
    let mut ring = Ring::open(&mut datapath)?;
    datapath.set_policy(&A, &[row(OUT, PEER, 0, None, Kind::Deny(0))])?;
    let live = ep_flag::LIVE | ep_flag::SOURCE_CHECK;
    for (flags, expected) in [(live, [DENY, DENIED]), (live | ep_flag::POLICY_AUDIT, [None, None])] {
        datapath.set_settings(&A, flags)?;
        let found = tcp_to(&mut datapath, PEER, 80, 1024)?;
        assert_eq!(found, expected);
        let events = ring.read();
        assert_eq!(events.len(), 4);
        for event in events {
            let (event, _) = split::<PolicyVerdictNotify>(&event, 0)?;
            let audited = event.flags & verdict_flag::AUDITED != 0;
            assert_eq!((audited, event.verdict == 0), (expected[0].is_none(), expected[0].is_none()));
        }
    }
    Ok(())
}

/// The host is a peer like others: it needs a row.
#[test]
fn the_host_needs_a_row() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { policy_verdict_notify: 0, ..default_config() };
    for (rows, expected) in [(vec![], DENIED), (vec![row(IN, identity::HOST, 0, None, Kind::Allow(0))], None)]
    {
        let mut datapath = datapath(&config)?;
        datapath.set_policy(&A, &rows)?;
        let packet = eth(A.mac, A.mac, 0x0800, &ipv4(HOST_V4, A.ipv4, 64));
        let from_host = |d: &Datapath| d.run_with(datapath_object::FROM_HOST, &packet, Incoming::of_host());
        let reason = datapath.dropped(direction::INGRESS, from_host)?;
        assert_eq!(reason, expected);
    }
    Ok(())
}
