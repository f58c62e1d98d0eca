//! Keys as bytes, in the encoding of Cilium's clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A value that is a key of an index: integers big-endian, texts and bytes as they are, addresses as 16 bytes.
pub trait RemoteKey {
    /// Returns the bytes.
    fn to_bytes(&self) -> Vec<u8>;
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl RemoteKey for $integer {
            fn to_bytes(&self) -> Vec<u8> {
                self.to_be_bytes().into()
            }
        }
    )*};
}
integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

impl RemoteKey for bool {
    fn to_bytes(&self) -> Vec<u8> {
        if *self { b"T".into() } else { b"F".into() }
    }
}

impl RemoteKey for &str {
    fn to_bytes(&self) -> Vec<u8> {
        self.as_bytes().into()
    }
}

impl RemoteKey for &String {
    fn to_bytes(&self) -> Vec<u8> {
        self.as_bytes().into()
    }
}

impl RemoteKey for &[u8] {
    fn to_bytes(&self) -> Vec<u8> {
        self.to_vec()
    }
}

impl RemoteKey for IpAddr {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            IpAddr::V4(ip) => ip.to_bytes(),
            IpAddr::V6(ip) => ip.to_bytes(),
        }
    }
}

impl RemoteKey for Ipv4Addr {
    fn to_bytes(&self) -> Vec<u8> {
        self.to_ipv6_mapped().to_bytes()
    }
}

impl RemoteKey for Ipv6Addr {
    fn to_bytes(&self) -> Vec<u8> {
        self.octets().into()
    }
}

/// An address with a prefix length, for a longest-prefix-match index: a query returns the rows of the longest prefix
/// that covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePrefix {
    /// The address; host bits are ignored.
    pub address: IpAddr,
    /// The prefix length.
    pub bits: u8,
}

/// An address as a prefix of full length.
impl From<IpAddr> for RemotePrefix {
    fn from(address: IpAddr) -> Self {
        RemotePrefix { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl RemoteKey for RemotePrefix {
    /// Returns the bytes of the prefix, then its length as two bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mapped = if self.address.is_ipv4() { 96 } else { 0 };
        let bits = u16::from(self.bits.min(128 - mapped) + mapped);
        let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
        let mut bytes = self.address.to_bytes();
        bytes.iter_mut().zip(mask.to_be_bytes()).for_each(|(byte, mask)| *byte &= mask);
        bytes.truncate(usize::from(bits.div_ceil(8)));
        bytes.extend(bits.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_as_by_ciliums_clients() {
        assert_eq!(2_u32.to_bytes(), [0, 0, 0, 2]);
        assert_eq!((true.to_bytes(), "eth0".to_bytes()), (b"T".to_vec(), b"eth0".to_vec()));
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(ip.to_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        let prefix = |text: &str, bits| RemotePrefix { address: text.parse().unwrap(), bits }.to_bytes();
        assert_eq!(prefix("2001:dbf::1", 29), [0x20, 1, 0xd, 0xb8, 0, 29]);
        assert_eq!(prefix("10.255.0.0", 9), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 128, 0, 105]);
        assert_eq!(prefix("::", 0), [0, 0]);
        assert_eq!(RemotePrefix::from(ip).to_bytes()[12..], [10, 0, 0, 1, 0, 128]);
    }
}
