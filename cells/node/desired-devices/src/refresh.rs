//! Finds devices that the kernel has lost, by its live table.

use std::sync::Arc;
use std::time::Duration;

use devices::Device;
use hive::JobCx;
use reconciler::{Status, StatusKind};
use statedb::{RwTable, Snapshot, Table};
use tokio::time::sleep;

use crate::DesiredDevice;

/// Minimum interval of comparisons; longer than the live table is behind the kernel.
const INTERVAL: Duration = Duration::from_millis(500);

/// The job that marks lost devices as refreshing.
pub(crate) struct Refresher {
    pub(crate) desired: Arc<RwTable<DesiredDevice>>,
    pub(crate) devices: Arc<Table<Device>>,
}

impl Refresher {
    /// Compares after each change of the kernel's devices, as long as the hive runs.
    pub(crate) async fn run(self, cx: JobCx) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        loop {
            let snapshot = self.devices.snapshot();
            let (_, changed) = self.devices.all_watch(&snapshot);
            if self.devices.initialized_watch(&snapshot).0 {
                self.mark(&snapshot);
            }
            drop(snapshot);
            sleep(INTERVAL).await;
            changed.changed().await;
        }
    }

    /// Marks rows of which the device is not there as desired, and those that failed, as their parent may be there now.
    fn mark(&self, snapshot: &Snapshot) {
        let is_lost = |row: &DesiredDevice| {
            let live = self.devices.get(snapshot, Device::by_name(&row.name));
            let is_same =
                live.is_some_and(|live| live.parent == row.vlan.parent_index && live.kind == "vlan");
            match row.status.kind() {
                StatusKind::Done => !is_same,
                StatusKind::Error => true,
                _ => false,
            }
        };
        let rows = self.desired.snapshot();
        if !self.desired.all(&rows).any(|row| is_lost(row)) {
            return;
        }
        let mut txn = self.desired.write();
        let lost: Vec<DesiredDevice> =
            txn.all().filter(|row| is_lost(row)).map(|row| DesiredDevice::clone(row)).collect();
        for row in lost {
            txn.insert(DesiredDevice { status: Status::refreshing(), ..row });
        }
        txn.commit();
    }
}
