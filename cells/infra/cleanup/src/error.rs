//! Errors of finding and removing leftovers.

use std::io;
use std::path::PathBuf;

/// Why something cannot be found or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An agent runs: it would put back what is removed.
    #[error("an agent{} runs on {folder}: stop it first, it would put back what is removed", pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Running {
        /// Its run folder.
        folder: PathBuf,
        /// Its process id, if it has recorded one.
        pid: Option<u32>,
    },
    /// The run folder cannot be asked for its agent.
    #[error(transparent)]
    Instance(#[from] daemon_config::Error),
    /// A file or folder cannot be read or removed.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The failed operation.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A program, link or pin.
    #[error(transparent)]
    Bpf(#[from] bpf::Error),
    /// An interface.
    #[error(transparent)]
    Netlink(#[from] devices::NetlinkError),
    /// A tool of iptables.
    #[error("{tool} has failed: {said}; remove the chains CILIUM_* by hand")]
    Iptables {
        /// The tool.
        tool: String,
        /// Its error output, or why it could not be run.
        said: String,
    },
    /// The rule of nftables.
    #[error("nftables: {0}")]
    Rule(#[source] netlink::Error),
}
