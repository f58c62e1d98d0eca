//! Packets from pods: to each other, to the host, outside, and those that are refused.

use crate::kit::*;
use crate::packet::*;
use crate::uplink::{UPLINK, routed};
use anyhow::Result;
use datapath_abi::{NodeConfig, direction, drop, ep_flag, mark, metric, slot};
use datapath_object::{FROM_CONTAINER, LXC_POLICY};
use std::net::{IpAddr, Ipv4Addr};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// From pod A to an IPv4 address.
fn to_v4(destination: Ipv4Addr, ttl: u8) -> Vec<u8> {
    eth(A.node_mac, A.mac, IPV4, &ipv4(A.ipv4, destination, ttl))
}

/// Pod A's packets to pod B, both families: name, packet, where the hop count is.
fn to_b(hops: u8) -> [(&'static str, Vec<u8>, usize); 2] {
    [
        ("IPv4", to_v4(B.ipv4, hops), ETH_LEN + 8),
        ("IPv6", eth(A.node_mac, A.mac, IPV6, &ipv6(A.ipv6, B.ipv6, hops)), ETH_LEN + 7),
    ]
}

/// Asserts that a packet is dropped with a reason, counted once under it and nowhere forwarded.
fn assert_dropped(datapath: &mut Datapath, packet: &[u8], reason: u8) -> Result<()> {
    let before = datapath.counted(reason, direction::EGRESS)?;
    let outcome = datapath.run(FROM_CONTAINER, packet)?;
    assert_eq!(outcome.verdict, SHOT, "{:?}", drop::label(reason));
    let rows = datapath.counters()?;
    assert_eq!(
        datapath.counted(reason, direction::EGRESS)?,
        before + 1,
        "{:?}: {rows:?}",
        drop::label(reason)
    );
    assert_eq!(datapath.counted(metric::FORWARDED, direction::INGRESS)?, 0);
    Ok(())
}

#[test]
fn pod_to_pod_is_redirected_routed_and_counted() -> Result<()> {
    test_kit::require_root!();
    for (redirect_peer, flags) in [(1, mark::delivery::USE_REDIRECT_PEER | mark::delivery::REDIRECT), (0, 1)]
    {
        let mut datapath = Datapath::with_pods(&NodeConfig { redirect_peer, ..default_config() })?;
        for (family, sent, hops) in to_b(64) {
            let outcome = datapath.run(FROM_CONTAINER, &sent)?;
            assert_eq!(outcome.verdict, REDIRECT, "{family}");
            assert_eq!(outcome.packet[..6], B.mac, "{family}");
            assert_eq!(outcome.packet[6..12], B.node_mac, "{family}");
            assert_eq!(outcome.packet[hops], 63, "{family}");
            assert_eq!(outcome.cb[mark::cb::SRC_LABEL], A.identity, "{family}");
            assert_eq!(outcome.cb[mark::cb::DELIVERY_FLAGS], flags | u32::from(B.id) << 16, "{family}");
            if family == "IPv4" {
                assert_eq!(checksum(&outcome.packet[ETH_LEN..ETH_LEN + 20]), 0, "IPv4 header checksum");
            }
            // Nothing else changed.
            let untouched = if family == "IPv4" { ETH_LEN + 12 } else { ETH_LEN + 8 };
            assert_eq!(outcome.packet[untouched..], sent[untouched..], "{family}");
        }
        assert_eq!(datapath.counted(metric::FORWARDED, direction::EGRESS)?, 2);
        assert_eq!(datapath.counted(metric::FORWARDED, direction::INGRESS)?, 2);
        let bytes: u64 =
            datapath.counters()?.iter().filter(|row| row.0.dir == direction::INGRESS).map(|row| row.2).sum();
        assert_eq!(bytes, to_b(64).iter().map(|(_, packet, _)| packet.len() as u64).sum::<u64>());
    }
    Ok(())
}

/// The control of the test above: without the row of pod B the same packets go to the stack.
#[test]
fn an_address_that_is_not_here_goes_to_the_stack() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    datapath.remove_address(B.ipv4.into())?;
    datapath.remove_address(B.ipv6.into())?;
    for (family, sent, _) in to_b(64) {
        let outcome = datapath.run(FROM_CONTAINER, &sent)?;
        assert_eq!(outcome.verdict, PASS, "{family}");
        assert_eq!(outcome.packet, sent, "{family}: the hop is the stack's");
    }
    assert_eq!(datapath.counted(metric::FORWARDED, direction::EGRESS)?, 2);
    assert_eq!(datapath.counted(metric::FORWARDED, direction::INGRESS)?, 0);
    Ok(())
}

