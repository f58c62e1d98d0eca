//! XDP: requests that leave by the tunnel have headers as the tunnel device would write them.

use crate::kit::*;
use crate::l4::*;
use crate::nodeport_remote::tunnel;
use crate::service::*;
use crate::xdp::*;
use anyhow::Result;
use datapath_abi::{NodeConfig, before_services, dsr, ipcache_flag};
use std::net::{IpAddr, SocketAddr};

/// A frame of the tunnel, between nodes.
struct Outer {
    addresses: (IpAddr, IpAddr),
    ports: (u16, u16),
    /// The header of the tunnel with its options.
    tunnel: Vec<u8>,
    inner: Vec<u8>,
}

/// Reads an outer packet of IPv4, of which every length and checksum must be right.
fn outer(frame: &[u8], tunnel_len: usize) -> Outer {
    let ip = &frame[14..];
    let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    assert_eq!((ip[0], ip[8], ip[9], word(2) as usize), (0x45, 64, UDP, ip.len()));
    assert_eq!(crate::packet::checksum(&ip[..20]), 0);
    assert_eq!((word(24) as usize, word(26)), (ip.len() - 20, 0));
    let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
    Outer {
        addresses: (address(12), address(16)),
        ports: (word(20), word(22)),
        tunnel: ip[28..28 + tunnel_len].to_vec(),
        inner: ip[28 + tunnel_len..].to_vec(),
    }
}

/// Scenarios 26, 27 and 54: the packet is encapsulated with the router's address, as the tunnel device does it.
#[test]
fn backends_behind_a_tunnel_get_encapsulated_packets() -> Result<()> {
    test_kit::require_root!();
    let node_ip = IpAddr::from([192, 0, 2, 7]);
    cases(|family, protocol| {
        // The headers of both protocols, one for each of those above them.
        let (tunnel_geneve, header) = match protocol {
            TCP => (0, [8, 0, 0, 0, 0, 0, 2, 0]),
            _ => (1, [0, 0, 0x65, 0x58, 0, 0, 2, 0]),
        };
        let config = NodeConfig { before_services: before_services::XDP, tunnel_geneve, ..tunnel() };
        let mut entry = Entry::remote(&config, family, protocol)?;
        let request = entry.request(SYN);
        // The control.
        entry.sends_back(&request)?;
        let row = behind(REMOTE_IDENTITY, node_ip, 0);
        entry.node.datapath.set_ipcache(family.remote().ip(), &row)?;
        let mut marked = entry.request(SYN);
        mark_capable(family, &mut marked);
        for (sport, packet, ecn) in [(50000, request.clone(), 0), (50000, marked, 2)] {
            let outcome = entry.arrive(&packet)?;
            assert_eq!(outcome.verdict, XDP_TX, "{family:?} {outcome:?}");
            assert_eq!(outcome.packet[..14], [&GATEWAY_MAC[..], &UPLINK_MAC, &[8, 0]].concat());
            let outer = outer(&outcome.packet, header.len());
            assert_eq!(outer.addresses, (HOST_V4.into(), node_ip));
            assert_eq!((outer.ports.1, &outer.tunnel[..]), (VXLAN_PORT, &header[..]));
            assert!((32768..=60999).contains(&outer.ports.0), "{}", outer.ports.0);
            assert_eq!(outcome.packet[15], ecn);
            let seen = seen(&outer.inner);
            let ends = (seen.source, seen.destination);
            assert_eq!(ends, (family.router(sport), family.remote()), "{family:?}");
            assert!(seen.checksums, "{family:?} {protocol}");
        }
        entry.node.datapath.set_ipcache(
            family.remote().ip(),
            &behind(REMOTE_IDENTITY, node_ip, ipcache_flag::SKIP_TUNNEL),
        )?;
        let outcome = entry.arrive(&entry.request(ACK))?;
        assert_eq!((outcome.verdict, seen_at(&outcome).destination), (XDP_TX, family.remote()));
        // An underlay of IPv6 is left to the tunnel device.
        let ipv6 = behind(REMOTE_IDENTITY, "2001:db8::7".parse()?, 0);
        entry.node.datapath.set_ipcache(family.remote().ip(), &ipv6)?;
        entry.leaves(&entry.request(ACK))?;
        Ok(())
    })
}

