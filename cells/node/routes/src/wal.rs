//! The write-ahead log of the routes in the kernel, in Cilium's form, so that the next run can delete those of them that
//! are not desired any more: protocol `kernel` does not distinguish them from the kernel's own.
//!
//! A record is its length (eight bytes, little-endian), a byte that is 1 for a deletion, the version 1, the table
//! (four bytes, little-endian), the address's length, the address, the prefix's length, and the metric (four bytes,
//! little-endian).

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use state_file::StateFile;

use crate::Error;
use crate::fib::FibKey;

/// The version of records.
const VERSION: u8 = 1;
/// Longest record of this version, of an IPv6 route.
const MAX_RECORD: u64 = 28;
/// Records beyond those of the routes themselves, after which the file is rewritten.
const MAX_OBSOLETE_RECORDS: usize = 1024;

/// The log and what it says: the keys of routes that may be in the kernel.
#[derive(Debug)]
pub(crate) struct Wal {
    path: PathBuf,
    file: File,
    keys: HashSet<FibKey>,
    /// Records in the file.
    records: usize,
    /// Whether the file may end with a part of a record, behind which nothing could be read.
    torn: bool,
}

impl Wal {
    /// Reads the log of the previous run, and opens it for appending.
    pub(crate) fn open(path: &Path) -> Result<Wal, Error> {
        let io = |source| Error::Log { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io)?;
        }
        let content = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            content => content.map_err(io)?,
        };
        let (keys, records, damage) = replay(&content);
        let file = append_to(path).map_err(io)?;
        let mut wal = Wal { path: path.to_owned(), file, keys, records, torn: damage.is_some() };
        if let Some(damage) = damage {
            let routes = wal.keys.len();
            tracing::warn!(path = %path.display(), routes, damage, "Log of routes is damaged, its readable part is kept");
            wal.compact()?;
        }
        Ok(wal)
    }

    /// Returns the keys of routes that may be in the kernel.
    pub(crate) fn keys(&self) -> &HashSet<FibKey> {
        &self.keys
    }

    /// Records routes before they are written to the kernel. No `fsync`: the log outlives the process in the page cache,
    /// and after a crash of the machine there are no routes.
    pub(crate) fn insert(&mut self, keys: impl IntoIterator<Item = FibKey>) -> Result<(), Error> {
        let new: BTreeSet<FibKey> = keys.into_iter().filter(|key| !self.keys.contains(key)).collect();
        self.append(&new, false)?;
        self.keys.extend(new);
        Ok(())
    }

    /// Records deletions after the kernel has no such routes any more.
    pub(crate) fn remove(&mut self, keys: impl IntoIterator<Item = FibKey>) -> Result<(), Error> {
        let gone: BTreeSet<FibKey> = keys.into_iter().filter(|key| self.keys.contains(key)).collect();
        self.append(&gone, true)?;
        self.keys.retain(|key| !gone.contains(key));
        if self.records > 2 * self.keys.len() + MAX_OBSOLETE_RECORDS {
            self.compact()?;
        }
        Ok(())
    }

    /// Appends records in the order of their keys, so that the same changes always make the same file.
    fn append(&mut self, keys: &BTreeSet<FibKey>, deleted: bool) -> Result<(), Error> {
        if keys.is_empty() {
            return Ok(());
        }
        if self.torn {
            self.compact()?;
        }
        let mut records = Vec::new();
        keys.iter().for_each(|key| write_record(key, deleted, &mut records));
        let written = self.file.write_all(&records);
        self.records += keys.len();
        self.torn = written.is_err();
        written.map_err(|source| Error::Log { path: self.path.clone(), source })
    }

    /// Rewrites the file without records of deleted routes.
    pub(crate) fn compact(&mut self) -> Result<(), Error> {
        if self.records == self.keys.len() && !self.torn {
            return Ok(());
        }
        let mut content = Vec::new();
        self.keys.iter().for_each(|key| write_record(key, false, &mut content));
        StateFile::new(&self.path).mode(0o600).write(&content)?;
        self.file = append_to(&self.path).map_err(|source| Error::Log { path: self.path.clone(), source })?;
        (self.records, self.torn) = (self.keys.len(), false);
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn write_record(key: &FibKey, deleted: bool, out: &mut Vec<u8>) {
    let mut record = vec![u8::from(deleted), VERSION];
    record.extend(key.table.to_le_bytes());
    match key.prefix.ip() {
        IpAddr::V4(ip) => {
            record.push(4);
            record.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            record.push(16);
            record.extend(ip.octets());
        }
    }
    record.push(key.prefix.prefix());
    record.extend(key.priority.to_le_bytes());
    out.extend((record.len() as u64).to_le_bytes());
    out.extend(record);
}

/// Returns the keys that remain, the number of records, and the fault of the first unreadable one, with which the
/// readable part ends. Records of unknown versions are skipped.
fn replay(mut content: &[u8]) -> (HashSet<FibKey>, usize, Option<&'static str>) {
    let (mut keys, mut records) = (HashSet::new(), 0);
    while !content.is_empty() {
        let Some((length, rest)) = content.split_first_chunk() else {
            return (keys, records, Some("ends within the length of a record"));
        };
        let length = u64::from_le_bytes(*length);
        if length > MAX_RECORD {
            return (keys, records, Some("length of a record out of range"));
        }
        let Some((record, rest)) = rest.split_at_checked(length as usize) else {
            return (keys, records, Some("ends within a record"));
        };
        content = rest;
        records += 1;
        match parse_record(record) {
            Some((key, false)) => _ = keys.insert(key),
            Some((key, true)) => _ = keys.remove(&key),
            None => {}
        }
    }
    (keys, records, None)
}

fn parse_record(record: &[u8]) -> Option<(FibKey, bool)> {
    let (deleted, record) = record.split_first()?;
    let record = record.strip_prefix(&[VERSION])?;
    let (table, record) = record.split_first_chunk()?;
    let (length, record) = record.split_first()?;
    let (address, record) = record.split_at_checked(usize::from(*length))?;
    let ip = match *length {
        4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        _ => return None,
    };
    let (bits, record) = record.split_first()?;
    let (priority, _) = record.split_first_chunk()?;
    let key = FibKey {
        table: u32::from_le_bytes(*table),
        prefix: IpNetwork::new(ip, *bits).ok()?,
        priority: u32::from_le_bytes(*priority),
    };
    Some((key, *deleted == 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(prefix: &str, priority: u32) -> FibKey {
        FibKey { priority, ..FibKey::main(prefix.parse().unwrap()) }
    }

    fn keys(path: &Path) -> HashSet<FibKey> {
        replay(&fs::read(path).unwrap()).0
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
        assert_eq!(keys(&path), HashSet::from([key("fd00::/64", 0), key("10.0.2.0/24", 0)]));
    }

    #[test]
    fn a_torn_record_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wal");
        Wal::open(&path).unwrap().insert([key("10.0.1.0/24", 0), key("10.0.2.0/24", 0)]).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in whole.len() / 2..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let mut wal = Wal::open(&path).unwrap();
            assert_eq!(wal.keys(), &HashSet::from([key("10.0.1.0/24", 0)]), "{length}");
            wal.insert([key("10.0.3.0/24", 0)]).unwrap();
            assert_eq!(
                keys(&path),
                HashSet::from([key("10.0.1.0/24", 0), key("10.0.3.0/24", 0)]),
                "{length}"
            );
        }
    }

    #[test]
    fn the_file_does_not_grow_with_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wal");
        let mut wal = Wal::open(&path).unwrap();
        for _ in 0..2000 {
            wal.insert([key("10.0.1.0/24", 0)]).unwrap();
            wal.remove([key("10.0.1.0/24", 0)]).unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() <= 24 * (MAX_OBSOLETE_RECORDS as u64 + 2));
    }

    proptest! {
        #[test]
        fn any_content_is_read(content in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (keys, records, _) = replay(&content);
            prop_assert!(keys.len() <= records);
        }
    }
}
