//! The wiring: table, restore, collection, REST, metrics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{Operation, Route};
use hive::prelude::*;
use identity_core::Range;
use k8s_tables::Row;
use k8s_tables::cilium::CiliumIdentity;
use k8s_writer::Writer;
use local_node::{LocalNodeConfig, StateConfig};
use maps::FamilyConfig;
use metrics::Metrics;
use state_file::Rewrite;
use statedb::{RwTable, Table};
use tokio::sync::watch;

use crate::allocator::Identities;
use crate::config::{AllocationMode, IdentityConfig};
use crate::crd::Backend;
use crate::follow::Follow;
use crate::forecast::{Forecast, SAMPLE_INTERVAL};
use crate::identity::Identity;
use crate::metrics::{Exhaustion, Kinds};
use crate::prefixes::Prefixes;
use crate::request::{IdentityRequest, Requests};
use crate::{reserved, rest, store};

/// The file of workloads' identities.
pub(crate) const FILE: &str = "identities.json";
/// The file of prefixes' identities, by Cilium's name.
pub(crate) const CHECKPOINT: &str = "local_allocator_state.json";
/// Interval of removals of identities after their quarantine.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// The shortest interval between comparisons with all CiliumIdentities.
const MIN_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Provides `Arc<Identities>`, `Arc<Prefixes>` and `Arc<Table<Identity>>`, serves the operations under `/identity`.
pub fn cell() -> Cell {
    module(
        "identity",
        "Security identities",
        [
            config::<IdentityConfig>(),
            supply(Member(store::version())),
            statedb::table::<Identity>(),
            statedb::table::<IdentityRequest>(),
            provide_private(new_handles),
            provide(|handles: Arc<Handles>| Arc::new(handles.identities.clone())),
            provide(|handles: Arc<Handles>| Arc::new(handles.prefixes.clone())),
            provide(routes),
        ],
    )
}

struct Handles {
    identities: Identities,
    prefixes: Prefixes,
}

#[derive(Params)]
struct HandleParams {
    config: Config<IdentityConfig>,
    node: Config<LocalNodeConfig>,
    families: Config<FamilyConfig>,
    state: Config<StateConfig>,
    table: Arc<RwTable<Identity>>,
    requests: Arc<RwTable<IdentityRequest>>,
    objects: Option<Arc<Table<Row<CiliumIdentity>>>>,
    writer: Option<Arc<Writer>>,
    metrics: Arc<Metrics>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
    health: Health,
}

fn new_handles(p: HandleParams) -> Arc<Handles> {
    let (table, state) = ((*p.table).clone(), p.state.state());
    let range = Range::of_cluster(p.node.cluster_id, p.node.max_connected_clusters);
    let families = [p.families.enable_ipv4, p.families.enable_ipv6];
    let cluster = p.objects.clone().zip(p.writer.clone().filter(|writer| writer.has_server()));
    let identities = match cluster {
        Some((objects, writer)) => of_cluster(&p, range, objects, writer),
        None => {
            let identities = Identities::new(table.clone(), range, Some(state.join(FILE)));
            if let Some(objects) = p.objects.clone() {
                follow(&p, &identities, objects);
            }
            identities
        }
    };
    let prefixes = Prefixes::new(table.clone(), families, Some(state.join(CHECKPOINT)));
    let (well_known, cluster) = (p.config.enable_well_known_identities, &p.node.cluster_name);
    table.transact(|w| {
        let fixed = reserved::well_known(cluster, &p.config.k8s_namespace).filter(|_| well_known);
        reserved::reserved().chain(fixed).for_each(|row| drop(w.insert(row)));
    });
    p.metrics.register_collector(Kinds(p.table.reader()));

    let (workloads, local) = (identities.clone(), prefixes.clone());
    identities.rewrite_by(Rewrite::new(&p.jobs, &p.health, FILE, move || workloads.rewrite()));
    prefixes.rewrite_by(Rewrite::new(&p.jobs, &p.health, CHECKPOINT, move || local.rewrite()));
    let initializer = identities.register("state-files");
    let (workloads, local) = (identities.clone(), prefixes.clone());
    p.lifecycle
        .hook("identity-restore")
        .on_start(move |_| async move {
            let (count, prefixes) = (workloads.restore()?, local.restore()?);
            workloads.complete(initializer);
            tracing::info!(identities = count, prefixes, "Identities of the previous run read");
            Ok(())
        })
        .add();

    let (local, grace) = (prefixes.clone(), p.config.identity_restore_grace_period);
    p.jobs
        .one_shot("release-local-identities", move |cx: JobCx| async move {
            let table = table.reader();
            let work = async {
                table.wait_initialized().await;
                local.wait_ipcache_complete().await;
                tokio::time::sleep(grace).await;
                hive::blocking(move || local.release_restored()).await
            };
            tokio::select! {
                released = work => match released {
                    0 => {}
                    count => tracing::info!(count, "Released unused identities of prefixes"),
                },
                () = cx.cancelled() => {}
            }
            Ok(())
        })
        .add();
    let workloads = identities.clone();
    p.jobs
        .timer("identity-gc", SWEEP_INTERVAL, move |_| {
            let workloads = workloads.clone();
            async move {
                hive::blocking(move || workloads.sweep(Instant::now())).await;
                Ok(())
            }
        })
        .add();
    forecast(&p, &identities);
    Arc::new(Handles { identities, prefixes })
}

