//! UDP datagrams over IPv6 in two fragments, from any source address.

use std::io;
use std::net::{Ipv6Addr, SocketAddrV6};

use crate::{NetNs, sys};

const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
/// Bytes of the datagram in the first fragment, a multiple of eight.
const FIRST: usize = 512;

/// A UDP datagram that is sent as two IPv6 fragments.
#[derive(Clone, Debug)]
pub struct FragmentedDatagram {
    /// Source address and port; the address need not be the sender's.
    pub source: SocketAddrV6,
    /// Destination address and port.
    pub destination: SocketAddrV6,
    /// Identification of the fragments (RFC 8200, 4.5).
    pub identification: u32,
    /// The first fragment has a Destination Options header in front of the Fragment header, the second has none. Linux
    /// copies a packet that was reassembled from such fragments when it fragments it again.
    pub first_has_options: bool,
    /// The payload of the datagram, more than 512 bytes.
    pub payload: Vec<u8>,
}

impl FragmentedDatagram {
    /// Sends both fragments from the namespace `from` by its routes.
    ///
    /// # Errors
    /// When there is no raw socket, or no route.
    pub fn send(&self, from: &NetNs) -> io::Result<()> {
        let datagram = self.datagram();
        let first = self.fragment(&datagram[..FIRST], 0, true);
        let first = if self.first_has_options {
            // One option over 32 units of eight bytes, for experiments (RFC 4727): receivers skip what they do not know. Linux
            // drops packets with more than seven bytes of padding.
            let mut header = vec![FRAGMENT, 31, 0x1e, 252];
            header.resize(256, 0);
            header.extend(first);
            self.packet(DESTINATION_OPTIONS, &header)
        } else {
            self.packet(FRAGMENT, &first)
        };
        let second = self.packet(FRAGMENT, &self.fragment(&datagram[FIRST..], FIRST, false));
        from.run(|| {
            let socket = sys::raw_ipv6()?;
            [first, second]
                .iter()
                .try_for_each(|packet| sys::send_ipv6(&socket, packet, *self.destination.ip()))
        })
    }

    fn datagram(&self) -> Vec<u8> {
        let length = (8 + self.payload.len()) as u16;
        let mut datagram = Vec::new();
        for word in [self.source.port(), self.destination.port(), length, 0] {
            datagram.extend(word.to_be_bytes());
        }
        datagram.extend(&self.payload);
        let checksum = checksum(*self.source.ip(), *self.destination.ip(), &datagram);
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
        datagram
    }

    fn fragment(&self, part: &[u8], offset: usize, more: bool) -> Vec<u8> {
        let mut fragment = vec![UDP, 0];
        fragment.extend((offset as u16 | u16::from(more)).to_be_bytes());
        fragment.extend(self.identification.to_be_bytes());
        fragment.extend(part);
        fragment
    }

    fn packet(&self, next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend((payload.len() as u16).to_be_bytes());
        packet.extend([next_header, 64]);
        packet.extend(self.source.ip().octets());
        packet.extend(self.destination.ip().octets());
        packet.extend(payload);
        packet
    }
}

/// The checksum of a UDP datagram over IPv6 (RFC 8200, 8.1); the datagram's own field is zero.
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, datagram: &[u8]) -> u16 {
    let mut words: Vec<u8> = [source.octets(), destination.octets()].concat();
    words.extend((datagram.len() as u32).to_be_bytes());
    words.extend([0, 0, 0, UDP]);
    words.extend(datagram);
    words.resize(words.len().next_multiple_of(2), 0);
    let sum: u32 = words.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    match !((folded & 0xffff) + (folded >> 16)) as u16 {
        0 => 0xffff,
        sum => sum,
    }
}
