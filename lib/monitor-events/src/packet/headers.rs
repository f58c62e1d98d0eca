//! Headers of a packet as values, without texts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{ETHERNET_LEN, First, Malformed, TUNNEL_LEN, Tunnel, array, be16, be32, icmp, split};

/// Headers of a packet, as far as its captured bytes go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// MAC addresses of source and destination.
    pub ethernet: Option<([u8; 6], [u8; 6])>,
    /// Addresses of source and destination.
    pub ip: Option<(IpAddr, IpAddr)>,
    /// The transport header.
    pub transport: Option<TransportHeader>,
}

/// A transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "protocols and fields of their headers")]
pub enum TransportHeader {
    /// Flags: FIN is bit 0, NS bit 8.
    Tcp {
        src: u16,
        dst: u16,
        flags: u16,
    },
    Udp {
        src: u16,
        dst: u16,
    },
    /// The type of the first chunk, if there is one.
    Sctp {
        src: u16,
        dst: u16,
        chunk: Option<u8>,
    },
    Icmpv4 {
        kind: u8,
        code: u8,
    },
    Icmpv6 {
        kind: u8,
        code: u8,
    },
    Vrrp {
        kind: u8,
        id: u8,
        priority: u8,
    },
    Igmp {
        kind: u8,
        group: Ipv4Addr,
    },
}

/// A packet by its headers, and that inside of a tunnel's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Headers of the inner or only packet.
    pub headers: Headers,
    /// The outer packet of a tunnel: its protocol, network identifier and headers.
    pub outer: Option<(Tunnel, u32, Headers)>,
    /// Whether a header is truncated or invalid; those before it are there.
    pub is_malformed: bool,
}

impl Frame {
    /// Reads a packet. With `tunnel`, the payload of UDP is that tunnel's.
    #[must_use]
    pub fn parse(first: First, tunnel: Option<Tunnel>, bytes: &[u8]) -> Self {
        let mut outer = Headers::default();
        let (payload, tunnel) = match headers(first, bytes, &mut outer) {
            Err(Malformed) => return Self { headers: outer, outer: None, is_malformed: true },
            Ok(payload) => match payload.zip(tunnel) {
                None => return Self { headers: outer, outer: None, is_malformed: false },
                Some(inner) => inner,
            },
        };
        let mut inner = Headers::default();
        let (vni, is_malformed) = match decapsulate(tunnel, payload) {
            Some((vni, frame)) => (vni, headers(First::Ethernet, frame, &mut inner).is_err()),
            None => (0, true),
        };
        Self { headers: inner, outer: Some((tunnel, vni, outer)), is_malformed }
    }

    /// Returns the last header in few words, as Hubble does: `TCP Flags: SYN`, `ICMPv4 EchoRequest`, `UDP`.
    #[must_use]
    pub fn summary(&self) -> String {
        let Headers { ethernet, ip, transport } = &self.headers;
        let plain = match (transport, ip, ethernet) {
            (Some(TransportHeader::Tcp { flags, .. }), ..) => return tcp_summary(*flags),
            (Some(TransportHeader::Icmpv4 { kind, code }), ..) => {
                return format!("ICMPv4 {}", icmp::text(false, *kind, *code));
            }
            (Some(TransportHeader::Icmpv6 { kind, code }), ..) => {
                return format!("ICMPv6 {}", icmp::text(true, *kind, *code));
            }
            (Some(TransportHeader::Vrrp { kind, .. }), ..) => {
                return format!("VRRP {}", super::vrrp_type(*kind));
            }
            (Some(TransportHeader::Igmp { kind, .. }), ..) => {
                return format!("IGMP {}", super::igmp_type(*kind));
            }
            (Some(TransportHeader::Udp { .. }), ..) => "UDP",
            (Some(TransportHeader::Sctp { .. }), ..) => "SCTP",
            (None, Some((IpAddr::V4(_), _)), _) => "IPv4",
            (None, Some((IpAddr::V6(_), _)), _) => "IPv6",
            (None, None, Some(_)) => "Ethernet",
            (None, None, None) => "",
        };
        plain.to_owned()
    }
}

