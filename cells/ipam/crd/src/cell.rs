//! The wiring.

use std::sync::Arc;

use hive::prelude::*;
use ipam::{Address, Family, Ipam, IpamConfig, ListedBy, NodeOwner, PoolSource, Pools};
use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use k8s_writer::Writer;
use local_node::{IpamMode, LocalNodeConfig, NodeName};
use maps::FamilyConfig;
use statedb::Table;
use tokio::sync::watch;

use crate::follow::Follower;

/// Reads the node's addresses from its CiliumNode, with `ipam=crd`, `azure` or `alibabacloud`.
pub fn cell() -> Cell {
    module(
        "crd",
        "Addresses of the CiliumNode",
        [provide_private(mode), provide_private(channel), provide(source), invoke(start)],
    )
}

/// The writer of the list; none in other modes.
#[derive(Debug)]
struct Mode {
    by: Option<ListedBy>,
}

fn mode(config: Config<LocalNodeConfig>) -> Arc<Mode> {
    let by = match config.ipam {
        IpamMode::Crd => Some(ListedBy::Users),
        IpamMode::Azure | IpamMode::Alibabacloud => Some(ListedBy::Operator),
        _ => None,
    };
    Arc::new(Mode { by })
}

/// The pools as the allocator reads them.
struct Channel(watch::Sender<Pools>);

fn channel() -> Arc<Channel> {
    Arc::new(Channel(watch::Sender::default()))
}

fn source(mode: Arc<Mode>, channel: Arc<Channel>, config: Config<FamilyConfig>) -> Members<PoolSource> {
    if mode.by.is_none() {
        return Members(Vec::new());
    }
    let waiting = families(&config).into_iter().fold(Pools::default(), |pools, family| {
        pools.waiting(family, "the CiliumNode objects are not read yet")
    });
    channel.0.send_replace(waiting);
    Members(vec![PoolSource::new(channel.0.subscribe())])
}

fn families(config: &FamilyConfig) -> Vec<Family> {
    let all = [(Family::V4, config.enable_ipv4), (Family::V6, config.enable_ipv6)];
    all.into_iter().filter_map(|(family, is_on)| is_on.then_some(family)).collect()
}

#[derive(Params)]
struct FollowParams {
    mode: Arc<Mode>,
    channel: Arc<Channel>,
    config: Config<IpamConfig>,
    families: Config<FamilyConfig>,
    name: Arc<NodeName>,
    own: Group<NodeOwner>,
    objects: Arc<Table<Row<CiliumNode>>>,
    addresses: Arc<Table<Address>>,
    ipam: Arc<Ipam>,
    writer: Arc<Writer>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: FollowParams) {
    let Some(by) = p.mode.by else { return p.health.ok("Off: pod ranges by the option ipam") };
    let follower = Follower {
        name: p.name.to_string(),
        by,
        families: families(&p.families),
        // The router's, and those of the other owners.
        own_addresses: 1 + p.own.iter().count(),
        write_interval: p.config.ipam_cilium_node_update_rate,
        objects: p.objects,
        addresses: p.addresses,
        ipam: p.ipam,
        writer: p.writer,
        health: p.health,
        pools: p.channel.0.clone(),
    };
    p.jobs.one_shot("pool", move |cx: JobCx| follower.run(cx)).add();
}
