//! The host firewall: at each hook what reaches the host and what leaves it, and what is not its concern.

use crate::events::{Ring, split};
use crate::kit::*;
use crate::packet::*;
use anyhow::{Context as _, Result};
use datapath_abi::event::{self, PolicyVerdictNotify, verdict_flag};
use datapath_abi::{NodeConfig, direction, drop, ep_flag, identity, mark};
use datapath_object::{FROM_CONTAINER, FROM_HOST, FROM_NETDEV, TO_CONTAINER, TO_HOST, TO_NETDEV};
use std::net::IpAddr;

/// The host's endpoint: no interface is its own.
const HOST: Pod = Pod { id: HOST_ENDPOINT as u16, identity: identity::HOST, ifindex: 0, ..A };

/// The identity of the world outside in these tests.
const PEER: u32 = 70_000;
const DENIED: Option<u8> = Some(drop::POLICY_DENIED);

fn config() -> NodeConfig {
    NodeConfig { host_firewall: 1, host_routing: 0, policy_verdict_notify: 0, ..default_config() }
}

/// The addresses of the host, the outside and both pods, of either family.
fn families() -> [[IpAddr; 4]; 2] {
    [
        [HOST_V4.into(), OUTSIDE_V4.into(), A.ipv4.into(), B.ipv4.into()],
        [HOST_V6.into(), OUTSIDE_V6.into(), A.ipv6.into(), B.ipv6.into()],
    ]
}

/// A node whose host has these rows of policy.
fn node(config: &NodeConfig, rows: &[PolicyRow]) -> Result<Datapath> {
    let mut datapath = Datapath::with_pods(config)?;
    for [_, outside, ..] in families() {
        datapath.set_identity(outside, PEER)?;
    }
    datapath.set_policy(&HOST, rows)?;
    datapath.set_settings(&HOST, 0)?;
    Ok(datapath)
}

fn syn(source: IpAddr, destination: IpAddr, dport: u16) -> Vec<u8> {
    ip(source, destination, TCP, &tcp(40_000, dport, SYN))
}

fn answer(source: IpAddr, destination: IpAddr, sport: u16) -> Vec<u8> {
    ip(source, destination, TCP, &tcp(sport, 40_000, SYN | ACK))
}

fn pod_mark(label: u32) -> Incoming {
    let mark = mark::with_identity(mark::IDENTITY, label);
    Incoming { mark, ingress_ifindex: IFINDEX, ..Incoming::default() }
}

/// From the world to the host, with kube-proxy replacement, masquerading and host routing as well.
#[test]
fn the_network_reaches_ports_of_the_host_that_policy_allows() -> Result<()> {
    test_kit::require_root!();
    let features: [fn(&mut NodeConfig); 4] = [
        |_| {},
        |c| c.host_routing = 1,
        |c| (c.masquerade_ipv4, c.masquerade_ipv6, c.snat_min_port) = (1, 1, 45_000),
        |c| (c.nodeport, c.snat_min_port, c.nodeport_min, c.nodeport_max) = (1, 45_000, 30_000, 32_767),
    ];
    for (case, enable) in features.into_iter().enumerate() {
        let mut config = config();
        enable(&mut config);
        let mut datapath = node(&config, &[row(IN, PEER, TCP, Some((22, 16)), Kind::Allow(0))])?;
        for [host, outside, _, pod] in families() {
            let mut received = |packet: &[u8]| {
                datapath.dropped(direction::INGRESS, |datapath| datapath.run(FROM_NETDEV, packet))
            };
            assert_eq!(received(&syn(outside, host, 22))?, None, "case {case}");
            assert_eq!(received(&syn(outside, host, 23))?, DENIED, "case {case}");
            assert_eq!(received(&syn(outside, pod, 23))?, None, "case {case}: not for the host");
            // The reply leaves, although no rule allows the host to send.
            let mut sent = |packet: &[u8]| {
                datapath.dropped(direction::EGRESS, |d| d.run_with(TO_NETDEV, packet, Incoming::of_host()))
            };
            assert_eq!(sent(&answer(host, outside, 22))?, None, "case {case}");
            assert_eq!(sent(&answer(host, outside, 23))?, DENIED, "case {case}: of no connection");
        }
    }
    Ok(())
}