fn tcp_summary(flags: u16) -> String {
    const FLAGS: [(u16, &str); 9] = [
        (2, "SYN"),
        (16, "ACK"),
        (4, "RST"),
        (1, "FIN"),
        (8, "PSH"),
        (32, "URG"),
        (64, "ECE"),
        (128, "CWR"),
        (256, "NS"),
    ];
    let set: Vec<&str> = FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    format!("TCP Flags: {}", set.join(", "))
}

/// Reads headers into `out`. Returns the payload of UDP.
fn headers<'a>(first: First, bytes: &'a [u8], out: &mut Headers) -> Result<Option<&'a [u8]>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    match first {
        First::Ethernet => {
            let (header, payload) = split(bytes, ETHERNET_LEN)?;
            out.ethernet = Some((array(header, 6), array(header, 0)));
            match be16(header, 12) {
                0x0800 => ipv4(payload, out),
                0x86dd => ipv6(payload, out),
                _ => Ok(None),
            }
        }
        First::Ip => match bytes[0] >> 4 {
            4 => ipv4(bytes, out),
            6 => ipv6(bytes, out),
            _ => Err(Malformed),
        },
    }
}

fn ipv4<'a>(bytes: &'a [u8], out: &mut Headers) -> Result<Option<&'a [u8]>, Malformed> {
    let (fixed, _) = split(bytes, 20)?;
    let (version, words) = (fixed[0] >> 4, fixed[0] & 15);
    if version != 4 || words < 5 {
        return Err(Malformed);
    }
    let (header, payload) = split(bytes, usize::from(words) * 4)?;
    out.ip =
        Some((Ipv4Addr::from(array::<4>(header, 12)).into(), Ipv4Addr::from(array::<4>(header, 16)).into()));
    // Other fragments than the first have no transport header.
    if be16(header, 6) & 0x1fff != 0 { Ok(None) } else { transport(header[9], payload, out) }
}

fn ipv6<'a>(bytes: &'a [u8], out: &mut Headers) -> Result<Option<&'a [u8]>, Malformed> {
    let (header, payload) = split(bytes, 40)?;
    if header[0] >> 4 != 6 {
        return Err(Malformed);
    }
    out.ip =
        Some((Ipv6Addr::from(array::<16>(header, 8)).into(), Ipv6Addr::from(array::<16>(header, 24)).into()));
    match super::skip_extensions(header[6], payload)? {
        Some((next, payload)) => transport(next, payload, out),
        None => Ok(None),
    }
}

fn transport<'a>(protocol: u8, bytes: &'a [u8], out: &mut Headers) -> Result<Option<&'a [u8]>, Malformed> {
    let mut udp = None;
    out.transport = Some(match protocol {
        1 => {
            let (header, _) = split(bytes, 8)?;
            TransportHeader::Icmpv4 { kind: header[0], code: header[1] }
        }
        58 => {
            let (header, _) = split(bytes, 4)?;
            TransportHeader::Icmpv6 { kind: header[0], code: header[1] }
        }
        2 => {
            let (header, _) = split(bytes, 8)?;
            TransportHeader::Igmp { kind: header[0], group: array::<4>(header, 4).into() }
        }
        6 => {
            let (header, _) = split(bytes, 20)?;
            if header[12] >> 4 < 5 {
                return Err(Malformed);
            }
            let flags = u16::from(header[12] & 1) << 8 | u16::from(header[13]);
            TransportHeader::Tcp { src: be16(header, 0), dst: be16(header, 2), flags }
        }
        17 => {
            let (header, payload) = split(bytes, 8)?;
            udp = Some(payload);
            TransportHeader::Udp { src: be16(header, 0), dst: be16(header, 2) }
        }
        112 => {
            let (header, _) = split(bytes, 8)?;
            TransportHeader::Vrrp { kind: header[0] & 15, id: header[1], priority: header[2] }
        }
        132 => {
            let (header, chunks) = split(bytes, 12)?;
            TransportHeader::Sctp {
                src: be16(header, 0),
                dst: be16(header, 2),
                chunk: chunks.first().copied(),
            }
        }
        _ => return Ok(None),
    });
    Ok(udp)
}

