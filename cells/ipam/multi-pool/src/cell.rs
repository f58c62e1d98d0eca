//! The wiring.

use std::sync::Arc;

use hive::prelude::*;
use ipam::{Address, Chooser, Ipam, IpamConfig};
use k8s_tables::Row;
use k8s_types::Api;
use k8s_types::cilium::{CiliumNode, CiliumPodIPPool};
use k8s_types::core::{Namespace, Pod};
use k8s_writer::Writer;
use local_node::{IpamMode, LocalNodeConfig, LocalNodeStore, NodeName};
use maps::FamilyConfig;
use statedb::Table;

use crate::Error;
use crate::chooser::TableChooser;
use crate::config::MultiPoolConfig;
use crate::follow::Follower;
use crate::pools::{NodePools, Settings};
use crate::waiting::Waiting;

/// Requests ranges of pools and chooses pools, with `ipam=multi-pool` and an API server; provides the table `podippools`.
pub fn cell() -> Cell {
    module(
        "multi-pool",
        "Pod ranges of several pools",
        [
            config::<MultiPoolConfig>(),
            k8s_tables::optional::<CiliumPodIPPool, _>(|mode: Arc<Mode>| mode.is_on),
            provide_private(mode),
            provide_private(|| Arc::new(Waiting::default())),
            provide(chooser),
            invoke(start),
        ],
    )
}

/// Whether the node has several pools.
#[derive(Debug)]
struct Mode {
    is_on: bool,
}

fn mode(config: Config<LocalNodeConfig>, api: Option<Arc<dyn Api>>) -> Arc<Mode> {
    Arc::new(Mode { is_on: config.ipam == IpamMode::MultiPool && api.is_some() })
}

#[derive(Params)]
struct ChooserParams {
    mode: Arc<Mode>,
    config: Config<MultiPoolConfig>,
    pods: Arc<Table<Row<Pod>>>,
    namespaces: Arc<Table<Row<Namespace>>>,
    pools: Arc<Table<Row<CiliumPodIPPool>>>,
    waiting: Arc<Waiting>,
}

fn chooser(p: ChooserParams) -> Members<Chooser> {
    if !p.mode.is_on {
        return Members(Vec::new());
    }
    let chooser = TableChooser {
        default_pool: p.config.ipam_default_ip_pool.as_str().into(),
        only_default_is_masqueraded: p.config.only_masquerade_default_pool,
        pods: p.pods,
        namespaces: p.namespaces,
        pools: p.pools,
        waiting: p.waiting,
    };
    Members(vec![Chooser::new(Arc::new(chooser))])
}

#[derive(Params)]
struct FollowParams {
    mode: Arc<Mode>,
    config: Config<MultiPoolConfig>,
    ipam_config: Config<IpamConfig>,
    families: Config<FamilyConfig>,
    name: Arc<NodeName>,
    store: Arc<LocalNodeStore>,
    objects: Arc<Table<Row<CiliumNode>>>,
    addresses: Arc<Table<Address>>,
    ipam: Arc<Ipam>,
    writer: Arc<Writer>,
    waiting: Arc<Waiting>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: FollowParams) -> Result<(), Error> {
    let settings: Settings = p.config.settings(&p.families)?;
    if !p.mode.is_on {
        p.health.ok("Off: one pool by the option ipam");
        return Ok(());
    }
    let follower = Follower {
        name: p.name.to_string(),
        settings,
        write_interval: p.ipam_config.ipam_cilium_node_update_rate,
        store: p.store,
        objects: p.objects,
        addresses: p.addresses,
        ipam: p.ipam,
        writer: p.writer,
        waiting: p.waiting,
        health: p.health,
        pools: NodePools::default(),
    };
    p.jobs.one_shot("pools", move |cx: JobCx| follower.run(cx)).add();
    Ok(())
}
