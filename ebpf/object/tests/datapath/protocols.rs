//! Protocols behind the IP header: those that are tracked, those that are not, and extension headers.

use crate::kit::*;
use crate::packet::*;
use anyhow::Result;
use datapath_abi::{NodeConfig, direction, drop};
use std::net::IpAddr;

const SCTP: u8 = 132;
const GRE: u8 = 47;

fn sends(datapath: &mut Datapath, packet: &[u8]) -> Result<Option<u8>> {
    datapath.dropped(direction::EGRESS, |d| d.sends(packet))
}

fn families() -> [(IpAddr, IpAddr); 2] {
    [(A.ipv4.into(), OUTSIDE_V4.into()), (A.ipv6.into(), OUTSIDE_V6.into())]
}

#[test]
fn protocols_without_connections_are_refused_unless_allowed() -> Result<()> {
    test_kit::require_root!();
    let unknown = Some(drop::CT_UNKNOWN_L4_PROTOCOL);
    for (sctp, extended_protocols, expected) in
        [(0, 0, [unknown, unknown]), (1, 0, [None, unknown]), (1, 1, [None, None])]
    {
        let config = NodeConfig { sctp, extended_protocols, ..default_config() };
        let mut datapath = Datapath::with_pods(&config)?;
        for (pod, peer) in families() {
            for (protocol, expected) in [SCTP, GRE].into_iter().zip(expected) {
                let packet = ip(pod, peer, protocol, &[0, 80, 0, 90, 1, 2, 3, 4, 5, 6, 7, 8]);
                assert_eq!(sends(&mut datapath, &packet)?, expected, "{pod} protocol {protocol}");
            }
        }
    }
    Ok(())
}

#[test]
fn short_headers_are_refused() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    for (pod, peer) in families() {
        let icmp_protocol = if pod.is_ipv4() { 1 } else { 58 };
        let whole = [(TCP, tcp(1, 2, SYN), 14), (UDP, udp_ports(1, 2), 4), (icmp_protocol, icmp(8, 0, 1), 8)];
        for (protocol, payload, least) in whole {
            let short = ip(pod, peer, protocol, &payload[..least - 1]);
            let reason = Some(drop::CT_TRUNCATED_OR_INVALID_HEADER);
            assert_eq!(sends(&mut datapath, &short)?, reason, "{pod} protocol {protocol}");
            assert_eq!(sends(&mut datapath, &ip(pod, peer, protocol, &payload[..least]))?, None);
        }
    }
    Ok(())
}

#[test]
fn an_ipv4_header_is_as_long_as_it_says() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    datapath.set_policy(&A, &[tcp_to(443)])?;
    let packet = |words: u8, options: &[u8]| {
        let payload = [options, &tcp(40000, 443, SYN)].concat();
        let mut packet = ip(A.ipv4.into(), OUTSIDE_V4.into(), TCP, &payload);
        packet[ETH_LEN] = 0x40 | words;
        packet
    };
    assert_eq!(sends(&mut datapath, &packet(5, &[]))?, None);
    assert_eq!(sends(&mut datapath, &packet(7, &[1; 8]))?, None, "options are skipped");
    assert_eq!(sends(&mut datapath, &packet(6, &[1; 8]))?, Some(drop::POLICY_DENIED), "other ports");
    assert_eq!(sends(&mut datapath, &packet(4, &[]))?, Some(drop::INVALID_PACKET_DROPPED));
    Ok(())
}

/// A row of policy that lets TCP out to one port.
fn tcp_to(port: u16) -> PolicyRow {
    row(OUT, 0, TCP, Some((port, 16)), Kind::Allow(0))
}

#[test]
fn ipv6_extension_headers_are_skipped() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&default_config())?;
    datapath.set_policy(&A, &[tcp_to(443)])?;
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const AUTHENTICATION: u8 = 51;
    const NOTHING: u8 = 59;
    const OPTIONS: u8 = 60;
    let exthdr = Some(drop::INVALID_IPV6_EXTENSION_HEADER);
    for (headers, expected) in [
        (&[HOP_BY_HOP][..], None),
        (&[HOP_BY_HOP, ROUTING, OPTIONS], None),
        (&[HOP_BY_HOP, OPTIONS, ROUTING, AUTHENTICATION], None),
        (&[HOP_BY_HOP, OPTIONS, ROUTING, OPTIONS, OPTIONS], exthdr),
        (&[HOP_BY_HOP, NOTHING], exthdr),
    ] {
        for (port, denied) in [(443, false), (444, true)] {
            let mut payload = Vec::new();
            for (at, header) in headers.iter().enumerate() {
                let next = headers.get(at + 1).copied().unwrap_or(TCP);
                // Lengths: units of eight bytes beside the first, of four beside the first two for authentication.
                let (length, bytes) =
                    if *header == AUTHENTICATION { (4, 24) } else { (at as u8, 8 + 8 * at) };
                payload.extend([next, length]);
                payload.extend(vec![0; bytes - 2]);
            }
            payload.extend(tcp(40000, port, SYN));
            let packet = ip(A.ipv6.into(), OUTSIDE_V6.into(), headers[0], &payload);
            let expected = expected.or(denied.then_some(drop::POLICY_DENIED));
            assert_eq!(sends(&mut datapath, &packet)?, expected, "{headers:?} to {port}");
        }
    }
    Ok(())
}
