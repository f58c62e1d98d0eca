//! Frames built field by field, right or wrong, that can be found again wherever they arrive.

use std::net::IpAddr;

/// TCP (IANA protocol numbers, also below).
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// ICMP of IPv4.
pub const ICMP: u8 = 1;
/// ICMP of IPv6.
pub const ICMPV6: u8 = 58;

/// IPv6 Hop-by-Hop Options header.
pub const HOP_BY_HOP: u8 = 0;
/// IPv6 Routing header.
pub const ROUTING: u8 = 43;
/// IPv6 Fragment header.
pub const FRAGMENT: u8 = 44;
/// Nothing follows an IPv6 header.
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 Destination Options header.
pub const DESTINATION_OPTIONS: u8 = 60;

/// A MAC address.
pub type Mac = [u8; 6];

/// Marks a packet so that it is recognised in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u16);

impl Token {
    /// Bytes of a token in a payload: a prefix, the number, and two bytes that keep the checksum as it is.
    pub const LEN: usize = 8;
    const PREFIX: [u8; 2] = [0x02, 0xa7];
    const SUFFIX: [u8; 2] = [0x5c, 0x3d];
    /// The bytes that [`mark`](Self::mark) replaces.
    pub const PLACEHOLDER: [u8; Self::LEN] = Self(0).bytes();

    const fn bytes(self) -> [u8; Self::LEN] {
        let [high, low] = self.0.to_be_bytes();
        let [rest_high, rest_low] = (!self.0).to_be_bytes();
        let ([a, b], [c, d]) = (Self::PREFIX, Self::SUFFIX);
        [a, b, high, low, c, d, rest_high, rest_low]
    }

    /// Token as an address of a network card.
    fn mac(self) -> Mac {
        let [a, b, c, d, e, f, ..] = self.bytes();
        [a, b, c, d, e, f]
    }

    /// Puts the token into a frame: in place of the placeholder in its payload, else as its source MAC address.
    pub fn mark(self, frame: &mut [u8]) {
        let mut places = (0..frame.len().saturating_sub(Self::LEN - 1)).filter(|at| {
            let end = at + Self::LEN;
            frame[*at..end] == Self::PLACEHOLDER
        });
        match places.next() {
            Some(at) => frame[at..at + Self::LEN].copy_from_slice(&self.bytes()),
            None => frame[6..12].copy_from_slice(&self.mac()),
        }
    }

    /// Returns the token of a frame that has one in it.
    #[must_use]
    pub fn find(frame: &[u8]) -> Option<Self> {
        let is_token = |part: &&[u8]| part[..2] == Self::PREFIX && part[4..] == Self::SUFFIX;
        let part = frame.windows(6).find(is_token)?;
        Some(Self(u16::from_be_bytes([part[2], part[3]])))
    }
}

/// An IP packet with freely chosen fields. Lengths and checksums are correct unless bytes are overwritten.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The address of the sender, true or not.
    pub source: IpAddr,
    /// The address of the receiver.
    pub destination: IpAddr,
    /// TTL or hop limit.
    pub hops: u8,
    /// The protocol of the payload.
    pub protocol: u8,
    /// The header behind IP and what follows.
    pub payload: Vec<u8>,
    /// IPv4 options, padded by the caller.
    pub options: Vec<u8>,
    /// A piece of a datagram, or an atomic fragment.
    pub fragment: Option<Fragment>,
    /// IPv6 extension headers before the Fragment header, with what follows their first two bytes.
    pub before: Vec<(u8, Vec<u8>)>,
    /// IPv6 extension headers behind the Fragment header.
    pub behind: Vec<(u8, Vec<u8>)>,
    /// Bytes of the IP packet that are written over at the end; IPv4's header checksum is computed after it.
    pub overwritten: Vec<(usize, Vec<u8>)>,
    /// Cuts the IP packet after so many bytes; its lengths stay.
    pub cut: Option<usize>,
    /// A MAC address instead of the sender's own.
    pub source_mac: Option<Mac>,
    /// A MAC address instead of the next hop's.
    pub destination_mac: Option<Mac>,
    /// An Ethernet type instead of the family's own.
    pub ethertype: Option<u16>,
    /// An IEEE 802.1Q tag.
    pub vlan: Option<u16>,
    /// Sent behind the Ethernet header instead of an IP packet.
    pub raw: Option<Vec<u8>>,
}

/// Where a piece belongs.
#[derive(Clone, Copy, Debug)]
pub struct Fragment {
    /// Of the datagram; IPv4 has 16 bits of it.
    pub id: u32,
    /// In units of eight bytes.
    pub offset: u16,
    /// Whether more pieces follow.
    pub more: bool,
    /// The protocol that IPv6's Fragment header claims for the payload, if it is a false one.
    pub next: Option<u8>,
}

/// Returns the internet checksum of some bytes (RFC 1071).
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

