//! ARP and neighbour discovery of pods.

use crate::kit::*;
use crate::packet::*;
use anyhow::Result;
use datapath_abi::{NodeConfig, direction, drop, mark};
use datapath_object::FROM_CONTAINER;
use std::net::{Ipv4Addr, Ipv6Addr};

const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

fn ask(target: Ipv4Addr) -> Vec<u8> {
    eth(BROADCAST, A.mac, ARP, &arp_request(A.mac, A.ipv4, target))
}

#[test]
fn arp_for_any_address_is_answered_with_the_host_side() -> Result<()> {
    test_kit::require_root!();
    let datapath = Datapath::with_pods(&default_config())?;
    for target in [Ipv4Addr::new(10, 0, 0, 1), B.ipv4, HOST_V4, OUTSIDE_V4] {
        for destination in [BROADCAST, A.node_mac] {
            let mut request = ask(target);
            request[..6].copy_from_slice(&destination);
            let outcome = datapath.run(FROM_CONTAINER, &request)?;
            assert_eq!(outcome.verdict, REDIRECT, "{target}");
            let mut reply = arp_request(A.node_mac, target, A.ipv4);
            reply[7] = 2;
            reply[18..24].copy_from_slice(&A.mac);
            assert_eq!(outcome.packet, eth(A.mac, A.node_mac, ARP, &reply), "{target}");
        }
    }
    Ok(())
}

#[test]
fn other_arp_is_left_to_the_stack() -> Result<()> {
    test_kit::require_root!();
    let datapath = Datapath::with_pods(&default_config())?;
    let mut reply = ask(B.ipv4);
    reply[ETH_LEN + 7] = 2;
    let mut other_hardware = ask(B.ipv4);
    other_hardware[ETH_LEN + 1] = 6;
    let mut to_somebody = ask(B.ipv4);
    to_somebody[..6].copy_from_slice(&B.mac);
    // Its own address: the pod looks for duplicates.
    for packet in [ask(A.ipv4), reply, other_hardware, to_somebody, ask(B.ipv4)[..ETH_LEN + 20].to_vec()] {
        let outcome = datapath.run(FROM_CONTAINER, &packet)?;
        assert_eq!(outcome.verdict, PASS);
        assert_eq!(outcome.packet, packet, "untouched");
    }
    let datapath = Datapath::with_pods(&NodeConfig { arp_responder: 0, ..default_config() })?;
    assert_eq!(datapath.run(FROM_CONTAINER, &ask(B.ipv4))?.verdict, PASS, "switched off");
    Ok(())
}

/// Asserts that a solicitation is answered by the router with the host side's address and these flags.
fn assert_advertised(datapath: &Datapath, request: &[u8], target: Ipv6Addr, flags: u8) -> Result<()> {
    let outcome = datapath.run(FROM_CONTAINER, request)?;
    assert_eq!(outcome.verdict, REDIRECT, "{target}");
    let mut message = vec![136, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    message.extend([2, 1]);
    message.extend(A.node_mac);
    let mut expected = eth(A.mac, A.node_mac, IPV6, &icmpv6(ROUTER, A.ipv6, 255, message));
    // The flow label stays the asker's.
    expected[ETH_LEN..ETH_LEN + 4].copy_from_slice(&request[ETH_LEN..ETH_LEN + 4]);
    assert_eq!(outcome.packet, expected, "{target}");
    Ok(())
}

#[test]
fn the_router_and_local_pods_are_advertised() -> Result<()> {
    test_kit::require_root!();
    const ROUTER_SOLICITED: u8 = 0xc0;
    const SOLICITED_OVERRIDE: u8 = 0x60;
    let mut datapath = Datapath::with_pods(&default_config())?;
    for (target, flags) in [(ROUTER, ROUTER_SOLICITED), (B.ipv6, SOLICITED_OVERRIDE)] {
        // With the sender's address, without, and with more behind it.
        for mac in [Some(A.mac), None] {
            let request = eth([0x33, 0x33, 0xff, 0, 0, 1], A.mac, IPV6, &solicitation(A.ipv6, target, mac));
            assert_advertised(&datapath, &request, target, flags)?;
        }
    }
    datapath.remove_address(B.ipv6.into())?;
    let request = eth(A.node_mac, A.mac, IPV6, &solicitation(A.ipv6, B.ipv6, Some(A.mac)));
    assert_eq!(datapath.run(FROM_CONTAINER, &request)?.verdict, SHOT, "the control");
    Ok(())
}

#[test]
fn other_neighbour_discovery() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    let ask = |target| eth(A.node_mac, A.mac, IPV6, &solicitation(A.ipv6, target, Some(A.mac)));
    // Without it the stack of a node drops what comes from a pod.
    let marked = mark::with_identity(mark::IDENTITY, A.identity);
    // The host answers for itself; the pod's own address is a search for duplicates.
    for target in [HOST_V6, A.ipv6] {
        let outcome = datapath.run(FROM_CONTAINER, &ask(target))?;
        assert_eq!((outcome.verdict, outcome.packet), (PASS, ask(target)), "{target}");
        assert_eq!(outcome.mark, marked, "{target}");
    }
    let duplicates = eth(A.node_mac, A.mac, IPV6, &solicitation(Ipv6Addr::UNSPECIFIED, A.ipv6, None));
    let outcome = datapath.run(FROM_CONTAINER, &duplicates)?;
    assert_eq!((outcome.verdict, outcome.mark), (PASS, marked));
    // Advertisements are for the stack, whatever their source.
    let advertisement = icmpv6("fe80::1".parse()?, "ff02::1".parse()?, 255, vec![136; 24]);
    let outcome = datapath.run(FROM_CONTAINER, &eth(A.node_mac, A.mac, IPV6, &advertisement))?;
    assert_eq!((outcome.verdict, outcome.mark), (PASS, marked));
    // Nobody's address.
    assert_eq!(datapath.run(FROM_CONTAINER, &ask(OUTSIDE_V6))?.verdict, SHOT);
    assert_eq!(datapath.counted(drop::UNKNOWN_L3_TARGET_ADDRESS, direction::EGRESS)?, 1);
    // Cut off in the middle of the target.
    assert_eq!(datapath.run(FROM_CONTAINER, &ask(ROUTER)[..ETH_LEN + 40 + 20])?.verdict, SHOT);
    assert_eq!(datapath.counted(drop::INVALID_PACKET_DROPPED, direction::EGRESS)?, 1);
    Ok(())
}

