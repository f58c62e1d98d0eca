//! Errors of socket load balancing.

use std::io;
use std::path::PathBuf;

/// A failure to load or attach the programs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No cgroup v2 is mounted at the path.
    #[error(
        "option cgroup-root: {} is not a cgroup v2; mount one there (mount -t cgroup2 none {0}; into a container that of \
         the host), give the agent CAP_SYS_ADMIN for its start, or name another folder", path.display()
    )]
    NoCgroup {
        /// The path.
        path: PathBuf,
    },
    /// The folder of the cgroup cannot be opened or mounted.
    #[error("option cgroup-root: could not {operation} {}", path.display())]
    Folder {
        /// The operation in words.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel refused to attach a program.
    #[error(
        "could not attach program {program} to the cgroup {}: needs Linux with CONFIG_CGROUP_BPF, CAP_NET_ADMIN and \
         CAP_BPF, and no exclusive program of others there (bpftool cgroup show {0})", path.display()
    )]
    Attach {
        /// The program.
        program: String,
        /// The cgroup's folder.
        path: PathBuf,
        /// The cause.
        source: bpf::Error,
    },
    /// Another operation of the kernel failed.
    #[error(transparent)]
    Bpf(#[from] bpf::Error),
    /// A map could not be opened.
    #[error(transparent)]
    Maps(#[from] maps::Error),
}
