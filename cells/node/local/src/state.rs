//! The agent's folders. The option belongs to this cell because the node's restored addresses are read first.

use std::path::{Path, PathBuf};

/// The agent's folder. A change takes effect at the next start, which then restores nothing of the previous run.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Files")]
pub struct StateConfig {
    /// Directory path to store runtime state
    #[flag(default = "/var/run/cilium")]
    state_dir: PathBuf,
}

impl StateConfig {
    /// Returns the run folder itself: sockets, pid file, deletion queue.
    #[must_use]
    pub fn run(&self) -> &Path {
        &self.state_dir
    }

    /// Returns the state folder below it: records of endpoints and of the node.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.state_dir.join("state")
    }
}
