//! Tables of cluster objects that follow the tracker, on a node called `testnode`.

use std::sync::Arc;

use hive::prelude::*;
use k8s::core::{Namespace, Pod};
use k8s::{Resource, Selection};
use local_node::NodeName;

pub(super) fn cells() -> Vec<Cell> {
    let of_this_node =
        |node: Arc<NodeName>| Selection::all(Pod::KIND).with_fields(&format!("spec.nodeName={}", &**node));
    let tables = [k8s::table::<Namespace>(), k8s::selected::<Pod, _>(of_this_node)];
    vec![
        k8s_tracker::cell(),
        supply(Arc::new(NodeName::new("testnode"))),
        module("k8s-tables", "Tables of cluster objects", tables),
        module("health", "The table", health::table()),
    ]
}
