//! Hands the mark of the host's packets over between nftables and iptables.

use std::sync::Arc;

use datapath_api::{DatapathError, HostMark};
use hive::JobCx;

use crate::guard::nftables::{self, Chain};

/// Removes the rule of nftables once rules of iptables mark the host's packets, and installs it again when they do not.
pub(crate) async fn follow(mark: Arc<HostMark>, cx: JobCx) -> anyhow::Result<()> {
    let mut changes = mark.subscribe();
    while let Some(Ok(())) = cx.token().run_until_cancelled(changes.changed()).await {
        let is_by_iptables = *changes.borrow_and_update();
        let _working = cx.working();
        if is_by_iptables {
            // A comparison of the watchdog removes a rule that could not be removed here.
            if let Err(error) = hive::blocking(|| Chain::HostPackets.remove()).await {
                tracing::debug!(%error, "The rule of nftables that marks the host's packets stays");
            }
        } else if let Err(error) = hive::blocking(install).await {
            tracing::warn!(%error, "The host's packets are not marked: policy takes them for the world's");
        }
    }
    Ok(())
}

/// Installs the rule that marks the host's packets; false if the kernel has no nftables for it.
pub(crate) fn install() -> Result<bool, DatapathError> {
    match Chain::HostPackets.install() {
        Err(error) if nftables::is_unsupported(&error) => {
            tracing::warn!(%error, "No rule in nftables to mark the host's packets, policy takes them for the world's");
            Ok(false)
        }
        result => result.map(|()| true).map_err(DatapathError::Rule),
    }
}
