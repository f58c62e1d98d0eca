//! Errors of finding and removing leftovers.

use std::io;
use std::path::PathBuf;

/// An error of finding or removing a leftover.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An agent runs: it would restore the removed objects.
    #[error("an agent{} runs on {folder}: stop it first, it would put back what is removed", pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Running {
        /// Its run folder.
        folder: PathBuf,
        /// Its process id, if it has recorded one.
        pid: Option<u32>,
    },
    /// The agent of the run folder cannot be determined.
    #[error(transparent)]
    Instance(#[from] daemon_config::Error),
    /// A file or folder cannot be read or removed.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The failed operation.
        action: &'static str,
        /// The path it was applied to.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A program, link or pin cannot be read or removed.
    #[error(transparent)]
    Bpf(#[from] bpf::Error),
    /// A request to rtnetlink has failed.
    #[error(transparent)]
    Netlink(#[from] devices::NetlinkError),
    /// A tool of iptables has failed.
    #[error("{tool} has failed: {said}; remove the chains CILIUM_* by hand")]
    Iptables {
        /// The tool.
        tool: String,
        /// Its error output, or the reason why it could not be run.
        said: String,
    },
    /// A set of addresses cannot be read or destroyed.
    #[error("ipset: {0}")]
    Set(#[source] netlink::Error),
    /// The nftables rule cannot be read or removed.
    #[error("nftables: {0}")]
    Rule(#[source] netlink::Error),
}
