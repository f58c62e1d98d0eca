//! A folder of files of one form, one file for each key.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use hive::prelude::*;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::damaged::quarantine_as;
use crate::error::Error;
use crate::file::{StateFile, gone};
use crate::rewrite::Rewrite;
use crate::schema::Schema;

/// Maximum number of leading characters of a key in its file's name: with hash and suffix it stays below `NAME_MAX`.
const NAME_PREFIX_CHARS: usize = 80;

/// Values by key, flushed to the disk. Callers do not wait for the disk: a change is queued and written by a job.
///
/// Values of the previous run stay until the owner [claims](Self::claim), replaces or removes them.
#[derive(Debug)]
pub struct Records<T> {
    folder: PathBuf,
    /// The consequence of a damaged record, for log and health.
    consequence: &'static str,
    /// Content to be written by key; `None` if the file is to be removed.
    pending: Mutex<BTreeMap<String, Option<Vec<u8>>>>,
    /// Keys of the previous run that are neither claimed, replaced nor removed yet.
    unclaimed: Mutex<BTreeSet<String>>,
    rewrite: OnceLock<Rewrite>,
    values: PhantomData<fn() -> T>,
}

/// The content of a file besides its version.
#[derive(Serialize, Deserialize)]
struct Record<T> {
    key: String,
    #[serde(flatten)]
    value: T,
}

impl<T: Schema> Schema for Record<T> {
    const VERSION: u32 = T::VERSION;
    const HOLDS: &'static str = T::HOLDS;

    fn migrate(version: u32, content: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Key {
            key: String,
        }
        let Key { key } = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        Ok(Record { key, value: T::migrate(version, content)? })
    }
}

impl<T: Schema> Records<T> {
    /// Returns the records of a folder, which may be missing. `consequence`: the effect of a damaged record, for log
    /// and health.
    pub fn new(folder: impl Into<PathBuf>, consequence: &'static str) -> Records<T> {
        Records {
            folder: folder.into(),
            consequence,
            pending: Mutex::default(),
            unclaimed: Mutex::default(),
            rewrite: OnceLock::new(),
            values: PhantomData,
        }
    }

    /// Registers a start hook that [restores](Self::restore) them and a job that [writes](Self::write) them, both under
    /// `name`, as is the row of health. To be called once, by the constructor of the cell that owns them.
    pub fn run(self: &Arc<Self>, name: &str, lifecycle: &Lifecycle, jobs: &JobGroup, health: &Health) {
        let (written, restored) = (self.clone(), self.clone());
        let _ = self.rewrite.set(Rewrite::new(jobs, health, name, move || written.write()));
        lifecycle.hook(name).on_start(move |_| async move { Ok(restored.restore()?) }).add();
    }