/// Found by random packets: neighbour discovery passed to the stack with any source, past policy, and the stack forwards
/// it unless it is for the link.
#[test]
fn neighbour_discovery_that_the_stack_would_forward_is_a_packet_like_others() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    datapath.set_policy(&A, &[])?;
    let advertise = |source: Ipv6Addr, destination: Ipv6Addr, hops| {
        eth(A.node_mac, A.mac, IPV6, &icmpv6(source, destination, hops, [&[136, 0][..], &[0; 22]].concat()))
    };
    let link: [Ipv6Addr; 3] = ["fe80::1".parse()?, "ff02::1".parse()?, HOST_V6];
    for destination in link {
        let outcome = datapath.run(FROM_CONTAINER, &advertise(A.ipv6, destination, 255))?;
        assert_eq!(outcome.verdict, PASS, "{destination}");
    }
    let spoofed: Ipv6Addr = "fd00::bad".parse()?;
    let mut dropped =
        |packet: &[u8]| datapath.dropped(direction::EGRESS, |datapath| datapath.run(FROM_CONTAINER, packet));
    for (destination, hops) in [(OUTSIDE_V6, 255), (B.ipv6, 255), (OUTSIDE_V6, 64), (HOST_V6, 64)] {
        let reason = dropped(&advertise(A.ipv6, destination, hops))?;
        assert_eq!(reason, Some(drop::POLICY_DENIED), "{destination} {hops}");
        let reason = dropped(&advertise(spoofed, destination, hops))?;
        assert_eq!(reason, Some(drop::INVALID_SOURCE_IP), "{destination} {hops}");
    }
    // A solicitation for the host that is sent to another address.
    for target in [HOST_V6, A.ipv6] {
        let mut packet = eth(A.node_mac, A.mac, IPV6, &solicitation(A.ipv6, target, Some(A.mac)));
        assert_eq!(dropped(&packet)?, None, "the control: {target}");
        packet[38..54].copy_from_slice(&OUTSIDE_V6.octets());
        assert_eq!(dropped(&packet)?, Some(drop::UNKNOWN_L3_TARGET_ADDRESS), "{target}");
    }
    // With the pods on a bridge of another plugin advertisements are for any of its addresses.
    let config = NodeConfig { arp_responder: 0, ..default_config() };
    let mut datapath = Datapath::with_pods(&config)?;
    datapath.set_policy(&A, &[])?;
    let outcome = datapath.run(FROM_CONTAINER, &advertise(A.ipv6, OUTSIDE_V6, 255))?;
    assert_eq!(outcome.verdict, PASS);
    Ok(())
}
