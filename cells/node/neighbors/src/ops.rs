//! The operations of the reconciler: rows to the kernel's entries.

use std::sync::Arc;

use devices::Device;
use reconciler::{OpCx, OpResult, Ops, StatusKind};
use statedb::{Rows, Snapshot, Table};

use crate::kernel::{Entry, Kernel};
use crate::metrics::Numbers;
use crate::{DesiredNeighbor, Error, Upkeep};

/// The kernel's neighbour entries as the target of the reconciler. Opens its socket at the first use, on the thread of the
/// reconciler.
pub(crate) struct KernelNeighbors {
    desired: Table<DesiredNeighbor>,
    devices: Arc<Table<Device>>,
    upkeep: Upkeep,
    numbers: Numbers,
    kernel: Option<Kernel>,
}

impl KernelNeighbors {
    pub(crate) fn new(
        desired: Table<DesiredNeighbor>,
        devices: Arc<Table<Device>>,
        upkeep: Upkeep,
        numbers: Numbers,
    ) -> Self {
        Self { desired, devices, upkeep, numbers, kernel: None }
    }

    /// Runs requests on the socket. After an error answers may still be on their way: the next attempt has a new one.
    fn with<T>(&mut self, work: impl FnOnce(&mut Self, &mut Kernel) -> Result<T, Error>) -> Result<T, Error> {
        let mut kernel = match self.kernel.take() {
            Some(kernel) => kernel,
            None => Kernel::open()?,
        };
        let result = work(self, &mut kernel);
        if result.is_ok() {
            self.kernel = Some(kernel);
        }
        result
    }

    fn write(&mut self, row: &DesiredNeighbor) -> Result<(), Error> {
        let upkeep = self.upkeep;
        let is_refreshed = row.status.kind() == StatusKind::Refreshing;
        self.with(|ops, kernel| {
            let found = kernel.entry(row.ip, row.link_index)?;
            let is_kept = found.is_some_and(|found| found.is_kept(upkeep));
            let is_permanent = found.is_some_and(|found| found.is_permanent());
            let is_used_again = is_refreshed && upkeep == Upkeep::Agent && !is_permanent;
            if is_kept && !is_used_again {
                return Ok(());
            }
            kernel.resolve(row.ip, row.link_index, upkeep)?;
            if is_kept {
                ops.numbers.refreshes.inc()
            } else {
                ops.numbers.inserts.inc()
            };
            Ok(())
        })
    }

    fn remove(&mut self, row: &DesiredNeighbor) -> Result<(), Error> {
        self.with(|ops, kernel| {
            let found = kernel.entry(row.ip, row.link_index)?;
            if found.is_some_and(|found| found.is_learned() && !found.is_permanent()) {
                kernel.delete(row.ip, row.link_index)?;
                ops.numbers.deletes.inc();
            }
            Ok(())
        })
    }

    fn prune_entries(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.with(|ops, kernel| {
            let stale = kernel.entries()?.into_iter().filter(|entry| ops.is_stale(snapshot, entry));
            for Entry { ip, link_index, .. } in stale.collect::<Vec<Entry>>() {
                kernel.delete(ip, link_index)?;
                ops.numbers.deletes.inc();
                tracing::info!(%ip, link_index, "Deleted a neighbour entry of the previous run");
            }
            Ok(())
        })
    }

    /// Whether an entry is of an agent, and not desired any more.
    fn is_stale(&self, snapshot: &Snapshot, entry: &Entry) -> bool {
        let found = entry.properties;
        if found.is_permanent() || !found.is_learned() {
            return false;
        }
        // Daemons of routing protocols learn entries as well, on devices of their own.
        let is_selected = || {
            let device = self.devices.get(snapshot, Device::by_index(entry.link_index));
            device.is_some_and(|device| device.selected)
        };
        let is_desired =
            || self.desired.get(snapshot, DesiredNeighbor::by_id(entry.ip, entry.link_index)).is_some();
        (found.is_managed() || is_selected()) && !is_desired()
    }
}

impl Ops<DesiredNeighbor> for KernelNeighbors {
    fn update(&mut self, _: &OpCx<'_>, row: &mut DesiredNeighbor) -> OpResult {
        Ok(self.write(row)?)
    }

    fn delete(&mut self, _: &OpCx<'_>, row: &DesiredNeighbor) -> OpResult {
        Ok(self.remove(row)?)
    }

    fn prune(&mut self, cx: &OpCx<'_>, _: Rows<'_, DesiredNeighbor>) -> OpResult {
        Ok(self.prune_entries(cx.snapshot)?)
    }
}
