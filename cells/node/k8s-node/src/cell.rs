//! The wiring.

use std::sync::Arc;

use devices::NodeAddress;
use hive::prelude::*;
use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use k8s_types::core::Node;
use k8s_types::{Api, Kind, Source};
use k8s_writer::Writer;
use local_node::{AutomaticRanges, IpamMode, LocalNodeConfig, LocalNodeStore, NodeName, PodCidrSource};
use maps::FamilyConfig;
use statedb::Table;

use crate::config::{K8sNodeConfig, Settings};
use crate::follow::Follower;

/// Follows the Node and the CiliumNode of this node; provides `Arc<`[`PodCidrSource`]`>`.
pub fn cell() -> Cell {
    module(
        "k8s-node",
        "The local node in the cluster",
        [config::<K8sNodeConfig>(), provide(pod_cidr_source), invoke(start)],
    )
}

/// With an API server ranges come from the cluster. Without one only a mode that asks for it reads them from objects of
/// other sources.
fn pod_cidr_source(
    config: Config<LocalNodeConfig>,
    api: Option<Arc<dyn Api>>,
    sources: Group<Arc<dyn Source>>,
) -> Arc<PodCidrSource> {
    let has_node = sources.iter().any(|source| source.has(Kind::Node));
    let from_objects = config.ipam == IpamMode::Kubernetes && has_node;
    Arc::new(match api.is_some() || from_objects {
        true => PodCidrSource::Cluster,
        false => PodCidrSource::Node,
    })
}

#[derive(Params)]
struct FollowParams {
    name: Arc<NodeName>,
    node_config: Config<LocalNodeConfig>,
    config: Config<K8sNodeConfig>,
    families: Config<FamilyConfig>,
    cidr_source: Arc<PodCidrSource>,
    sources: Group<Arc<dyn Source>>,
    nodes: Arc<Table<Row<Node>>>,
    cilium_nodes: Arc<Table<Row<CiliumNode>>>,
    addresses: Arc<Table<NodeAddress>>,
    store: Arc<LocalNodeStore>,
    automatic: Arc<AutomaticRanges>,
    writer: Option<Arc<Writer>>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: FollowParams) {
    if !p.sources.iter().any(|source| source.has(Kind::Node)) {
        return p.health.ok("There is no cluster");
    }
    let mut settings = Settings::new(&p.name, &p.node_config, &p.config, &p.families);
    if *p.cidr_source == PodCidrSource::Node {
        settings = settings.without_cluster();
    }
    let follower = Follower {
        settings,
        nodes: p.nodes,
        cilium_nodes: p.cilium_nodes,
        addresses: p.addresses,
        store: p.store,
        automatic: p.automatic,
        writer: p.writer,
    };
    p.jobs.one_shot("follow", move |cx: JobCx| follower.run(cx)).add();
}
