//! The wiring: tables, writer, state file, reconciler, REST.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use api::{Operation, Route, StatusSource};
use devices::NodeAddress;
use hive::prelude::*;
use local_node::LocalNode;
use maps::{FamilyConfig, Maps};
use memory::MemoryLimit;
use metrics::Metrics;
use reconciler::Reconciler;
use statedb::{RwTable, Table};

use crate::backend::Backend;
use crate::balancer::Balancer;
use crate::config::ServicesConfig;
use crate::convert::Families;
use crate::follow::StateFile;
use crate::frontend::Frontend;
use crate::kernel::KernelMaps;
use crate::levels::Pressure;
use crate::metrics::Events;
use crate::reconcile::{KEEPER, LbOps, Surroundings};
use crate::rest;
use crate::service::Service;
use crate::writer::ServicesWriter;

/// Gives `Arc<ServicesWriter>` and the tables `services`, `frontends`, `backends`; keeps the load balancer maps like
/// them, follows the state file, serves `GET /service`.
pub fn cell() -> Cell {
    group([
        module(
            "loadbalancer-writer",
            "Services, frontends and backends",
            [
                config::<ServicesConfig>(),
                statedb::table::<Service>(),
                statedb::table::<Frontend>(),
                statedb::table::<Backend>(),
                provide(writer),
                provide(route),
                provide(|| Member(StatusSource::new("services", rest::status))),
            ],
        ),
        module(
            "loadbalancer-reflectors",
            "Sources of services",
            [module("file-reflector", "Services of a file", [invoke(state_file)])],
        ),
        module("loadbalancer-reconciler", "Frontends into the load balancer maps", [invoke(reconcile)]),
    ])
}

#[derive(Params)]
struct WriterParams {
    families: Config<FamilyConfig>,
    services: Arc<RwTable<Service>>,
    frontends: Arc<RwTable<Frontend>>,
    backends: Arc<RwTable<Backend>>,
    node: Arc<Table<LocalNode>>,
    metrics: Option<Arc<Metrics>>,
    addresses: Option<Arc<Table<NodeAddress>>>,
    jobs: JobGroup,
}

fn writer(p: WriterParams) -> anyhow::Result<Arc<ServicesWriter>> {
    let events = Events::default();
    if let Some(metrics) = p.metrics {
        events.register(&metrics);
    }
    let node = p.node.clone();
    let name = move || node_name(&node);
    let families = Families { v4: p.families.enable_ipv4, v6: p.families.enable_ipv6 };
    let tables = ((*p.services).clone(), (*p.frontends).clone(), (*p.backends).clone());
    let writer = Arc::new(ServicesWriter::new(tables.0, tables.1, tables.2, name, families, events));
    let (node, of_node) = (p.node, writer.clone());
    let mut last = None;
    p.jobs.observer("node-name", node.snapshots(), move |_, _| {
        let name = node_name(&node);
        if last.replace(name.clone()) != Some(name) {
            of_node.node_renamed();
        }
        async { Ok(()) }
    });
    if let Some(addresses) = p.addresses {
        let writer = writer.clone();
        p.jobs.one_shot("wildcard-addr-reconciler", move |cx: JobCx| async move {
            cx.health.ok("Running");
            let mut known: BTreeSet<IpAddr> = BTreeSet::new();
            loop {
                let snapshot = addresses.snapshot();
                let watch = addresses.watch(&snapshot);
                let now: BTreeSet<IpAddr> = addresses.all(&snapshot).map(|row| row.addr).collect();
                let changed: BTreeSet<IpAddr> = now.symmetric_difference(&known).copied().collect();
                if !changed.is_empty() {
                    writer.node_addresses_changed(&changed);
                }
                known = now;
                tokio::select! {
                    () = watch.changed() => {}
                    () = cx.cancelled() => return Ok(()),
                }
            }
        });
    }
    Ok(writer)
}

