//! CiliumNodes whose Node is gone.

use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use k8s_types::core::Node;
use statedb::{Snapshot, Table};

/// The annotation of CiliumNodes that are never collected.
const KEEP: &str = "cilium.io/do-not-gc";

/// Whether the Node is missing. Kubernetes itself collects those with an owner.
pub(crate) fn is_left(cilium_node: &Row<CiliumNode>, nodes: &Table<Row<Node>>, snapshot: &Snapshot) -> bool {
    let metadata = &cilium_node.metadata;
    let is_kept = metadata.annotations.get(KEEP).is_some_and(|value| value == "true");
    let is_alone = || nodes.get(snapshot, Row::by_name("", &metadata.name)).is_none();
    !is_kept && metadata.owner_references.is_empty() && is_alone()
}
