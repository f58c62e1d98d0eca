//! TCP, UDP, SCTP and ICMP packets with right checksums, and what becomes of them.

use crate::packet::{ETH_LEN, checksum};
use std::net::{IpAddr, SocketAddr};

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SCTP: u8 = 132;

pub(crate) const SYN: u8 = 2;
pub(crate) const ACK: u8 = 16;

pub(crate) const ETH_IPV4: u16 = 0x0800;
pub(crate) const ETH_IPV6: u16 = 0x86dd;

/// An IP packet with any payload; the family is that of the addresses.
pub(crate) fn ip(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ip_fragment(source, destination, protocol, (0, 0, false), payload)
}

/// The same as a part of a datagram: identification, offset in units of eight bytes, more parts follow. All zero is a
/// whole datagram.
pub(crate) fn ip_fragment(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    (id, offset, more): (u16, u16, bool),
    payload: &[u8],
) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let len = (20 + payload.len()) as u16;
            let fragment = offset | if more { 0x2000 } else { 0 };
            let mut packet = vec![0x45, 0];
            packet.extend(len.to_be_bytes());
            packet.extend(id.to_be_bytes());
            packet.extend(fragment.to_be_bytes());
            packet.extend([64, protocol, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            let sum = checksum(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            packet.extend(payload);
            packet
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let fragmented = offset != 0 || more;
            let len = (payload.len() + if fragmented { 8 } else { 0 }) as u16;
            let mut packet = vec![0x60, 0, 0, 0];
            packet.extend(len.to_be_bytes());
            packet.extend([if fragmented { 44 } else { protocol }, 64]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            if fragmented {
                packet.extend([protocol, 0]);
                packet.extend((offset << 3 | u16::from(more)).to_be_bytes());
                packet.extend(u32::from(id).to_be_bytes());
            }
            packet.extend(payload);
            packet
        }
        _ => panic!("{source} and {destination} are of different families"),
    }
}

/// The sum over addresses, length and protocol that goes into checksums of transport headers, and the segment.
fn transport_checksum(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let mut bytes = Vec::new();
    for address in [source, destination] {
        match address {
            IpAddr::V4(ip) => bytes.extend(ip.octets()),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
    }
    bytes.extend((segment.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);
    bytes.extend(segment);
    checksum(&bytes)
}

/// A TCP, UDP or SCTP segment from one socket to another, 64 bytes of payload behind it; its IP packet.
pub(crate) fn segment(source: SocketAddr, destination: SocketAddr, protocol: u8, flags: u8) -> Vec<u8> {
    ip(source.ip(), destination.ip(), protocol, &transport(source, destination, protocol, flags))
}

/// The segment alone.
pub(crate) fn transport(source: SocketAddr, destination: SocketAddr, protocol: u8, flags: u8) -> Vec<u8> {
    let payload = [0x5a; 64];
    let mut segment = Vec::new();
    segment.extend(source.port().to_be_bytes());
    segment.extend(destination.port().to_be_bytes());
    let at = match protocol {
        TCP => {
            segment.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
            16
        }
        UDP => {
            segment.extend((8 + payload.len() as u16).to_be_bytes());
            segment.extend([0, 0]);
            6
        }
        // SCTP: a verification tag and a CRC over ports and payload, not over addresses.
        _ => {
            segment.extend([0, 0, 0, 9, 0xaa, 0xbb, 0xcc, 0xdd]);
            segment.extend(payload);
            return segment;
        }
    };
    segment.extend(payload);
    let sum = transport_checksum(source.ip(), destination.ip(), protocol, &segment);
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    segment
}

/// An Ethernet frame around an IP packet.
pub(crate) fn frame(destination: [u8; 6], source: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let protocol = if packet[0] >> 4 == 4 { ETH_IPV4 } else { ETH_IPV6 };
    crate::packet::eth(destination, source, protocol, packet)
}

/// The contents of a frame: addresses, protocol, ports, and whether every checksum in it is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) protocol: u8,
    pub(crate) checksums: bool,
}

/// Where the transport header of a frame begins, for frames without options and extension headers.
pub(crate) fn l4_offset(frame: &[u8]) -> usize {
    ETH_LEN + if frame[ETH_LEN] >> 4 == 4 { 20 } else { 40 }
}

/// Reads a frame of a whole datagram. Checksums are computed again from the bytes.
pub(crate) fn seen(frame: &[u8]) -> Seen {
    seen_packet(&frame[ETH_LEN..])
}

/// Reads an IP packet.
pub(crate) fn seen_packet(packet: &[u8]) -> Seen {
    let v4 = packet[0] >> 4 == 4;
    let at = if v4 { 20 } else { 40 };
    let (source, destination) = addresses(packet);
    let protocol = if v4 { packet[9] } else { packet[6] };
    let segment = &packet[at..];
    let port = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
    let ports = if matches!(protocol, ICMP | ICMPV6) { (0, 0) } else { (port(0), port(2)) };
    let header_right = !v4 || checksum(&packet[..20]) == 0;
    let segment_right = match protocol {
        ICMP => checksum(segment) == 0,
        UDP if port(6) == 0 => v4,
        SCTP => segment[8..12] == [0xaa, 0xbb, 0xcc, 0xdd],
        _ => transport_checksum(source, destination, protocol, segment) == 0,
    };
    Seen {
        source: SocketAddr::new(source, ports.0),
        destination: SocketAddr::new(destination, ports.1),
        protocol,
        checksums: header_right && segment_right,
    }
}

/// Source and destination of an IP packet.
pub(crate) fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
    if packet[0] >> 4 == 4 {
        let ip = |at: usize| IpAddr::from([0, 1, 2, 3].map(|byte| packet[at + byte]));
        (ip(12), ip(16))
    } else {
        let ip = |at: usize| IpAddr::from(std::array::from_fn::<u8, 16, _>(|byte| packet[at + byte]));
        (ip(8), ip(24))
    }
}
