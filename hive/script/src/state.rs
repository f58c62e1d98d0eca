//! The state of a script: its folder, variables, buffers, log.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hive_command::{Buffers, Environment, Pending};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::Interrupt;
use crate::expand::expand;
use crate::log::Log;

/// The state of a script, shared with its commands. Clones are one state.
#[derive(Clone)]
pub struct State(Arc<Inner>);

struct Inner {
    log: Log,
    cancel: CancellationToken,
    deadline: Option<Instant>,
    confined: bool,
    vars: Mutex<Vars>,
}

struct Vars {
    folder: PathBuf,
    /// In the order in which they were set.
    env: Vec<(String, String)>,
    /// The output of the last command that had any.
    buffers: Buffers,
}

impl State {
    /// Returns a state in a folder, with `PWD` as the only variable.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self::with(folder.into(), None)
    }

    /// Returns a state for a script with a time limit; see [`new`](State::new).
    pub fn within(folder: impl Into<PathBuf>, limit: Duration) -> Self {
        Self::with(folder.into(), Some(Instant::now() + limit))
    }

    fn with(folder: PathBuf, deadline: Option<Instant>) -> Self {
        let env = vec![("PWD".to_owned(), folder.display().to_string())];
        let vars = Mutex::new(Vars { folder, env, buffers: Buffers::default() });
        let (log, cancel) = (Log::default(), CancellationToken::new());
        State(Arc::new(Inner { log, cancel, deadline, confined: false, vars }))
    }

    /// Returns a new state in the same folder, in which commands read and write only files directly in it, none through
    /// a symlink and none that another user owns: for a shell in a folder that other users can write to.
    pub fn confined(&self) -> Self {
        let (log, cancel) = (Log::default(), CancellationToken::new());
        let folder = self.folder();
        let env = vec![("PWD".to_owned(), folder.display().to_string())];
        let vars = Mutex::new(Vars { folder, env, buffers: Buffers::default() });
        State(Arc::new(Inner { log, cancel, deadline: self.0.deadline, confined: true, vars }))
    }

    /// Whether commands may use only files of the folder, see [`confined`](State::confined).
    pub fn is_confined(&self) -> bool {
        self.0.confined
    }

    /// Returns the log of the script.
    pub fn log(&self) -> &Log {
        &self.0.log
    }

    /// Returns the folder of relative paths.
    pub fn folder(&self) -> PathBuf {
        self.0.vars.lock().folder.clone()
    }

    /// Resolves a path relative to the script's folder: `.` and `..` are resolved lexically.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        resolved(&self.0.vars.lock().folder.join(name))
    }

    /// Changes the folder.
    pub fn enter(&self, name: &str) -> anyhow::Result<()> {
        let path = self.path(name);
        let path = std::fs::canonicalize(&path).with_context(|| path.display().to_string())?;
        anyhow::ensure!(path.is_dir(), "{}: not a directory", path.display());
        self.set("PWD", path.display().to_string());
        self.0.vars.lock().folder = path;
        Ok(())
    }

    /// Returns a variable; empty if it is not set.
    pub fn variable(&self, name: &str) -> String {
        let vars = self.0.vars.lock();
        vars.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// Returns all variables, in the order in which they were set.
    pub fn variables(&self) -> Vec<(String, String)> {
        self.0.vars.lock().env.clone()
    }

    /// Sets a variable.
    pub fn set(&self, name: &str, value: impl Into<String>) {
        let (mut vars, value) = (self.0.vars.lock(), value.into());
        match vars.env.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => vars.env.push((name.to_owned(), value)),
        }
    }

    /// Returns the text with its variables replaced.
    pub fn expand(&self, text: &str) -> String {
        expand(text, |name| self.variable(name))
    }

    /// Returns the standard output of the last command that had any.
    pub fn stdout(&self) -> Vec<u8> {
        self.0.vars.lock().buffers.stdout.clone()
    }

    /// Returns the standard error of the same command; see [`stdout`](State::stdout).
    pub fn stderr(&self) -> Vec<u8> {
        self.0.vars.lock().buffers.stderr.clone()
    }

    pub(crate) fn set_buffers(&self, buffers: Buffers) {
        self.0.vars.lock().buffers = buffers;
    }

    /// Returns the content of a file.
    pub fn read(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let path = self.path(name);
        let read = || -> anyhow::Result<Vec<u8>> {
            let mut data = vec![];
            if self.0.confined {
                self.own(&path, OpenOptions::new().read(true))?.read_to_end(&mut data)?;
            } else {
                data = std::fs::read(&path)?;
            }
            Ok(data)
        };
        read().with_context(|| format!("open {}", path.display()))
    }

    /// Opens a file of a confined state: directly in its folder, not a symlink, not owned by another user.
    fn own(&self, path: &Path, options: &mut OpenOptions) -> anyhow::Result<File> {
        let folder = self.folder();
        let direct = path.parent() == Some(folder.as_path()) && path.file_name().is_some();
        anyhow::ensure!(direct, "only files directly in {} may be used", folder.display());
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path)?;
        let found = file.metadata()?;
        let own = found.is_file() && found.nlink() == 1 && found.uid() == rustix::process::geteuid().as_raw();
        anyhow::ensure!(own, "it is not a file of the agent's own");
        Ok(file)
    }

    /// Returns the content of a file; `stdout` and `stderr` are the buffers.
    pub fn read_or_buffer(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        match name {
            "stdout" => Ok(self.stdout()),
            "stderr" => Ok(self.stderr()),
            name => self.read(name),
        }
    }

    /// Creates or truncates a file and writes it.
    pub fn write(&self, name: &str, data: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let path = self.path(name);
        let write = || -> anyhow::Result<()> {
            if self.0.confined {
                let mut file =
                    self.own(&path, OpenOptions::new().write(true).create(true).truncate(false))?;
                file.set_len(0)?;
                file.write_all(data.as_ref())?;
            } else {
                std::fs::write(&path, data.as_ref())?;
            }
            Ok(())
        };
        write().with_context(|| format!("write {}", path.display()))
    }

    /// Ends the script: the running command, and the rest of the script.
    pub fn cancel(&self) {
        self.0.cancel.cancel();
    }

    /// Returns the reason why the script should end, if there is one.
    pub fn interrupt(&self) -> Option<Interrupt> {
        if self.0.cancel.is_cancelled() {
            return Some(Interrupt::Cancelled);
        }
        self.0.deadline.filter(|deadline| Instant::now() >= *deadline).map(|_| Interrupt::Deadline)
    }

    /// Waits until the script should end.
    pub async fn interrupted(&self) -> Interrupt {
        let deadline = async {
            match self.0.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.0.cancel.cancelled() => Interrupt::Cancelled,
            () = deadline => Interrupt::Deadline,
        }
    }
}