    /// Reads all files once: collects the keys, removes temporary files of interrupted writes, quarantines damaged
    /// files. A file of a newer agent is an error.
    pub fn restore(&self) -> Result<(), Error> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(Error::io("read", &self.folder))?,
        };
        let mut keys = BTreeSet::new();
        for entry in entries {
            let path = entry.map_err(Error::io("read", &self.folder))?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("next") => gone(fs::remove_file(&path)).map_err(Error::io("remove", &path))?,
                Some("json") => match StateFile::new(&path).load::<Record<T>>() {
                    Ok(Some(record)) if self.path(&record.key) == path => _ = keys.insert(record.key),
                    Ok(Some(record)) => {
                        let problem = format!("it holds {:?}, which belongs into another file", record.key);
                        self.quarantine(&Error::damaged(&path, problem))?;
                    }
                    Ok(None) => {}
                    Err(error @ Error::Damaged { .. }) => self.quarantine(&error)?,
                    Err(error) => return Err(error),
                },
                _ => {}
            }
        }
        *self.unclaimed.lock() = keys;
        Ok(())
    }

    /// Returns the value that the previous run has left under a key, once, unless it was changed since. A value that
    /// cannot be read is logged and dropped.
    pub fn claim(&self, key: &str) -> Option<T> {
        if !self.unclaimed.lock().remove(key) {
            return None;
        }
        self.get(key).unwrap_or_else(|error| {
            tracing::warn!(key, %error, consequence = self.consequence, "Unable to read what the run before has kept");
            None
        })
    }

    /// Returns the keys of the previous run that were neither claimed, replaced nor removed.
    pub fn unclaimed(&self) -> Vec<String> {
        self.unclaimed.lock().iter().cloned().collect()
    }

    /// Returns the value of a key, including a change that is not written yet.
    pub fn get(&self, key: &str) -> Result<Option<T>, Error> {
        let pending = self.pending.lock().get(key).cloned();
        let record: Option<Record<T>> = match pending {
            None => self.file(key).load()?,
            Some(None) => None,
            Some(Some(content)) => self.file(key).parse(&content).map(Some)?,
        };
        Ok(record.map(|record| record.value))
    }

    /// Enqueues a value to be written.
    pub fn put(&self, key: &str, value: &T) {
        /// [`Record`] with its version, of borrowed parts.
        #[derive(Serialize)]
        struct Borrowed<'a, T> {
            version: u32,
            key: &'a str,
            #[serde(flatten)]
            value: &'a T,
        }
        match serde_json::to_vec(&Borrowed { version: T::VERSION, key, value }) {
            Ok(content) => self.change(key, Some(content)),
            // Not expected: the types of values have a JSON form.
            Err(error) => tracing::error!(key, %error, "A state file cannot be encoded"),
        }
    }

    /// Enqueues the removal of a key.
    pub fn remove(&self, key: &str) {
        self.change(key, None);
    }

    fn change(&self, key: &str, content: Option<Vec<u8>>) {
        self.unclaimed.lock().remove(key);
        self.pending.lock().insert(key.to_owned(), content);
        if let Some(rewrite) = self.rewrite.get() {
            rewrite.wake();
        }
    }

    /// Writes all pending changes. A failed one stays pending and does not hold up the others; returns the first error.
    pub fn write(&self) -> Result<(), Error> {
        let (mut first_error, mut last) = (None, None);
        while let Some((key, content)) = self.pending_after(last.as_deref()) {
            let file = self.file(&key);
            let written = match &content {
                Some(content) => file.write_changed(content).map(drop),
                None => file.remove(),
            };
            match written {
                // The lock is not held while writing: a newer value stays pending, and its `put` has woken the job.
                Ok(()) => {
                    if let Entry::Occupied(entry) = self.pending.lock().entry(key.clone())
                        && *entry.get() == content
                    {
                        entry.remove();
                    }
                }
                Err(error) => drop(first_error.get_or_insert(error)),
            }
            last = Some(key);
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Returns the next pending key after `key`, and its content.
    fn pending_after(&self, key: Option<&str>) -> Option<(String, Option<Vec<u8>>)> {
        let behind = key.map_or(Bound::Unbounded, Bound::Excluded);
        let pending = self.pending.lock();
        let (key, content) = pending.range::<str, _>((behind, Bound::Unbounded)).next()?;
        Some((key.clone(), content.clone()))
    }

    fn quarantine(&self, error: &Error) -> Result<(), Error> {
        // One name for all records of the folder bounds the number of copies to that of a single file.
        let kept = quarantine_as(error.path(), &self.folder.join("record"))?;
        if let Some(rewrite) = self.rewrite.get() {
            rewrite.put_aside(error, &kept, self.consequence);
        }
        Ok(())
    }

    fn file(&self, key: &str) -> StateFile {
        StateFile::new(self.path(key)).flushed()
    }

    /// Returns the file of a key: the start of the key, for people, and its FNV-1a hash, which makes the name unique.
    fn path(&self, key: &str) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let shown: String = key.chars().take(NAME_PREFIX_CHARS).map(plain).collect();
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        self.folder.join(Path::new(&format!("{shown}-{hash:016x}.json")))
    }
}