/// Scenarios 84 and 85.
#[test]
fn the_host_reaches_what_policy_allows() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = node(&config(), &[row(OUT, PEER, TCP, Some((443, 16)), Kind::Allow(0))])?;
    for [host, outside, pod, _] in families() {
        let mut sent = |packet: &[u8], incoming: Incoming| {
            datapath.dropped(direction::EGRESS, |datapath| datapath.run_with(TO_NETDEV, packet, incoming))
        };
        assert_eq!(sent(&syn(host, outside, 443), Incoming::of_host())?, None);
        assert_eq!(sent(&syn(host, outside, 80), Incoming::of_host())?, DENIED);
        assert_eq!(sent(&syn(host, outside, 80), Incoming::default())?, DENIED, "by its address");
        assert_eq!(sent(&syn(pod, outside, 80), pod_mark(A.identity))?, None, "a pod's");
        let translated = Incoming { mark: mark::SNAT_DONE, ..Incoming::default() };
        assert_eq!(sent(&syn(host, outside, 81), translated)?, None, "translated by a program");
        // Rules of iptables have given a pod's packet the host's address.
        assert_eq!(sent(&syn(host, outside, 82), pod_mark(A.identity))?, None);
        let mut received = |packet: &[u8]| {
            datapath.dropped(direction::INGRESS, |datapath| datapath.run(FROM_NETDEV, packet))
        };
        assert_eq!(received(&answer(outside, host, 443))?, None, "no rule for packets to the host");
        assert_eq!(received(&answer(outside, host, 82))?, None, "to the pod behind the address");
        assert_eq!(received(&answer(outside, host, 80))?, DENIED);
        assert_eq!(received(&answer(outside, host, 81))?, DENIED, "it has no entry of its own");
    }
    Ok(())
}

/// Scenario 87: reports of group members (IGMP) are subject to the host's policy with `enable-extended-ip-protocols`, and
/// of an unknown protocol without.
#[test]
fn other_protocols_of_the_host_are_subject_to_its_policy_if_they_are_tracked() -> Result<()> {
    test_kit::require_root!();
    const IGMP: u8 = 2;
    let (host, outside) = (IpAddr::from(HOST_V4), IpAddr::from(OUTSIDE_V4));
    let report = |from, to| ip(from, to, IGMP, &[0x16, 0, 0, 0, 239, 1, 2, 3]);
    let rows = |is_allowed: bool| -> Vec<PolicyRow> {
        let kinds = [(IN, PEER), (OUT, PEER)].map(|(way, peer)| row(way, peer, IGMP, None, Kind::Allow(0)));
        if is_allowed { kinds.to_vec() } else { Vec::new() }
    };
    for (extended_protocols, is_allowed, expected) in
        [(1, true, None), (1, false, DENIED), (0, true, Some(drop::CT_UNKNOWN_L4_PROTOCOL))]
    {
        let config = NodeConfig { extended_protocols, ..config() };
        let mut datapath = node(&config, &rows(is_allowed))?;
        let why = datapath.dropped(direction::EGRESS, |datapath| {
            datapath.run_with(TO_NETDEV, &report(host, outside), Incoming::of_host())
        })?;
        assert_eq!(why, expected, "sent, {extended_protocols} {is_allowed}");
        let mut datapath = node(&config, &rows(is_allowed))?;
        let why = datapath
            .dropped(direction::INGRESS, |datapath| datapath.run(FROM_NETDEV, &report(outside, host)))?;
        assert_eq!(why, expected, "received, {extended_protocols} {is_allowed}");
    }
    Ok(())
}

