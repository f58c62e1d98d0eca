//! The deletions that the CNI plugin has queued on disk while no agent was reachable.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use state_file::{StateFile, open_for_lock};

use crate::model::error::StateError;

/// Limit of the wait for the queue's lock, after which the queue is read without it.
pub(crate) const LOCK_WAIT_LIMIT: Duration = Duration::from_secs(10);

/// Maximum size of a queued deletion in bytes.
const MAX_DELETION_BYTES: u64 = 64 << 10;

/// The request of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    /// All endpoints of a container.
    Container(String),
    /// One endpoint by its name in requests; older plugins wrote these.
    Endpoint(String),
}

/// One file of the queue.
#[derive(Debug)]
pub struct Queued {
    /// The file, to be removed once served.
    pub path: PathBuf,
    /// The request; `None` when it cannot be read.
    pub deletion: Option<Deletion>,
}

/// `deleteQueue/` under the agent's run folder.
#[derive(Debug, Clone)]
pub struct DeletionQueue {
    folder: PathBuf,
}

/// The exclusive lock on the queue; plugins hold it shared while they write. Released when dropped.
#[derive(Debug)]
pub struct Locked(#[expect(dead_code, reason = "holds the lock")] File);

impl DeletionQueue {
    /// Returns the queue under `run`, `/var/run/cilium` as a rule.
    pub fn new(run: &Path) -> DeletionQueue {
        DeletionQueue { folder: run.join("deleteQueue") }
    }

    /// Creates the folder and tries to lock it; `None` while a plugin has it.
    pub fn try_lock(&self) -> Result<Option<Locked>, StateError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.folder);
        made.map_err(|source| StateError::io("create", &self.folder, source))?;
        let path = self.folder.join("lockfile");
        let file = open_for_lock(&path, 0o644)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Locked(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(source)) => Err(StateError::io("lock", &path, source)),
        }
    }

    /// Reads the files of the queue, in the order of their names.
    pub fn read(&self) -> Result<Vec<Queued>, StateError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|source| StateError::io("read", &self.folder, source))?,
        };
        let mut queued = Vec::new();
        for entry in entries {
            let path = entry.map_err(|source| StateError::io("read", &self.folder, source))?.path();
            if path.extension().is_some_and(|extension| extension == "delete") {
                let text = StateFile::new(&path).limit(MAX_DELETION_BYTES).read_text();
                let deletion = text.ok().flatten().and_then(|text| Deletion::parse(&text));
                queued.push(Queued { path, deletion });
            }
        }
        queued.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(queued)
    }
}

impl Queued {
    /// Removes the file; a missing file is not an error.
    pub fn served(self) -> Result<(), StateError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|source| StateError::io("remove", &self.path, source)),
        }
    }
}

impl Deletion {
    /// Parses a file's text: the body of DELETE /endpoint, or a plain endpoint id; `None` if it is neither.
    pub fn parse(text: &str) -> Option<Deletion> {
        #[derive(Deserialize)]
        struct Body {
            #[serde(rename = "container-id", default)]
            container_id: String,
        }
        let text = text.trim();
        match serde_json::from_str::<Body>(text) {
            Ok(body) if !body.container_id.is_empty() => Some(Deletion::Container(body.container_id)),
            Ok(_) => None,
            Err(_) if text.is_empty() || text.starts_with('{') => None,
            Err(_) => Some(Deletion::Endpoint(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_file_are_read() {
        let parse = Deletion::parse;
        assert_eq!(parse(r#"{"container-id":"CID"}"#), Some(Deletion::Container("CID".into())));
        assert_eq!(parse("container-id:CID\n"), Some(Deletion::Endpoint("container-id:CID".into())));
        for nothing in ["", "{}", "{broken", r#"{"container-id":""}"#] {
            assert_eq!(parse(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn the_queue_is_read_in_order_and_emptied() {
        let run = tempfile::tempdir().unwrap();
        let queue = DeletionQueue::new(run.path());
        assert!(queue.read().unwrap().is_empty());
        let _lock = queue.try_lock().unwrap().unwrap();
        for (name, text) in [("b.delete", r#"{"container-id":"2"}"#), ("a.delete", "12"), ("note", "x")] {
            fs::write(run.path().join("deleteQueue").join(name), text).unwrap();
        }
        let queued = queue.read().unwrap();
        let deletions: Vec<_> = queued.iter().map(|q| q.deletion.clone().unwrap()).collect();
        assert_eq!(deletions, [Deletion::Endpoint("12".into()), Deletion::Container("2".into())]);
        for file in queued {
            file.served().unwrap();
        }
        assert!(queue.read().unwrap().is_empty());
        assert!(run.path().join("deleteQueue/note").exists(), "only *.delete is the queue's");
    }

    #[test]
    fn a_plugin_that_holds_the_lock_is_waited_for() {
        let run = tempfile::tempdir().unwrap();
        let queue = DeletionQueue::new(run.path());
        drop(queue.try_lock().unwrap().unwrap());
        let plugin = File::open(run.path().join("deleteQueue/lockfile")).unwrap();
        plugin.lock_shared().unwrap();
        assert!(queue.try_lock().unwrap().is_none());
        plugin.unlock().unwrap();
        assert!(queue.try_lock().unwrap().is_some());
    }
}