/// Reads the header of a tunnel; returns its network identifier and the frame inside.
fn decapsulate(tunnel: Tunnel, bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (fixed, frame) = bytes.split_at_checked(TUNNEL_LEN)?;
    let options = match tunnel {
        Tunnel::Vxlan => 0,
        Tunnel::Geneve => usize::from(fixed[0] & 0x3f) * 4,
    };
    Some((be32(fixed, 4) >> 8, frame.get(options..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], &kind.to_be_bytes()[..], payload].concat()
    }

    fn ipv4_packet(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        header[3] = (20 + payload.len()) as u8;
        ethernet(0x0800, &[&header, payload].concat())
    }

    fn tcp(flags: u8) -> [u8; 20] {
        [0x1f, 0x90, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]
    }

    #[test]
    fn summaries_name_the_last_header() {
        let summary = |bytes: &[u8]| Frame::parse(First::Ethernet, None, bytes).summary();
        assert_eq!(summary(&ipv4_packet(6, &tcp(0b1_1010))), "TCP Flags: SYN, ACK, PSH");
        assert_eq!(summary(&ipv4_packet(1, &[8, 0, 0, 0, 0, 0, 0, 0])), "ICMPv4 EchoRequest");
        assert_eq!(
            summary(&ipv4_packet(1, &[3, 4, 0, 0, 0, 0, 0, 0])),
            "ICMPv4 DestinationUnreachable(FragmentationNeeded)"
        );
        assert_eq!(summary(&ipv4_packet(17, &[0; 8])), "UDP");
        assert_eq!(summary(&ipv4_packet(132, &[0; 13])), "SCTP");
        assert_eq!(summary(&ipv4_packet(112, &[0x21, 7, 100, 0, 0, 0, 0, 0])), "VRRP VRRPv2 Advertisement");
        assert_eq!(summary(&ipv4_packet(2, &[0x16, 0, 0, 0, 224, 0, 0, 5])), "IGMP IGMPv2 Membership Report");
        assert_eq!(summary(&ipv4_packet(47, &[])), "IPv4");
        assert_eq!(summary(&ethernet(0x0806, &[0; 28])), "Ethernet");
        assert_eq!(summary(&[]), "");
    }

    #[test]
    fn a_malformed_packet_keeps_the_headers_before_the_fault() {
        let mut header = tcp(2);
        header[12] = 0x40;
        let frame = Frame::parse(First::Ethernet, None, &ipv4_packet(6, &header));
        assert!(frame.is_malformed && frame.headers.transport.is_none());
        assert_eq!(frame.headers.ip, Some(([10, 0, 0, 1].into(), [10, 0, 0, 2].into())));
    }

    #[test]
    fn the_inner_packet_of_a_tunnel_is_the_packet() {
        let inner = ipv4_packet(6, &tcp(2));
        let vxlan = [&[8, 0, 0, 0, 0, 0x01, 0x02, 0], &inner[..]].concat();
        let udp = [&[0, 9, 0x12, 0xb5, 0, 0, 0, 0], &vxlan[..]].concat();
        let frame = Frame::parse(First::Ethernet, Some(Tunnel::Vxlan), &ipv4_packet(17, &udp));
        let expected = TransportHeader::Tcp { src: 8080, dst: 80, flags: 2 };
        assert_eq!((frame.headers.transport, frame.is_malformed), (Some(expected), false));
        let (tunnel, vni, outer) = frame.outer.clone().unwrap();
        assert_eq!((tunnel, vni), (Tunnel::Vxlan, 0x102));
        assert_eq!(outer.transport, Some(TransportHeader::Udp { src: 9, dst: 4789 }));
        assert_eq!(frame.summary(), "TCP Flags: SYN");
    }
}
