//! Datagrams in pieces: later ones have the ports of the first.

use crate::kit::*;
use crate::packet::*;
use anyhow::Result;
use datapath_abi::{NodeConfig, direction, drop, metric};
use std::net::IpAddr;

/// Pieces of a datagram of the pod's: the first with its header, and one that follows.
pub(crate) fn pieces(v6: bool, id: u16, protocol: u8, header: &[u8]) -> [Vec<u8>; 2] {
    let rest = [7u8; 24];
    if v6 {
        const FRAGMENT: u8 = 44;
        let piece = |field: u16, payload: &[u8]| {
            let [a, b] = field.to_be_bytes();
            let [c, d] = id.to_be_bytes();
            let payload = [&[protocol, 0, a, b, 0, 0, c, d], payload].concat();
            ip(A.ipv6.into(), OUTSIDE_V6.into(), FRAGMENT, &payload)
        };
        // Units of eight bytes in the upper 13 bits, "more" in the lowest.
        [piece(1, header), piece(3 << 3, &rest)]
    } else {
        let piece = |field: u16, payload: &[u8]| {
            let packet = ipv4_with(A.ipv4, OUTSIDE_V4, 64, protocol, [id, field], payload);
            eth(A.node_mac, A.mac, 0x0800, &packet)
        };
        [piece(0x2000, header), piece(3, &rest)]
    }
}

fn sends(datapath: &mut Datapath, packet: &[u8]) -> Result<Option<u8>> {
    datapath.dropped(direction::EGRESS, |d| d.sends(packet))
}

#[test]
fn later_pieces_have_the_ports_of_the_first() -> Result<()> {
    test_kit::require_root!();
    for v6 in [false, true] {
        let mut datapath = Datapath::with_pods(&default_config())?;
        datapath.set_policy(&A, &[row(OUT, 0, UDP, Some((53, 16)), Kind::Allow(0))])?;
        let [first, later] = pieces(v6, 1, UDP, &udp_ports(40000, 53));
        assert_eq!(sends(&mut datapath, &later)?, Some(drop::FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND));
        assert_eq!(sends(&mut datapath, &first)?, None);
        assert_eq!(sends(&mut datapath, &later)?, None);
        // The twin: another port. Of another datagram nothing is known.
        let [first, later] = pieces(v6, 2, UDP, &udp_ports(40000, 54));
        assert_eq!(sends(&mut datapath, &later)?, Some(drop::FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND));
        assert_eq!(sends(&mut datapath, &first)?, Some(drop::POLICY_DENIED));
        assert_eq!(sends(&mut datapath, &later)?, Some(drop::POLICY_DENIED));
        assert_eq!(datapath.counted(metric::FRAG_PACKET, direction::EGRESS)?, 6, "IPv6 {v6}");
    }
    Ok(())
}

/// IPv6 extension headers (IANA protocol numbers).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const OPTIONS: u8 = 60;

/// Extension headers of sixteen bytes each in front of a payload, and the number of the first. Lengths are in units of eight
/// bytes beside the first eight, of four beside the first two words for authentication.
fn extended(headers: &[u8], upper: u8, payload: &[u8]) -> (u8, Vec<u8>) {
    headers.iter().rev().fold((upper, payload.to_vec()), |(next, payload), header| {
        let length = if *header == AUTHENTICATION { 2 } else { 1 };
        (*header, [&[next, length][..], &[0; 14], &payload].concat())
    })
}

/// Both pieces of an IPv6 datagram with extension headers before the Fragment header, which every piece has, and behind it,
/// which the first has only.
fn extended_pieces(before: &[u8], behind: &[u8], id: u32, upper: u8, header: &[u8]) -> [Vec<u8>; 2] {
    let (next, first) = extended(behind, upper, header);
    let offset = (first.len() as u16).div_ceil(8) << 3;
    let piece = |field: u16, payload: &[u8]| {
        let fragment = [&[next, 0][..], &field.to_be_bytes(), &id.to_be_bytes(), payload].concat();
        let (first, payload) = extended(before, FRAGMENT, &fragment);
        ip(A.ipv6.into(), OUTSIDE_V6.into(), first, &payload)
    };
    [piece(1, &first), piece(offset, &[7; 24])]
}

