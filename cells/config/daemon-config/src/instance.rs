//! One agent per run folder: the pid file, locked while the agent runs.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use state_file::{open_for_lock, open_to_read};

use crate::error::{Error, file};

/// The file's name in the run folder.
const NAME: &str = "cilium.pid";
/// The name of Cilium's process in `/proc/PID/comm`.
const CILIUM_COMM: &str = "cilium-agent";

/// The pid file with its lock, which the kernel releases when the process ends, also after a crash.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    _lock: File,
}

impl Instance {
    /// Locks the run folder for this process. Creates the folder and `state/templates` in it if they do not exist.
    /// Does not detect Cilium's agent, which takes no lock: see [`Instance::holder`].
    pub fn take(folder: &Path) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(file("create", folder))?;
        let path = folder.join(NAME);
        loop {
            let mut lock = open_for_lock(&path, 0o640)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut pid = String::new();
                    let _ = lock.read_to_string(&mut pid);
                    return Err(Error::InUse { folder: folder.to_owned(), pid: pid.trim().parse().ok() });
                }
                Err(TryLockError::Error(error)) => return Err(file("lock", &path)(error)),
            }
            // The previous agent may have removed the file after this process opened it and before it locked it.
            let ours = lock.metadata().map_err(file("read", &path))?.ino();
            if !fs::metadata(&path).is_ok_and(|found| found.ino() == ours) {
                continue;
            }
            let pid = std::process::id().to_string();
            let write = |lock: &mut File| {
                // Truncate after the write: if the write fails, the file keeps its old blocks and is not left empty.
                lock.rewind()?;
                lock.write_all(pid.as_bytes())?;
                lock.set_len(pid.len() as u64)
            };
            if let Err(error) = write(&mut lock).map_err(file("write", &path)) {
                // Exclusion depends on the lock only; the pid is informative.
                tracing::warn!(%error, "Going on without the pid in the pid file");
            }
            // `cilium-dbg bpf sha list` reads compiled programs from `templates`; this agent compiles none.
            let state = folder.join("state/templates");
            DirBuilder::new().recursive(true).mode(0o750).create(&state).map_err(file("create", &state))?;
            return Ok(Self { path, _lock: lock });
        }
    }
}

/// The agent that runs on a run folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The agent's pid, if the pid file has it.
    pub pid: Option<u32>,
}

impl Instance {
    /// Returns the agent that runs on the folder, without locking it for this process. Cilium's agent takes no lock: it
    /// is found by the pid in the file, if a process of that pid has Cilium's name.
    ///
    /// # Errors
    /// When the pid file cannot be read.
    pub fn holder(folder: &Path) -> Result<Option<Holder>, Error> {
        let path = folder.join(NAME);
        let Some(mut lock) = open_to_read(&path)? else { return Ok(None) };
        let mut text = String::new();
        lock.read_to_string(&mut text).map_err(file("read", &path))?;
        let pid = text.trim().parse().ok();
        match lock.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Ok(Some(Holder { pid })),
            Err(TryLockError::Error(error)) => Err(file("lock", &path)(error)),
            Ok(()) => {
                let name = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
                Ok(name.filter(|name| name.trim() == CILIUM_COMM).map(|_| Holder { pid }))
            }
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Remove it while the lock is held: afterwards it could be the file of the next agent.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_second_agent_is_refused_until_the_first_has_gone() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let first = Instance::take(&run).unwrap();
        assert_eq!(Instance::holder(&run).unwrap(), Some(Holder { pid: Some(std::process::id()) }));
        let path = run.join("cilium.pid");
        assert_eq!(fs::read_to_string(&path).unwrap(), std::process::id().to_string());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        for folder in ["state", "state/templates"] {
            assert_eq!(fs::metadata(run.join(folder)).unwrap().permissions().mode() & 0o777, 0o750);
        }
        let error = Instance::take(&run).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "another agent (pid {}) runs on {}: stop it, or give this one its own --state-dir and --socket-path",
                std::process::id(),
                run.display()
            )
        );
        drop(first);
        assert!(!path.exists());
        assert_eq!(Instance::holder(&run).unwrap(), None);
        drop(Instance::take(&run).unwrap());
    }

    #[test]
    fn the_file_of_a_killed_agent_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cilium.pid"), "4194304999").unwrap();
        assert_eq!(Instance::holder(folder.path()).unwrap(), None);
        let _instance = Instance::take(folder.path()).unwrap();
        let pid = fs::read_to_string(folder.path().join("cilium.pid")).unwrap();
        assert_eq!(pid, std::process::id().to_string());
    }
}
