//! Files of numbers: replaced whole or not at all. Nothing is flushed to the disk: neither packets nor pods outlive the
//! machine, and a kill at any instruction leaves the old file or the new one.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use labels::{LabelArray, Labels};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::identity::Identity;

/// The version of the form of `identities.json`.
const VERSION: u32 = 1;

/// A number with its labels, as a file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: u32,
    pub(crate) labels: Labels,
}

impl Entry {
    pub(crate) fn label_array(&self) -> LabelArray {
        LabelArray::from(&self.labels)
    }
}

impl From<&Identity> for Entry {
    fn from(row: &Identity) -> Entry {
        Entry { id: row.id, labels: row.labels.iter().cloned().collect() }
    }
}

/// The form of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form {
    /// Our own: `{"version":1,"identities":[..]}`.
    Versioned,
    /// Cilium's checkpoint: the list alone, no file for an empty one.
    List,
}

#[derive(Serialize, Deserialize)]
struct Versioned {
    version: u32,
    identities: Vec<Entry>,
}

/// One file. Whoever changes which numbers there are holds it from before the change until the file has it.
#[derive(Debug)]
pub(crate) struct Store {
    file: Mutex<Option<PathBuf>>,
    form: Form,
}

/// The file, held.
pub(crate) struct Held<'a>(MutexGuard<'a, Option<PathBuf>>, Form);

impl Store {
    /// The file at a path; without one nothing is kept.
    pub(crate) fn new(path: Option<PathBuf>, form: Form) -> Store {
        Store { file: Mutex::new(path), form }
    }

    pub(crate) fn hold(&self) -> Held<'_> {
        Held(self.file.lock(), self.form)
    }
}

impl Held<'_> {
    /// What the file has; nothing when there is none.
    pub(crate) fn read(&self) -> Result<Vec<Entry>, Error> {
        let Some(path) = &*self.0 else { return Ok(Vec::new()) };
        let json = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(io_error("read", path, source)),
            Ok(json) => json,
        };
        let unreadable = |problem: String| Error::Unreadable { path: path.clone(), problem };
        match self.1 {
            Form::List => serde_json::from_slice(&json).map_err(|error| unreadable(error.to_string())),
            Form::Versioned => {
                let file: Versioned =
                    serde_json::from_slice(&json).map_err(|error| unreadable(error.to_string()))?;
                match file.version {
                    VERSION => Ok(file.identities),
                    other => Err(unreadable(format!("version {other}, this agent knows version {VERSION}"))),
                }
            }
        }
    }

    /// Puts an unreadable file out of the way, for a human to look at. Returns its new name.
    pub(crate) fn set_aside(&self) -> Result<PathBuf, Error> {
        let Some(path) = &*self.0 else { return Ok(PathBuf::new()) };
        let aside = path.with_extension("json.unreadable");
        fs::rename(path, &aside).map_err(|source| io_error("rename", path, source))?;
        Ok(aside)
    }

    /// Replaces the file.
    pub(crate) fn write(&self, identities: impl Iterator<Item = Entry>) -> Result<(), Error> {
        let Some(path) = &*self.0 else { return Ok(()) };
        let identities: Vec<Entry> = identities.collect();
        let json = match self.1 {
            Form::List if identities.is_empty() => {
                return match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        Err(io_error("remove", path, error))
                    }
                    _ => Ok(()),
                };
            }
            Form::List => serde_json::to_vec(&identities),
            Form::Versioned => serde_json::to_vec(&Versioned { version: VERSION, identities }),
        };
        let json = json.map_err(|error| io_error("write", path, error.into()))?;
        let next = path.with_extension("json.next");
        let written = match write(&next, &json) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = path.parent().unwrap_or(Path::new("."));
                let made = DirBuilder::new().recursive(true).mode(0o750).create(folder);
                made.map_err(|source| io_error("create", folder, source))?;
                write(&next, &json)
            }
            written => written,
        };
        written.map_err(|source| io_error("write", &next, source))?;
        fs::rename(&next, path).map_err(|source| io_error("rename", &next, source))
    }
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(content)
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn entry(id: u32, label: &str) -> Entry {
        Entry { id, labels: Labels::parse([label]) }
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/identities.json");
        let store = Store::new(Some(path.clone()), Form::Versioned);
        let held = store.hold();
        assert_eq!(held.read().unwrap(), []);
        held.write([entry(300, "k8s:app=a")].into_iter()).unwrap();
        held.write([entry(300, "k8s:app=a"), entry(301, "k8s:app=b")].into_iter()).unwrap();
        assert_eq!(held.read().unwrap().len(), 2);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A kill in the middle of a write leaves half of the next file beside the whole old one.
        fs::write(path.with_extension("json.next"), b"{\"version\":1,\"ident").unwrap();
        assert_eq!(held.read().unwrap().len(), 2);
        held.write(std::iter::empty()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"version\":1,\"identities\":[]}");
    }

    #[test]
    fn the_checkpoint_has_the_originals_form() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("local_allocator_state.json");
        fs::write(&path, include_bytes!("../tests/samples/local_allocator_state.json")).unwrap();
        let store = Store::new(Some(path.clone()), Form::List);
        let held = store.hold();
        let entries = held.read().unwrap();
        assert_eq!(entries[0].id, 16_777_217);
        assert_eq!(entries[0].labels.texts(), ["cidr:192.0.2.0/24", "reserved:world"]);
        held.write(entries.clone().into_iter()).unwrap();
        assert_eq!(held.read().unwrap(), entries);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("[{\"id\":16777217,\"labels\":{\"192.0.2.0/24\":{\"key\":"), "{text}");
        held.write(std::iter::empty()).unwrap();
        assert!(!path.exists(), "as in the original");
        held.write(std::iter::empty()).unwrap();
    }

    #[test]
    fn what_cannot_be_read_is_named_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identities.json");
        let store = Store::new(Some(path.clone()), Form::Versioned);
        let held = store.hold();
        for (text, problem) in [
            ("{\"version\":1,\"identities\":[{\"id\":-1", "invalid value"),
            ("{\"version\":2,\"identities\":[]}", "version 2, this agent knows version 1"),
            ("", "EOF"),
        ] {
            fs::write(&path, text).unwrap();
            let error = held.read().unwrap_err().to_string();
            assert!(error.contains("identities.json") && error.contains(problem), "{error}");
            let aside = held.set_aside().unwrap();
            assert_eq!(fs::read_to_string(aside).unwrap(), text);
            assert_eq!(held.read().unwrap(), []);
        }
    }
}
