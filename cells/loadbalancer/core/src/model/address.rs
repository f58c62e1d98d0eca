//! The address of a frontend or a backend: IP address, protocol, port, scope.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Serialize, Serializer};
use statedb::{IndexKey, KeyBuf, KeyParseError};

/// The transport protocol of a frontend or a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Every protocol: wildcard entries, and backends of versions that did not distinguish protocols.
    Any,
    /// SCTP
    Sctp,
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

impl Protocol {
    /// Returns the name in tables: `TCP`.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Any => "ANY",
            Protocol::Sctp => "SCTP",
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        }
    }

    /// Returns the protocol by its name in capitals.
    pub fn from_name(name: &str) -> Option<Protocol> {
        [Protocol::Any, Protocol::Sctp, Protocol::Tcp, Protocol::Udp].into_iter().find(|p| p.name() == name)
    }

    /// Returns the number in IP headers; 0 for any.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Any => 0,
            Protocol::Sctp => 132,
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        }
    }

    /// Returns the protocol by its number; other numbers stand for any.
    pub fn from_number(number: u8) -> Protocol {
        match number {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            132 => Protocol::Sctp,
            _ => Protocol::Any,
        }
    }

    fn letter(self) -> u8 {
        match self {
            Protocol::Any => b'?',
            Protocol::Sctp => b'S',
            Protocol::Tcp => b'T',
            Protocol::Udp => b'U',
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The clients of a frontend: all, or those inside the cluster where the traffic policies differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All clients, or those from outside.
    External,
    /// Clients inside the cluster.
    Internal,
}

/// Address, port and protocol of a frontend or a backend. Text: `1.2.3.4:80/TCP`, `[fd00::1]:80/UDP`, with the suffix
/// `/i` for [`Scope::Internal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LbAddress {
    /// The address.
    pub ip: IpAddr,
    /// The port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// The scope; external for backends.
    pub scope: Scope,
}

impl LbAddress {
    /// Returns an address of external scope. An IPv4-mapped IPv6 address (`::ffff:1.2.3.4`) becomes the IPv4 address.
    pub fn new(ip: IpAddr, port: u16, protocol: Protocol) -> LbAddress {
        LbAddress { ip: ip.to_canonical(), port, protocol, scope: Scope::External }
    }

    /// Returns the sort key of tables: 16 bytes of the address, 4 of the cluster, port, letter of the protocol, scope.
    pub fn key(&self) -> [u8; 24] {
        let mut key = [0; 24];
        let ip = match self.ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        key[..16].copy_from_slice(&ip.octets());
        key[20..22].copy_from_slice(&self.port.to_be_bytes());
        key[22] = self.protocol.letter();
        key[23] = self.scope as u8;
        key
    }

    /// Returns a value with the same order as [`key`](Self::key).
    fn rank(&self) -> (u128, u64) {
        let ip = match self.ip {
            IpAddr::V4(v4) => 0xffff_0000_0000 | u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        (ip, self.rest())
    }

    /// Returns port, protocol and scope as a number.
    fn rest(&self) -> u64 {
        u64::from(self.port) << 16 | (self.protocol as u64) << 8 | self.scope as u64
    }
}

/// Hashes few words: tables of services contain many addresses.
impl Hash for LbAddress {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.ip {
            IpAddr::V4(v4) => state.write_u64(u64::from(v4.to_bits()) << 32 | self.rest()),
            IpAddr::V6(v6) => {
                state.write_u128(v6.to_bits());
                state.write_u64(self.rest());
            }
        }
    }
}

impl PartialOrd for LbAddress {
    fn partial_cmp(&self, other: &LbAddress) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LbAddress {
    fn cmp(&self, other: &LbAddress) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl fmt::Display for LbAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            IpAddr::V4(ip) => write!(f, "{ip}:{}/{}", self.port, self.protocol)?,
            IpAddr::V6(ip) => write!(f, "[{ip}]:{}/{}", self.port, self.protocol)?,
        }
        if self.scope == Scope::Internal { f.write_str("/i") } else { Ok(()) }
    }
}

/// A text that is not an address of a frontend or a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not {EXPECTED}")]
pub struct BadAddress(pub String);

const EXPECTED: &str = "an address such as 10.96.0.10:53/UDP, [fd00::1]:80/TCP or 10.96.0.10:53/UDP/i";

