//! Endpoints follow the objects of their pods and namespaces.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::id::EndpointId;
use crate::pod::Objects;
use crate::service::{Endpoints, Refused};

/// When an endpoint is looked at again for which there was no identity.
const RETRY: Duration = Duration::from_secs(5);

/// Brings labels and names of ports of all endpoints to what the objects say, as long as it is polled.
pub(crate) async fn follow(endpoints: &Endpoints, objects: &Objects) {
    // Before all sources have spoken nothing is known to have changed.
    objects.complete().await;
    let table = endpoints.table();
    let (mut pods, mut namespaces, mut rows) =
        (objects.pods.changes(), objects.namespaces.changes(), table.changes());
    let mut failed: BTreeSet<EndpointId> = BTreeSet::new();
    loop {
        let snapshot = table.snapshot();
        let (pod_changes, pod_watch) = pods.read(&snapshot, usize::MAX);
        let (namespace_changes, namespace_watch) = namespaces.read(&snapshot, usize::MAX);
        let (row_changes, row_watch) = rows.read(&snapshot, usize::MAX);
        let mut ids = std::mem::take(&mut failed);
        for change in pod_changes.iter().filter(|change| !change.deleted) {
            let name = statedb::TableSpec::key(&*change.object);
            ids.extend(table.list(&snapshot, Endpoint::by_pod(&name)).map(|row| row.id()));
        }
        let changed: BTreeSet<&str> =
            namespace_changes.iter().map(|change| change.object.metadata.name.as_str()).collect();
        if !changed.is_empty() {
            let within = |row: &&Endpoint| changed.contains(row.record.k8s_namespace.as_str());
            ids.extend(table.all(&snapshot).map(|row| &**row).filter(within).map(Endpoint::id));
        }
        // A request that was under way may have written what an object said before.
        ids.extend(row_changes.iter().filter(|change| !change.deleted).map(|change| change.object.id()));
        for id in ids {
            // One without an identity is being created: who creates it looks at the objects then.
            let row = table.get(&snapshot, Endpoint::by_id(id));
            if row.is_none_or(|row| row.record.sec_label.is_none() || row.state.is_leaving()) {
                continue;
            }
            match endpoints.describe(id) {
                Ok(true) => tracing::info!(endpointID = id.0, "Labels or ports of the pod have changed"),
                Ok(false) | Err(Refused::NotFound) => {}
                Err(error) => {
                    tracing::warn!(endpointID = id.0, %error, "Unable to follow the labels of the pod");
                    failed.insert(id);
                }
            }
        }
        tokio::select! {
            () = pod_watch.changed() => {}
            () = namespace_watch.changed() => {}
            () = row_watch.changed() => {}
            () = tokio::time::sleep(RETRY), if !failed.is_empty() => {}
        }
    }
}
