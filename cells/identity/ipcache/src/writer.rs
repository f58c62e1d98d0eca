//! The typed writer of the table.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use reconciler::{Handle, StatusKind, Stopped};
use statedb::{Initializer, RwTable, TableTxn, Watch};

use crate::entry::{Claim, Entry, Mapping};
use crate::source::Source;

/// Writes the claims of sources. Cheap to clone.
#[derive(Clone)]
pub struct IpcacheWriter {
    table: RwTable<Entry>,
    kernel: Handle,
}

/// A change of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Adds the claim on the prefix, or replaces that of the same source and resource.
    Upsert(IpNetwork, Claim),
    /// Deletes the claim of the source and resource on the prefix.
    Delete(IpNetwork, Source, Arc<str>),
}

/// The reason why a mapping is not in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotApplied {
    /// The kernel has refused the entry; it is retried.
    #[error("unable to write {prefix} to the ipcache: {error}")]
    Refused {
        /// The prefix.
        prefix: IpNetwork,
        /// The kernel's error.
        error: Arc<str>,
    },
    /// The agent is stopping.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl IpcacheWriter {
    pub(crate) fn new(table: RwTable<Entry>, kernel: Handle) -> IpcacheWriter {
        IpcacheWriter { table, kernel }
    }

    /// Registers a source that is not complete yet: no entry of the kernel is stale before
    /// [`complete`](Self::complete).
    pub fn register(&self, name: &str) -> Initializer<Entry> {
        let mut txn = self.table.write();
        let initializer = txn.register_initializer(name);
        txn.commit();
        initializer
    }

    /// Marks a source as complete.
    pub fn complete(&self, initializer: Initializer<Entry>) {
        let mut txn = self.table.write();
        initializer.done(&mut txn);
        txn.commit();
    }

    /// Makes all changes in one transaction. Returns the table's revision, for [`applied`](Self::applied).
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) -> u64 {
        let mut txn = self.table.write();
        for change in changes {
            make(&mut txn, change);
        }
        self.table.revision(&txn.commit())
    }

    /// Upserts one claim; see [`apply`](Self::apply).
    pub fn upsert(&self, prefix: IpNetwork, source: Source, resource: &str, mapping: Mapping) -> u64 {
        self.apply([Change::Upsert(prefix, Claim { source, resource: resource.into(), mapping })])
    }

    /// Deletes one claim; see [`apply`](Self::apply).
    pub fn delete(&self, prefix: IpNetwork, source: Source, resource: &str) -> u64 {
        self.apply([Change::Delete(prefix, source, resource.into())])
    }

    /// Replaces all claims of a resource. Scans the table.
    pub fn replace(&self, source: Source, resource: &str, desired: BTreeMap<IpNetwork, Mapping>) -> u64 {
        let resource: Arc<str> = resource.into();
        let mut txn = self.table.write();
        let has_claim = |entry: &Entry| {
            entry.claims().iter().any(|claim| claim.source == source && claim.resource == resource)
        };
        let stale: Vec<IpNetwork> = txn
            .all()
            .filter(|entry| has_claim(entry) && !desired.contains_key(&entry.prefix))
            .map(|entry| entry.prefix)
            .collect();
        for prefix in stale {
            make(&mut txn, Change::Delete(prefix, source, resource.clone()));
        }
        for (prefix, mapping) in desired {
            make(&mut txn, Change::Upsert(prefix, Claim { source, resource: resource.clone(), mapping }));
        }
        self.table.revision(&txn.commit())
    }

    /// Waits until everything up to a revision was written to the kernel. Returns an error if it has refused one of the
    /// prefixes.
    pub async fn applied(&self, revision: u64, prefixes: &[IpNetwork]) -> Result<(), NotApplied> {
        self.kernel.wait_until(revision).await?;
        self.pending(prefixes).map(drop)
    }

    /// Returns a watch on the first of the prefixes that differs between kernel and table; `None` if none does.
    pub fn pending(&self, prefixes: &[IpNetwork]) -> Result<Option<Watch>, NotApplied> {
        let snapshot = self.table.snapshot();
        for &prefix in prefixes {
            // A watch costs memory for as long as the row lives: only the one that is waited for has it.
            let Some(entry) = self.table.get(&snapshot, Entry::by_prefix(prefix)) else { continue };
            match entry.status.kind() {
                StatusKind::Pending => {
                    return Ok(Some(self.table.get_watch(&snapshot, Entry::by_prefix(prefix)).1));
                }
                StatusKind::Error => {
                    let error = entry.status.error().unwrap_or_default().into();
                    return Err(NotApplied::Refused { prefix, error });
                }
                StatusKind::Done | StatusKind::Refreshing | StatusKind::Unset => {}
            }
        }
        Ok(None)
    }
}

fn make(txn: &mut TableTxn<'_, Entry>, change: Change) {
    match change {
        Change::Upsert(prefix, claim) => {
            let entry = match txn.get(Entry::by_prefix(prefix)) {
                None => Some(Entry::new(prefix, claim)),
                Some(entry) => entry.with(claim),
            };
            if let Some(entry) = entry {
                txn.insert(entry);
            }
        }
        Change::Delete(prefix, source, resource) => {
            let Some(entry) = txn.get(Entry::by_prefix(prefix)).cloned() else { return };
            match entry.without(source, &resource) {
                Some(left) if left.claims().len() == entry.claims().len() => {}
                Some(left) => {
                    txn.insert(left);
                }
                None => {
                    txn.delete(Entry::by_prefix(prefix));
                }
            }
        }
    }
}

/// Deletes all claims of a source. Returns their number.
pub(crate) fn retract(table: &RwTable<Entry>, source: Source) -> usize {
    let mut txn = table.write();
    let changes: Vec<Change> = txn
        .all()
        .flat_map(|entry| {
            let of_source = entry.claims().iter().filter(|claim| claim.source == source);
            of_source.map(|claim| Change::Delete(entry.prefix, source, claim.resource.clone()))
        })
        .collect();
    let count = changes.len();
    for change in changes {
        make(&mut txn, change);
    }
    txn.commit();
    count
}
