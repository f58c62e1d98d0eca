//! Packets, byte for byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const ETH_LEN: usize = 14;
pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];

pub(crate) fn eth(destination: [u8; 6], source: [u8; 6], protocol: u16, payload: &[u8]) -> Vec<u8> {
    [&destination[..], &source, &protocol.to_be_bytes(), payload].concat()
}

/// The internet checksum of some bytes (RFC 1071).
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// TCP flags.
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// Protocol numbers.
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// A TCP header; the checksum is left out.
pub(crate) fn tcp(sport: u16, dport: u16, flags: u8) -> Vec<u8> {
    let ports = [sport.to_be_bytes(), dport.to_be_bytes()].concat();
    [&ports[..], &[0; 8], &[0x50, flags], &[0; 6]].concat()
}

/// A UDP header and ten bytes; the checksum is left out.
pub(crate) fn udp_ports(sport: u16, dport: u16) -> Vec<u8> {
    let ports = [sport.to_be_bytes(), dport.to_be_bytes()].concat();
    [&ports[..], &18u16.to_be_bytes(), &[0, 0], b"0123456789"].concat()
}

/// An ICMP or ICMPv6 message; the checksum is left out.
pub(crate) fn icmp(kind: u8, code: u8, identifier: u16) -> Vec<u8> {
    [&[kind, code, 0, 0][..], &identifier.to_be_bytes(), &[0, 1], b"payload."].concat()
}

/// An IP packet of either family in an Ethernet frame; both addresses of one family.
pub(crate) fn ip(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mac = [2, 0, 0, 0, 0, 9];
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            eth(mac, mac, 0x0800, &ipv4_with(source, destination, 64, protocol, [1, 0], payload))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            eth(mac, mac, 0x86dd, &ipv6_with(source, destination, 64, protocol, payload))
        }
        _ => panic!("{source} and {destination} are of different families"),
    }
}

/// UDP from port 4000 to 5000 with ten bytes of payload; the checksum is left out.
fn udp() -> Vec<u8> {
    [&4000u16.to_be_bytes()[..], &5000u16.to_be_bytes(), &18u16.to_be_bytes(), &[0, 0], b"0123456789"]
        .concat()
}

pub(crate) fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, ttl: u8) -> Vec<u8> {
    ipv4_with(source, destination, ttl, UDP, [1, 0x4000], &udp())
}

/// IPv4 with an identification and a fragment field.
pub(crate) fn ipv4_with(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    ttl: u8,
    protocol: u8,
    [id, fragment]: [u16; 2],
    payload: &[u8],
) -> Vec<u8> {
    let words = [(20 + payload.len()) as u16, id, fragment].map(u16::to_be_bytes).concat();
    let mut header = [&[0x45, 0][..], &words, &[ttl, protocol, 0, 0]].concat();
    header.extend(source.octets());
    header.extend(destination.octets());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header.extend(payload);
    header
}

pub(crate) fn ipv6(source: Ipv6Addr, destination: Ipv6Addr, hops: u8) -> Vec<u8> {
    ipv6_with(source, destination, hops, 17, &udp())
}

pub(crate) fn ipv6_with(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hops: u8,
    next: u8,
    payload: &[u8],
) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    let mut packet = [&[0x60, 0, 0, 0][..], &len, &[next, hops]].concat();
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(payload);
    packet
}

/// The checksum of an ICMPv6 message, zero if the message already carries the right one.
pub(crate) fn icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let len = (message.len() as u32).to_be_bytes();
    checksum(&[&source.octets()[..], &destination.octets(), &len, &[0, 0, 0, 58], message].concat())
}

pub(crate) fn icmpv6(source: Ipv6Addr, destination: Ipv6Addr, hops: u8, mut message: Vec<u8>) -> Vec<u8> {
    let sum = icmpv6_checksum(source, destination, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ipv6_with(source, destination, hops, 58, &message)
}

/// A neighbour solicitation, with the sender's MAC address if given.
pub(crate) fn solicitation(source: Ipv6Addr, target: Ipv6Addr, mac: Option<[u8; 6]>) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    if let Some(mac) = mac {
        message.extend([1, 1]);
        message.extend(mac);
    }
    icmpv6(source, target, 255, message)
}

pub(crate) fn arp_request(mac: [u8; 6], ip: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend(mac);
    packet.extend(ip.octets());
    packet.extend([0; 6]);
    packet.extend(target.octets());
    packet
}
