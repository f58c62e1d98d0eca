//! What a script works on: its folder, variables, buffers, log.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
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
    vars: Mutex<Vars>,
}

struct Vars {
    folder: PathBuf,
    /// In the order in which they were set.
    env: Vec<(String, String)>,
    buffers: Buffers,
}

/// What the last command that yielded output has written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl State {
    /// A state in a folder, with no variables but `PWD`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self::with(folder.into(), None)
    }

    /// As [`new`](State::new), for a script that must be done after `limit`.
    pub fn within(folder: impl Into<PathBuf>, limit: Duration) -> Self {
        Self::with(folder.into(), Some(Instant::now() + limit))
    }

    fn with(folder: PathBuf, deadline: Option<Instant>) -> Self {
        let env = vec![("PWD".to_owned(), folder.display().to_string())];
        let vars = Mutex::new(Vars { folder, env, buffers: Buffers::default() });
        State(Arc::new(Inner { log: Log::default(), cancel: CancellationToken::new(), deadline, vars }))
    }

    /// What the script says.
    pub fn log(&self) -> &Log {
        &self.0.log
    }

    /// The folder that relative paths begin in.
    pub fn folder(&self) -> PathBuf {
        self.0.vars.lock().folder.clone()
    }

    /// A path as the script means it.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.vars.lock().folder.join(name)
    }

    /// Goes into a folder.
    pub fn enter(&self, name: &str) -> anyhow::Result<()> {
        let path = self.path(name);
        let path = std::fs::canonicalize(&path).with_context(|| path.display().to_string())?;
        anyhow::ensure!(path.is_dir(), "{}: not a directory", path.display());
        self.set("PWD", path.display().to_string());
        self.0.vars.lock().folder = path;
        Ok(())
    }

    /// A variable; empty if it is not set.
    pub fn variable(&self, name: &str) -> String {
        let vars = self.0.vars.lock();
        vars.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// All variables, in the order in which they were set.
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

    /// Text with its variables replaced.
    pub fn expand(&self, text: &str) -> String {
        expand(text, |name| self.variable(name))
    }

    /// What the last command that yielded output has written to stdout.
    pub fn stdout(&self) -> Vec<u8> {
        self.0.vars.lock().buffers.stdout.clone()
    }

    /// As [`stdout`](State::stdout), for stderr.
    pub fn stderr(&self) -> Vec<u8> {
        self.0.vars.lock().buffers.stderr.clone()
    }

    pub(crate) fn set_buffers(&self, buffers: Buffers) {
        self.0.vars.lock().buffers = buffers;
    }

    /// The bytes of a file.
    pub fn read(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let path = self.path(name);
        std::fs::read(&path).with_context(|| format!("open {}", path.display()))
    }

    /// The bytes of a file, where `stdout` and `stderr` mean the buffers.
    pub fn read_or_buffer(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        match name {
            "stdout" => Ok(self.stdout()),
            "stderr" => Ok(self.stderr()),
            name => self.read(name),
        }
    }

    /// Writes a file anew.
    pub fn write(&self, name: &str, data: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let path = self.path(name);
        std::fs::write(&path, data).with_context(|| format!("write {}", path.display()))
    }

    /// Ends the script: the command that is running, and the script behind it.
    pub fn cancel(&self) {
        self.0.cancel.cancel();
    }

    /// Whether the script should end, and why.
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
