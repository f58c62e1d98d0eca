//! Packets, byte for byte.

use std::net::{Ipv4Addr, Ipv6Addr};

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

/// UDP from port 4000 to 5000 with ten bytes of payload; the checksum is left out.
fn udp() -> Vec<u8> {
    [&4000u16.to_be_bytes()[..], &5000u16.to_be_bytes(), &18u16.to_be_bytes(), &[0, 0], b"0123456789"]
        .concat()
}

pub(crate) fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, ttl: u8) -> Vec<u8> {
    let payload = udp();
    let len = (20 + payload.len()) as u16;
    let mut header = [&[0x45, 0][..], &len.to_be_bytes(), &[0, 1, 0x40, 0, ttl, 17, 0, 0]].concat();
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
