//! CiliumEndpoints whose pod is gone.

use operator_objects::{EndpointRow, Phase, PodRow};
use statedb::{Snapshot, Table};

/// Whether the pod of an endpoint is missing or has ended. One that has owners of other kinds alone is kept.
pub(crate) fn is_left(endpoint: &EndpointRow, pods: &Table<PodRow>, snapshot: &Snapshot) -> bool {
    let Some(pod) = endpoint.pod() else { return false };
    let row = pods.get(snapshot, PodRow::by_name(&endpoint.namespace, pod));
    row.is_none_or(|pod| pod.phase == Phase::Ended)
}
