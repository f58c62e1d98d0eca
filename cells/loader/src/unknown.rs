//! Pods that nobody has announced: what they send goes nowhere, from their interface's first moment on.
//!
//! A foreign CNI plugin switches a pod's link on before the agent hears of the endpoint. Two things stand in the way of
//! its packets: the program that [`guard`] attaches as soon as the interface is seen, which drops with 203, and until
//! then a rule of nftables in the way of every packet that the host's stack gets from such an interface without the
//! mark that our programs give. The rule needs no interface to exist, so there is no moment before it.

use std::sync::Arc;

use devices::Device;
use hive::JobCx;
use statedb::Table;

use crate::error::DatapathError;
use crate::kernel::{KernelDatapath, is_pod_interface};

/// Attaches the program to pods' interfaces as they appear.
pub(crate) async fn guard(
    datapath: Arc<KernelDatapath>,
    devices: Arc<Table<Device>>,
    cx: JobCx,
) -> anyhow::Result<()> {
    let mut changes = devices.changes();
    loop {
        let batch = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            batch = changes.next() => batch,
        };
        let new = batch.iter().filter(|change| !change.deleted && is_pod_interface(&change.object.link));
        let new: Vec<(u32, String)> = new.map(|c| (c.object.index, c.object.name.clone())).collect();
        if new.is_empty() {
            continue;
        }
        let _working = cx.working();
        let guarding = datapath.clone();
        let results: Vec<Result<bool, DatapathError>> = tokio::task::spawn_blocking(move || {
            new.iter().map(|(ifindex, name)| guarding.guard(*ifindex, name)).collect()
        })
        .await?;
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "Could not guard an interface");
        }
    }
}
