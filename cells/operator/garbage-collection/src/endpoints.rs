//! CiliumEndpoints whose pod is gone.

use k8s_tables::Row;
use k8s_types::cilium::CiliumEndpoint;
use k8s_types::core::Pod;
use statedb::{Snapshot, Table};

/// Whether the pod of an endpoint is missing or has ended. One that has owners of other kinds alone is kept.
pub(crate) fn is_left(endpoint: &CiliumEndpoint, pods: &Table<Row<Pod>>, snapshot: &Snapshot) -> bool {
    let metadata = &endpoint.metadata;
    let owners = &metadata.owner_references;
    let pod = match owners.iter().find(|owner| owner.kind == "Pod") {
        Some(owner) => &owner.name,
        None if owners.is_empty() => &metadata.name,
        None => return false,
    };
    let row = pods.get(snapshot, Row::by_name(&metadata.namespace, pod));
    row.is_none_or(|pod| matches!(pod.status.phase.as_str(), "Succeeded" | "Failed"))
}
