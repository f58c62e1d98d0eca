//! Where the agent keeps its files; the option is here because the node's restored addresses are read first.

use std::path::{Path, PathBuf};

/// The agent's folder. A change takes effect at the next start, which then finds nothing of the previous run.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Files")]
pub struct StateConfig {
    /// Directory path to store runtime state
    #[flag(default = "/var/run/cilium")]
    state_dir: PathBuf,
}

impl StateConfig {
    /// The run folder itself: sockets, pid file, deletion queue.
    #[must_use]
    pub fn run(&self) -> &Path {
        &self.state_dir
    }

    /// `state` below it: records of endpoints and of the node.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.state_dir.join("state")
    }
}
