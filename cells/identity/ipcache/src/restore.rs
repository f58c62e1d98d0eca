//! Restores entries from the kernel's map: they keep forwarding until the sources are complete.

use datapath_abi::{IpcacheKey, RemoteEndpointInfo};
use ipnetwork::IpNetwork;
use reconciler::Status;
use statedb::RwTable;

use crate::entry::{Claim, Entry};
use crate::kernel;
use crate::source::Source;

/// The resource of restored claims.
const RESOURCE: &str = "cilium_ipcache_v2";

/// Returns the entries of the kernel's map, as realized.
pub fn entries(rows: impl IntoIterator<Item = (IpcacheKey, RemoteEndpointInfo)>) -> Vec<Entry> {
    let entry = |(key, value): (IpcacheKey, RemoteEndpointInfo)| {
        let mapping = kernel::mapping(&value);
        let claim = Claim { source: Source::Restored, resource: RESOURCE.into(), mapping };
        Some(Entry { status: Status::done(), ..Entry::new(kernel::prefix(&key)?, claim) })
    };
    rows.into_iter().filter_map(entry).collect()
}

/// Returns the identities that packets to and from the entries' prefixes carry.
pub(crate) fn identities(entries: &[Entry]) -> Vec<(IpNetwork, u32)> {
    entries.iter().map(|entry| (entry.prefix, entry.identity())).collect()
}

/// Inserts restored entries into the table unless a source has a claim already. Returns their number.
pub(crate) fn fill(table: &RwTable<Entry>, entries: Vec<Entry>) -> usize {
    let mut txn = table.write();
    let mut count = 0;
    for entry in entries {
        if txn.get(Entry::by_prefix(entry.prefix)).is_none() {
            txn.insert(entry);
            count += 1;
        }
    }
    txn.commit();
    count
}
