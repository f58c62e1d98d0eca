//! The job that keeps the table in step with the devices.

use std::sync::Arc;

use devices::Device;
use hive::JobCx;
use statedb::{RwTable, Snapshot, Table};
use tunnel::{MtuConfig, Tunnel};

use crate::Mtu;

/// The inputs of the job.
pub(crate) struct Follower {
    pub(crate) config: MtuConfig,
    pub(crate) tunnel: Arc<Tunnel>,
    pub(crate) table: Arc<RwTable<Mtu>>,
    pub(crate) devices: Arc<Table<Device>>,
}

impl Follower {
    /// Follows the devices as long as the hive runs.
    pub(crate) async fn run(self, cx: &JobCx) {
        loop {
            let snapshot = self.devices.snapshot();
            let (is_complete, completed) = self.devices.initialized_watch(&snapshot);
            let (_, changed) = self.devices.list_watch(&snapshot, Device::by_selected(true));
            // Before all devices are known, the smallest one may be missing.
            if is_complete && let Some(rows) = self.rows(&snapshot) {
                let written = self.table.snapshot();
                let get = |row: &Mtu| self.table.get(&written, Mtu::by_prefix(row.prefix)).map(|row| **row);
                if rows.iter().any(|row| get(row) != Some(*row)) {
                    self.table.transact(|txn| rows.into_iter().for_each(|row| drop(txn.insert(row))));
                }
                self.report(cx, &snapshot, rows[0].device);
            }
            drop(snapshot);
            tokio::select! {
                () = cx.cancelled() => return,
                () = changed.changed() => {}
                () = completed.changed(), if !is_complete => {}
            }
        }
    }

    fn report(&self, cx: &JobCx, snapshot: &Snapshot, mtu: u32) {
        let selected = self.devices.list(snapshot, Device::by_selected(true)).map(|device| &**device);
        let unfit = self.config.unfit_devices(&self.tunnel, selected);
        if unfit.is_empty() {
            cx.health.ok(format!("MTU updated ({mtu})"));
            return;
        }
        let reason = unfit.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        if cx.health.degraded_anew(format!("Packets of pods ({mtu}) do not fit into devices"), &reason) {
            tracing::warn!(reason, mtu, "Packets of pods do not fit into devices of the network");
        }
    }

    /// Returns the desired rows; `None` to keep those that are there, when the last device that faces the network is gone:
    /// it may be replaced, and packets are as large as before then.
    fn rows(&self, snapshot: &Snapshot) -> Option<[Mtu; 2]> {
        let mut selected = self.devices.list(snapshot, Device::by_selected(true)).peekable();
        let written = self.table.snapshot();
        if self.config.mtu == 0 && selected.peek().is_none() && self.table.all(&written).next().is_some() {
            return None;
        }
        let device = self.config.device_mtu(&self.tunnel, selected.map(|device| &**device));
        Some(Mtu::rows(device, self.tunnel.route_mtu(device)))
    }
}