#[test]
fn pod_to_host_and_outside_carries_the_identity() -> Result<()> {
    test_kit::require_root!();
    for (identity_mark, expected) in [(1, mark::with_identity(mark::IDENTITY, A.identity)), (0, 0)] {
        let datapath = Datapath::with_pods(&NodeConfig { identity_mark, ..default_config() })?;
        for destination in [HOST_V4, OUTSIDE_V4] {
            // A mark that the packet brought along does not survive.
            let incoming = Incoming { mark: 0xdead_0f00, ingress_ifindex: IFINDEX, ..Incoming::default() };
            let sent = to_v4(destination, 64);
            let outcome = datapath.run_with(FROM_CONTAINER, &sent, incoming)?;
            assert_eq!((outcome.verdict, outcome.mark), (PASS, expected), "{destination}");
            assert_eq!(outcome.packet, sent, "{destination}");
        }
        for destination in [HOST_V6, OUTSIDE_V6] {
            let sent = eth(A.node_mac, A.mac, IPV6, &ipv6(A.ipv6, destination, 64));
            let outcome = datapath.run(FROM_CONTAINER, &sent)?;
            assert_eq!((outcome.verdict, outcome.mark), (PASS, expected), "{destination}");
            assert_eq!(outcome.packet, sent, "{destination}");
        }
    }
    Ok(())
}

/// A packet of pod A to another machine, or to the host.
fn to_any(destination: IpAddr, hops: u8, payload: &[u8]) -> Vec<u8> {
    match destination {
        IpAddr::V4(ip) => {
            eth(A.node_mac, A.mac, IPV4, &ipv4_with(A.ipv4, ip, hops, UDP, [1, 0x4000], payload))
        }
        IpAddr::V6(ip) => eth(A.node_mac, A.mac, IPV6, &ipv6_with(A.ipv6, ip, hops, UDP, payload)),
    }
}

const OUTSIDE: [IpAddr; 2] = [IpAddr::V4(OUTSIDE_V4), IpAddr::V6(OUTSIDE_V6)];

/// With BPF host routing packets leave by the host's routes, past its stack.
#[test]
fn pod_to_outside_bypasses_the_stack() -> Result<()> {
    test_kit::require_root!();
    let marked = mark::with_identity(mark::IDENTITY, A.identity);
    let udp = udp_ports(40000, 53);
    let mut datapath = Datapath::with_pods(&host_routing_config())?;
    let ns = routed()?;
    let runs = |datapath: &Datapath, packet: &[u8]| ns.run(|| datapath.run(FROM_CONTAINER, packet));
    let stays = |datapath: &Datapath, packet: Vec<u8>, reason: &str| -> Result<()> {
        let outcome = runs(datapath, &packet)?;
        assert_eq!((outcome.verdict, outcome.mark), (PASS, marked), "{reason}");
        assert_eq!(outcome.packet, packet, "{reason}");
        Ok(())
    };
    for destination in OUTSIDE {
        stays(&datapath, to_any(destination, 64, &udp), "no device that faces the network")?;
    }
    datapath.add_device(UPLINK)?;
    for destination in OUTSIDE {
        let outcome = runs(&datapath, &to_any(destination, 64, &udp))?;
        assert_eq!((outcome.verdict, outcome.mark), (REDIRECT, marked), "{destination}");
        assert_eq!(outcome.packet[14..], to_any(destination, 63, &udp)[14..], "{destination}");
        stays(&datapath, to_any(destination, 1, &udp), "the last hop")?;
    }
    let of_host = [IpAddr::V4(HOST_V4), HOST_V6.into()];
    let own =
        ["203.0.113.1", "2001:db8:1::1", "127.0.0.1", "fe80::7", "ff02::1", "224.0.0.9", "255.255.255.255"];
    for destination in own.map(|text| text.parse().unwrap()).into_iter().chain(of_host) {
        stays(&datapath, to_any(destination, 64, &udp), &destination.to_string())?;
    }
    datapath.set_l3_device(UPLINK)?;
    stays(&datapath, to_any(OUTSIDE[0], 64, &udp), "a device of which the stack delivers")?;
    Ok(())
}

