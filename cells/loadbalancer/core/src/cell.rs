//! The wiring: tables, writer, state file, reconciler, REST.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use api::{Operation, Route, StatusSource};
use devices::NodeAddress;
use hive::prelude::*;
use local_node::{LocalNode, StateConfig};
use maps::FamilyConfig;
use memory_limit::MemoryLimit;
use metrics::Metrics;
use reconciler::{Reconciler, SharedOps};
use state_file::Rewrite;
use statedb::{RwTable, Table};

use crate::commands::commands;
use crate::config::ServicesConfig;
use crate::lbmap::levels::Pressure;
use crate::lbmap::provider::{self, LbMapsProvider};
use crate::lbmap::rows::{LbMaps, MapError};
use crate::metrics::{Events, register_features};
use crate::model::backend::Backend;
use crate::model::families::Families;
use crate::model::frontend::Frontend;
use crate::model::service::Service;
use crate::reconciler::balancer::Balancer;
use crate::reconciler::control::Control;
use crate::reconciler::desired::Settings;
use crate::reconciler::id_file::{self, IdFile};
use crate::reconciler::operations::{LbOps, OWNER, ReconcileContext, Unserved};
use crate::reflectors::objects as reflect;
use crate::reflectors::state_file_job::StateFile;
use crate::rest;
use crate::writer::select::Place;
use crate::writer::services_writer::{NodeInfo, Rules, ServicesWriter};

/// Provides `Arc<ServicesWriter>` and the tables `services`, `frontends`, `backends`; reconciles the node's load
/// balancer maps with them, follows the state file, serves `GET /service`.
pub fn cell() -> Cell {
    bundle([control_plane(), provider::pinned()])
}

/// Returns the same for maps that another cell provides as `Arc<LbMapsProvider>`.
pub fn control_plane() -> Cell {
    bundle([
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
                provide(status),
            ],
        ),
        module(
            "loadbalancer-reflectors",
            "Sources of services",
            [module("file-reflector", "Services of a file", [invoke(state_file)]), reflect::cell()],
        ),
        module(
            "loadbalancer-reconciler",
            "Frontends into the load balancer maps",
            [
                provide(|| Arc::new(Control::default())),
                provide(commands),
                supply(Member(id_file::version())),
                invoke(reconcile),
            ],
        ),
    ])
}

#[derive(Params)]
struct WriterParams {
    config: Config<ServicesConfig>,
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
        register_features(&metrics, &p.config);
    }
    let rules = Rules {
        node_port_range: p.config.node_port_range.ports(),
        node_ports: p.config.kube_proxy_replacement,
        topology: p.config.enable_service_topology,
        modes: p.config.bpf_lb_mode_annotation,
        translation: p.config.translates(),
    };
    let (node, addresses) = (p.node.clone(), p.addresses.clone());
    let node_port_addresses = move || addresses.as_deref().map(node_port_addresses).unwrap_or_default();
    let node_info = NodeInfo::new(move || place(&node), node_port_addresses);
    let families = Families { v4: p.families.enable_ipv4, v6: p.families.enable_ipv6 };
    let tables = ((*p.services).clone(), (*p.frontends).clone(), (*p.backends).clone());
    let topology = rules.topology;
    let writer =
        Arc::new(ServicesWriter::new(tables.0, tables.1, tables.2, node_info, families, rules, events));
    let (node, of_node) = (p.node, writer.clone());
    p.jobs.one_shot("node-addr-reconciler", move |cx| follow_node(of_node, node, topology, cx)).add();
    if topology {
        // The job above follows the zone, too; this one exists so that health has the reporter that Cilium has.
        p.jobs
            .one_shot("zone-watcher", |cx: JobCx| async move {
                cx.health.ok("Watching local node zone topology changes");
                cx.cancelled().await;
                Ok(())
            })
            .add();
    }
    if let Some(addresses) = p.addresses {
        let writer = writer.clone();
        p.jobs.one_shot("wildcard-addr-reconciler", move |cx| follow_addresses(writer, addresses, cx)).add();
    }
    Ok(writer)
}

/// The minimum interval at which frontends are rewritten because the node's addresses have changed.
const ADDRESS_PACE: Duration = Duration::from_secs(1);

