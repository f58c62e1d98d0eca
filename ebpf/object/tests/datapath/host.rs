//! From and to the host, from and to the network, and pods at their own interface.

use crate::kit::*;
use crate::packet::*;
use anyhow::Result;
use datapath_abi::{NodeConfig, direction, drop, identity, mark, metric};
use datapath_object::{FROM_HOST, FROM_NETDEV, TO_CONTAINER, TO_HOST, TO_NETDEV};
use std::net::IpAddr;

/// A packet as the host's stack or a device of the node has it.
fn packet(source: IpAddr, destination: IpAddr) -> Vec<u8> {
    const SOMEBODY: [u8; 6] = [2, 0, 0, 0, 0, 1];
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            eth(SOMEBODY, SOMEBODY, 0x0800, &ipv4(source, destination, 64))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            eth(SOMEBODY, SOMEBODY, 0x86dd, &ipv6(source, destination, 64))
        }
        mixed => unreachable!("{mixed:?}"),
    }
}

fn local() -> Incoming {
    Incoming::of_host()
}

/// Without the mark, but by no interface either: fragments that the stack has made of others' packets.
fn unmarked() -> Incoming {
    Incoming::default()
}

fn forwarded(mark: u32) -> Incoming {
    Incoming { mark, ingress_ifindex: IFINDEX, ..Incoming::default() }
}

#[test]
fn host_to_pod_is_delivered_with_the_senders_identity() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    datapath.set_identity(OUTSIDE_V4.into(), 20_000)?;
    let cases: [(&str, IpAddr, Incoming, u32); 10] = [
        ("made here", HOST_V4.into(), local(), identity::HOST),
        ("made here, IPv6", HOST_V6.into(), local(), identity::HOST),
        ("fragment of another", HOST_V4.into(), unmarked(), identity::WORLD_IPV4),
        ("fragment of another, IPv6", HOST_V6.into(), unmarked(), identity::WORLD_IPV6),
        ("forwarded by IPVS", HOST_V4.into(), forwarded(mark::HOST), identity::WORLD_IPV4),
        (
            "a pod's, by the stack",
            A.ipv4.into(),
            forwarded(mark::with_identity(mark::IDENTITY, 0x2_0457)),
            0x2_0457,
        ),
        ("masqueraded", HOST_V4.into(), forwarded(0), identity::WORLD_IPV4),
        ("known outside", OUTSIDE_V4.into(), forwarded(0), 20_000),
        ("unknown outside", OUTSIDE_V6.into(), forwarded(0), identity::WORLD_IPV6),
        ("of a proxy", HOST_V4.into(), forwarded(mark::with_identity(mark::PROXY_INGRESS, 777)), 777),
    ];
    for (name, source, incoming, expected) in cases {
        let destination = if source.is_ipv4() { IpAddr::from(B.ipv4) } else { B.ipv6.into() };
        let outcome = datapath.run_with(FROM_HOST, &packet(source, destination), incoming)?;
        assert_eq!(outcome.verdict, REDIRECT, "{name}");
        assert_eq!(outcome.packet[..12], [B.mac, B.node_mac].concat(), "{name}");
        assert_eq!(outcome.cb[mark::cb::SRC_LABEL], expected, "{name}");
        // Out of the host's side, where the pod's peer receives it: not past it.
        let is_of_proxy = incoming.mark & mark::MAGIC_MASK == mark::PROXY_INGRESS;
        let proxy = if is_of_proxy { mark::delivery::FROM_INGRESS_PROXY } else { 0 };
        let flags = mark::delivery::REDIRECT | mark::delivery::FROM_HOST | proxy;
        assert_eq!(outcome.cb[mark::cb::DELIVERY_FLAGS], flags | u32::from(B.id) << 16, "{name}");
        assert_eq!(outcome.mark, 0, "{name}");
    }
    let all = cases.len() as u64;
    assert_eq!(
        datapath.counted(metric::PLAINTEXT, direction::INGRESS)?,
        all - 1,
        "what proxies send is not counted"
    );
    assert_eq!(datapath.counted(metric::FORWARDED, direction::INGRESS)?, all);
    Ok(())
}