#[test]
fn pods_reach_the_host_by_its_policy() -> Result<()> {
    test_kit::require_root!();
    let rows =
        [row(IN, A.identity, TCP, Some((53, 16)), Kind::Allow(0)), row(IN, PEER, 0, None, Kind::Allow(0))];
    let mut datapath = node(&config(), &rows)?;
    for [host, outside, pod, other] in families() {
        for (port, expected) in [(53, None), (54, DENIED)] {
            let packet = syn(pod, host, port);
            let packet = [&A.node_mac[..], &A.mac, &packet[12..]].concat();
            let reason = datapath.dropped(direction::INGRESS, |d| d.run(FROM_CONTAINER, &packet))?;
            assert_eq!(reason, expected, "port {port}");
        }
        // By the tunnel, with the sender's identity in the mark.
        for (label, expected) in [(A.identity, None), (B.identity, DENIED)] {
            let packet = ip(other, host, TCP, &tcp(u16::from(label == A.identity), 53, SYN));
            let into = |d: &Datapath| d.run_with(TO_HOST, &packet, pod_mark(label));
            assert_eq!(datapath.dropped(direction::INGRESS, into)?, expected, "{label}");
        }
        let passing = syn(other, outside, 53);
        let into = |d: &Datapath| d.run_with(TO_HOST, &passing, pod_mark(B.identity));
        assert_eq!(datapath.dropped(direction::INGRESS, into)?, None, "on its way to the world");
    }
    Ok(())
}

/// At `cilium_host`, and with endpoint routes at the pod's interface; the pod's own policy comes after it.
#[test]
fn the_host_reaches_pods_by_its_policy() -> Result<()> {
    test_kit::require_root!();
    let at_host = NodeConfig { host_ifindex: IFINDEX, ..config() };
    let at_pod = NodeConfig { endpoint_routes: 1, redirect_peer: 0, ..config() };
    for (config, program, pod, passed) in [(at_host, FROM_HOST, B, REDIRECT), (at_pod, TO_CONTAINER, A, PASS)]
    {
        let mut datapath = node(&config, &[row(OUT, pod.identity, TCP, Some((80, 16)), Kind::Allow(0))])?;
        for (host, address) in [(HOST_V4.into(), pod.ipv4.into()), (HOST_V6.into(), pod.ipv6.into())] {
            let sent = |port| {
                let packet = syn(host, address, port);
                move |datapath: &Datapath| datapath.run_with(program, &packet, Incoming::of_host())
            };
            assert_eq!(datapath.dropped(direction::EGRESS, sent(80))?, None, "{program}");
            assert_eq!(sent(80)(&datapath)?.verdict, passed, "{program}");
            assert_eq!(datapath.dropped(direction::EGRESS, sent(81))?, DENIED, "{program}");
            // Packets of others by the same way.
            let foreign = syn(OUTSIDE_V4.into(), pod.ipv4.into(), 81);
            let outcome = datapath.run_with(program, &foreign, pod_mark(PEER))?;
            assert_eq!(outcome.verdict, passed, "{program}");
        }
        datapath.deny(&pod)?;
        let packet = syn(HOST_V4.into(), pod.ipv4.into(), 80);
        let into = |datapath: &Datapath| datapath.run_with(program, &packet, Incoming::of_host());
        let denied = datapath.dropped(direction::INGRESS, into)?;
        assert_eq!(denied, DENIED, "{program}: by the pod");
    }
    Ok(())
}