/// Makes frontends that depend on the node's addresses pending when these change. The first change is processed at
/// once, further ones are coalesced.
pub(crate) async fn follow_addresses(
    writer: Arc<ServicesWriter>,
    addresses: Arc<Table<NodeAddress>>,
    cx: JobCx,
) -> anyhow::Result<()> {
    cx.health.ok("Running");
    let mut known: BTreeSet<(IpAddr, bool)> = BTreeSet::new();
    let follow = async {
        loop {
            let snapshot = addresses.snapshot();
            let watch = addresses.watch(&snapshot);
            let now: BTreeSet<(IpAddr, bool)> =
                addresses.all(&snapshot).map(|row| (row.addr, row.node_port)).collect();
            let changed: BTreeSet<IpAddr> = now.symmetric_difference(&known).map(|(ip, _)| *ip).collect();
            drop(snapshot);
            if !changed.is_empty() {
                writer.node_addresses_changed(&changed);
                tokio::time::sleep(ADDRESS_PACE).await;
            }
            known = now;
            watch.changed().await;
        }
    };
    cx.token().run_until_cancelled(follow).await.unwrap_or(Ok(()))
}

/// Returns the location of the node from its row.
fn place(node: &Table<LocalNode>) -> Place {
    let snapshot = node.snapshot();
    let Some(node) = node.get(&snapshot, LocalNode::query()) else { return Place::default() };
    let zone = node.labels.get(ZONE).filter(|zone| !zone.is_empty());
    let zone = zone.map(|zone| zone.as_str().into());
    Place { node: node.name.clone(), zone, cluster_id: node.cluster_id }
}

/// The node label with its zone.
const ZONE: &str = "topology.kubernetes.io/zone";

fn node_port_addresses(addresses: &Table<NodeAddress>) -> BTreeSet<IpAddr> {
    let snapshot = addresses.snapshot();
    addresses.all(&snapshot).filter(|row| row.node_port).map(|row| row.addr).collect()
}

/// Repeats the selection of backends when the node's name or zone changes.
async fn follow_node(
    writer: Arc<ServicesWriter>,
    node: Arc<Table<LocalNode>>,
    topology: bool,
    cx: JobCx,
) -> anyhow::Result<()> {
    cx.health.ok("Running");
    let mut known: Option<Place> = None;
    loop {
        let watch = node.watch(&node.snapshot());
        let now = place(&node);
        if known.as_ref() != Some(&now) {
            let renamed = known.as_ref().is_none_or(|known| known.node != now.node);
            let by_zone = |service: &Service| topology && service.traffic_distribution.is_by_zone();
            writer.choose_again(|service| renamed || by_zone(service));
            known = Some(now);
        }
        tokio::select! {
            () = watch.changed() => {}
            () = cx.cancelled() => return Ok(()),
        }
    }
}

fn status(config: Config<ServicesConfig>) -> Member<StatusSource> {
    Member(StatusSource::new("services", move |status| rest::status(&config, status)))
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
    let Some(path) = &config.lb_state_file else { return };
    let file = StateFile {
        path: path.as_ref().to_owned(),
        interval: config.lb_state_file_interval,
        families: Families { v4: families.enable_ipv4, v6: families.enable_ipv6 },
        largest: memory.unwrap_or_default().largest_input(k8s_tables::MAX_FILE),
        initializers: Some(writer.register("state-file")),
        refused: Vec::new(),
        has_invalid_fields: false,
        writer: (*writer).clone(),
    };
    jobs.one_shot("file-reflector", move |cx: JobCx| file.follow(cx)).add();
}

#[derive(Params)]
struct ReconcileParams {
    config: Config<ServicesConfig>,
    writer: Arc<ServicesWriter>,
    maps: Arc<LbMapsProvider>,
    control: Arc<Control>,
    metrics: Option<Arc<Metrics>>,
    addresses: Option<Arc<Table<NodeAddress>>>,
    /// The folder in which ids are stored for the next run; without it they are not stored.
    state: Option<Config<StateConfig>>,
    lifecycle: Lifecycle,
    health: Health,
    jobs: JobGroup,
}

fn reconcile(p: ReconcileParams) {
    let without_effect = p.config.without_effect();
    if !without_effect.is_empty() {
        let message = format!(
            "{} option(s) have no effect: the datapath has no programs for them yet",
            without_effect.len()
        );
        p.health.child("options").degraded(message, without_effect.join(", "));
    }
    let jobs = p.jobs.clone();
    let ids = p.state.as_ref().map(|state| Arc::new(IdFile::new(state.state().join(id_file::FILE))));
    if let Some(file) = &ids {
        let (again, before) = (file.clone(), file.clone());
        file.rewrite_by(Rewrite::new(&p.jobs, &p.health, id_file::FILE, move || again.write()));
        p.lifecycle.hook("service-ids").on_start(move |_| async move { Ok(before.load()?) }).add();
    }
    jobs.one_shot("reconcile", move |cx: JobCx| run(p, ids, cx)).add();
}

