//! Ethernet addresses as text.

use std::fmt;
use std::str::FromStr;

use crate::model::error::BadParameter;

/// An Ethernet address; prints as `5e:12:ab:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = BadParameter;

    /// Parses pairs of hex digits separated by `:` or `-`.
    fn from_str(text: &str) -> Result<Mac, BadParameter> {
        let bad = || BadParameter::Mac(text.to_owned());
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(bad)?;
            // `from_str_radix` alone would accept a sign.
            *octet = part
                .bytes()
                .all(|byte| byte.is_ascii_hexdigit())
                .then(|| u8::from_str_radix(part, 16).ok())
                .flatten()
                .ok_or_else(bad)?;
        }
        if parts.next().is_some() {
            return Err(bad());
        }
        Ok(Mac(octets))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints() {
        let mac: Mac = "6E:a7:d1:db:66:a5".parse().unwrap();
        assert_eq!(mac.to_string(), "6e:a7:d1:db:66:a5");
        for bad in ["", "6e:a7:d1:db:66", "6e:a7:d1:db:66:a5:00", "6e:a7:d1:db:66:+5", "6e:a7:d1:db:66:a"] {
            let error = bad.parse::<Mac>().unwrap_err().to_string();
            assert_eq!(error, format!("address {bad}: invalid MAC address"));
        }
    }
}
