//! Headers of a packet, as far as its captured bytes go.
//!
//! Uses nothing; `icmp` has the names of types and codes, `text` the layers as text, `summary` the packet in a line.

mod icmp;
mod summary;
mod text;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;

pub(crate) use text::{mac, socket};

/// The first layer of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum First {
    /// An Ethernet header.
    #[default]
    Ethernet,
    /// An IP header: the device has no Ethernet headers.
    Ip,
}

/// A tunnel in which a packet travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "protocols")]
pub enum Tunnel {
    Vxlan,
    Geneve,
}

/// A kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "protocols")]
pub enum LayerKind {
    Ethernet,
    Ipv4,
    Ipv6,
    Tcp,
    Udp,
    Sctp,
    Icmpv4,
    Icmpv6,
    Vrrp,
    Igmp,
    Vxlan,
    Geneve,
}

/// A header by its bytes, which are those that its kind has at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer<'a> {
    /// Its kind.
    pub kind: LayerKind,
    /// The header; options of TCP may be truncated.
    pub header: &'a [u8],
    /// The bytes behind it.
    pub payload: &'a [u8],
}

/// Headers of a packet, without those of packets inside of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers<'a> {
    /// The Ethernet header.
    pub ethernet: Option<EthernetHeader>,
    /// Addresses of source and destination.
    pub ip: Option<(IpAddr, IpAddr)>,
    /// The transport header.
    pub transport: Option<TransportHeader>,
    /// All headers, from the outermost.
    pub layers: SmallVec<[Layer<'a>; 4]>,
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    /// MAC address of the source.
    pub src: [u8; 6],
    /// MAC address of the destination.
    pub dst: [u8; 6],
    /// The EtherType.
    pub kind: u16,
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
pub struct Frame<'a> {
    /// Headers of the inner or only packet.
    pub headers: Headers<'a>,
    /// The outer packet of a tunnel: its protocol, network identifier and headers.
    pub outer: Option<(Tunnel, u32, Headers<'a>)>,
    /// Whether a header is truncated or invalid; those before it are there.
    pub is_malformed: bool,
}

/// A header is truncated or invalid.
struct Malformed;

const ETHERNET_LEN: usize = 14;
const TUNNEL_LEN: usize = 8;

impl<'a> Frame<'a> {
    /// Reads a packet. With `tunnel`, the payload of UDP is that tunnel's.
    #[must_use]
    pub fn parse(first: First, tunnel: Option<Tunnel>, bytes: &'a [u8]) -> Self {
        let mut outer = Headers::default();
        let (payload, tunnel) = match outer.parse(first, bytes) {
            Err(Malformed) => return Self { headers: outer, outer: None, is_malformed: true },
            Ok(payload) => match payload.zip(tunnel) {
                None => return Self { headers: outer, outer: None, is_malformed: false },
                Some(inner) => inner,
            },
        };
        let mut inner = Headers::default();
        let (vni, is_malformed) = match outer.decapsulate(tunnel, payload) {
            Some((vni, frame)) => (vni, inner.parse(First::Ethernet, frame).is_err()),
            None => (0, true),
        };
        Self { headers: inner, outer: Some((tunnel, vni, outer)), is_malformed }
    }
}

impl<'a> Headers<'a> {
    /// Reads the headers of a packet. Returns the payload of UDP.
    fn parse(&mut self, first: First, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
        if bytes.is_empty() {
            return Ok(None);
        }
        match first {
            First::Ethernet => {
                let (header, payload) = self.layer(LayerKind::Ethernet, ETHERNET_LEN, bytes)?;
                let kind = be16(header, 12);
                self.ethernet = Some(EthernetHeader { src: array(header, 6), dst: array(header, 0), kind });
                match kind {
                    0x0800 => self.ipv4(payload),
                    0x86dd => self.ipv6(payload),
                    _ => Ok(None),
                }
            }
            First::Ip => match bytes[0] >> 4 {
                4 => self.ipv4(bytes),
                6 => self.ipv6(bytes),
                _ => Err(Malformed),
            },
        }
    }

    /// Adds the layer of so many bytes. Returns its header and its payload.
    fn layer(
        &mut self,
        kind: LayerKind,
        len: usize,
        bytes: &'a [u8],
    ) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        let (header, payload) = split(bytes, len)?;
        self.layers.push(Layer { kind, header, payload });
        Ok((header, payload))
    }

    fn ipv4(&mut self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
        let (fixed, _) = split(bytes, 20)?;
        let (version, words) = (fixed[0] >> 4, fixed[0] & 15);
        if version != 4 || words < 5 {
            return Err(Malformed);
        }
        let (header, rest) = split(bytes, usize::from(words) * 4)?;
        let length = usize::from(be16(header, 2));
        // Padding of short frames and of the event is no payload; zero is the length of packets that were segmented.
        let payload = length.checked_sub(header.len()).and_then(|len| rest.get(..len)).unwrap_or(rest);
        self.layers.push(Layer { kind: LayerKind::Ipv4, header, payload });
        let address = |offset| Ipv4Addr::from(array::<4>(header, offset)).into();
        self.ip = Some((address(12), address(16)));
        // Other fragments than the first have no transport header.
        if be16(header, 6) & 0x1fff != 0 { Ok(None) } else { self.transport(header[9], payload) }
    }

    fn ipv6(&mut self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
        let (header, rest) = split(bytes, 40)?;
        if header[0] >> 4 != 6 {
            return Err(Malformed);
        }
        let length = usize::from(be16(header, 4));
        let payload = if length == 0 { rest } else { rest.get(..length).unwrap_or(rest) };
        self.layers.push(Layer { kind: LayerKind::Ipv6, header, payload });
        let address = |offset| Ipv6Addr::from(array::<16>(header, offset)).into();
        self.ip = Some((address(8), address(24)));
        match skip_extensions(header[6], payload)? {
            Some((next, payload)) => self.transport(next, payload),
            None => Ok(None),
        }
    }

    fn transport(&mut self, protocol: u8, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
        let mut udp = None;
        self.transport = Some(match protocol {
            1 => {
                let (header, _) = self.layer(LayerKind::Icmpv4, 8, bytes)?;
                TransportHeader::Icmpv4 { kind: header[0], code: header[1] }
            }
            58 => {
                let (header, _) = self.layer(LayerKind::Icmpv6, 4, bytes)?;
                TransportHeader::Icmpv6 { kind: header[0], code: header[1] }
            }
            2 => {
                let (header, _) = self.layer(LayerKind::Igmp, 8, bytes)?;
                TransportHeader::Igmp { kind: header[0], group: array::<4>(header, 4).into() }
            }
            6 => {
                let words = split(bytes, 20)?.0[12] >> 4;
                if words < 5 {
                    return Err(Malformed);
                }
                // Options may reach beyond the captured bytes.
                let len = (usize::from(words) * 4).min(bytes.len());
                let (header, _) = self.layer(LayerKind::Tcp, len, bytes)?;
                let flags = u16::from(header[12] & 1) << 8 | u16::from(header[13]);
                TransportHeader::Tcp { src: be16(header, 0), dst: be16(header, 2), flags }
            }
            17 => {
                let (header, payload) = self.layer(LayerKind::Udp, 8, bytes)?;
                udp = Some(payload);
                TransportHeader::Udp { src: be16(header, 0), dst: be16(header, 2) }
            }
            112 => {
                let (header, _) = self.layer(LayerKind::Vrrp, 8, bytes)?;
                TransportHeader::Vrrp { kind: header[0] & 15, id: header[1], priority: header[2] }
            }
            132 => {
                let (header, chunks) = self.layer(LayerKind::Sctp, 12, bytes)?;
                let chunk = chunks.first().copied();
                TransportHeader::Sctp { src: be16(header, 0), dst: be16(header, 2), chunk }
            }
            _ => return Ok(None),
        });
        Ok(udp)
    }

    /// Reads the header of a tunnel. Returns its network identifier and the frame inside.
    fn decapsulate(&mut self, tunnel: Tunnel, bytes: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let fixed = bytes.get(..TUNNEL_LEN)?;
        let (kind, options) = match tunnel {
            Tunnel::Vxlan => (LayerKind::Vxlan, 0),
            Tunnel::Geneve => (LayerKind::Geneve, usize::from(fixed[0] & 0x3f) * 4),
        };
        let (_, frame) = self.layer(kind, TUNNEL_LEN + options, bytes).ok()?;
        Some((vni(fixed), frame))
    }
}

