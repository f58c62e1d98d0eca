//! Entries into `cilium_ipcache_v2`.

use std::collections::HashSet;
use std::sync::Arc;

use datapath_abi::{IpcacheKey, RemoteEndpointInfo};
use reconciler::{BatchEntry, BatchOps, Builder, OpCx, OpResult, Operations, Ops, Reconciler, StatusField};
use statedb::{Obj, Rows, RwTable};

use crate::entry::Entry;
use crate::kernel;

/// The kernel's map, or a stand-in for it in tests.
pub trait IpcacheMap: Send + Sync + 'static {
    /// Writes rows.
    fn write(&self, rows: &[(IpcacheKey, RemoteEndpointInfo)]) -> OpResult;
    /// Removes a row; not to be there is no error.
    fn remove(&self, key: &IpcacheKey) -> OpResult;
    /// All rows.
    fn rows(&self) -> Result<Vec<(IpcacheKey, RemoteEndpointInfo)>, reconciler::OpError>;
}

impl IpcacheMap for maps::Maps {
    fn write(&self, rows: &[(IpcacheKey, RemoteEndpointInfo)]) -> OpResult {
        let written = match rows {
            [(key, value)] => self.ipcache().update(key, value),
            rows => self.ipcache().update_batch(rows),
        };
        written.map_err(|error| match error {
            bpf::Error::Full { .. } => {
                format!("{error}; its size is fixed: name fewer or wider prefixes in policies").into()
            }
            error => error.into(),
        })
    }

    fn remove(&self, key: &IpcacheKey) -> OpResult {
        self.ipcache().delete(key)?;
        Ok(())
    }

    fn rows(&self) -> Result<Vec<(IpcacheKey, RemoteEndpointInfo)>, reconciler::OpError> {
        Ok(self.ipcache().entries()?)
    }
}

/// The reconciler's operations.
pub(crate) struct MapOps(pub(crate) Arc<dyn IpcacheMap>);

impl Ops<Entry> for MapOps {
    fn update(&mut self, _: &OpCx<'_>, entry: &mut Entry) -> OpResult {
        self.0.write(&[row(entry)])
    }

    fn delete(&mut self, _: &OpCx<'_>, entry: &Entry) -> OpResult {
        self.0.remove(&kernel::key(entry.prefix))
    }

    /// Rows of other clusters are not this table's and stay.
    fn prune(&mut self, _: &OpCx<'_>, entries: Rows<'_, Entry>) -> OpResult {
        let wanted: HashSet<_> = entries.map(|entry| entry.prefix).collect();
        for (key, _) in self.0.rows()? {
            if kernel::prefix(&key).is_some_and(|prefix| !wanted.contains(&prefix)) {
                self.0.remove(&key)?;
            }
        }
        Ok(())
    }
}

impl BatchOps<Entry> for MapOps {
    fn update_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Entry>]) {
        let rows: Vec<_> = batch.iter().map(|entry| row(&entry.object)).collect();
        if self.0.write(&rows).is_err() {
            // The kernel does not say which row it refused.
            for entry in batch {
                entry.result = self.update(cx, &mut entry.object);
            }
        }
    }

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<Entry>>]) {
        for entry in batch {
            entry.result = self.delete(cx, &entry.object);
        }
    }
}

fn row(entry: &Entry) -> (IpcacheKey, RemoteEndpointInfo) {
    (kernel::key(entry.prefix), kernel::value(&entry.winner().mapping))
}

/// The reconciler, without anything running.
pub(crate) fn builder(
    table: RwTable<Entry>,
    ops: MapOps,
) -> Builder<Entry, StatusField<Entry>, Operations<Entry>> {
    Reconciler::builder(table)
        .name("ipcache")
        .status(|entry| &entry.status, |entry, status| entry.status = status)
        .batch_ops(ops)
}
