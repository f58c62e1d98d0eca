//! The owner of the rule that marks the host's packets.

use tokio::sync::watch;

/// Whether rules of iptables mark the host's packets, in every enabled family. The cell for iptables sets it; while it is
/// not set, the loader keeps a rule of nftables for the same purpose, so that there is always one.
#[derive(Debug, Default)]
pub struct HostMark(watch::Sender<bool>);

impl HostMark {
    /// Reports whether rules of iptables mark the host's packets now.
    pub fn set(&self, is_set: bool) {
        self.0.send_if_modified(|current| std::mem::replace(current, is_set) != is_set);
    }

    /// Whether rules of iptables mark the host's packets.
    #[must_use]
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns a receiver of changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_reported() {
        let mark = HostMark::default();
        let receiver = mark.subscribe();
        mark.set(false);
        assert!(!receiver.has_changed().unwrap());
        mark.set(true);
        assert!(receiver.has_changed().unwrap() && mark.is_set());
    }
}
