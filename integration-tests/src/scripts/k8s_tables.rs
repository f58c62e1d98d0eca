//! Tables of cluster objects that follow the tracker: namespaces and pods of a node called `testnode`; pools of addresses.

use std::sync::Arc;

use hive::prelude::*;
use k8s_tables::cilium::CiliumPodIPPool;
use k8s_tables::core::{Namespace, Pod};
use k8s_tables::{Resource, Selection};
use local_node::NodeName;

pub(super) fn cells() -> Vec<Cell> {
    let of_this_node =
        |node: Arc<NodeName>| Selection::all(Pod::KIND).with_fields(&format!("spec.nodeName={}", &**node));
    let tables = [k8s_tables::table::<Namespace>(), k8s_tables::selected::<Pod, _>(of_this_node)];
    vec![
        k8s_fake_apiserver::cell(),
        supply(Arc::new(NodeName::new("testnode"))),
        module("k8s-tables", "Tables of cluster objects", tables),
        module("health", "The table", status::table()),
    ]
}

pub(super) fn pool_cells() -> Vec<Cell> {
    let tables = [k8s_tables::table::<CiliumPodIPPool>()];
    vec![
        k8s_fake_apiserver::cell(),
        module("k8s-tables", "Tables of cluster objects", tables),
        module("health", "The table", status::table()),
    ]
}
