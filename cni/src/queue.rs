//! The deletion queue: files in which a DEL is stored while the agent is down.
//!
//! The agent takes the lock exclusively, processes and removes the files, and only then accepts new endpoints (agent
//! side: Cilium's `deletionQueue`). A plugin takes it shared; the agent does not start to read while a plugin holds it.

use crate::error::Error;
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The maximum number of files; more of them mean that no agent processes them.
const MAX_FILES: usize = 256;
const LOCK_PATIENCE: Duration = Duration::from_millis(1500);
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// The queue, locked against the agent until it is dropped.
#[derive(Debug)]
pub(crate) struct DeletionQueue {
    folder: PathBuf,
    _lock: File,
}

impl DeletionQueue {
    /// Opens `deleteQueue` in the agent's runtime folder and creates it if needed.
    pub(crate) fn lock(runtime_folder: &Path) -> Result<Self, Error> {
        let folder = runtime_folder.join("deleteQueue");
        let failed = |reason: io::Error| Error::Queue { folder: folder.clone(), reason: reason.to_string() };
        DirBuilder::new().recursive(true).mode(0o755).create(&folder).map_err(failed)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o644)
            .open(folder.join("lockfile"))
            .map_err(failed)?;
        let begin = Instant::now();
        while let Err(error) = lock.try_lock_shared() {
            if let TryLockError::Error(error) = error {
                return Err(failed(error));
            }
            if begin.elapsed() > LOCK_PATIENCE {
                return Err(failed(io::Error::other("the lock is held by the agent")));
            }
            std::thread::sleep(LOCK_RETRY);
        }
        Ok(Self { folder, _lock: lock })
    }

    /// Writes the body of a `DELETE /endpoint`; equal deletions share one file.
    pub(crate) fn push(&self, body: &[u8]) -> Result<(), Error> {
        let failed = |reason: String| Error::Queue { folder: self.folder.clone(), reason };
        let is_waiting =
            |entry: &fs::DirEntry| entry.path().extension().is_some_and(|suffix| suffix == "delete");
        let files = fs::read_dir(&self.folder).map_err(|error| failed(error.to_string()))?;
        let waiting = files.flatten().filter(is_waiting).count();
        if waiting > MAX_FILES {
            return Err(failed(format!("{waiting} deletions wait already, at most {MAX_FILES} may")));
        }
        let name = Sha256::digest(body).iter().fold(String::new(), |name, byte| format!("{name}{byte:02x}"));
        let path = self.folder.join(name + ".delete");
        fs::write(&path, body).map_err(|error| failed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_is_a_file_named_after_its_body() {
        let folder = tempfile::tempdir().unwrap();
        let queue = DeletionQueue::lock(folder.path()).unwrap();
        for _ in 0..2 {
            queue.push(br#"{"container-id":"cid-p1"}"#).unwrap();
        }
        let path = folder.path().join("deleteQueue");
        let mut names: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        insta::assert_debug_snapshot!(names);
        assert_eq!(fs::read_to_string(path.join(&names[0])).unwrap(), r#"{"container-id":"cid-p1"}"#);
    }

    #[test]
    fn the_lock_is_shared_by_plugins_and_exclusive_for_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let first = DeletionQueue::lock(folder.path()).unwrap();
        let second = DeletionQueue::lock(folder.path()).unwrap();
        drop((first, second));
        let agent = OpenOptions::new().write(true).open(folder.path().join("deleteQueue/lockfile")).unwrap();
        agent.lock().unwrap();
        let error = DeletionQueue::lock(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("the lock is held by the agent"), "{error}");
    }

    #[test]
    fn a_full_queue_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let queue = DeletionQueue::lock(folder.path()).unwrap();
        for n in 0..=MAX_FILES {
            fs::write(folder.path().join(format!("deleteQueue/{n}.delete")), "").unwrap();
        }
        let error = queue.push(b"{}").unwrap_err().to_string();
        assert!(error.ends_with("257 deletions wait already, at most 256 may"), "{error}");
    }
}