impl Packet {
    /// A packet of some protocol; both addresses are of one family.
    #[must_use]
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8, payload: Vec<u8>) -> Self {
        let (fragment, cut, ethertype, vlan) = (None, None, None, None);
        let (source_mac, destination_mac) = (None, None);
        let (options, before, behind, overwritten) = (vec![], vec![], vec![], vec![]);
        let hops = 64;
        Self {
            source,
            destination,
            hops,
            protocol,
            payload,
            options,
            fragment,
            before,
            behind,
            overwritten,
            cut,
            source_mac,
            destination_mac,
            ethertype,
            vlan,
            raw: None,
        }
    }

    /// UDP with a token and 16 more bytes.
    #[must_use]
    pub fn udp(source: IpAddr, destination: IpAddr, ports: (u16, u16)) -> Self {
        let payload = [&Token::PLACEHOLDER[..], &[0x55; 16]].concat();
        let length = (8 + payload.len()) as u16;
        let header = [ports.0, ports.1, length, 0].map(u16::to_be_bytes).concat();
        Self::new(source, destination, UDP, [header, payload].concat())
    }

    /// TCP with a token and four more bytes; flags as in the header's byte.
    #[must_use]
    pub fn tcp(source: IpAddr, destination: IpAddr, ports: (u16, u16), flags: u8) -> Self {
        let ports = [ports.0, ports.1].map(u16::to_be_bytes).concat();
        let rest =
            [&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 4, 0, 0, 0, 0, 0][..], &Token::PLACEHOLDER, &[0x55; 4]];
        Self::new(source, destination, TCP, [ports, rest.concat()].concat())
    }

    /// ICMP or ICMPv6 by the family: type, code, the four bytes behind the checksum, a token and what follows.
    #[must_use]
    pub fn icmp(source: IpAddr, destination: IpAddr, kind: [u8; 2], word: u32, rest: &[u8]) -> Self {
        let header = [&kind[..], &[0, 0], &word.to_be_bytes()].concat();
        let protocol = if source.is_ipv4() { ICMP } else { ICMPV6 };
        Self::new(source, destination, protocol, [&header[..], rest, &Token::PLACEHOLDER].concat())
    }

    /// An ARP packet for IPv4 (RFC 826). Both addresses are of IPv4.
    #[must_use]
    pub fn arp(operation: u16, sender: (Mac, IpAddr), target: (Mac, IpAddr)) -> Self {
        let mut body = vec![0, 1, 8, 0, 6, 4];
        body.extend(operation.to_be_bytes());
        for (mac, ip) in [sender, target] {
            body.extend(mac);
            body.extend(octets(ip));
        }
        Self::new(sender.1, target.1, 0, Vec::new()).with(|p| {
            p.ethertype = Some(0x0806);
            p.raw = Some(body);
        })
    }

    /// A neighbour solicitation or advertisement (RFC 4861): type, flags, the neighbour and its MAC address, and a
    /// token in an option that is unknown.
    #[must_use]
    pub fn neighbour(addresses: [IpAddr; 2], kind: u8, flags: u32, neighbour: IpAddr, mac: Mac) -> Self {
        let option = if kind == 135 { 1 } else { 2 };
        let [source, destination] = addresses;
        let parts = [
            &[kind, 0, 0, 0][..],
            &flags.to_be_bytes(),
            &octets(neighbour),
            &[option, 1],
            &mac,
            &[253, 2, 0, 0, 0, 0, 0, 0],
            &Token::PLACEHOLDER,
        ];
        Self::new(source, destination, ICMPV6, parts.concat()).with(|p| p.hops = 255)
    }

    /// The same with a change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The first piece of the packet's datagram.
    #[must_use]
    pub fn first(self, id: u32) -> Self {
        self.with(|p| p.fragment = Some(Fragment { id, offset: 0, more: true, next: None }))
    }

    /// A later piece of the packet's datagram, with a token of its own.
    #[must_use]
    pub fn later(self, id: u32, offset: u16, more: bool) -> Self {
        self.with(|p| {
            p.payload = [Token::PLACEHOLDER, [0x66; 8]].concat();
            p.behind.clear();
            p.fragment = Some(Fragment { id, offset, more, next: None });
        })
    }

    fn is_whole(&self) -> bool {
        self.fragment.is_none_or(|fragment| fragment.offset == 0 && !fragment.more)
    }

    /// The payload with its checksum.
    fn upper(&self) -> Vec<u8> {
        let mut payload = self.payload.clone();
        let at = match self.protocol {
            UDP => 6,
            TCP => 16,
            ICMP | ICMPV6 => 2,
            _ => return payload,
        };
        if !self.is_whole() || payload.len() < at + 2 {
            return payload;
        }
        let pseudo = match self.protocol {
            ICMP => Vec::new(),
            _ => {
                let length = (payload.len() as u32).to_be_bytes();
                let rest = [0, 0, 0, self.protocol];
                [octets(self.source), octets(self.destination), length.to_vec(), rest.to_vec()].concat()
            }
        };
        let sum = checksum(&[pseudo, payload.clone()].concat());
        payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        payload
    }

    /// The IP packet, without Ethernet.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut packet = match self.source {
            IpAddr::V4(_) => self.ipv4(),
            IpAddr::V6(_) => self.ipv6(),
        };
        for (at, bytes) in &self.overwritten {
            packet[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        if self.source.is_ipv4() {
            packet[10..12].copy_from_slice(&[0, 0]);
            let length = (usize::from(packet[0] & 15) * 4).clamp(20, packet.len());
            let sum = checksum(&packet[..length]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        packet.truncate(self.cut.unwrap_or(usize::MAX));
        packet
    }

    fn ipv4(&self) -> Vec<u8> {
        let payload = self.upper();
        let length = 20 + self.options.len();
        let (id, field) = match self.fragment {
            Some(Fragment { id, offset, more, .. }) => (id as u16, offset | u16::from(more) << 13),
            None => (1, 0x4000),
        };
        let words = [(length + payload.len()) as u16, id, field].map(u16::to_be_bytes).concat();
        let header =
            [&[0x40 | (length / 4) as u8, 0][..], &words, &[self.hops, self.protocol, 0, 0]].concat();
        let addresses = [octets(self.source), octets(self.destination)].concat();
        [header, addresses, self.options.clone(), payload].concat()
    }

    fn ipv6(&self) -> Vec<u8> {
        let mut body = self.upper();
        let mut next = self.protocol;
        let prepend = |headers: &[(u8, Vec<u8>)], body: &mut Vec<u8>, next: &mut u8| {
            for (kind, rest) in headers.iter().rev() {
                let units = ((rest.len() + 2) / 8 - 1) as u8;
                *body = [&[*next, units][..], rest, body].concat();
                *next = *kind;
            }
        };
        prepend(&self.behind, &mut body, &mut next);
        if let Some(Fragment { id, offset, more, next: claimed }) = self.fragment {
            let field = (offset << 3 | u16::from(more)).to_be_bytes();
            let header = [&[claimed.unwrap_or(next), 0][..], &field, &id.to_be_bytes()].concat();
            (body, next) = ([header, body].concat(), FRAGMENT);
        }
        prepend(&self.before, &mut body, &mut next);
        let length = (body.len() as u16).to_be_bytes();
        let header = [&[0x60, 0, 0, 0][..], &length, &[next, self.hops]].concat();
        [header, octets(self.source), octets(self.destination), body].concat()
    }

    /// The frame that one end of a link sends to the other.
    #[must_use]
    pub fn frame(&self, own: Mac, peer: Mac) -> Vec<u8> {
        let kind = self.ethertype.unwrap_or(if self.source.is_ipv4() { 0x0800 } else { 0x86dd });
        let tag = self.vlan.map(|id| [0x8100, id].map(u16::to_be_bytes).concat()).unwrap_or_default();
        let (source, destination) = (self.source_mac.unwrap_or(own), self.destination_mac.unwrap_or(peer));
        let body = self.raw.clone().unwrap_or_else(|| self.bytes());
        [&destination[..], &source, &tag, &kind.to_be_bytes(), &body].concat()
    }
}

/// Options of an extension header that do nothing: PadN over six bytes.
#[must_use]
pub fn padding() -> Vec<u8> {
    vec![1, 4, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: [IpAddr; 2] =
        [IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)];
    const V6: [IpAddr; 2] =
        [IpAddr::V6(std::net::Ipv6Addr::LOCALHOST), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)];

    #[test]
    fn a_token_is_found_and_keeps_the_checksum() {
        for [source, destination] in [V4, V6] {
            let plain = Packet::udp(source, destination, (1, 2)).frame([2; 6], [4; 6]);
            assert_eq!(Token::find(&plain), Some(Token(0)));
            let mut marked = plain.clone();
            Token(0x1234).mark(&mut marked);
            assert_eq!(Token::find(&marked), Some(Token(0x1234)));
            assert_eq!(checksum(&plain[14..]), checksum(&marked[14..]));
        }
        let mut bare = Packet::new(V4[0], V4[1], 255, vec![]).frame([2; 6], [4; 6]);
        assert_eq!(Token::find(&bare), None);
        Token(7).mark(&mut bare);
        assert_eq!(Token::find(&bare), Some(Token(7)));
    }

    #[test]
    fn checksums_and_lengths_are_right_unless_overwritten() {
        let packet = Packet::udp(V4[0], V4[1], (1, 2)).with(|p| p.options = vec![1; 4]);
        let bytes = packet.bytes();
        assert_eq!((bytes[0], bytes[3] as usize), (0x46, bytes.len()));
        assert_eq!(checksum(&bytes[..24]), 0);
        assert_eq!(packet.clone().with(|p| p.overwritten = vec![(3, vec![9])]).bytes()[3], 9);
        let v6 =
            Packet::udp(V6[0], V6[1], (1, 2)).first(9).with(|p| p.before = vec![(HOP_BY_HOP, padding())]);
        let bytes = v6.bytes();
        assert_eq!((bytes[6], bytes[40], bytes[41], bytes[48]), (HOP_BY_HOP, FRAGMENT, 0, UDP));
        assert_eq!((bytes[51], bytes[55], bytes.len()), (1, 9, 40 + 8 + 8 + 32));
    }
}
