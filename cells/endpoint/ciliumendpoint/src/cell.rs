//! The wiring.

use std::sync::Arc;

use endpoints::{CiliumEndpointUids, Endpoint};
use hive::prelude::*;
use identity::Range;
use ipcache::{Entry, IpcacheWriter};
use k8s_tables::Row;
use k8s_tables::cilium::{CiliumEndpoint, CiliumEndpointSlice};
use k8s_tables::core::Pod;
use k8s_types::SmolStr;
use k8s_writer::Writer;
use local_node::{LocalNode, LocalNodeConfig};
use maps::FamilyConfig;
use statedb::Table;

use crate::config::CiliumEndpointConfig;
use crate::publish::Publisher;
use crate::run::{Follow, Objects};

/// Writes the objects of own pods, if there is an API server, and claims the addresses of pods of other nodes in the
/// ipcache.
pub fn cell() -> Cell {
    module(
        "ciliumendpoint",
        "CiliumEndpoints",
        [
            config::<CiliumEndpointConfig>(),
            k8s_tables::optional::<CiliumEndpoint, _>(|config: Config<CiliumEndpointConfig>| {
                !config.disable_endpoint_crd && !config.enable_cilium_endpoint_slice
            }),
            k8s_tables::optional_pruned::<CiliumEndpointSlice, _>(
                |config: Config<CiliumEndpointConfig>| {
                    !config.disable_endpoint_crd && config.enable_cilium_endpoint_slice
                },
                prune,
            ),
            invoke(follow),
            invoke(publish),
        ],
    )
}

/// Removes the parts that only operators read. There is an endpoint for every pod of the cluster.
fn prune(slice: &mut CiliumEndpointSlice) {
    for endpoint in &mut slice.endpoints {
        endpoint.pod_uid = SmolStr::default();
        endpoint.named_ports = Vec::new();
        endpoint.service_account = SmolStr::default();
    }
}

#[derive(Params)]
struct FollowParams {
    config: Config<CiliumEndpointConfig>,
    cluster: Config<LocalNodeConfig>,
    objects: Arc<Table<Row<CiliumEndpoint>>>,
    slices: Arc<Table<Row<CiliumEndpointSlice>>>,
    node: Arc<Table<LocalNode>>,
    endpoints: Arc<Table<Endpoint>>,
    ipcache: Arc<IpcacheWriter>,
    entries: Arc<Table<Entry>>,
    jobs: JobGroup,
    health: Health,
}

fn follow(p: FollowParams) {
    if p.config.disable_endpoint_crd {
        return;
    }
    let follow = Follow {
        range: Range::of_cluster(p.cluster.cluster_id, p.cluster.max_connected_clusters),
        objects: match p.config.enable_cilium_endpoint_slice {
            true => Objects::Slices(p.slices),
            false => Objects::Endpoints(p.objects),
        },
        node: p.node,
        endpoints: p.endpoints,
        initializer: p.ipcache.register("ciliumendpoints"),
        ipcache: p.ipcache,
        entries: p.entries,
        health: p.health,
    };
    p.jobs
        .one_shot("remote-endpoints", move |cx: JobCx| async move {
            follow.run(cx).await;
            Ok(())
        })
        .add();
}

#[derive(Params)]
struct PublishParams {
    config: Config<CiliumEndpointConfig>,
    families: Config<FamilyConfig>,
    endpoints: Arc<Table<Endpoint>>,
    pods: Arc<Table<Row<Pod>>>,
    objects: Arc<Table<Row<CiliumEndpoint>>>,
    slices: Arc<Table<Row<CiliumEndpointSlice>>>,
    node: Arc<Table<LocalNode>>,
    uids: Arc<CiliumEndpointUids>,
    writer: Arc<Writer>,
    jobs: JobGroup,
    health: Health,
}

fn publish(p: PublishParams) {
    if p.config.disable_endpoint_crd || !p.writer.has_server() {
        return;
    }
    let publisher = Publisher {
        deletes_stale: p.config.enable_stale_cilium_endpoint_cleanup,
        families: (*p.families).clone(),
        endpoints: p.endpoints,
        pods: p.pods,
        objects: p.objects,
        slices: p.config.enable_cilium_endpoint_slice.then_some(p.slices),
        node: p.node,
        uids: p.uids,
        writer: p.writer,
        health: p.health,
    };
    p.jobs
        .one_shot("publish", move |cx: JobCx| async move {
            publisher.run(cx).await;
            Ok(())
        })
        .add();
}
