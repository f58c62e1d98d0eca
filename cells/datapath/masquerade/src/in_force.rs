//! How far masquerading by the programs is.

use tokio::sync::watch;

/// How far masquerading by the programs is: its users wait for each other.
#[derive(Debug, Default)]
pub struct BpfMasquerading {
    attached: watch::Sender<bool>,
    ranges: watch::Sender<bool>,
}

impl BpfMasquerading {
    /// Reports that the programs masquerade: they are attached to the devices.
    pub fn set(&self) {
        self.attached.send_replace(true);
    }

    /// Resolves when the programs masquerade. Until then rules of iptables of a previous run stay. Cancel safe.
    pub async fn in_force(&self) {
        wait(&self.attached).await;
    }

    /// Reports that the file of ip-masq-agent was read, and its ranges are in the maps.
    pub(crate) fn set_ranges(&self) {
        self.ranges.send_replace(true);
    }

    /// Resolves when the file of ip-masq-agent was read: programs that are loaded before would masquerade packets to its
    /// ranges. Cancel safe.
    pub async fn ranges(&self) {
        wait(&self.ranges).await;
    }
}

async fn wait(reached: &watch::Sender<bool>) {
    // The sender is in `BpfMasquerading`: there is no error.
    drop(reached.subscribe().wait_for(|is_set| *is_set).await);
}
