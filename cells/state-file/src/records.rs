//! Many files of one form: a folder, in it a file for each key.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::aside::set_aside_as;
use crate::error::Error;
use crate::file::{StateFile, gone};
use crate::rewrite::Rewrite;
use crate::schema::Schema;

/// Characters of a key that its file's name shows.
const SHOWN: usize = 80;

/// Values by key, on the disk, flushed. Nobody waits for it: what changes is taken at once and written by a job.
#[derive(Debug)]
pub struct Records {
    folder: PathBuf,
    /// What is to be written; none for what is to be removed.
    pending: Mutex<BTreeMap<String, Option<Vec<u8>>>>,
    rewrite: OnceLock<Rewrite>,
}

/// What a file says besides its version.
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

impl Records {
    /// Those in a folder, which need not be there.
    pub fn new(folder: impl Into<PathBuf>) -> Records {
        Records { folder: folder.into(), pending: Mutex::default(), rewrite: OnceLock::new() }
    }

    /// The job that calls [`write`](Self::write).
    pub fn rewrite_by(&self, rewrite: Rewrite) {
        // Set once, by the cell.
        let _ = self.rewrite.set(rewrite);
    }

    /// Reads all once: gives the keys, removes what a stop has left, puts damaged files aside with this consequence.
    /// One of a newer agent is an error.
    pub fn check<T: Schema>(&self, consequence: &str) -> Result<Vec<String>, Error> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(Error::io("read", &self.folder))?,
        };
        let mut keys = Vec::new();
        for entry in entries {
            let path = entry.map_err(Error::io("read", &self.folder))?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("next") => gone(fs::remove_file(&path)).map_err(Error::io("remove", &path))?,
                Some("json") => match StateFile::new(&path).load::<Record<T>>() {
                    Ok(Some(record)) if self.path(&record.key) == path => keys.push(record.key),
                    Ok(Some(record)) => {
                        let problem = format!("it holds {:?}, which belongs into another file", record.key);
                        self.put_aside(&Error::damaged(&path, problem), consequence)?;
                    }
                    Ok(None) => {}
                    Err(error @ Error::Damaged { .. }) => self.put_aside(&error, consequence)?,
                    Err(error) => return Err(error),
                },
                _ => {}
            }
        }
        keys.sort();
        Ok(keys)
    }

    /// The value of a key, as it is or is about to be on the disk.
    pub fn get<T: Schema>(&self, key: &str) -> Result<Option<T>, Error> {
        let pending = self.pending.lock().get(key).cloned();
        let record: Option<Record<T>> = match pending {
            None => self.file(key).load()?,
            Some(None) => None,
            Some(Some(content)) => self.file(key).parse(&content).map(Some)?,
        };
        Ok(record.map(|record| record.value))
    }

    /// Has a value written.
    pub fn put<T: Schema>(&self, key: &str, value: &T) {
        /// As [`Record`], of borrowed parts.
        #[derive(Serialize)]
        struct Borrowed<'a, T> {
            version: u32,
            key: &'a str,
            #[serde(flatten)]
            value: &'a T,
        }
        match serde_json::to_vec(&Borrowed { version: T::VERSION, key, value }) {
            Ok(content) => self.change(key, Some(content)),
            // Values are made of what JSON has.
            Err(error) => tracing::error!(key, %error, "A state file cannot be encoded"),
        }
    }

    /// Has a key removed.
    pub fn remove(&self, key: &str) {
        self.change(key, None);
    }

    fn change(&self, key: &str, content: Option<Vec<u8>>) {
        self.pending.lock().insert(key.to_owned(), content);
        if let Some(rewrite) = self.rewrite.get() {
            rewrite.wake();
        }
    }

    /// Writes what is to be written. What fails stays to be written, and so does all behind it.
    pub fn write(&self) -> Result<(), Error> {
        loop {
            let Some((key, content)) =
                self.pending.lock().first_key_value().map(|(k, v)| (k.clone(), v.clone()))
            else {
                return Ok(());
            };
            let file = self.file(&key);
            match &content {
                Some(content) => file.write_changed(content)?,
                None => file.remove()?,
            }
            // Another value may have come meanwhile.
            if let Entry::Occupied(entry) = self.pending.lock().entry(key)
                && *entry.get() == content
            {
                entry.remove();
            }
        }
    }

    fn put_aside(&self, error: &Error, consequence: &str) -> Result<(), Error> {
        // One name for all of the folder, so that few are kept however many there were.
        let kept = set_aside_as(error.path(), &self.folder.join("record"))?;
        if let Some(rewrite) = self.rewrite.get() {
            rewrite.put_aside(error, &kept, consequence);
        }
        Ok(())
    }

    fn file(&self, key: &str) -> StateFile {
        StateFile::new(self.path(key)).flushed()
    }

    /// A name that shows the key's beginning and is the key's alone.
    fn path(&self, key: &str) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let shown: String = key.chars().take(SHOWN).map(plain).collect();
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        self.folder.join(Path::new(&format!("{shown}-{hash:016x}.json")))
    }
}
