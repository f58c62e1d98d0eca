//! The typed writer of the table: claims in, what counts out.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use reconciler::{Handle, StatusKind, Stopped};
use statedb::{Initializer, RwTable, TableTxn, Watch};

use crate::entry::{Claim, Entry, Mapping};
use crate::source::Source;

/// Writes what one or more sources say. Cheap to clone.
#[derive(Clone)]
pub struct IpcacheWriter {
    table: RwTable<Entry>,
    kernel: Handle,
}

/// One change that a source wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The prefix has this mapping, says the claim; an earlier claim of the same source and resource is replaced.
    Upsert(IpNetwork, Claim),
    /// The resource takes back what it said of the prefix.
    Delete(IpNetwork, Source, Arc<str>),
}

/// Why a mapping is not in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotApplied {
    /// The kernel refused; it is tried again.
    #[error("unable to write {prefix} to the ipcache: {error}")]
    Refused {
        /// The prefix.
        prefix: IpNetwork,
        /// The kernel's answer.
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

    /// Registers a source that has yet to say what it knows: nothing in the kernel is taken for stale before
    /// [`complete`](Self::complete).
    pub fn register(&self, name: &str) -> Initializer<Entry> {
        let mut txn = self.table.write();
        let initializer = txn.register_initializer(name);
        txn.commit();
        initializer
    }

    /// Says that a source has said all it knew at first.
    pub fn complete(&self, initializer: Initializer<Entry>) {
        let mut txn = self.table.write();
        initializer.done(&mut txn);
        txn.commit();
    }

    /// Makes all changes at once. Returns the table's revision, for [`applied`](Self::applied).
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) -> u64 {
        let mut txn = self.table.write();
        for change in changes {
            make(&mut txn, change);
        }
        self.table.revision(&txn.commit())
    }

    /// Says that the prefix has a mapping.
    pub fn upsert(&self, prefix: IpNetwork, source: Source, resource: &str, mapping: Mapping) -> u64 {
        self.apply([Change::Upsert(prefix, Claim { source, resource: resource.into(), mapping })])
    }

    /// Takes back what was said.
    pub fn delete(&self, prefix: IpNetwork, source: Source, resource: &str) -> u64 {
        self.apply([Change::Delete(prefix, source, resource.into())])
    }

    /// Makes what a resource says exactly this: other prefixes that it has spoken of lose its claim. Costs a walk
    /// over the table.
    pub fn replace(&self, source: Source, resource: &str, wanted: BTreeMap<IpNetwork, Mapping>) -> u64 {
        let resource: Arc<str> = resource.into();
        let mut txn = self.table.write();
        let said = |entry: &Entry| {
            entry.claims().iter().any(|claim| claim.source == source && claim.resource == resource)
        };
        let stale: Vec<IpNetwork> = txn
            .all()
            .filter(|entry| said(entry) && !wanted.contains_key(&entry.prefix))
            .map(|entry| entry.prefix)
            .collect();
        for prefix in stale {
            make(&mut txn, Change::Delete(prefix, source, resource.clone()));
        }
        for (prefix, mapping) in wanted {
            make(&mut txn, Change::Upsert(prefix, Claim { source, resource: resource.clone(), mapping }));
        }
        self.table.revision(&txn.commit())
    }

    /// Waits until the kernel has been told of everything up to a revision, and says whether it took these prefixes.
    pub async fn applied(&self, revision: u64, prefixes: &[IpNetwork]) -> Result<(), NotApplied> {
        self.kernel.wait_until(revision).await?;
        self.pending(prefixes).map(drop)
    }

    /// Returns none if the kernel has the prefixes as the table has them, else a watch on the first that it has not.
    pub fn pending(&self, prefixes: &[IpNetwork]) -> Result<Option<Watch>, NotApplied> {
        let snapshot = self.table.snapshot();
        for &prefix in prefixes {
            let (entry, watch) = self.table.get_watch(&snapshot, Entry::by_prefix(prefix));
            let Some(entry) = entry else { continue };
            match entry.status.kind() {
                StatusKind::Pending => return Ok(Some(watch)),
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

/// Takes back everything that a source said, whichever resource.
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
