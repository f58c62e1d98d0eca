//! The kernel's map without a kernel, for tests of cells that write the ipcache.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use datapath_abi::{IpcacheKey, RemoteEndpointInfo};
use ipnetwork::IpNetwork;
use reconciler::{OpError, OpResult, Reconciler};
use statedb::{RwTable, Table};

use crate::entry::Entry;
use crate::reconcile::{IpcacheMap, MapOps};
use crate::writer::IpcacheWriter;
use crate::{kernel, reconcile};

/// A map in memory, which can be told to refuse a prefix.
#[derive(Debug, Default)]
pub struct FakeMap {
    rows: Mutex<HashMap<IpcacheKey, RemoteEndpointInfo>>,
    refused: Mutex<Option<IpNetwork>>,
}

impl FakeMap {
    /// The identity that the map has for exactly this prefix.
    pub fn identity(&self, prefix: &str) -> Option<u32> {
        let key = kernel::key(prefix.parse().ok()?);
        lock(&self.rows).get(&key).map(|value| value.sec_identity)
    }

    /// The prefixes in the map, sorted.
    pub fn prefixes(&self) -> Vec<IpNetwork> {
        let mut prefixes: Vec<_> = lock(&self.rows).keys().filter_map(kernel::prefix).collect();
        prefixes.sort();
        prefixes
    }

    /// Refuses to write this prefix from now on; `None` refuses nothing.
    pub fn refuse(&self, prefix: Option<IpNetwork>) {
        *lock(&self.refused) = prefix;
    }

    /// Puts a row there as the previous run would have left it.
    pub fn leave(&self, prefix: IpNetwork, identity: u32) {
        let value = kernel::value(&crate::Mapping::identity(identity));
        lock(&self.rows).insert(kernel::key(prefix), value);
    }
}

impl IpcacheMap for FakeMap {
    fn write(&self, rows: &[(IpcacheKey, RemoteEndpointInfo)]) -> OpResult {
        let refused = lock(&self.refused).map(kernel::key);
        for (key, value) in rows {
            if Some(*key) == refused {
                return Err("no space left on device".into());
            }
            lock(&self.rows).insert(*key, *value);
        }
        Ok(())
    }

    fn remove(&self, key: &IpcacheKey) -> OpResult {
        lock(&self.rows).remove(key);
        Ok(())
    }

    fn rows(&self) -> Result<Vec<(IpcacheKey, RemoteEndpointInfo)>, OpError> {
        Ok(lock(&self.rows).iter().map(|(key, value)| (*key, *value)).collect())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An ipcache outside of a hive: the writer, the table, and the reconciler for the test to run.
pub fn ipcache(
    table: RwTable<Entry>,
    map: Arc<dyn IpcacheMap>,
) -> (IpcacheWriter, Table<Entry>, Reconciler<Entry>) {
    let (handle, reconciler) =
        reconcile::builder(table.clone(), MapOps { map, comparisons: Arc::default() }).build();
    let reader = table.reader();
    (IpcacheWriter::new(table, handle), reader, reconciler)
}
