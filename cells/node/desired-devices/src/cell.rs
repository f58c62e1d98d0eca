//! The wiring: the table, its reconciler, the handle.

use std::sync::Arc;
use std::time::Duration;

use devices::{Device, Netlink};
use hive::prelude::*;
use local_node::StateConfig;
use reconciler::Reconciler;
use statedb::{RwTable, Table};

use crate::kernel::KernelDevices;
use crate::refresh::Refresher;
use crate::{DesiredDevice, DesiredDevices};

/// The write-ahead log, in the state folder.
const LOG_FILE: &str = "device-reconciler.wal";
/// Interval of prunes after the first one.
const PRUNE_INTERVAL: Duration = Duration::from_secs(30 * 60);

/// Provides table `desired-devices` and the [`DesiredDevices`] handle.
pub fn cell() -> Cell {
    module(
        "device-reconciler",
        "Desired devices in the kernel",
        [
            statedb::table::<DesiredDevice>(),
            provide(new_desired_devices),
            // Devices of the previous run are deleted even if nothing desires any.
            invoke(|_: Arc<DesiredDevices>| ()),
        ],
    )
}

fn new_desired_devices(
    state: Config<StateConfig>,
    table: Arc<RwTable<DesiredDevice>>,
    devices: Arc<Table<Device>>,
    jobs: JobGroup,
) -> Arc<DesiredDevices> {
    Reconciler::builder(RwTable::clone(&table))
        .status(|row: &DesiredDevice| &row.status, |row, status| row.status = status)
        .ops(KernelDevices::<Netlink>::new(table.reader(), state.state().join(LOG_FILE)))
        // The parent's index, which the operations resolve.
        .merge(|row, reconciled| row.vlan.parent_index = reconciled.vlan.parent_index)
        .blocking()
        .prune(PRUNE_INTERVAL)
        .spawn(&jobs);
    let refresher = Refresher { desired: Arc::clone(&table), devices };
    jobs.one_shot("desired-device-refresher", move |cx| async move {
        refresher.run(cx).await;
        Ok(())
    })
    .add();
    Arc::new(DesiredDevices::new(table))
}