/// Scenario 86: rules of DNS names for the host: its queries must not pass by the proxy, and the proxy's must not come
/// back to it.
#[test]
fn queries_of_the_host_go_to_the_proxy_and_the_proxys_to_the_server() -> Result<()> {
    test_kit::require_root!();
    const PROXY_PORT: u16 = 10_053;
    let to_proxy = mark::to_proxy(PROXY_PORT.to_be());
    let peers = [PEER, A.identity, B.identity];
    let rows = peers.map(|peer| row(OUT, peer, UDP, Some((53, 16)), Kind::Proxy(PROXY_PORT)));
    let at_device = config();
    let at_host = NodeConfig { host_ifindex: IFINDEX, ..config() };
    let at_pod = NodeConfig { endpoint_routes: 1, redirect_peer: 0, ..config() };
    let outside = [OUTSIDE_V4.into(), OUTSIDE_V6.into()];
    for (config, program, servers, forwarded) in [
        (at_device, TO_NETDEV, outside, PASS),
        (at_host, FROM_HOST, [B.ipv4.into(), B.ipv6.into()], REDIRECT),
        (at_pod, TO_CONTAINER, [A.ipv4.into(), A.ipv6.into()], PASS),
    ] {
        let datapath = node(&config, &rows)?;
        for (host, server) in [HOST_V4.into(), HOST_V6.into()].into_iter().zip(servers) {
            let query = ip(host, server, UDP, &udp_ports(40_000, 53));
            let sent = datapath.run_with(program, &query, Incoming::of_host())?;
            assert_eq!((sent.verdict, sent.mark), (REDIRECT, to_proxy), "{program} {server}");
            // The proxy forwards it with the identity of its client.
            let mark = mark::with_identity(mark::PROXY_EGRESS, identity::HOST);
            let query = ip(host, server, UDP, &udp_ports(41_000, 53));
            let sent = datapath.run_with(program, &query, Incoming { mark, ..Incoming::default() })?;
            assert_eq!(sent.verdict, forwarded, "{program} {server}");
            assert_ne!(sent.mark & mark::MAGIC_MASK, mark::TO_PROXY, "{program} {server}");
        }
    }
    Ok(())
}

#[test]
fn neighbours_and_errors_pass_and_other_protocols_do_not() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = node(&config(), &[])?;
    let arp = eth(BROADCAST, A.mac, 0x0806, &arp_request(A.mac, OUTSIDE_V4, HOST_V4));
    let lldp = eth(BROADCAST, A.mac, 0x88cc, &[0; 46]);
    let spanning_tree = eth(BROADCAST, A.mac, 38, &[0; 46]);
    let message = |kind| ip(OUTSIDE_V6.into(), HOST_V6.into(), 58, &icmp(kind, 0, 1));
    let unsupported = (Some(drop::UNSUPPORTED_L3_PROTOCOL), Some(drop::UNSUPPORTED_L2_PROTOCOL));
    for (program, direction) in [(FROM_NETDEV, direction::INGRESS), (TO_NETDEV, direction::EGRESS)] {
        let mut reason = |packet: &[u8]| datapath.dropped(direction, |d| d.run(program, packet));
        assert_eq!(reason(&arp)?, None, "{program}");
        assert_eq!((reason(&lldp)?, reason(&spanning_tree)?), unsupported, "{program}");
    }
    let mut reason =
        |packet: &[u8]| datapath.dropped(direction::INGRESS, |datapath| datapath.run(FROM_NETDEV, packet));
    for kind in [1, 2, 3, 4, 130, 133, 134, 135, 136, 143] {
        assert_eq!(reason(&message(kind))?, None, "ICMPv6 {kind}");
    }
    for kind in [128, 129] {
        assert_eq!(reason(&message(kind))?, DENIED, "an echo is for policy");
    }
    for kind in [0, 5, 137, 138, 139, 140, 144, 150, 154, 255] {
        assert_eq!(reason(&message(kind))?, Some(drop::FORBIDDEN_ICMPV6_MESSAGE), "ICMPv6 {kind}");
    }
    assert_eq!(
        reason(&ip(OUTSIDE_V4.into(), HOST_V4.into(), 2, &[0; 8]))?,
        Some(drop::CT_UNKNOWN_L4_PROTOCOL)
    );
    let multicast = ip(OUTSIDE_V4.into(), "224.0.0.251".parse()?, UDP, &udp_ports(5353, 5353));
    assert_eq!(reason(&multicast)?, None, "to no address of the host");
    // The control: without the firewall all of them pass.
    let datapath = node(&NodeConfig { host_firewall: 0, ..config() }, &[])?;
    for packet in [lldp, spanning_tree, message(128), message(137)] {
        assert_eq!(datapath.run(FROM_NETDEV, &packet)?.verdict, PASS);
    }
    Ok(())
}