#[test]
fn host_to_nobody_does_not_go_round() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    for (source, destination) in
        [(IpAddr::from(HOST_V4), IpAddr::from(OUTSIDE_V4)), (HOST_V6.into(), OUTSIDE_V6.into())]
    {
        assert_eq!(datapath.run_with(FROM_HOST, &packet(source, destination), local())?.verdict, SHOT);
    }
    assert_eq!(datapath.counted(drop::STALE_OR_UNROUTABLE_IP, direction::INGRESS)?, 2);
    // Controls: the host's own address, and one that the ipcache knows to be of the cluster.
    assert_eq!(datapath.run_with(FROM_HOST, &packet(HOST_V4.into(), HOST_V4.into()), local())?.verdict, PASS);
    datapath.set_identity(OUTSIDE_V4.into(), 20_000)?;
    let outcome = datapath.run_with(FROM_HOST, &packet(HOST_V4.into(), OUTSIDE_V4.into()), local())?;
    assert_eq!((outcome.verdict, outcome.mark), (PASS, mark::with_identity(mark::IDENTITY, identity::HOST)));
    Ok(())
}

#[test]
fn host_hops_end_here() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    for last in [
        eth(B.mac, A.mac, 0x0800, &ipv4(HOST_V4, B.ipv4, 1)),
        eth(B.mac, A.mac, 0x86dd, &ipv6(HOST_V6, B.ipv6, 1)),
    ] {
        assert_eq!(datapath.run_with(FROM_HOST, &last, local())?.verdict, SHOT);
    }
    assert_eq!(datapath.counted(drop::TTL_EXCEEDED, direction::INGRESS)?, 2);
    Ok(())
}

#[test]
fn network_to_pod() -> Result<()> {
    test_kit::require_root!();
    let cases = [(IpAddr::from(OUTSIDE_V4), IpAddr::from(B.ipv4)), (OUTSIDE_V6.into(), B.ipv6.into())];
    let mut datapath = Datapath::with_pods(&host_routing_config())?;
    for (source, destination) in cases {
        let outcome = datapath.run(FROM_NETDEV, &packet(source, destination))?;
        assert_eq!(outcome.verdict, REDIRECT, "{source}");
        assert_eq!(outcome.packet[..12], [B.mac, B.node_mac].concat(), "{source}");
        let world = if source.is_ipv4() { identity::WORLD_IPV4 } else { identity::WORLD_IPV6 };
        assert_eq!(outcome.cb[mark::cb::SRC_LABEL], world, "{source}");
        let flags = mark::delivery::REDIRECT | mark::delivery::USE_REDIRECT_PEER;
        assert_eq!(outcome.cb[mark::cb::DELIVERY_FLAGS], flags | u32::from(B.id) << 16, "{source}");
    }
    // Everything else is the stack's: the host's addresses, transit, ARP.
    for (source, destination) in [(OUTSIDE_V4, HOST_V4), (OUTSIDE_V4, "203.0.113.1".parse()?)] {
        let sent = packet(source.into(), destination.into());
        let outcome = datapath.run(FROM_NETDEV, &sent)?;
        assert_eq!((outcome.verdict, outcome.packet), (PASS, sent), "{destination}");
    }
    let arp = eth(BROADCAST, A.mac, 0x0806, &arp_request(A.mac, OUTSIDE_V4, HOST_V4));
    assert_eq!(datapath.run(FROM_NETDEV, &arp)?.verdict, PASS);
    // Of a hop limit that ends here, the stack informs the sender.
    for last in [
        eth(B.mac, A.mac, 0x0800, &ipv4(OUTSIDE_V4, B.ipv4, 1)),
        eth(B.mac, A.mac, 0x86dd, &ipv6(OUTSIDE_V6, B.ipv6, 1)),
    ] {
        let outcome = datapath.run(FROM_NETDEV, &last)?;
        assert_eq!((outcome.verdict, outcome.packet), (PASS, last));
    }
    assert_eq!(datapath.counted(metric::PLAINTEXT, direction::INGRESS)?, 7);
    assert_eq!(datapath.counted(metric::FORWARDED, direction::INGRESS)?, 2);
    assert_eq!(datapath.counted(metric::FORWARDED, direction::EGRESS)?, 0, "nothing left a pod");

    // A device without Ethernet headers: the stack routes.
    datapath.set_l3_device(IFINDEX)?;
    let sent = packet(OUTSIDE_V4.into(), B.ipv4.into());
    assert_eq!(datapath.run(FROM_NETDEV, &sent)?.verdict, PASS);

    // Without host routing the stack's routes lead to cilium_host, however pods' packets are delivered.
    let datapath = Datapath::with_pods(&default_config())?;
    for (source, destination) in cases {
        let sent = packet(source, destination);
        let outcome = datapath.run(FROM_NETDEV, &sent)?;
        assert_eq!((outcome.verdict, outcome.packet), (PASS, sent), "{source}");
    }
    Ok(())
}

