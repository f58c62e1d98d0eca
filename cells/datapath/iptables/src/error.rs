//! Errors of the programs of iptables.

use std::io;
use std::time::Duration;

/// A program of iptables that could not be run, or has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program is not installed.
    #[error(
        "{program} is not installed: install the package iptables in the agent's image, or set \
         install-iptables-rules=false"
    )]
    Missing {
        /// The program.
        program: String,
    },
    /// The program cannot be started.
    #[error("{program} cannot be run: {source}")]
    NotRun {
        /// The program.
        program: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The program was killed after a time.
    #[error("{program} has not ended within {limit:?} and was killed")]
    Timeout {
        /// The program.
        program: String,
        /// The time.
        limit: Duration,
    },
    /// Another process holds the lock of iptables.
    #[error(
        "{program}: another process holds the lock of iptables (/run/xtables.lock) for longer than {limit:?}"
    )]
    Locked {
        /// The program.
        program: String,
        /// The time of waiting, `iptables-lock-timeout`.
        limit: Duration,
    },
    /// The program has failed.
    #[error("{program} ended with {status}: {output}")]
    Failed {
        /// The program.
        program: String,
        /// Its exit status.
        status: String,
        /// Its error output.
        output: String,
    },
    /// Another option is needed.
    #[error("option {option}: true needs {needed}; give it, or remove {option}")]
    NeedsOption {
        /// The option.
        option: &'static str,
        /// The other one with its value and the reason.
        needed: &'static str,
    },
    /// The agent stops.
    #[error("{program} was killed, as the agent stops")]
    Stopped {
        /// The program.
        program: String,
    },
    /// The set of nodes' addresses cannot be created: packets of pods to nodes are masqueraded.
    #[error(
        "set {set} cannot be created, so packets of pods to other nodes are masqueraded: {source}; the kernel needs ip_set \
         and ip_set_hash_ip"
    )]
    Set {
        /// The set.
        set: &'static str,
        /// The kernel's error.
        #[source]
        source: netlink::Error,
    },
    /// The kernel did not keep rules that were written.
    #[error("rules of {chains} differ from those that were written: another program changes them")]
    NotKept {
        /// The chains.
        chains: String,
    },
}

impl Error {
    /// Whether a rule may be at fault, such as one of a match that the kernel lacks.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Error::Failed { .. })
    }
}