impl Environment for State {
    fn read(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        State::read(self, name)
    }

    fn write(&self, name: &str, data: &[u8]) -> anyhow::Result<()> {
        State::write(self, name, data)
    }

    fn is_confined(&self) -> bool {
        State::is_confined(self)
    }

    fn expand(&self, text: &str) -> String {
        State::expand(self, text)
    }

    fn log(&self, text: &str) {
        self.0.log.write(text);
    }

    fn drained(&self) -> Pending<'_, ()> {
        Box::pin(self.0.log.drained())
    }
}

/// Returns the path with `.` and `..` resolved lexically, without access to the file system.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                resolved.pop();
            }
            Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_state_uses_only_its_own_files() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let state = State::new(folder.path()).confined();
        state.write("a", "1234").unwrap();
        state.write("a", "5").unwrap();
        assert_eq!(state.read("a").unwrap(), b"5");
        assert_eq!(state.read(&folder.path().join("a").display().to_string()).unwrap(), b"5");

        let precious = other.path().join("precious");
        std::fs::write(&precious, "x").unwrap();
        std::os::unix::fs::symlink(&precious, folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink(other.path(), folder.path().join("folder")).unwrap();
        std::fs::hard_link(&precious, folder.path().join("hard")).unwrap();
        let precious_path = precious.display().to_string();
        for name in ["link", "hard", "folder/precious", "../x", "/etc/passwd", "..", "", &precious_path] {
            assert!(state.write(name, "bad").is_err(), "written: {name}");
            assert!(state.read(name).is_err(), "read: {name}");
        }
        assert_eq!(std::fs::read(&precious).unwrap(), b"x");
    }
}