/// Adds the job that forecasts the exhaustion of the range of workloads, for health and metrics.
fn forecast(p: &HandleParams, identities: &Identities) {
    let forecast = watch::Sender::new(Forecast::new(identities.range));
    p.metrics.register_collector(Exhaustion(forecast.subscribe()));
    let (identities, health) = (identities.clone(), p.health.child("exhaustion"));
    let forecast = Arc::new(forecast);
    p.jobs
        .timer("identity-forecast", SAMPLE_INTERVAL, move |_| {
            let (identities, health, forecast) = (identities.clone(), health.clone(), forecast.clone());
            async move {
                let Some(used) = hive::blocking(move || identities.used()).await else { return Ok(()) };
                forecast.send_modify(|forecast| forecast.sample(Instant::now(), used));
                if let Some(outlook) = forecast.borrow().outlook() {
                    outlook.report(&health);
                }
                Ok(())
            }
        })
        .add();
}

/// Adds the job that reads CiliumIdentities of sources without an API server.
fn follow(p: &HandleParams, identities: &Identities, objects: Arc<Table<Row<CiliumIdentity>>>) {
    let follow = Follow {
        identities: identities.clone(),
        objects,
        initializer: identities.register("ciliumidentities"),
        health: p.health.clone(),
    };
    p.jobs
        .one_shot("ciliumidentities", move |cx: JobCx| async move {
            follow.run(cx).await;
            Ok(())
        })
        .add();
}

/// Returns an allocator whose identities are CiliumIdentities, with the job that keeps them so.
fn of_cluster(
    p: &HandleParams,
    range: Range,
    objects: Arc<Table<Row<CiliumIdentity>>>,
    writer: Arc<Writer>,
) -> Identities {
    if p.config.identity_allocation_mode != AllocationMode::Crd {
        tracing::info!(
            "Identities are allocated by CiliumIdentities, as without a kvstore: set identity-allocation-mode to crd"
        );
    }
    let requests = Requests::new((*p.requests).clone());
    let identities = Identities::of_cluster((*p.table).clone(), range, requests.clone());
    let backend = Backend {
        identities: identities.clone(),
        requests,
        objects,
        writer,
        mode: p.config.identity_management_mode,
        sync_interval: p.config.identity_allocation_sync_interval.max(MIN_SYNC_INTERVAL),
        initializer: identities.register("ciliumidentities"),
        health: p.health.clone(),
    };
    p.jobs
        .one_shot("ciliumidentities", move |cx: JobCx| async move {
            backend.run(cx).await;
            Ok(())
        })
        .add();
    identities
}

fn routes(table: Arc<Table<Identity>>) -> Members<Route> {
    let by_id = table.clone();
    Members(vec![
        Route::new(Operation::GetIdentity, move |request| std::future::ready(rest::list(&table, &request))),
        Route::new(Operation::GetIdentityID, move |request| {
            std::future::ready(rest::by_id(&by_id, &request))
        }),
    ])
}