/// Later pieces do not say which protocol lies behind the extension headers of the first.
#[test]
fn pieces_with_extension_headers_behind_the_fragment_header_belong_together() -> Result<()> {
    test_kit::require_root!();
    const SHAPES: [(&[u8], &[u8]); 12] = [
        (&[], &[]),
        (&[HOP_BY_HOP], &[]),
        (&[OPTIONS], &[]),
        (&[HOP_BY_HOP, OPTIONS, ROUTING], &[]),
        (&[], &[OPTIONS]),
        (&[], &[ROUTING]),
        (&[], &[AUTHENTICATION]),
        (&[], &[AUTHENTICATION, OPTIONS]),
        (&[], &[OPTIONS, ROUTING, OPTIONS]),
        (&[HOP_BY_HOP], &[OPTIONS]),
        (&[ROUTING], &[AUTHENTICATION, OPTIONS]),
        (&[OPTIONS, ROUTING], &[OPTIONS]),
    ];
    for (before, behind) in SHAPES {
        let shape = format!("{before:?} before, {behind:?} behind");
        let mut datapath = Datapath::with_pods(&default_config())?;
        let allowed = |protocol, port| row(OUT, 0, protocol, Some((port, 16)), Kind::Allow(0));
        datapath.set_policy(&A, &[allowed(UDP, 53), allowed(TCP, 53), allowed(58, 128)])?;
        for (id, protocol, header, expected) in [
            (1, UDP, udp_ports(40000, 53), None),
            (2, UDP, udp_ports(40000, 54), Some(drop::POLICY_DENIED)),
            (3, TCP, tcp(40000, 53, ACK), None),
            (4, TCP, tcp(40000, 54, ACK), Some(drop::POLICY_DENIED)),
            (5, 58, icmp(128, 0, 99), None),
            (6, 58, icmp(133, 0, 99), Some(drop::POLICY_DENIED)),
        ] {
            let [first, later] = extended_pieces(before, behind, id, protocol, &header);
            let unknown = Some(drop::FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND);
            assert_eq!(sends(&mut datapath, &later)?, unknown, "{shape}, {id}: without the first");
            assert_eq!(sends(&mut datapath, &first)?, expected, "{shape}, {id}: the first");
            assert_eq!(sends(&mut datapath, &later)?, expected, "{shape}, {id}: the one that follows");
        }
        // The pieces of a datagram are of one connection, which has a row for itself and, but for TCP, one for errors.
        let rows = |datapath: &mut Datapath, map| Ok::<_, anyhow::Error>(datapath.rows::<38, 56>(map)?.len());
        assert_eq!(rows(&mut datapath, "cilium_ct6_global")?, 1, "{shape}");
        assert_eq!(rows(&mut datapath, "cilium_ct_any6_global")?, 3, "{shape}: UDP, ping, errors of all");
    }
    Ok(())
}

/// A fragment of a fragment is none: no receiver puts it together (Linux refuses it, too).
#[test]
fn fragments_of_fragments_are_refused() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    for inner in [0u16, 1, 3 << 3] {
        let [a, b] = inner.to_be_bytes();
        let header = [&[UDP, 0, a, b, 0, 0, 0, 1][..], &udp_ports(40000, 53)].concat();
        let [first, _] = extended_pieces(&[], &[], 2, FRAGMENT, &header);
        assert_eq!(sends(&mut datapath, &first)?, Some(drop::INVALID_IPV6_EXTENSION_HEADER), "{inner}");
    }
    Ok(())
}

#[test]
fn pieces_of_tcp_and_of_pings_pass_alike() -> Result<()> {
    test_kit::require_root!();
    for (v6, icmp_protocol, request) in [(false, 1, 8), (true, 58, 128)] {
        let mut datapath = Datapath::with_pods(&default_config())?;
        // Only this type of ICMP, and only TCP to 80.
        let kind = row(OUT, 0, icmp_protocol, Some((u16::from(request), 16)), Kind::Allow(0));
        datapath.set_policy(&A, &[kind, row(OUT, 0, TCP, Some((80, 16)), Kind::Allow(0))])?;
        for (id, protocol, header, expected) in [
            (1, TCP, tcp(40000, 80, ACK), None),
            (2, TCP, tcp(40000, 81, ACK), Some(drop::POLICY_DENIED)),
            (3, icmp_protocol, icmp(request, 0, 99), None),
            (4, icmp_protocol, icmp(request + 5, 0, 99), Some(drop::POLICY_DENIED)),
        ] {
            for packet in pieces(v6, id, protocol, &header) {
                assert_eq!(sends(&mut datapath, &packet)?, expected, "IPv6 {v6}, datagram {id}");
            }
        }
    }
    Ok(())
}

#[test]
fn without_tracking_pieces_are_refused() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { ipv4_fragments: 0, ipv6_fragments: 0, ..default_config() };
    let mut datapath = Datapath::with_pods(&config)?;
    let refused = Some(drop::IP_FRAGMENTATION_NOT_SUPPORTED);
    for v6 in [false, true] {
        for packet in pieces(v6, 1, UDP, &udp_ports(40000, 53)) {
            assert_eq!(sends(&mut datapath, &packet)?, refused, "IPv6 {v6}");
            let reason = datapath.dropped(direction::INGRESS, |d| d.receives(2, &packet))?;
            assert_eq!(reason, refused, "IPv6 {v6}, into the pod");
        }
    }
    let families: [(IpAddr, IpAddr); 2] =
        [(A.ipv4.into(), OUTSIDE_V4.into()), (A.ipv6.into(), OUTSIDE_V6.into())];
    for (pod, peer) in families {
        assert_eq!(sends(&mut datapath, &ip(pod, peer, UDP, &udp_ports(40000, 53)))?, None, "whole");
    }
    Ok(())
}
