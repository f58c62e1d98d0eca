//! The write-ahead log of the devices in the kernel, in Cilium's form, so that the next run can delete those of them that
//! are not desired any more, and touches no device of others.
//!
//! A record is its length (eight bytes, little-endian), a byte that is 1 for a deletion, the version 1, and `owner/name`.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use state_file::StateFile;

use crate::Error;

/// The version of records.
const VERSION: u8 = 1;
/// Longest record that is read.
const MAX_RECORD: u64 = 4096;
/// Records beyond those of the devices themselves, after which the file is rewritten.
const MAX_OBSOLETE_RECORDS: usize = 256;

/// Owner and name of a device.
pub(crate) type Key = (Arc<str>, Arc<str>);

/// The log and its devices.
#[derive(Debug)]
pub(crate) struct Wal {
    path: PathBuf,
    file: File,
    keys: BTreeSet<Key>,
    records: usize,
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
        let (keys, records, is_whole) = replay(&content);
        let file = append_to(path).map_err(io)?;
        let mut wal = Wal { path: path.to_owned(), file, keys, records };
        if !is_whole {
            // Behind a part of a record nothing could be read.
            tracing::warn!(path = %path.display(), "Log of devices is damaged, its readable part is kept");
            wal.compact()?;
        }
        Ok(wal)
    }

    /// Returns the devices that may be in the kernel.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter()
    }

    pub(crate) fn has(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Whether a device of this name is of any owner.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.keys.iter().any(|(_, known)| &**known == name)
    }

    /// Records a device before it is created.
    pub(crate) fn insert(&mut self, key: Key) -> Result<(), Error> {
        if self.keys.contains(&key) {
            return Ok(());
        }
        self.append(&key, false)?;
        self.keys.insert(key);
        Ok(())
    }

    /// Records deletions after the kernel has no such devices any more.
    pub(crate) fn remove(&mut self, keys: impl IntoIterator<Item = Key>) -> Result<(), Error> {
        for key in keys {
            if self.keys.contains(&key) {
                self.append(&key, true)?;
                self.keys.remove(&key);
            }
        }
        if self.records > 2 * self.keys.len() + MAX_OBSOLETE_RECORDS {
            self.compact()?;
        }
        Ok(())
    }

    fn append(&mut self, key: &Key, deleted: bool) -> Result<(), Error> {
        self.records += 1;
        let written = self.file.write_all(&record(key, deleted));
        written.map_err(|source| Error::Log { path: self.path.clone(), source })
    }

    /// Rewrites the file without records of deleted devices.
    fn compact(&mut self) -> Result<(), Error> {
        let content: Vec<u8> = self.keys.iter().flat_map(|key| record(key, false)).collect();
        StateFile::new(&self.path).mode(0o600).write(&content)?;
        self.file = append_to(&self.path).map_err(|source| Error::Log { path: self.path.clone(), source })?;
        self.records = self.keys.len();
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn record((owner, name): &Key, deleted: bool) -> Vec<u8> {
    let text = format!("{owner}/{name}");
    let length = text.len() as u64 + 2;
    [&length.to_le_bytes()[..], &[u8::from(deleted), VERSION], text.as_bytes()].concat()
}

/// Returns the devices that remain, the number of records, and whether all of the content could be read. Records of
/// unknown versions are skipped.
fn replay(mut content: &[u8]) -> (BTreeSet<Key>, usize, bool) {
    let (mut keys, mut records) = (BTreeSet::new(), 0);
    while !content.is_empty() {
        let split = content.split_first_chunk().and_then(|(length, rest)| {
            let length = u64::from_le_bytes(*length);
            (length <= MAX_RECORD).then(|| rest.split_at_checked(length as usize)).flatten()
        });
        let Some((record, rest)) = split else { return (keys, records, false) };
        content = rest;
        records += 1;
        match parse_record(record) {
            Some((key, false)) => _ = keys.insert(key),
            Some((key, true)) => _ = keys.remove(&key),
            None => {}
        }
    }
    (keys, records, true)
}

fn parse_record(record: &[u8]) -> Option<(Key, bool)> {
    let (deleted, record) = record.split_first()?;
    let text = std::str::from_utf8(record.strip_prefix(&[VERSION])?).ok()?;
    // Names have no slash.
    let (owner, name) = text.rsplit_once('/')?;
    Some(((Arc::from(owner), Arc::from(name)), *deleted == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(owner: &str, name: &str) -> Key {
        (Arc::from(owner), Arc::from(name))
    }

    #[test]
    fn records_are_replayed_and_torn_ones_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/device-reconciler.wal");
        let mut wal = Wal::open(&path).unwrap();
        wal.insert(key("a", "d0")).unwrap();
        wal.insert(key("a", "d0")).unwrap();
        wal.insert(key("n/b", "d1")).unwrap();
        wal.remove([key("a", "d0"), key("c", "d9")]).unwrap();
        let content = fs::read(&path).unwrap();
        let first = [&[6, 0, 0, 0, 0, 0, 0, 0][..], &[0, 1], b"a/d0"].concat();
        let last = [&[6, 0, 0, 0, 0, 0, 0, 0][..], &[1, 1], b"a/d0"].concat();
        assert!(content.starts_with(&first) && content.ends_with(&last), "{content:?}");
        let wal = Wal::open(&path).unwrap();
        assert_eq!(wal.keys().collect::<Vec<_>>(), [&key("n/b", "d1")]);
        assert!(wal.has_name("d1") && !wal.has_name("d0"));
        for cut in 1..14 {
            fs::write(&path, &content[..content.len() - cut]).unwrap();
            let mut wal = Wal::open(&path).unwrap();
            assert!(wal.has_name("d0") && wal.has_name("d1"), "{cut}");
            wal.insert(key("c", "d2")).unwrap();
            let (keys, _, is_whole) = replay(&fs::read(&path).unwrap());
            assert!(is_whole && keys.len() == 3, "{cut}: {keys:?}");
        }
    }

    #[test]
    fn the_file_does_not_grow_with_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wal");
        let mut wal = Wal::open(&path).unwrap();
        for _ in 0..1000 {
            wal.insert(key("a", "d0")).unwrap();
            wal.remove([key("a", "d0")]).unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() <= 14 * (MAX_OBSOLETE_RECORDS as u64 + 2));
    }
}
