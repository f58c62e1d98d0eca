//! Which sockets have services translated by programs.

use std::path::{Path, PathBuf};

use tokio::sync::watch;

/// The sockets whose services are translated when they connect or send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketCoverage {
    /// None: socket load balancing is off, or its programs are not attached.
    #[default]
    None,
    /// Those of the host's network namespace.
    Host,
    /// Those of the host and of pods.
    All,
}

/// The coverage of socket load balancing. Its cell sets it; while sockets of pods are not covered, the loader's programs
/// translate each packet of pods, so that one of both always does.
#[derive(Debug, Default)]
pub struct SocketLb {
    coverage: watch::Sender<SocketCoverage>,
    cgroup: PathBuf,
}

impl SocketLb {
    /// Returns a value without coverage, of the sockets of a cgroup.
    #[must_use]
    pub fn at(cgroup: PathBuf) -> Self {
        Self { coverage: watch::Sender::default(), cgroup }
    }

    /// Returns the folder of the cgroup (v2) whose sockets are translated; those of pods are below.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Reports which sockets are covered now.
    pub fn set(&self, coverage: SocketCoverage) {
        self.coverage.send_if_modified(|current| std::mem::replace(current, coverage) != coverage);
    }

    /// Returns which sockets are covered.
    #[must_use]
    pub fn coverage(&self) -> SocketCoverage {
        *self.coverage.borrow()
    }

    /// Returns a receiver of changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<SocketCoverage> {
        self.coverage.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_reported() {
        let socket_lb = SocketLb::default();
        let receiver = socket_lb.subscribe();
        socket_lb.set(SocketCoverage::None);
        assert!(!receiver.has_changed().unwrap());
        socket_lb.set(SocketCoverage::All);
        assert!(receiver.has_changed().unwrap() && socket_lb.coverage() == SocketCoverage::All);
    }
}