/// The stack informs pods of packets that do not fit into their route; it fragments those that may be.
#[test]
fn packets_that_do_not_fit_their_route_are_the_stacks() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&host_routing_config())?;
    datapath.add_device(UPLINK)?;
    let ns = routed()?;
    // The kernel forwards by the MTU of a route only if it is locked.
    ns.ip_batch(
        "route change default via 203.0.113.9 mtu lock 1280\nroute change default via 2001:db8:1::9 mtu lock 1280",
    )?;
    let large = [&udp_ports(40000, 53)[..8], &[0; 1300]].concat();
    let fits = udp_ports(40000, 53);
    for destination in OUTSIDE {
        let header_len = if destination.is_ipv4() { 20 } else { 40 };
        for (payload, gso_size, verdict) in [
            (&fits, 0, REDIRECT),
            (&large, 0, PASS),
            // Two segments, each of which fits; and such that do not.
            (&large, 1280 - header_len - 8, REDIRECT),
            (&large, 1280 - header_len - 7, PASS),
        ] {
            let packet = to_any(destination, 64, payload);
            let incoming = Incoming { ingress_ifindex: IFINDEX, gso_size, ..Incoming::default() };
            let outcome = ns.run(|| datapath.run_with(FROM_CONTAINER, &packet, incoming))?;
            assert_eq!(outcome.verdict, verdict, "{destination} {} {gso_size}", payload.len());
        }
    }
    Ok(())
}

/// Routes without a next hop: the stack answers, or drops silently, which the programs report.
#[test]
fn routes_without_next_hop_are_the_stacks_or_dropped() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&host_routing_config())?;
    datapath.add_device(UPLINK)?;
    let ns = routed()?;
    let udp = udp_ports(40000, 53);
    ns.ip_batch("route del default via 203.0.113.9\nroute del default via 2001:db8:1::9")?;
    for (kind, dropped) in [("", false), ("unreachable", false), ("prohibit", false), ("blackhole", true)] {
        if !kind.is_empty() {
            ns.ip_batch(&format!("route add {kind} 0.0.0.0/0 metric 9\nroute add {kind} ::/0 metric 9"))?;
        }
        for destination in OUTSIDE {
            let packet = to_any(destination, 64, &udp);
            let runs = |datapath: &Datapath| ns.run(|| datapath.run(FROM_CONTAINER, &packet));
            let why = datapath.dropped(direction::EGRESS, runs)?;
            assert_eq!(why, dropped.then_some(drop::FIB_LOOKUP_FAILED), "{destination} {kind}");
        }
        if !kind.is_empty() {
            ns.ip_batch(&format!("route del {kind} 0.0.0.0/0 metric 9\nroute del {kind} ::/0 metric 9"))?;
        }
    }
    Ok(())
}

#[test]
fn with_endpoint_routes_the_stack_routes() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { endpoint_routes: 1, redirect_peer: 0, ..default_config() };
    let datapath = Datapath::with_pods(&config)?;
    for (family, sent, _) in to_b(64) {
        let outcome = datapath.run(FROM_CONTAINER, &sent)?;
        assert_eq!(outcome.verdict, PASS, "{family}");
        assert_eq!(outcome.packet, sent, "{family}: the hop is the stack's");
        assert_eq!(outcome.mark, mark::with_identity(mark::IDENTITY, A.identity), "{family}");
    }
    // Host routing goes past the stack all the same.
    let datapath = Datapath::with_pods(&NodeConfig { redirect_peer: 1, ..config })?;
    for (family, sent, _) in to_b(64) {
        assert_eq!(datapath.run(FROM_CONTAINER, &sent)?.verdict, REDIRECT, "{family}");
    }
    Ok(())
}

/// Delivery to another pod is a hop. Packets for the stack keep theirs: the host may be the receiver, and the stack
/// answers for hops that end while it forwards.
#[test]
fn hops_end_at_pods_and_not_before_the_stack() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    for ttl in [0, 1] {
        assert_dropped(&mut datapath, &to_v4(B.ipv4, ttl), drop::TTL_EXCEEDED)?;
    }
    assert_eq!(datapath.run(FROM_CONTAINER, &to_v4(B.ipv4, 2))?.verdict, REDIRECT, "the control");
    for hops in [1, 255] {
        for sent in [
            to_v4(HOST_V4, hops),
            to_v4(OUTSIDE_V4, hops),
            eth(A.node_mac, A.mac, IPV6, &ipv6(A.ipv6, HOST_V6, hops)),
            eth(A.node_mac, A.mac, IPV6, &ipv6(A.ipv6, OUTSIDE_V6, hops)),
        ] {
            let outcome = datapath.run(FROM_CONTAINER, &sent)?;
            assert_eq!((outcome.verdict, outcome.packet), (PASS, sent), "{hops} hops");
        }
    }
    Ok(())
}

