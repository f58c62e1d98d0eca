//! Keys of the networks of the crate `ipnetwork`.

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use super::net::mapped;
use super::{IndexKey, KeyBuf, KeyParseError, parse};

/// The masked address, then the length: host bits are ignored, a prefix sorts before those inside it.
impl IndexKey for Ipv4Network {
    fn encode(&self, key: &mut KeyBuf) {
        self.network().encode(key);
        key.push(&[self.prefix()]);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        parse::<Ipv4Network>(text, "an IPv4 prefix")?.encode(key);
        Ok(())
    }
}

/// The masked address, then the length: host bits are ignored, a prefix sorts before those inside it.
impl IndexKey for Ipv6Network {
    fn encode(&self, key: &mut KeyBuf) {
        self.network().encode(key);
        key.push(&[self.prefix()]);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        parse::<Ipv6Network>(text, "an IPv6 prefix")?.encode(key);
        Ok(())
    }
}

/// A family tag, the masked address, the length: host bits are ignored.
impl IndexKey for IpNetwork {
    fn encode(&self, key: &mut KeyBuf) {
        self.network().encode(key);
        key.push(&[self.prefix()]);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        parse::<IpNetwork>(text, "an IP prefix")?.encode(key);
        Ok(())
    }

    fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        let prefix = raw
            .split_last()
            .and_then(|(len, address)| IpNetwork::new(mapped(address)?, *len).ok())
            .filter(|prefix| prefix.ip() == prefix.network());
        prefix.iter().for_each(|prefix| prefix.encode(key));
        Ok(prefix.is_some())
    }
}
