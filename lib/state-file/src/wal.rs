//! Write-ahead logs of keys: records of what may be in the kernel, so that the next run can delete what is not desired
//! any more and touches nothing of others.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File, OpenOptions};
use std::hash::Hash;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::{Error, StateFile};

/// The version of records.
const VERSION: u8 = 1;

/// A key of a [`Wal`], in Cilium's form.
pub trait LogKey: Clone + Hash + Ord {
    /// The logged objects, for log lines.
    const OBJECTS: &'static str;
    /// Bytes of the longest key.
    const MAX_LENGTH: usize;
    /// Records beyond those of the keys themselves, after which the file is rewritten.
    const MAX_OBSOLETE_RECORDS: usize;

    /// Appends the key's bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Returns the key of these bytes; `None` if they are none.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// A log in Cilium's form, and the keys it holds.
///
/// A record is its length (eight bytes, little-endian), a byte that is 1 for a deletion, the version 1, and the key.
/// Records are not flushed to the disk: the log outlives the process in the page cache, and after a crash of the
/// machine the kernel has none of these objects.
#[derive(Debug)]
pub struct Wal<K> {
    path: PathBuf,
    file: File,
    keys: HashSet<K>,
    /// Records in the file.
    records: usize,
    /// Whether the file may end with a part of a record, behind which nothing could be read.
    torn: bool,
}

impl<K: LogKey> Wal<K> {
    /// Reads the log of the previous run, and opens it for appending. Of a damaged one the readable part is kept.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Error::io("create the folder", folder))?;
        }
        let content = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            content => content.map_err(Error::io("read", path))?,
        };
        let Replayed { keys, records, damage } = replay(&content);
        let file = append_to(path)?;
        let mut wal = Wal { path: path.to_owned(), file, keys, records, torn: damage.is_some() };
        if let Some(damage) = damage {
            let kept = wal.keys.len();
            tracing::warn!(path = %path.display(), kept, damage, "Log of {} is damaged, its readable part is kept", K::OBJECTS);
            wal.compact()?;
        }
        Ok(wal)
    }

    /// Returns the keys of objects that may be in the kernel.
    pub fn keys(&self) -> &HashSet<K> {
        &self.keys
    }

    /// Records objects before they are written to the kernel.
    pub fn insert(&mut self, keys: impl IntoIterator<Item = K>) -> Result<(), Error> {
        let new: BTreeSet<K> = keys.into_iter().filter(|key| !self.keys.contains(key)).collect();
        self.append(&new, false)?;
        self.keys.extend(new);
        Ok(())
    }

    /// Records deletions after the kernel has no such objects any more.
    pub fn remove(&mut self, keys: impl IntoIterator<Item = K>) -> Result<(), Error> {
        let gone: BTreeSet<K> = keys.into_iter().filter(|key| self.keys.contains(key)).collect();
        self.append(&gone, true)?;
        self.keys.retain(|key| !gone.contains(key));
        if self.records > 2 * self.keys.len() + K::MAX_OBSOLETE_RECORDS {
            self.compact()?;
        }
        Ok(())
    }

    /// Rewrites the file without records of deleted objects.
    pub fn compact(&mut self) -> Result<(), Error> {
        if self.records == self.keys.len() && !self.torn {
            return Ok(());
        }
        let mut content = Vec::new();
        self.keys.iter().for_each(|key| write_record(key, false, &mut content));
        StateFile::new(&self.path).mode(0o600).write(&content)?;
        self.file = append_to(&self.path)?;
        (self.records, self.torn) = (self.keys.len(), false);
        Ok(())
    }

    /// Appends records in the order of their keys, so that the same changes always make the same file.
    fn append(&mut self, keys: &BTreeSet<K>, deleted: bool) -> Result<(), Error> {
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
        written.map_err(Error::io("write", &self.path))
    }
}

fn append_to(path: &Path) -> Result<File, Error> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    file.map_err(Error::io("open", path))
}

fn write_record<K: LogKey>(key: &K, deleted: bool, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; size_of::<u64>()]);
    out.extend([u8::from(deleted), VERSION]);
    key.encode(out);
    let length = (out.len() - start - size_of::<u64>()) as u64;
    out[start..start + size_of::<u64>()].copy_from_slice(&length.to_le_bytes());
}

/// The content of a log.
struct Replayed<K> {
    /// The keys that remain.
    keys: HashSet<K>,
    records: usize,
    /// The fault of the first unreadable record, with which the readable part ends.
    damage: Option<&'static str>,
}