/// IPv6 senders are told, by the router.
#[test]
fn ipv6_hops_end_with_an_answer() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    let sent = eth(A.node_mac, A.mac, IPV6, &ipv6(A.ipv6, B.ipv6, 1));
    let outcome = datapath.run(FROM_CONTAINER, &sent)?;
    assert_eq!(outcome.verdict, REDIRECT);
    let answer = &outcome.packet;
    assert_eq!((&answer[..6], &answer[6..12]), (&A.mac[..], &A.node_mac[..]));
    assert_eq!(answer[ETH_LEN + 8..ETH_LEN + 24], ROUTER.octets());
    assert_eq!(answer[ETH_LEN + 24..ETH_LEN + 40], A.ipv6.octets());
    let message = &answer[ETH_LEN + 40..];
    assert_eq!(message[..2], [3, 0], "time exceeded");
    assert_eq!(message[8..], sent[ETH_LEN..ETH_LEN + 48], "quotes the packet");
    assert_eq!(icmpv6_checksum(ROUTER, A.ipv6, message), 0);
    assert_eq!(usize::from(u16::from_be_bytes([answer[ETH_LEN + 4], answer[ETH_LEN + 5]])), message.len());
    // An error is not answered by an error.
    let error = icmpv6(A.ipv6, B.ipv6, 1, vec![1; 16]);
    assert_dropped(&mut datapath, &eth(A.node_mac, A.mac, IPV6, &error), drop::TTL_EXCEEDED)
}

#[test]
fn foreign_sources_are_refused() -> Result<()> {
    test_kit::require_root!();
    let spoofed = [
        eth(A.node_mac, A.mac, IPV4, &ipv4(B.ipv4, OUTSIDE_V4, 64)),
        eth(A.node_mac, A.mac, IPV6, &ipv6(B.ipv6, OUTSIDE_V6, 64)),
        eth(A.node_mac, A.mac, IPV6, &ipv6("fe80::1".parse()?, "ff02::2".parse()?, 255)),
    ];
    let mut datapath = Datapath::with_pods(&default_config())?;
    for packet in &spoofed {
        assert_dropped(&mut datapath, packet, drop::INVALID_SOURCE_IP)?;
    }
    // Controls: the same packets pass when the endpoint, or the node, does not ask.
    datapath.set_settings(&A, ep_flag::LIVE)?;
    for packet in &spoofed {
        assert_eq!(datapath.run(FROM_CONTAINER, packet)?.verdict, PASS);
    }
    let datapath = Datapath::with_pods(&NodeConfig { source_ip_verification: 0, ..default_config() })?;
    for packet in &spoofed {
        assert_eq!(datapath.run(FROM_CONTAINER, packet)?.verdict, PASS);
    }
    Ok(())
}

#[test]
fn only_ip_and_arp_leave_a_pod() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    let payload = [0; 60];
    for protocol in [0x88cc, 0x8847, 0x9000, 0x0600] {
        let packet = eth(A.node_mac, A.mac, protocol, &payload);
        assert_dropped(&mut datapath, &packet, drop::UNSUPPORTED_L3_PROTOCOL)?;
    }
    // A length instead of a type: IEEE 802.3.
    assert_dropped(&mut datapath, &eth(A.node_mac, A.mac, 46, &payload), drop::UNSUPPORTED_L2_PROTOCOL)?;
    assert_eq!(datapath.run(FROM_CONTAINER, &to_v4(B.ipv4, 64))?.verdict, REDIRECT, "the control");
    // A family that is off is not one.
    let [(_, v4, _), (_, v6, _)] = to_b(64);
    let mut datapath = Datapath::with_pods(&NodeConfig { enable_ipv6: 0, ..default_config() })?;
    assert_eq!(datapath.run(FROM_CONTAINER, &v4)?.verdict, REDIRECT);
    assert_dropped_after(&mut datapath, &v6)?;
    let mut datapath = Datapath::with_pods(&NodeConfig { enable_ipv4: 0, ..default_config() })?;
    assert_eq!(datapath.run(FROM_CONTAINER, &v6)?.verdict, REDIRECT);
    assert_dropped_after(&mut datapath, &v4)
}

/// As [`assert_dropped`], on a datapath that has forwarded one packet.
fn assert_dropped_after(datapath: &mut Datapath, packet: &[u8]) -> Result<()> {
    assert_eq!(datapath.run(FROM_CONTAINER, packet)?.verdict, SHOT);
    assert_eq!(datapath.counted(drop::UNSUPPORTED_L3_PROTOCOL, direction::EGRESS)?, 1);
    assert_eq!(datapath.counted(metric::FORWARDED, direction::INGRESS)?, 1);
    Ok(())
}