/// Restores the maps, waits for the sources if the previous run has left services in them, then reconciles.
async fn run(p: ReconcileParams, ids: Option<Arc<IdFile>>, cx: JobCx) -> anyhow::Result<()> {
    let comparisons = p.maps.comparisons.clone();
    let frontends = p.writer.frontends_for_statuses();
    let begin = Instant::now();
    let Some((maps, mut balancer)) = open_maps(&p, &cx).await else { return Ok(()) };
    if let Some(ids) = ids {
        balancer.resume_ids(ids);
    }
    if let Some(metrics) = &p.metrics
        && !p.config.lb_pressure_metrics_interval.is_zero()
    {
        metrics.register_collector(Pressure(balancer.mirror.levels()));
    }
    let restored = balancer.restored();
    if restored > 0 {
        let ms = begin.elapsed().as_millis() as u64;
        let wildcards = balancer.restored_wildcards;
        tracing::info!(count = restored, wildcards, ms, "Restored services of the previous run");
        tokio::select! {
            () = frontends.wait_initialized() => {}
            () = tokio::time::sleep(p.config.lb_init_wait_timeout) => {
                tracing::warn!("Not all sources of services are complete, continuing with those that are");
            }
            () = cx.cancelled() => return Ok(()),
        }
    }
    let all = p.writer.frontends();
    let context = ReconcileContext {
        settings: Settings::from_config(&p.config),
        addresses: p.addresses,
        frontends: all.clone(),
    };
    let is_served = p.config.kube_proxy_replacement;
    let unserved = Unserved::new((!is_served).then(|| cx.health.child("node-ports")));
    let ops = LbOps { balancer, comparisons: comparisons.clone(), context, unserved };
    let ops = SharedOps::new(ops);
    let health = cx.health.clone();
    let (handle, reconciler) = Reconciler::builder(frontends)
        .status(|frontend| &frontend.status, |frontend, status| frontend.status = status)
        .merge(|current, reconciled| current.id = reconciled.id)
        .batch_ops(ops.clone())
        .blocking()
        .retry(p.config.lb_retry_backoff_min, p.config.lb_retry_backoff_max)
        .prune(REFRESH)
        .refresh(REFRESH, 100)
        .report(move |state| state.report_to(&health))
        .build();
    let reconciler = reconciler.refreshing_in(&p.jobs);
    p.control.set_running(maps, ops.clone(), handle.clone());
    let compare = async {
        loop {
            comparisons.turn(OWNER).await;
            handle.prune();
        }
    };
    let begin = Instant::now();
    let synced = async {
        all.wait_initialized().await;
        // No snapshot is held here: the wait below never ends, and old versions of all tables would stay in memory.
        let revision = all.revision(&all.snapshot());
        if handle.wait_until(revision).await.is_ok() {
            let (frontends, ms) = (all.len(&all.snapshot()), begin.elapsed().as_millis() as u64);
            tracing::info!(frontends, ms, "Services of all sources are in the maps");
        }
        std::future::pending().await
    };
    tokio::select! {
        () = reconciler.run_job(&cx) => {}
        () = compare => {}
        () = synced => {}
    }
    hive::blocking(move || ops.lock().balancer.release_reserved_ids()).await;
    Ok(())
}

/// Opens the maps and restores the state of the previous run from them, retrying until it succeeds; `None` when the
/// agent stops first.
async fn open_maps(p: &ReconcileParams, cx: &JobCx) -> Option<(Arc<dyn LbMaps>, Balancer)> {
    let (first, longest) = (p.config.lb_retry_backoff_min, p.config.lb_retry_backoff_max);
    let mut wait = first;
    loop {
        let provider = p.maps.clone();
        let read = hive::blocking(move || {
            let maps = provider.open()?;
            let balancer = Balancer::restore(maps.clone())?;
            Ok::<_, MapError>((maps, balancer))
        });
        match read.await {
            Ok(read) => return Some(read),
            Err(error) => {
                if cx.health.degraded_anew("Cannot take over the load balancer maps", &error) {
                    tracing::error!(%error, "Cannot take over the load balancer maps");
                }
            }
        }
        cx.token().run_until_cancelled(tokio::time::sleep(wait)).await?;
        wait = (wait * 2).min(longest.max(first));
    }
}

/// The interval of full comparisons of the maps.
const REFRESH: Duration = Duration::from_secs(1800);