/// ICMP errors about connections of the host, which policy otherwise denies.
#[test]
fn errors_about_connections_of_the_host_pass() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = node(&config(), &[row(OUT, 0, 0, None, Kind::Allow(0))])?;
    let syn = syn(HOST_V4.into(), OUTSIDE_V4.into(), 443);
    let error = |quoted: &[u8]| {
        let message = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &quoted[ETH_LEN..]].concat();
        ip(OUTSIDE_V4.into(), HOST_V4.into(), 1, &message)
    };
    let mut reason =
        |packet: &[u8]| datapath.dropped(direction::INGRESS, |datapath| datapath.run(FROM_NETDEV, packet));
    assert_eq!(reason(&error(&syn))?, DENIED, "of no connection");
    datapath.run_with(TO_NETDEV, &syn, Incoming::of_host())?;
    let mut reason =
        |packet: &[u8]| datapath.dropped(direction::INGRESS, |datapath| datapath.run(FROM_NETDEV, packet));
    assert_eq!(reason(&error(&syn))?, None);
    Ok(())
}

/// Before the host's endpoint exists nothing is denied: the node would lose its API server.
#[test]
fn without_a_host_endpoint_all_packets_pass() -> Result<()> {
    test_kit::require_root!();
    let datapath = Datapath::with_pods(&config())?;
    let received = syn(OUTSIDE_V4.into(), HOST_V4.into(), 22);
    assert_eq!(datapath.run(FROM_NETDEV, &received)?.verdict, PASS);
    let sent = syn(HOST_V4.into(), OUTSIDE_V4.into(), 22);
    assert_eq!(datapath.run_with(TO_NETDEV, &sent, Incoming::of_host())?.verdict, PASS);
    Ok(())
}

#[test]
fn verdicts_are_events_of_the_host_and_audit_drops_nothing() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { policy_verdict_notify: 1, trace_notify: 0, drop_notify: 0, ..config() };
    let mut datapath = node(&config, &[])?;
    let mut ring = Ring::open(&mut datapath)?;
    let received = syn(OUTSIDE_V4.into(), HOST_V4.into(), 22);
    let sent = syn(HOST_V4.into(), OUTSIDE_V4.into(), 443);
    let audit = (ep_flag::POLICY_AUDIT, 0, verdict_flag::AUDITED);
    for (flags, verdict, audited) in [(0, -i32::from(drop::POLICY_DENIED), 0), audit] {
        datapath.set_settings(&HOST, flags)?;
        let passed = if verdict == 0 { PASS } else { SHOT };
        for (program, packet, way, port) in [
            (FROM_NETDEV, &received, verdict_flag::INGRESS, 22),
            (TO_NETDEV, &sent, verdict_flag::EGRESS, 443),
        ] {
            let incoming = if program == TO_NETDEV { Incoming::of_host() } else { Incoming::default() };
            assert_eq!(datapath.run_with(program, packet, incoming)?.verdict, passed);
            let events = ring.read();
            let (event, _) = split::<PolicyVerdictNotify>(events.first().context("no event")?, 0)?;
            assert_eq!((event.header.kind, event.header.source), (event::POLICY_VERDICT, HOST.id));
            assert_eq!((event.remote_label, event.verdict, event.dport), (PEER, verdict, port));
            assert_eq!(
                event.flags & (verdict_flag::EGRESS | verdict_flag::AUDITED),
                way & verdict_flag::EGRESS | audited
            );
        }
    }
    Ok(())
}