#[test]
fn unknown_endpoints_are_refused() -> Result<()> {
    test_kit::require_root!();
    let [(_, v4, _), (_, v6, _)] = to_b(64);
    let arp = eth(BROADCAST, A.mac, 0x0806, &arp_request(A.mac, A.ipv4, B.ipv4));
    let solicit = eth(A.node_mac, A.mac, IPV6, &solicitation(A.ipv6, ROUTER, Some(A.mac)));
    let packets = [v4, v6, arp, solicit];
    // Nobody has this interface.
    let mut datapath = Datapath::load(&default_config())?;
    for packet in &packets {
        assert_dropped(&mut datapath, packet, drop::EP_NOT_READY)?;
    }
    // The row is not live, or of another interface.
    let mut datapath = Datapath::with_pods(&default_config())?;
    datapath.set_settings(&A, 0)?;
    for packet in &packets {
        assert_dropped(&mut datapath, packet, drop::EP_NOT_READY)?;
    }
    datapath.set_settings(&Pod { ifindex: 77, ..A }, ep_flag::LIVE)?;
    for packet in &packets {
        assert_dropped(&mut datapath, packet, drop::EP_NOT_READY)?;
    }
    datapath.set_settings(&A, ep_flag::LIVE)?;
    for packet in &packets {
        assert_ne!(datapath.run(FROM_CONTAINER, packet)?.verdict, SHOT, "the control");
    }
    Ok(())
}

/// Interface numbers grow with every pod that ever was; those beyond the array are found all the same.
#[test]
fn large_interface_numbers_are_found() -> Result<()> {
    test_kit::require_root!();
    const LARGE: u32 = 70_000;
    let sandbox = test_kit::Sandbox::new()?;
    sandbox.host().ip(&format!("link add lxc_a index {LARGE} type veth peer name eth0"))?;
    let mut datapath = Datapath::with_pods(&default_config())?;
    let incoming = Incoming { at: Some(LARGE), ingress_ifindex: LARGE, ..Incoming::default() };
    for (family, sent, _) in to_b(64) {
        assert_eq!(datapath.run_with(FROM_CONTAINER, &sent, incoming)?.verdict, SHOT, "{family}: nobody's");
    }
    datapath.add(&Pod { ifindex: LARGE, ..A })?;
    for (family, sent, _) in to_b(64) {
        assert_eq!(datapath.run_with(FROM_CONTAINER, &sent, incoming)?.verdict, REDIRECT, "{family}");
    }
    Ok(())
}

/// The destination is known by its address, but its settings are gone: it is being deleted.
#[test]
fn an_endpoint_that_goes_away_gets_nothing() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    datapath.set_settings(&B, 0)?;
    for (family, sent, _) in to_b(64) {
        assert_eq!(datapath.run(FROM_CONTAINER, &sent)?.verdict, SHOT, "{family}");
    }
    assert_eq!(datapath.counted(drop::EP_NOT_READY, direction::INGRESS)?, 2);
    Ok(())
}

/// A program of another origin that jumps into `cilium_call_policy` names no endpoint: its slot did.
#[test]
fn foreign_callers_are_served() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    let incoming = |flags| Incoming { cb: [A.identity, flags, 0, 0, 0], ..Incoming::default() };
    for (family, sent, _) in to_b(64) {
        let outcome = datapath.run_with(LXC_POLICY, &sent, incoming(mark::delivery::REDIRECT))?;
        assert_eq!(outcome.verdict, REDIRECT, "{family}");
        let outcome = datapath.run_with(LXC_POLICY, &sent, incoming(0))?;
        assert_eq!(outcome.verdict, PASS, "{family}: without a redirect");
    }
    assert_eq!(datapath.counted(metric::FORWARDED, direction::INGRESS)?, 4);
    datapath.remove_address(B.ipv4.into())?;
    let outcome = datapath.run_with(LXC_POLICY, &to_v4(B.ipv4, 64), incoming(mark::delivery::REDIRECT))?;
    assert_eq!(outcome.verdict, SHOT);
    assert_eq!(datapath.counted(drop::EP_NOT_READY, direction::INGRESS)?, 1);
    Ok(())
}

/// Without the program of a slot its packets drop, and say so.
#[test]
fn a_missing_tail_program_is_counted() -> Result<()> {
    test_kit::require_root!();
    let [(_, v4, _), (_, v6, _)] = to_b(64);
    let mut datapath = Datapath::with_pods(&default_config())?;
    datapath.empty_slot(slot::IPV4_FROM_LXC)?;
    assert_dropped(&mut datapath, &v4, drop::MISSED_TAIL_CALL)?;
    assert_eq!(datapath.run(FROM_CONTAINER, &v6)?.verdict, REDIRECT, "the control");
    Ok(())
}