#[test]
fn one_family_alone_knows_one_world() -> Result<()> {
    test_kit::require_root!();
    let datapath = Datapath::with_pods(&NodeConfig { enable_ipv6: 0, ..host_routing_config() })?;
    let outcome = datapath.run(FROM_NETDEV, &packet(OUTSIDE_V4.into(), B.ipv4.into()))?;
    assert_eq!(outcome.cb[mark::cb::SRC_LABEL], identity::WORLD);
    Ok(())
}

#[test]
fn passing_points_are_counted() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    let sent = packet(A.ipv4.into(), OUTSIDE_V4.into());
    for (program, passed) in [(TO_HOST, 1), (TO_NETDEV, 2)] {
        assert_eq!(datapath.run(program, &sent)?.verdict, PASS, "{program}");
        assert_eq!(datapath.counted(metric::FORWARDED, direction::EGRESS)?, passed, "{program}");
    }
    Ok(())
}

/// With endpoint routes: what the stack sends to the pod behind this interface.
#[test]
fn stack_to_pod() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { endpoint_routes: 1, redirect_peer: 0, ..default_config() };
    let mut datapath = Datapath::with_pods(&config)?;
    for sent in [packet(B.ipv4.into(), A.ipv4.into()), packet(HOST_V6.into(), A.ipv6.into())] {
        let outcome = datapath.run(TO_CONTAINER, &sent)?;
        assert_eq!((outcome.verdict, outcome.packet), (PASS, sent));
    }
    assert_eq!(datapath.counted(metric::FORWARDED, direction::INGRESS)?, 2);
    for (name, incoming, expected) in [
        ("made here", local(), identity::HOST),
        ("fragment of another", unmarked(), identity::WORLD_IPV4),
        ("forwarded by IPVS", forwarded(mark::HOST), identity::WORLD_IPV4),
    ] {
        let outcome = datapath.run_with(TO_CONTAINER, &packet(HOST_V4.into(), A.ipv4.into()), incoming)?;
        assert_eq!((outcome.verdict, outcome.cb[mark::cb::SRC_LABEL]), (PASS, expected), "{name}");
    }
    datapath.set_settings(&A, 0)?;
    assert_eq!(datapath.run(TO_CONTAINER, &packet(B.ipv4.into(), A.ipv4.into()))?.verdict, SHOT);
    assert_eq!(datapath.counted(drop::EP_NOT_READY, direction::INGRESS)?, 1);
    // Delivery from elsewhere ends at that interface, with the sender's identity in the mark.
    let outcome = datapath.run_with(FROM_HOST, &packet(HOST_V4.into(), B.ipv4.into()), local())?;
    assert_eq!(
        (outcome.verdict, outcome.mark),
        (REDIRECT, mark::with_identity(mark::IDENTITY, identity::HOST))
    );
    Ok(())
}

/// The ingress proxy's identity is one of its own, no word for where a packet comes from: the ipcache does not replace it.
#[test]
fn packets_of_the_ingress_proxy_keep_their_identity() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    datapath.set_identity(OUTSIDE_V4.into(), 20_000)?;
    for (label, expected) in [(identity::INGRESS, identity::INGRESS), (identity::KUBE_APISERVER, 20_000)] {
        let incoming = forwarded(mark::with_identity(mark::IDENTITY, label));
        let outcome = datapath.run_with(FROM_HOST, &packet(OUTSIDE_V4.into(), B.ipv4.into()), incoming)?;
        assert_eq!(outcome.cb[mark::cb::SRC_LABEL], expected, "{label}");
    }
    Ok(())
}
