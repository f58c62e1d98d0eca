//! ICMP echo requests and replies (RFC 792, RFC 4443).

use std::net::IpAddr;

/// Length of the header of ICMP and of our payload in bytes.
pub(crate) const REQUEST_LEN: usize = HEADER_LEN + 16;

const HEADER_LEN: usize = 8;

/// Type of a request and of a reply, by family.
const ECHO: (u8, u8) = (8, 0);
const ECHO_V6: (u8, u8) = (128, 129);

/// The content of an echo request, and of the reply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    /// The id of this agent's pings.
    pub(crate) id: u16,
    /// The sequence number.
    pub(crate) sequence: u16,
    /// Random bytes, without which a reply could be forged by a host that does not see the request.
    pub(crate) nonce: u128,
}

impl Echo {
    /// Returns the request to an address. The checksum of ICMPv6 is left to the kernel, which knows the source address.
    pub(crate) fn request(self, to: IpAddr) -> [u8; REQUEST_LEN] {
        let mut packet = [0; REQUEST_LEN];
        packet[0] = if to.is_ipv4() { ECHO.0 } else { ECHO_V6.0 };
        packet[4..6].copy_from_slice(&self.id.to_be_bytes());
        packet[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        packet[HEADER_LEN..].copy_from_slice(&self.nonce.to_be_bytes());
        if to.is_ipv4() {
            let sum = checksum(&packet);
            packet[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        packet
    }

    /// Parses a reply as a raw socket returns it, for IPv4 with the IP header; `None` for any other packet.
    pub(crate) fn parse_reply(packet: &[u8], from: IpAddr) -> Option<Self> {
        let (reply, packet) = if from.is_ipv4() {
            let header = usize::from(packet.first()? & 0xf) * 4;
            (ECHO.1, packet.get(header..)?)
        } else {
            (ECHO_V6.1, packet)
        };
        let (header, payload) = packet.split_at_checked(HEADER_LEN)?;
        if header[0] != reply || header[1] != 0 {
            return None;
        }
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let nonce = u128::from_be_bytes(payload.try_into().ok()?);
        Some(Self { id: word(4), sequence: word(6), nonce })
    }
}

/// Returns the checksum of RFC 1071 over an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    #[expect(clippy::cast_possible_truncation, reason = "folded above")]
    let folded = sum as u16;
    !folded
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Echo = Echo { id: 0x1234, sequence: 7, nonce: 0xfeed_beef };

    /// Returns the reply of a host, with an IP header of this length for IPv4.
    fn reply(to: IpAddr, header: usize) -> Vec<u8> {
        let mut reply = SENT.request(to).to_vec();
        reply[0] = if to.is_ipv4() { 0 } else { 129 };
        if to.is_ipv4() {
            let mut ip = vec![0; header];
            ip[0] = 0x40 | u8::try_from(header / 4).unwrap();
            ip.append(&mut reply);
            return ip;
        }
        reply
    }

    #[test]
    fn the_reply_has_what_was_sent() {
        let v4: IpAddr = [192, 0, 2, 1].into();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        for (ip, header) in [(v4, 20), (v4, 60), (v6, 0)] {
            assert_eq!(Echo::parse_reply(&reply(ip, header), ip), Some(SENT));
        }
        let request = SENT.request(v4);
        assert_eq!(checksum(&request), 0, "a packet with its checksum sums up to zero");
        assert_eq!(SENT.request(v6)[2..4], [0, 0]);
    }

    #[test]
    fn other_packets_are_none() {
        let v4: IpAddr = [192, 0, 2, 1].into();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(Echo::parse_reply(&SENT.request(v6), v6), None, "a request");
        for ip in [v4, v6] {
            let whole = reply(ip, 20);
            for end in 0..whole.len() {
                assert_eq!(Echo::parse_reply(&whole[..end], ip), None, "cut off at {end}");
            }
            let mut longer = whole.clone();
            longer.push(0);
            assert_eq!(Echo::parse_reply(&longer, ip), None);
            let mut code = whole;
            let at = if ip.is_ipv4() { 21 } else { 1 };
            code[at] = 1;
            assert_eq!(Echo::parse_reply(&code, ip), None);
        }
        let mut header = reply(v4, 20);
        header[0] = 0x4f;
        assert_eq!(Echo::parse_reply(&header, v4), None, "a header that is longer than the packet");
    }
}