fn node_name(node: &Table<LocalNode>) -> String {
    let snapshot = node.snapshot();
    node.get(&snapshot, LocalNode::query()).map(|node| node.name.clone()).unwrap_or_default()
}

fn route(frontends: Arc<Table<Frontend>>) -> Member<Route> {
    Member(Route::new(Operation::GetService, move |_| {
        let answer = rest::get_service(&frontends);
        async move { answer }
    }))
}

fn state_file(
    config: Config<ServicesConfig>,
    families: Config<FamilyConfig>,
    memory: Option<Arc<MemoryLimit>>,
    writer: Arc<ServicesWriter>,
    jobs: JobGroup,
) {
    let Some(path) = config.state_file() else { return };
    let file = StateFile {
        path,
        interval: config.lb_state_file_interval,
        families: Families { v4: families.enable_ipv4, v6: families.enable_ipv6 },
        largest: memory.unwrap_or_default().largest_input(k8s::MAX_FILE),
        initializers: Some(writer.register("state-file")),
        writer: (*writer).clone(),
    };
    jobs.one_shot("file-reflector", move |cx: JobCx| file.follow(cx));
}

#[derive(Params)]
struct ReconcileParams {
    config: Config<ServicesConfig>,
    families: Config<FamilyConfig>,
    writer: Arc<ServicesWriter>,
    maps: Arc<Maps>,
    metrics: Option<Arc<Metrics>>,
    addresses: Option<Arc<Table<NodeAddress>>>,
    jobs: JobGroup,
}

fn reconcile(p: ReconcileParams) {
    let jobs = p.jobs.clone();
    jobs.one_shot("reconcile", move |cx: JobCx| run(p, cx));
}

/// Takes the maps over, waits for the sources if an earlier run has left services in them, then reconciles.
async fn run(p: ReconcileParams, cx: JobCx) -> anyhow::Result<()> {
    let (maps, families) = (p.maps, p.families);
    let comparisons = maps.comparisons().clone();
    let frontends = p.writer.frontends_for_statuses();
    let restored = hive::blocking(move || {
        let maps = KernelMaps::open(&maps, &families)?;
        Balancer::restore(Arc::new(maps))
    });
    let balancer = restored
        .await
        .map_err(|error| anyhow::anyhow!("cannot take over the load balancer maps: {error}"))?;
    if let Some(metrics) = &p.metrics {
        metrics.register_collector(Pressure(balancer.mirror.levels()));
    }
    let restored = balancer.restored();
    if restored > 0 {
        tracing::info!(count = restored, "Restored services of the previous run");
        tokio::select! {
            () = frontends.wait_initialized() => {}
            () = tokio::time::sleep(p.config.lb_init_wait_timeout) => {
                tracing::warn!("Not all sources of services have spoken, going on with those that have");
            }
            () = cx.cancelled() => return Ok(()),
        }
    }
    let surroundings = Surroundings {
        owns_classless: p.config.default_lb_service_ipam == "lbipam",
        addresses: p.addresses,
        frontends: p.writer.frontends(),
    };
    let health = cx.health.clone();
    let (handle, reconciler) = Reconciler::builder(frontends)
        .status(|frontend| &frontend.status, |frontend, status| frontend.status = status)
        .merge(|current, reconciled| current.id = reconciled.id)
        .batch_ops(LbOps { balancer, comparisons: comparisons.clone(), surroundings })
        .blocking()
        .retry(p.config.lb_retry_backoff_min, p.config.lb_retry_backoff_max)
        .prune(REFRESH)
        .refresh(REFRESH, 100)
        .report(move |state| state.tell(&health))
        .build();
    let compare = async {
        loop {
            comparisons.turn(KEEPER).await;
            handle.prune();
        }
    };
    tokio::select! {
        () = reconciler.run_job(&cx) => Ok(()),
        () = compare => Ok(()),
    }
}

/// How often the maps are compared as a whole.
const REFRESH: std::time::Duration = std::time::Duration::from_secs(1800);