/// Reads records; those of unknown versions are skipped.
fn replay<K: LogKey>(mut content: &[u8]) -> Replayed<K> {
    let mut log = Replayed { keys: HashSet::new(), records: 0, damage: None };
    while !content.is_empty() {
        match split_record(content, K::MAX_LENGTH) {
            Ok((record, rest)) => {
                content = rest;
                log.records += 1;
                match parse_record(record) {
                    Some((key, false)) => _ = log.keys.insert(key),
                    Some((key, true)) => _ = log.keys.remove(&key),
                    None => {}
                }
            }
            Err(damage) => return Replayed { damage: Some(damage), ..log },
        }
    }
    log
}

fn split_record(content: &[u8], max: usize) -> Result<(&[u8], &[u8]), &'static str> {
    let (length, rest) = content.split_first_chunk().ok_or("ends within the length of a record")?;
    let length = u64::from_le_bytes(*length);
    if length > max as u64 + 2 {
        return Err("length of a record out of range");
    }
    rest.split_at_checked(length as usize).ok_or("ends within a record")
}

fn parse_record<K: LogKey>(record: &[u8]) -> Option<(K, bool)> {
    let (deleted, record) = record.split_first()?;
    Some((K::decode(record.strip_prefix(&[VERSION])?)?, *deleted == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl LogKey for String {
        const OBJECTS: &'static str = "texts";
        const MAX_LENGTH: usize = 20;
        const MAX_OBSOLETE_RECORDS: usize = 100;

        fn encode(&self, out: &mut Vec<u8>) {
            out.extend(self.as_bytes());
        }

        fn decode(bytes: &[u8]) -> Option<Self> {
            String::from_utf8(bytes.to_vec()).ok()
        }
    }

    fn open(path: &Path) -> Wal<String> {
        Wal::open(path).unwrap()
    }

    fn set(keys: &[&str]) -> HashSet<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    fn record(deleted: u8, text: &str) -> Vec<u8> {
        [&[text.len() as u8 + 2, 0, 0, 0, 0, 0, 0, 0][..], &[deleted, 1], text.as_bytes()].concat()
    }

    #[test]
    fn known_keys_are_recorded_once_and_unknown_ones_are_not_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/log");
        let mut wal = open(&path);
        wal.insert(set(&["b", "a"])).unwrap();
        wal.insert(set(&["a"])).unwrap();
        wal.remove(set(&["a", "c"])).unwrap();
        let content = fs::read(&path).unwrap();
        assert_eq!(content, [record(0, "a"), record(0, "b"), record(1, "a")].concat());
        assert_eq!(open(&path).keys(), &set(&["b"]));
    }

    #[test]
    fn a_torn_record_is_cut_off_wherever_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let whole = [record(0, "first"), record(0, "second")].concat();
        for length in record(0, "first").len()..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let mut wal = open(&path);
            assert_eq!(wal.keys(), &set(&["first"]), "{length}");
            wal.insert(set(&["third"])).unwrap();
            assert_eq!(open(&path).keys(), &set(&["first", "third"]), "{length}");
        }
    }

    #[test]
    fn a_failed_write_leaves_a_log_that_is_read_whole_after_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut wal = open(&path);
        wal.insert(set(&["first"])).unwrap();
        // Half a record reaches the file, as on a full file system.
        let half = &record(0, "second")[..9];
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(half).unwrap();
        wal.file = File::open(&path).unwrap();
        let error = wal.insert(set(&["second"])).unwrap_err();
        assert!(error.is_retryable() && error.path() == path, "{error}");
        assert_eq!(wal.keys(), &set(&["first"]));
        wal.insert(set(&["third"])).unwrap();
        assert_eq!(open(&path).keys(), &set(&["first", "third"]));
    }

    #[test]
    fn the_file_does_not_grow_with_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut wal = open(&path);
        for _ in 0..1000 {
            wal.insert(set(&["a"])).unwrap();
            wal.remove(set(&["a"])).unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() <= 11 * (String::MAX_OBSOLETE_RECORDS as u64 + 2));
    }

    #[test]
    fn records_of_other_versions_are_skipped_and_absurd_lengths_end_the_log() {
        let mut other = record(0, "x");
        other[9] = 2;
        let log = replay::<String>(&[other, record(0, "y")].concat());
        assert_eq!((log.keys, log.records, log.damage), (set(&["y"]), 2, None));
        let log = replay::<String>(&[record(0, "y"), record(0, &"x".repeat(21))].concat());
        assert_eq!((log.keys, log.damage), (set(&["y"]), Some("length of a record out of range")));
    }
}
