//! The state folder: one directory an endpoint, in it `ep_config.json`, replaced whole or not at all.

use std::borrow::Borrow;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipam::RestoredAddress;
use parking_lot::Mutex;
use state_file::StateFile;

use crate::model::error::StateError;
use crate::model::id::EndpointId;
use crate::model::record::Record;
use crate::names::Names;

/// Name of the record inside an endpoint's directory.
pub(crate) const RECORD: &str = "ep_config.json";
/// Maximum number of quarantined directories; the oldest are deleted first.
const MAX_QUARANTINED: usize = 32;
/// Mark in the names of quarantined directories.
const QUARANTINE_MARK: &str = ".unreadable";
/// Maximum size of a record in bytes: it includes the DNS names that a pod has looked up.
const MAX_RECORD_BYTES: u64 = 32 << 20;

/// `state/` of the agent. Files are not synced to disk: the folder need not survive a crash of the machine, since the
/// pods do not either; a kill of the agent at any instruction leaves the old record or the new one.
#[derive(Debug, Clone)]
pub struct StateFolder {
    root: PathBuf,
    /// Held while a record is written or removed: the reconciler and [`CiliumEndpointUids`](crate::CiliumEndpointUids)
    /// write the same file from different threads. All of them are threads that may block.
    writing: Arc<Mutex<()>>,
    /// The DNS names for records.
    names: Arc<Names>,
}

/// One directory found under `state/` that an endpoint may have left.
#[derive(Debug)]
pub struct Found {
    /// Name of the directory.
    pub directory: String,
    /// The endpoint id that its name begins with.
    pub number: u64,
    /// Whether the name is the id alone, not a stage of Cilium's build.
    pub plain: bool,
    /// Its record; `None` when there is no such file.
    pub record: Option<Result<Record, StateError>>,
    /// Whether it is empty except for an unfinished record: the result of a kill between creating the directory and its
    /// record, or between removing them.
    pub unfinished: bool,
}

impl StateFolder {
    /// Returns the folder at `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> StateFolder {
        StateFolder { root: root.into(), writing: Arc::default(), names: Arc::default() }
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the path of the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the addresses of all records, for the allocator, which starts before endpoints are restored.
    pub(crate) fn restored_addresses(&self) -> Result<Vec<RestoredAddress>, StateError> {
        let records = self.scan()?.into_iter().filter_map(|found| found.record?.ok());
        let records = records.filter(Record::owns_addresses);
        let addresses = records.flat_map(|record| {
            let (endpoint, owner) = (record.id, record.pod_name());
            let addresses: Vec<IpAddr> = record.addresses().collect();
            addresses.into_iter().map(move |address| RestoredAddress {
                address,
                endpoint,
                owner: owner.clone(),
            })
        });
        Ok(addresses.collect())
    }

    /// Writes the endpoint's record in place of an older one, unless it is the same.
    pub fn save(&self, record: &Record) -> Result<(), StateError> {
        self.save_current(|| Some(record))
    }

    /// As [`save`](Self::save), for the record that a function returns while no other thread writes one.
    pub(crate) fn save_current<R: Borrow<Record>>(
        &self,
        current: impl FnOnce() -> Option<R>,
    ) -> Result<(), StateError> {
        let _writing = self.writing.lock();
        let Some(record) = current() else { return Ok(()) };
        let record = record.borrow();
        let file = file(&self.root.join(record.id.to_string()));
        let encode = |record: &Record| {
            serde_json::to_vec(record)
                .map_err(|error| StateError::io("encode", file.path(), io::Error::from(error)))
        };
        let json = encode(&self.names.of(EndpointId(record.id)).put(record))?;
        if json.len() as u64 <= MAX_RECORD_BYTES {
            return Ok(file.write_changed(&json)?);
        }
        // Without them the endpoint is restored; with them its record would be refused.
        tracing::warn!(
            endpointID = record.id,
            bytes = json.len(),
            "Too many DNS names for the endpoint's record"
        );
        Ok(file.write_changed(&encode(record)?)?)
    }

    /// Removes the endpoint's directory; the record first, so that a half-removed directory does not count as an
    /// endpoint. A missing directory is not an error.
    pub fn remove(&self, id: EndpointId) -> Result<(), StateError> {
        self.discard(&id.to_string())
    }

    /// Removes a directory by the name that a scan returned.
    pub fn discard(&self, name: &str) -> Result<(), StateError> {
        let _writing = self.writing.lock();
        if let Ok(id) = name.parse() {
            self.names.forget(EndpointId(id));
        }
        let directory = self.root.join(name);
        let record = directory.join(RECORD);
        gone(fs::remove_file(&record)).map_err(|source| StateError::io("remove", &record, source))?;
        gone(fs::remove_dir_all(&directory)).map_err(|source| StateError::io("remove", &directory, source))
    }

