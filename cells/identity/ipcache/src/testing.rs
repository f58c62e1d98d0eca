//! A fake of the kernel's map, for tests of cells that write the ipcache.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datapath_abi::{IpcacheKey, RemoteEndpointInfo};
use ipnetwork::IpNetwork;
use parking_lot::Mutex;
use reconciler::{OpError, OpResult, Reconciler};
use statedb::{RwTable, Table};

use crate::entry::Entry;
use crate::reconcile::{IpcacheMap, MapOps};
use crate::writer::IpcacheWriter;
use crate::{kernel, reconcile};

/// A map in memory, which can refuse a prefix.
#[derive(Debug, Default)]
pub struct FakeMap {
    rows: Mutex<HashMap<IpcacheKey, RemoteEndpointInfo>>,
    refused: Mutex<Option<IpNetwork>>,
    operations: AtomicUsize,
}

impl FakeMap {
    /// Returns how many entries were written or deleted, repeated ones included.
    pub fn operations(&self) -> usize {
        self.operations.load(Ordering::Relaxed)
    }

    /// Returns the identity of exactly this prefix.
    pub fn identity(&self, prefix: &str) -> Option<u32> {
        let key = kernel::key(prefix.parse().ok()?);
        self.rows.lock().get(&key).map(|value| value.sec_identity)
    }

    /// Returns the tunnel endpoint of exactly this prefix.
    pub fn tunnel(&self, prefix: &str) -> Option<IpAddr> {
        let key = kernel::key(prefix.parse().ok()?);
        self.rows.lock().get(&key).and_then(|value| kernel::mapping(value).tunnel())
    }

    /// Returns the prefixes in the map, sorted.
    pub fn prefixes(&self) -> Vec<IpNetwork> {
        let mut prefixes: Vec<_> = self.rows.lock().keys().filter_map(kernel::prefix).collect();
        prefixes.sort();
        prefixes
    }

    /// Refuses to write this prefix from now on; `None` refuses nothing.
    pub fn refuse(&self, prefix: Option<IpNetwork>) {
        *self.refused.lock() = prefix;
    }

    /// Inserts an entry as left by the previous run.
    pub fn leave(&self, prefix: IpNetwork, identity: u32) {
        let value = kernel::value(&crate::Mapping::identity(identity));
        self.rows.lock().insert(kernel::key(prefix), value);
    }
}

impl IpcacheMap for FakeMap {
    fn write(&self, rows: &[(IpcacheKey, RemoteEndpointInfo)]) -> OpResult {
        let refused = self.refused.lock().map(kernel::key);
        self.operations.fetch_add(rows.len(), Ordering::Relaxed);
        for (key, value) in rows {
            if Some(*key) == refused {
                return Err("no space left on device".into());
            }
            self.rows.lock().insert(*key, *value);
        }
        Ok(())
    }

    fn remove(&self, key: &IpcacheKey) -> OpResult {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.rows.lock().remove(key);
        Ok(())
    }

    fn rows(&self) -> Result<Vec<(IpcacheKey, RemoteEndpointInfo)>, OpError> {
        Ok(self.rows.lock().iter().map(|(key, value)| (*key, *value)).collect())
    }
}

/// Returns an ipcache outside of a hive: the writer, the table, and the reconciler for the test to run.
pub fn ipcache(
    table: RwTable<Entry>,
    map: Arc<dyn IpcacheMap>,
) -> (IpcacheWriter, Table<Entry>, Reconciler<Entry>) {
    let (handle, reconciler) =
        reconcile::builder(table.clone(), MapOps { map, comparisons: Arc::default() }).build();
    let reader = table.reader();
    (IpcacheWriter::new(table, handle), reader, reconciler)
}