/// Declares the sender of a packet capable of explicit congestion notification.
fn mark_capable(family: Family, packet: &mut [u8]) {
    match family {
        Family::V4 => {
            packet[1] |= 2;
            packet[10..12].copy_from_slice(&[0, 0]);
            let sum = crate::packet::checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Family::V6 => packet[1] |= 2 << 4,
    }
}

/// Packets that get too long for the route by the tunnel's headers are left to the tunnel device, which fragments.
#[test]
fn the_tunnel_and_its_ports_have_limits() -> Result<()> {
    test_kit::require_root!();
    const PORTS: [u16; 2] = [2000, 2003];
    let config = NodeConfig { before_services: before_services::XDP, tunnel_source_ports: PORTS, ..tunnel() };
    for family in FAMILIES {
        let mut entry = Entry::remote(&config, family, UDP)?;
        let row = behind(REMOTE_IDENTITY, [192, 0, 2, 7].into(), 0);
        entry.node.datapath.set_ipcache(family.remote().ip(), &row)?;
        let largest = datagram(family, MTU - 50);
        entry.ns.ip(&format!("link set out0 mtu {MTU}"))?;
        let mut ports = std::collections::BTreeSet::new();
        for sport in 0..40 {
            let client = SocketAddr::new(family.outside(), 50000 + sport);
            let packet = segment(client, family.vip(), UDP, 0);
            ports.insert(outer(&entry.arrive(&packet)?.packet, 8).ports.0);
        }
        assert!(ports.iter().copied().eq(PORTS[0]..=PORTS[1]), "{ports:?}");
        assert_eq!(entry.arrive(&largest)?.verdict, XDP_TX);
        entry.leaves(&datagram(family, MTU - 49))?;
    }
    Ok(())
}

/// Scenario 58: the packet keeps the client's address, and the option of the tunnel names the frontend.
#[test]
fn direct_server_return_by_geneve_names_the_frontend_in_the_tunnel() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig {
        before_services: before_services::XDP,
        dsr: dsr::ALL,
        dsr_dispatch: dsr::dispatch::GENEVE,
        tunnel_geneve: 1,
        ..tunnel()
    };
    cases(|family, protocol| {
        let mut entry = Entry::remote(&config, family, protocol)?;
        let row = behind(REMOTE_IDENTITY, [192, 0, 2, 7].into(), 0);
        // No node is known.
        entry.leaves(&entry.request(SYN))?;
        entry.node.datapath.set_ipcache(family.remote().ip(), &row)?;
        for (flags, is_named) in [(SYN, true), (ACK, protocol == UDP)] {
            let option = if is_named { family.tunnel_option(family.vip()) } else { Vec::new() };
            let outcome = entry.arrive(&entry.request(flags))?;
            assert_eq!(outcome.verdict, XDP_TX, "{outcome:?}");
            let outer = outer(&outcome.packet, 8 + option.len());
            let header = [&[option.len() as u8 / 4, 0, 0x65, 0x58, 0, 0, 2, 0][..], &option].concat();
            assert_eq!(outer.tunnel, header, "{family:?} {protocol}");
            let seen = seen(&outer.inner);
            assert_eq!((seen.source, seen.destination), (entry.client(), family.remote()));
            assert!(seen.checksums, "{family:?} {protocol}");
        }
        Ok(())
    })
}

/// With `routing-mode=hybrid` subnets of one group are native for pods alone: what the node translates leaves by the
/// tunnel, for any client, and XDP writes what the device's program would send.
#[test]
fn with_hybrid_routing_requests_at_devices_leave_by_the_tunnel() -> Result<()> {
    test_kit::require_root!();
    let node_ip = IpAddr::from([192, 0, 2, 7]);
    cases(|family, protocol| {
        let config = NodeConfig { hybrid: 1, ..tunnel() };
        let (backend, row) = (family.remote(), behind(REMOTE_IDENTITY, node_ip, 0));
        let mut by_tc = crate::nodeport_remote::Entry::new(&config, family, protocol)?;
        by_tc.node.datapath.set_ipcache(backend.ip(), &row)?;
        for ip in [backend.ip(), family.outside(), family.host(0).ip(), family.router(0).ip()] {
            by_tc.node.datapath.set_subnet(ip, 24, 1)?;
        }
        let request = by_tc.request(by_tc.client(50000));
        let sent = by_tc.arrive(&request)?;
        let ends = |seen: Seen| (seen.source, seen.destination, seen.checksums);
        let expected = (family.router(50000), backend, true);
        assert_eq!((sent.verdict, ends(seen_at(&sent))), (REDIRECT, expected), "{family:?} {protocol}");

        let config = NodeConfig { before_services: before_services::XDP, ..config };
        let mut by_xdp = Entry::remote(&config, family, protocol)?;
        by_xdp.node.datapath.set_ipcache(backend.ip(), &row)?;
        let outcome = by_xdp.arrive(&request)?;
        assert_eq!(outcome.verdict, XDP_TX, "{family:?} {outcome:?}");
        let outer = outer(&outcome.packet, 8);
        assert_eq!(outer.addresses, (HOST_V4.into(), node_ip));
        assert_eq!(ends(seen(&outer.inner)), expected);
        // The same packet within, but for its MAC addresses.
        assert_eq!(outer.inner[14..], sent.packet[14..], "{family:?} {protocol}");
        Ok(())
    })
}