/// Skips extension headers. Returns the protocol behind them and its bytes; `None` if the packet is a later fragment.
fn skip_extensions(mut next: u8, mut payload: &[u8]) -> Result<Option<(u8, &[u8])>, Malformed> {
    loop {
        let len = match next {
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => 8 + 8 * usize::from(*payload.get(1).ok_or(Malformed)?),
            44 => {
                if be16(split(payload, 8)?.0, 2) & 0xfff8 != 0 {
                    return Ok(None);
                }
                8
            }
            _ => return Ok(Some((next, payload))),
        };
        let (extension, rest) = split(payload, len)?;
        (next, payload) = (extension[0], rest);
    }
}

/// Returns the network identifier of a tunnel's header.
fn vni(header: &[u8]) -> u32 {
    be32(header, 4) >> 8
}

/// Returns the big-endian number at an offset; the caller has checked the length.
fn be16(bytes: &[u8], offset: usize) -> u16 {
    bytes.get(offset..offset + 2).map_or(0, |two| u16::from(two[0]) << 8 | u16::from(two[1]))
}

fn be32(bytes: &[u8], offset: usize) -> u32 {
    u32::from(be16(bytes, offset)) << 16 | u32::from(be16(bytes, offset + 2))
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes.get(offset..offset + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

fn split(bytes: &[u8], len: usize) -> Result<(&[u8], &[u8]), Malformed> {
    bytes.split_at_checked(len).ok_or(Malformed)
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
        let packet = ipv4_packet(6, &header);
        let frame = Frame::parse(First::Ethernet, None, &packet);
        assert!(frame.is_malformed && frame.headers.transport.is_none());
        assert_eq!(frame.headers.ip, Some(([10, 0, 0, 1].into(), [10, 0, 0, 2].into())));
    }

    #[test]
    fn the_inner_packet_of_a_tunnel_is_the_packet() {
        let inner = ipv4_packet(6, &tcp(2));
        let vxlan = [&[8, 0, 0, 0, 0, 0x01, 0x02, 0], &inner[..]].concat();
        let udp = [&[0, 9, 0x12, 0xb5, 0, 0, 0, 0], &vxlan[..]].concat();
        let packet = ipv4_packet(17, &udp);
        let frame = Frame::parse(First::Ethernet, Some(Tunnel::Vxlan), &packet);
        let expected = TransportHeader::Tcp { src: 8080, dst: 80, flags: 2 };
        assert_eq!((frame.headers.transport, frame.is_malformed), (Some(expected), false));
        let (tunnel, vni, outer) = frame.outer.clone().unwrap();
        assert_eq!((tunnel, vni), (Tunnel::Vxlan, 0x102));
        assert_eq!(outer.transport, Some(TransportHeader::Udp { src: 9, dst: 4789 }));
        assert_eq!(frame.summary(), "TCP Flags: SYN");
    }
}
