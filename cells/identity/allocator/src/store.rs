//! Files of identities. They are not synced to disk: neither packets nor pods survive a crash of the machine.

use std::path::PathBuf;
use std::sync::OnceLock;

use identity_core::Scope;
use labels::{LabelArray, Labels};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use state_file::{Rewrite, Schema, StateFile, Version, quarantine};
use statedb::{Obj, Table};

use crate::error::Error;
use crate::identity::Identity;

/// An identity with its labels, as stored in a file.
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
        Entry { id: row.id, labels: row.labels.to_labels() }
    }
}

/// The format of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form {
    /// Apiary's: `{"version":1,"identities":[..]}`.
    Versioned,
    /// Cilium's checkpoint: the list alone, no file for an empty one.
    List,
}

#[derive(Serialize, Deserialize)]
struct File {
    identities: Vec<Entry>,
}

impl Schema for File {
    const VERSION: u32 = 1;
    const HOLDS: &'static str = "the identities of label sets that no endpoint has now";
}

/// Returns the version of Apiary's file.
pub(crate) fn version() -> Version {
    Version::of::<File>()
}

/// A file with a lock. An allocation holds the lock from before its change of the table until the write has ended, so
/// that no other request uses an identity that is rolled back when the write fails.
#[derive(Debug)]
pub(crate) struct Store {
    file: Option<StateFile>,
    form: Form,
    turn: Mutex<()>,
    rewrite: OnceLock<Rewrite>,
}

/// The guard of the locked file.
pub(crate) struct Held<'a>(&'a Store, #[expect(dead_code, reason = "one at a time")] MutexGuard<'a, ()>);

impl Store {
    /// Returns the file at a path; without one nothing is stored.
    pub(crate) fn new(path: Option<PathBuf>, form: Form) -> Store {
        Store { file: path.map(StateFile::new), form, turn: Mutex::default(), rewrite: OnceLock::new() }
    }

    /// Sets the job that retries failed writes.
    pub(crate) fn rewrite_by(&self, rewrite: Rewrite) {
        // Set once, by the cell.
        let _ = self.rewrite.set(rewrite);
    }

    /// Returns the entries of Cilium's checkpoint: identities of prefixes and of other nodes.
    pub(crate) fn local_entries(table: &Table<Identity>) -> Vec<Entry> {
        let snapshot = table.snapshot();
        let is_local = |row: &&Obj<Identity>| matches!(row.scope(), Scope::Local | Scope::RemoteNode);
        table.all(&snapshot).filter(is_local).map(|row| (&**row).into()).collect()
    }

    pub(crate) fn hold(&self) -> Held<'_> {
        Held(self, self.turn.lock())
    }

    /// Locks the file if it is not locked.
    pub(crate) fn try_hold(&self) -> Option<Held<'_>> {
        self.turn.try_lock().map(|turn| Held(self, turn))
    }
}

impl Held<'_> {
    /// Reads the entries; none if there is no file. A damaged one is quarantined, with this consequence.
    pub(crate) fn read(&self, consequence: &str) -> Result<Vec<Entry>, Error> {
        let Some(file) = &self.0.file else { return Ok(Vec::new()) };
        let read = match self.0.form {
            Form::Versioned => {
                file.load().map(|file| file.map_or_else(Vec::new, |File { identities }| identities))
            }
            Form::List => file.read_json().map(Option::unwrap_or_default),
        };
        match read {
            Err(error @ state_file::Error::Damaged { .. }) => {
                let kept = quarantine(file.path())?;
                if let Some(rewrite) = self.0.rewrite.get() {
                    rewrite.put_aside(&error, &kept, consequence);
                }
                Ok(Vec::new())
            }
            read => Ok(read?),
        }
    }

    /// As [`write`](Self::write), ignoring errors: records and kernel have the identities that the file lacks.
    pub(crate) fn write_or_later(&self, identities: impl FnOnce() -> Vec<Entry>) {
        // The job reports and retries a failed write.
        let _ = self.write(identities);
    }

    /// Replaces the file. The job retries a failed write.
    pub(crate) fn write(&self, identities: impl FnOnce() -> Vec<Entry>) -> Result<(), Error> {
        let Some(file) = &self.0.file else { return Ok(()) };
        let identities = identities();
        let written = match self.0.form {
            Form::List if identities.is_empty() => file.remove(),
            Form::List => file.write_json(&identities),
            Form::Versioned => file.store(&File { identities }),
        };
        if let Some(rewrite) = self.0.rewrite.get() {
            rewrite.tried(&written);
        }
        Ok(written?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
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
        assert_eq!(held.read("").unwrap(), []);
        held.write(|| vec![entry(300, "k8s:app=a")]).unwrap();
        held.write(|| vec![entry(300, "k8s:app=a"), entry(301, "k8s:app=b")]).unwrap();
        assert_eq!(held.read("").unwrap().len(), 2);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        held.write(Vec::new).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"version\":1,\"identities\":[]}");
    }

    #[test]
    fn the_checkpoint_has_the_originals_form() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("local_allocator_state.json");
        fs::write(&path, include_bytes!("../tests/samples/local_allocator_state.json")).unwrap();
        let store = Store::new(Some(path.clone()), Form::List);
        let held = store.hold();
        let entries = held.read("").unwrap();
        assert_eq!(entries[0].id, 16_777_217);
        assert_eq!(entries[0].labels.texts(), ["cidr:192.0.2.0/24", "reserved:world"]);
        held.write(|| entries.clone()).unwrap();
        assert_eq!(held.read("").unwrap(), entries);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("[{\"id\":16777217,\"labels\":{\"192.0.2.0/24\":{\"key\":"), "{text}");
        held.write(Vec::new).unwrap();
        assert!(!path.exists(), "as in the original");
        held.write(Vec::new).unwrap();
    }

    #[test]
    fn what_is_damaged_is_kept_aside_and_what_is_newer_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identities.json");
        let store = Store::new(Some(path.clone()), Form::Versioned);
        let held = store.hold();
        for text in ["{\"version\":1,\"identities\":[{\"id\":-1", "", "{\"identities\":[]}"] {
            fs::write(&path, text).unwrap();
            assert_eq!(held.read("").unwrap(), []);
            assert_eq!(fs::read_to_string(path.with_extension("json.unreadable")).unwrap(), text);
            assert!(!path.exists());
        }
        let newer = "{\"version\":2,\"identities\":[]}";
        fs::write(&path, newer).unwrap();
        let error = held.read("").unwrap_err();
        assert!(error.to_string().contains("has version 2, this agent knows version 1"), "{error}");
        assert!(!error.is_retryable());
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    }
}
