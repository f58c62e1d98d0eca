//! The wiring.

use std::sync::Arc;

use endpoints::Endpoint;
use hive::prelude::*;
use identity::Range;
use ipcache::IpcacheWriter;
use k8s_tables::Row;
use k8s_tables::cilium::CiliumEndpoint;
use local_node::{LocalNode, LocalNodeConfig};
use statedb::Table;

use crate::config::CiliumEndpointConfig;
use crate::run::Follow;

/// Claims the addresses of pods of other nodes in the ipcache.
pub fn cell() -> Cell {
    module("ciliumendpoint", "Pods of other nodes", [config::<CiliumEndpointConfig>(), invoke(follow)])
}

#[derive(Params)]
struct FollowParams {
    config: Config<CiliumEndpointConfig>,
    cluster: Config<LocalNodeConfig>,
    objects: Arc<Table<Row<CiliumEndpoint>>>,
    node: Arc<Table<LocalNode>>,
    endpoints: Arc<Table<Endpoint>>,
    ipcache: Arc<IpcacheWriter>,
    jobs: JobGroup,
    health: Health,
}

fn follow(p: FollowParams) {
    if p.config.disable_endpoint_crd {
        return;
    }
    let follow = Follow {
        range: Range::of_cluster(p.cluster.cluster_id, p.cluster.max_connected_clusters),
        objects: p.objects,
        node: p.node,
        endpoints: p.endpoints,
        initializer: p.ipcache.register("ciliumendpoints"),
        ipcache: p.ipcache,
        health: p.health,
    };
    p.jobs
        .one_shot("remote-endpoints", move |cx: JobCx| async move {
            follow.run(cx).await;
            Ok(())
        })
        .add();
}