    /// Renames a directory to a name that scans skip; of each name three are kept, and of all at most
    /// `MAX_QUARANTINED`. Returns the new path.
    pub fn quarantine(&self, name: &str) -> Result<PathBuf, StateError> {
        let kept = state_file::quarantine(&self.root.join(name))?;
        let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        let mut all: Vec<_> = self.quarantined().into_iter().filter(|path| *path != kept).collect();
        all.sort_by_cached_key(|path| (modified(path), path.clone()));
        let surplus = (all.len() + 1).saturating_sub(MAX_QUARANTINED);
        for path in all.into_iter().take(surplus) {
            gone(fs::remove_dir_all(&path)).map_err(|source| StateError::io("remove", &path, source))?;
        }
        Ok(kept)
    }

    /// Returns the quarantined directories.
    pub fn quarantined(&self) -> Vec<PathBuf> {
        let is_quarantined =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains(QUARANTINE_MARK);
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.filter(is_quarantined).map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }

    /// Renames a directory to its endpoint's id.
    pub fn rename(&self, from: &str, id: EndpointId) -> Result<(), StateError> {
        let (from, to) = (self.root.join(from), self.root.join(id.to_string()));
        fs::rename(&from, &to).map_err(|source| StateError::io("rename", &from, source))
    }

    /// Reads the directories of endpoints, in the order of their ids. Names that are no id (with `_next` or
    /// `_next_fail` behind it) are skipped. A folder that does not exist is empty; one that cannot be read for now is
    /// an error.
    pub fn scan(&self) -> Result<Vec<Found>, StateError> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|source| StateError::io("read", &self.root, source))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|source| StateError::io("read", &self.root, source))?;
            let Ok(directory) = entry.file_name().into_string() else { continue };
            let Some((number, plain)) = endpoint_directory(&directory) else { continue };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let record = match file(&entry.path()).read_json() {
                    // It may be intact: a read error must not discard it.
                    Err(error) if error.is_retryable() => return Err(error.into()),
                    record => record.map_err(StateError::from).transpose(),
                };
                let unfinished = record.is_none() && is_unfinished(&entry.path());
                found.push(Found { directory, number, plain, record, unfinished });
            }
        }
        found.sort_by(|a, b| (a.number, &a.directory).cmp(&(b.number, &b.directory)));
        Ok(found)
    }
}

/// Returns the id in the name of an endpoint's directory, and whether the name is the id alone.
fn endpoint_directory(name: &str) -> Option<(u64, bool)> {
    let digits = name.strip_suffix("_next_fail").or_else(|| name.strip_suffix("_next")).unwrap_or(name);
    let numeric = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = numeric.then(|| digits.parse().ok()).flatten()?;
    Some((number, digits == name))
}

fn file(directory: &Path) -> StateFile {
    StateFile::new(directory.join(RECORD)).folder_mode(0o755).limit(MAX_RECORD_BYTES)
}

/// Whether a directory is empty except for a record that was not renamed into place.
fn is_unfinished(directory: &Path) -> bool {
    let mut names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.all(|name| name.to_str().and_then(|name| name.strip_suffix(".next")) == Some(RECORD))
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl StateError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> StateError {
        state_file::Error::io(action, path)(source).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_record_is_saved_replaced_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path().join("state"));
        assert!(state.scan().unwrap().is_empty());
        let mut record = Record { id: 12, ..Record::default() };
        state.save(&record).unwrap();
        record.if_name = "lxc1".into();
        state.save(&record).unwrap();
        let found = state.scan().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].record.as_ref().unwrap().as_ref().unwrap(), &record);
        let path = folder.path().join("state/12/ep_config.json");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing but the record stays");
        state.remove(EndpointId(12)).unwrap();
        state.remove(EndpointId(12)).unwrap();
        assert!(state.scan().unwrap().is_empty());
    }

    #[test]
    fn a_directory_of_which_a_kill_left_nothing_is_unfinished() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        for (directory, file) in [("12", None), ("13", Some("ep_config.json.next")), ("14", Some("notes"))] {
            fs::create_dir(folder.path().join(directory)).unwrap();
            let _ = file.map(|file| fs::write(folder.path().join(directory).join(file), "{").unwrap());
        }
        state.save(&Record { id: 15, ..Record::default() }).unwrap();
        let unfinished: Vec<bool> = state.scan().unwrap().iter().map(|found| found.unfinished).collect();
        assert_eq!(unfinished, [true, true, false, false]);
    }

    #[test]
    fn quarantined_directories_are_not_scanned_and_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        for id in 1..=MAX_QUARANTINED + 8 {
            fs::create_dir(folder.path().join(id.to_string())).unwrap();
            fs::write(folder.path().join(id.to_string()).join(RECORD), "{").unwrap();
            let kept = state.quarantine(&id.to_string()).unwrap();
            assert_eq!(fs::read_to_string(kept.join(RECORD)).unwrap(), "{");
        }
        assert!(state.scan().unwrap().is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), MAX_QUARANTINED);
    }

    #[test]
    fn foreign_names_are_left_alone() {
        for (name, expected) in [
            ("12", Some((12, true))),
            ("12_next", Some((12, false))),
            ("12_next_fail", Some((12, false))),
            ("templates", None),
            ("_next", None),
            ("12x", None),
            ("+12", None),
            ("12_old", None),
        ] {
            assert_eq!(endpoint_directory(name), expected, "{name}");
        }
    }
}
