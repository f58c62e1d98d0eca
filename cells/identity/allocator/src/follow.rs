//! The job that reads CiliumIdentities where there is no API server: they are those that packets of other nodes carry.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::{Health, JobCx};
use identity_core::{ClusterIdentity, number};
use k8s_tables::Row;
use k8s_tables::cilium::CiliumIdentity;
use statedb::{Batch, Initializer, Table};

use crate::allocator::Identities;
use crate::cluster::Change;
use crate::crd::report_ignored;
use crate::identity::Identity;

/// The parameters of the job.
pub(crate) struct Follow {
    pub(crate) identities: Identities,
    pub(crate) objects: Arc<Table<Row<CiliumIdentity>>>,
    /// Done when all objects have been read.
    pub(crate) initializer: Initializer<Identity>,
    /// The parent of the row about objects that are left out.
    pub(crate) health: Health,
}

impl Follow {
    pub(crate) async fn run(self, cx: JobCx) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow()).await;
    }

    async fn follow(self) {
        let Follow { identities, objects, initializer, health } = self;
        let rows = identities.table.reader();
        let mut initializer = Some(initializer);
        let mut changes = objects.changes();
        // Objects that are left out, by name: no identities, or their ids have other labels here.
        let mut ignored: BTreeMap<String, String> = BTreeMap::new();
        let mut left_out: BTreeMap<u32, ClusterIdentity> = BTreeMap::new();
        objects.wait_initialized().await;
        loop {
            let snapshot = objects.snapshot();
            let (batch, objects_changed) = changes.read(&snapshot, usize::MAX);
            let (_, rows_changed) = rows.all_watch(&snapshot);
            let before = ignored.clone();
            let mut applied: Vec<Change> = Vec::new();
            left_out.retain(|_, identity| {
                let is_free = identities.is_free_for(identity);
                if is_free {
                    ignored.remove(&identity.id.to_string());
                    applied.push(Change::Upsert(identity.clone()));
                }
                !is_free
            });
            applied.extend(read(&batch, &identities, &mut ignored, &mut left_out));
            if !applied.is_empty() {
                let writer = identities.clone();
                for identity in hive::blocking(move || writer.apply_of_others(applied)).await {
                    ignored.insert(identity.id.to_string(), "a workload of this node has its id".to_owned());
                    left_out.insert(identity.id, identity);
                }
            }
            if let Some(initializer) = initializer.take() {
                identities.complete(initializer);
            }
            if before != ignored {
                report_ignored(&health, &ignored);
            }
            drop(snapshot);
            tokio::select! {
                () = objects_changed.changed() => {}
                () = rows_changed.changed(), if !left_out.is_empty() => {}
            }
        }
    }
}

/// Returns the changes of a batch of objects.
fn read(
    batch: &Batch<Row<CiliumIdentity>>,
    identities: &Identities,
    ignored: &mut BTreeMap<String, String>,
    left_out: &mut BTreeMap<u32, ClusterIdentity>,
) -> Vec<Change> {
    let mut changes = Vec::new();
    for change in batch {
        let object = &change.object.object;
        let name = object.metadata.name.as_str();
        let known = number(name).filter(|id| identities.range.contains(*id));
        ignored.remove(name);
        known.iter().for_each(|id| drop(left_out.remove(id)));
        match ClusterIdentity::read(object, identities.range) {
            _ if change.deleted => changes.extend(known.map(Change::Delete)),
            Ok(identity) => changes.push(Change::Upsert(identity)),
            Err(fault) => {
                changes.extend(known.map(Change::Delete));
                ignored.insert(name.to_owned(), fault.to_string());
            }
        }
    }
    changes
}
