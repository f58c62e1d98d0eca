//! Whether the programs masquerade.

use tokio::sync::watch;

/// Whether the programs of the datapath masquerade: set once they are attached to the devices. Until then rules of
/// iptables of a previous run stay.
#[derive(Debug, Default)]
pub struct BpfMasquerading(watch::Sender<bool>);

impl BpfMasquerading {
    /// Reports that the programs masquerade.
    pub fn set(&self) {
        self.0.send_replace(true);
    }

    /// Resolves when the programs masquerade. Cancel safe.
    pub async fn in_force(&self) {
        // The sender is in `self`: there is no error.
        drop(self.0.subscribe().wait_for(|is_set| *is_set).await);
    }
}