impl FromStr for LbAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<LbAddress, BadAddress> {
        parse(text).ok_or_else(|| BadAddress(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<LbAddress> {
    let (text, scope) = match text.strip_suffix("/i") {
        Some(rest) => (rest, Scope::Internal),
        None => (text, Scope::External),
    };
    let (host, protocol) = text.rsplit_once('/')?;
    let (ip, port) = split_port(host)?;
    Some(LbAddress { scope, ..LbAddress::new(ip, port?, Protocol::from_name(protocol)?) })
}

/// Splits `1.2.3.4`, `[::1]`, with or without a port.
fn split_port(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, port) = rest.split_once(']')?;
        let ip = IpAddr::V6(ip.parse::<Ipv6Addr>().ok()?);
        return match port {
            "" => Some((ip, None)),
            port => Some((ip, Some(port.strip_prefix(':')?.parse().ok()?))),
        };
    }
    match text.split_once(':') {
        Some((ip, port)) => Some((IpAddr::V4(ip.parse().ok()?), Some(port.parse().ok()?))),
        None => Some((IpAddr::V4(text.parse::<Ipv4Addr>().ok()?), None)),
    }
}

impl Serialize for LbAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl IndexKey for LbAddress {
    fn encode(&self, key: &mut KeyBuf) {
        key.push(&self.key());
    }

    /// Encodes a prefix of an address as well: no row has it as its key, but it is a valid lower bound.
    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        LbAddress::encode_text_prefix(text, key)
    }

    /// Encodes an address without port, with port, or an IPv4 prefix of whole bytes.
    fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        let wrong = || KeyParseError::new(text, EXPECTED);
        let text = text.trim();
        if let Some(address) = parse(text) {
            address.encode(key);
            return Ok(());
        }
        if let Some((ip, bits)) = text.split_once('/') {
            let ip: Ipv4Addr = ip.parse().map_err(|_| wrong())?;
            let bits: usize = bits.parse().map_err(|_| wrong())?;
            if !matches!(bits, 8 | 16 | 24 | 32) {
                return Err(wrong());
            }
            let bytes = LbAddress::new(ip.into(), 0, Protocol::Any).key();
            key.push(&bytes[..12 + bits / 8]);
            return Ok(());
        }
        let (ip, port) = split_port(text).ok_or_else(wrong)?;
        let bytes = LbAddress::new(ip, port.unwrap_or(0), Protocol::Any).key();
        key.push(&bytes[..if port.is_some() { 22 } else { 16 }]);
        Ok(())
    }

    fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        key.push(raw);
        Ok(raw.len() == 24)
    }

    fn encode_raw_bound(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        key.push(raw);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> LbAddress {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["1.2.3.4:80/TCP", "[fd00::1]:80/UDP", "1.2.3.4:5060/SCTP/i", "0.0.0.0:0/ANY"] {
            assert_eq!(address(text).to_string(), text);
        }
        for text in ["1.2.3.4:80", "1.2.3.4/TCP", "fd00::1:80/TCP", "[1.2.3.4]:80/TCP", "1.2.3.4:80/tcp", ""]
        {
            assert_eq!(text.parse::<LbAddress>(), Err(BadAddress(text.to_owned())));
        }
    }

    /// Both forms have the same key in tables.
    #[test]
    fn an_ipv4_address_in_the_form_of_ipv6_is_one_of_ipv4() {
        let mapped = LbAddress::new("::ffff:1.2.3.4".parse().unwrap(), 80, Protocol::Tcp);
        assert_eq!(mapped, address("1.2.3.4:80/TCP"));
        assert_eq!(address("[::ffff:1.2.3.4]:80/TCP/i"), address("1.2.3.4:80/TCP/i"));
    }

    #[test]
    fn addresses_sort_as_in_cilium() {
        let sorted = [
            "[::]:80/TCP",
            "0.0.0.0:80/TCP",
            "10.0.0.1:80/SCTP",
            "10.0.0.1:80/TCP",
            "10.0.0.1:80/TCP/i",
            "10.0.0.1:80/UDP",
            "10.0.0.1:256/TCP",
            "10.0.0.2:1/TCP",
            "[fd00::1]:1/TCP",
        ];
        let mut addresses = sorted.map(address);
        addresses.reverse();
        addresses.sort();
        assert_eq!(addresses.map(|address| address.to_string()), sorted);
        assert!(addresses.is_sorted_by_key(LbAddress::key));
    }

    #[test]
    fn beginnings_of_addresses() {
        let whole = KeyBuf::of(&address("10.1.2.3:80/TCP"));
        for text in ["10.1.2.3", "10.1.2.3:80", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3:80/TCP"]
        {
            let mut key = KeyBuf::new();
            LbAddress::encode_text_prefix(text, &mut key).unwrap();
            assert!(whole.as_bytes().starts_with(key.as_bytes()), "{text}");
        }
        let mut key = KeyBuf::new();
        LbAddress::encode_text_prefix("[fd00::1]:80", &mut key).unwrap();
        assert_eq!(key.as_bytes().len(), 22);
        for text in ["10.0.0.0/12", "fd00::1", "fd00::/16", "x"] {
            assert!(LbAddress::encode_text_prefix(text, &mut KeyBuf::new()).is_err(), "{text}");
        }
    }
}
