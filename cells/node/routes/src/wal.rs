//! The keys of routes in their write-ahead log, which names the routes of this agent in the kernel: protocol `kernel`
//! does not distinguish them from the kernel's own.
//!
//! A key is the table (four bytes, little-endian), the address's length, the address, the prefix's length, and the
//! metric (four bytes, little-endian), as in Cilium.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use state_file::LogKey;

use crate::fib::FibKey;

/// The log of the routes that may be in the kernel.
pub(crate) type Wal = state_file::Wal<FibKey>;

impl LogKey for FibKey {
    const OBJECTS: &'static str = "routes";
    const MAX_LENGTH: usize = 26;
    const MAX_OBSOLETE_RECORDS: usize = 1024;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.table.to_le_bytes());
        match self.prefix.ip() {
            IpAddr::V4(ip) => {
                out.push(4);
                out.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                out.push(16);
                out.extend(ip.octets());
            }
        }
        out.push(self.prefix.prefix());
        out.extend(self.priority.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (table, bytes) = bytes.split_first_chunk()?;
        let (length, bytes) = bytes.split_first()?;
        let (address, bytes) = bytes.split_at_checked(usize::from(*length))?;
        let ip = match *length {
            4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
            16 => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
            _ => return None,
        };
        let (bits, bytes) = bytes.split_first()?;
        let (priority, _) = bytes.split_first_chunk()?;
        Some(FibKey {
            table: u32::from_le_bytes(*table),
            prefix: IpNetwork::new(ip, *bits).ok()?,
            priority: u32::from_le_bytes(*priority),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn key(prefix: &str, priority: u32) -> FibKey {
        FibKey { priority, ..FibKey::main(prefix.parse().unwrap()) }
    }

    #[test]
    fn records_have_the_form_of_cilium() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/route-reconciler.wal");
        let mut wal = Wal::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        wal.insert([key("10.0.1.0/24", 7)]).unwrap();
        wal.insert([key("fd00::/64", 0)]).unwrap();
        wal.insert([key("10.0.1.0/24", 7)]).unwrap();
        wal.remove([key("10.0.1.0/24", 7), key("10.9.0.0/16", 0)]).unwrap();
        let v4 = |deleted| {
            [
                &[16, 0, 0, 0, 0, 0, 0, 0][..],
                &[deleted, 1],
                &[254, 0, 0, 0],
                &[4, 10, 0, 1, 0],
                &[24],
                &[7, 0, 0, 0],
            ]
            .concat()
        };
        let content = fs::read(&path).unwrap();
        assert_eq!(content.len(), 24 + 36 + 24, "a known key is recorded once");
        assert_eq!((&content[..24], &content[60..]), (&*v4(0), &*v4(1)));
        drop(wal);
        let mut wal = Wal::open(&path).unwrap();
        assert_eq!(wal.keys(), &HashSet::from([key("fd00::/64", 0)]));
        wal.compact().unwrap();
        wal.insert([key("10.0.2.0/24", 0)]).unwrap();
        drop(wal);
        let wal = Wal::open(&path).unwrap();
        assert_eq!(wal.keys(), &HashSet::from([key("fd00::/64", 0), key("10.0.2.0/24", 0)]));
    }

    proptest! {
        #[test]
        fn any_content_is_read(content in proptest::collection::vec(any::<u8>(), 0..200)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("wal");
            fs::write(&path, &content).unwrap();
            let keys = Wal::open(&path).unwrap().keys().clone();
            prop_assert!(keys.len() <= content.len() / 8);
            let again = Wal::open(&path).unwrap();
            prop_assert_eq!(again.keys(), &keys);
        }
    }
}
