//! Keys of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{IndexKey, KeyBuf, KeyParseError, parse};

impl IndexKey for Ipv4Addr {
    fn encode(&self, key: &mut KeyBuf) {
        key.push(&self.octets());
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        parse::<Ipv4Addr>(text, "an IPv4 address")?.encode(key);
        Ok(())
    }
}

impl IndexKey for Ipv6Addr {
    fn encode(&self, key: &mut KeyBuf) {
        key.push(&self.octets());
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        parse::<Ipv6Addr>(text, "an IPv6 address")?.encode(key);
        Ok(())
    }
}

/// A family tag, then the bytes: all IPv4 addresses sort before IPv6.
impl IndexKey for IpAddr {
    fn encode(&self, key: &mut KeyBuf) {
        match self {
            IpAddr::V4(ip) => {
                key.push(&[4]);
                ip.encode(key);
            }
            IpAddr::V6(ip) => {
                key.push(&[6]);
                ip.encode(key);
            }
        }
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        parse::<IpAddr>(text, "an IP address")?.encode(key);
        Ok(())
    }

    fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        let ip = mapped(raw);
        ip.iter().for_each(|ip| ip.encode(key));
        Ok(ip.is_some())
    }
}

/// Returns the address that 16 bytes stand for; IPv4 addresses are IPv4-mapped ones.
pub(super) fn mapped(raw: &[u8]) -> Option<IpAddr> {
    let bytes: [u8; 16] = raw.try_into().ok()?;
    Some(Ipv6Addr::from(bytes).to_canonical())
}
