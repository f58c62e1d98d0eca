//! The reconciler from the table to `cilium_ipcache_v2`.

use std::collections::HashMap;
use std::sync::Arc;

use datapath_abi::{IpcacheKey, RemoteEndpointInfo};
use maps::DriftChecks;
use reconciler::{BatchEntry, BatchOps, Builder, OpCx, OpResult, Operations, Ops, Reconciler, StatusField};
use statedb::{Obj, Rows, RwTable};

use crate::entry::Entry;
use crate::kernel;

/// The kernel's map, or a fake.
pub trait IpcacheMap: Send + Sync + 'static {
    /// Upserts entries.
    fn write(&self, rows: &[(IpcacheKey, RemoteEndpointInfo)]) -> OpResult;
    /// Removes an entry, if it exists.
    fn remove(&self, key: &IpcacheKey) -> OpResult;
    /// Reads all entries.
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
pub(crate) struct MapOps {
    pub(crate) map: Arc<dyn IpcacheMap>,
    pub(crate) comparisons: Arc<DriftChecks>,
}

/// The owner of `cilium_ipcache_v2` in drift checks.
pub(crate) const OWNER: &str = "ipcache";

impl Ops<Entry> for MapOps {
    fn update(&mut self, _: &OpCx<'_>, entry: &mut Entry) -> OpResult {
        self.map.write(&[row(entry)])
    }

    fn delete(&mut self, _: &OpCx<'_>, entry: &Entry) -> OpResult {
        self.map.remove(&kernel::key(entry.prefix))
    }

    /// Rewrites entries that another process has changed. Entries of other clusters are not in this table and stay.
    fn prune(&mut self, _: &OpCx<'_>, entries: Rows<'_, Entry>) -> OpResult {
        let mut wanted: HashMap<_, _> = entries.map(|entry| (kernel::key(entry.prefix), entry)).collect();
        let mut repaired = Vec::new();
        let mut write = Vec::new();
        let rows = self.map.rows()?;
        let count = rows.len();
        for (key, found) in rows {
            match wanted.remove(&key) {
                Some(entry) if is_written(entry) && row(entry).1 != found => write.push(row(entry)),
                Some(_) => {}
                None if kernel::prefix(&key).is_some() => {
                    self.map.remove(&key)?;
                    repaired.push(key);
                }
                None => {}
            }
        }
        write.extend(wanted.into_values().filter(|entry| is_written(entry)).map(|entry| row(entry)));
        if !write.is_empty() {
            self.map.write(&write)?;
            repaired.extend(write.iter().map(|(key, _)| *key));
        }
        let prefix =
            |key: &IpcacheKey| kernel::prefix(key).map(|prefix| prefix.to_string()).unwrap_or_default();
        let repaired = repaired.iter().map(|key| format!("cilium_ipcache_v2: {}", prefix(key))).collect();
        self.comparisons.compared(OWNER, count, repaired);
        Ok(())
    }
}

impl BatchOps<Entry> for MapOps {
    fn update_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Entry>]) {
        let rows: Vec<_> = batch.iter().map(|entry| row(&entry.object)).collect();
        if self.map.write(&rows).is_err() {
            // The kernel does not report the failed entry of a batch: write one by one to find it.
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

/// Whether the map should have the entry: entries in flight or failed are left to the reconciler.
fn is_written(entry: &Entry) -> bool {
    entry.status.is_done()
}

fn row(entry: &Entry) -> (IpcacheKey, RemoteEndpointInfo) {
    (kernel::key(entry.prefix), kernel::value(&entry.mapping()))
}

/// Returns the reconciler, with nothing running yet.
pub(crate) fn builder(
    table: RwTable<Entry>,
    ops: MapOps,
) -> Builder<Entry, StatusField<Entry>, Operations<Entry>> {
    Reconciler::builder(table)
        .name("ipcache")
        .status(|entry| &entry.status, |entry, status| entry.status = status)
        .batch_ops(ops)
}
