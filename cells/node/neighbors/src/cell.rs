//! The wiring: tables, reconciler, jobs, the handle.

use std::sync::Arc;
use std::time::Duration;

use devices::{Device, Neighbor, Route};
use hive::Settings;
use hive::prelude::*;
use node_manager::Node;
use reconciler::Reconciler;
use statedb::{RwTable, Table};

use crate::calculate::Calculator;
use crate::config::kernel_can_manage;
use crate::metrics::Numbers;
use crate::ops::KernelNeighbors;
use crate::refresh::Refresher;
use crate::{DesiredNeighbor, ForwardableIp, ForwardableIps, NeighborConfig, Upkeep, nodes};

/// Interval of prunes after the first one.
const PRUNE_INTERVAL: Duration = Duration::from_secs(30 * 60);

/// Keeps the neighbour entries of all other nodes, if option `enable-l2-neigh-discovery` is set,
/// or XDP sends packets to them, which the kernel does not see (`bpf-lb-acceleration`).
pub fn cell() -> Cell {
    let upkeep = || Arc::new(if kernel_can_manage() { Upkeep::Kernel } else { Upkeep::Agent });
    bundle([
        control_plane(),
        module("neighbor-upkeep", "The side that keeps neighbour entries resolved", [provide(upkeep)]),
        module("neighbor-nodes", "Addresses of other nodes", [invoke(follow_nodes)]),
    ])
}

/// The same for addresses of any owner; needs an `Arc<`[`Upkeep`]`>`.
pub fn control_plane() -> Cell {
    module(
        "neighbor",
        "Neighbour entries of next hops",
        [
            config::<NeighborConfig>(),
            statedb::table::<ForwardableIp>(),
            statedb::table::<DesiredNeighbor>(),
            provide(|table: Arc<RwTable<ForwardableIp>>| Arc::new(ForwardableIps::new(table))),
            invoke(keep),
        ],
    )
}

#[derive(Params)]
struct KeepParams {
    config: Config<NeighborConfig>,
    settings: Arc<Settings>,
    upkeep: Arc<Upkeep>,
    forwardable: Arc<Table<ForwardableIp>>,
    desired: Arc<RwTable<DesiredNeighbor>>,
    devices: Arc<Table<Device>>,
    routes: Arc<Table<Route>>,
    live: Arc<Table<Neighbor>>,
    metrics: Option<Arc<metrics::Metrics>>,
    jobs: JobGroup,
}

fn keep(p: KeepParams) {
    let numbers = Numbers::default();
    if let Some(metrics) = p.metrics {
        numbers.register(&metrics);
    }
    if !p.config.is_on(&p.settings) {
        return;
    }
    let mut txn = p.desired.write();
    let initializer = txn.register_initializer("next-hops");
    txn.commit();
    let ops = KernelNeighbors::new(p.desired.reader(), Arc::clone(&p.devices), *p.upkeep, numbers.clone());
    Reconciler::builder(RwTable::clone(&p.desired))
        .status(|row: &DesiredNeighbor| &row.status, |row, status| row.status = status)
        .ops(ops)
        .blocking()
        .prune(PRUNE_INTERVAL)
        .spawn(&p.jobs);
    let refresher = Refresher { desired: Arc::clone(&p.desired), live: p.live, upkeep: *p.upkeep };
    let (desired, forwardable, devices, routes) = (p.desired, p.forwardable, p.devices, p.routes);
    let calculator = Calculator { forwardable, devices, routes, desired, numbers };
    p.jobs
        .one_shot("desired-neighbor-calculator", move |cx| async move {
            calculator.run(cx, initializer).await;
            Ok(())
        })
        .add();
    p.jobs
        .one_shot("neighbor-refresher", move |cx| async move {
            refresher.run(cx).await;
            Ok(())
        })
        .add();
}

fn follow_nodes(
    config: Config<NeighborConfig>,
    settings: Arc<Settings>,
    nodes: Arc<Table<Node>>,
    ips: Arc<ForwardableIps>,
    jobs: JobGroup,
) {
    if !config.is_on(&settings) {
        return;
    }
    let initializer = ips.register_initializer("nodes");
    jobs.one_shot("forwardable-nodes", move |cx| async move {
        nodes::run(nodes, ips, initializer, cx).await;
        Ok(())
    })
    .add();
}
