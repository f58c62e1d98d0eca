//! The wiring: options, tables, the controller, the reconciler of the skip maps, REST, the command.

use std::sync::Arc;

use api::{Operation, Route};
use endpoints::Endpoint;
use hive::prelude::*;
use k8s_tables::Row;
use k8s_tables::cilium::CiliumLocalRedirectPolicy;
use k8s_tables::core::Pod;
use loadbalancer::{Backend, ServicesWriter};
use maps::{FamilyConfig, Maps};
use metrics::Metrics;
use prometheus_client::metrics::histogram::Histogram;
use reconciler::Reconciler;
use statedb::{RwTable, Table};

use crate::config::RedirectConfig;
use crate::controller::{Controller, Tables};
use crate::policy::LocalRedirectPolicy;
use crate::skip::DesiredSkip;
use crate::skip_map::{KernelSkipMaps, SkipMapsProvider, SkipOps};
use crate::{commands, rest};

/// Returns the cell of local redirect policies on the node's pinned maps.
pub fn cell() -> Cell {
    let pinned = |maps: Arc<Maps>, families: Config<FamilyConfig>| {
        let families = (*families).clone();
        let open = move || Ok(Arc::new(KernelSkipMaps::open(&maps, &families)?) as Arc<_>);
        Arc::new(SkipMapsProvider::new(open))
    };
    bundle([control_plane(), module("loadbalancer-skip-maps", "The pinned skip maps", [provide(pinned)])])
}

/// Returns the same for maps that another cell provides as `Arc<SkipMapsProvider>`.
pub fn control_plane() -> Cell {
    module(
        "local-redirect-policies",
        "Traffic of services and addresses to pods of the same node",
        [
            config::<RedirectConfig>(),
            k8s_tables::optional::<CiliumLocalRedirectPolicy, _>(|config: Config<RedirectConfig>| {
                config.enable_local_redirect_policy
            }),
            statedb::table::<LocalRedirectPolicy>(),
            statedb::table::<DesiredSkip>(),
            provide(route),
            provide(commands::commands),
            invoke(follow),
            invoke(reconcile),
        ],
    )
}

#[derive(Params)]
struct FollowParams {
    config: Config<RedirectConfig>,
    objects: Arc<Table<Row<CiliumLocalRedirectPolicy>>>,
    pods: Option<Arc<Table<Row<Pod>>>>,
    endpoints: Option<Arc<Table<Endpoint>>>,
    policies: Arc<RwTable<LocalRedirectPolicy>>,
    skips: Arc<RwTable<DesiredSkip>>,
    writer: Arc<ServicesWriter>,
    metrics: Option<Arc<Metrics>>,
    jobs: JobGroup,
}

/// Upper bounds of the histogram of rounds, in seconds.
const DURATION_BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

fn follow(p: FollowParams) -> anyhow::Result<()> {
    let durations = Histogram::new(DURATION_BUCKETS);
    if let Some(metrics) = &p.metrics {
        let help = "Duration of a round of the controller of local redirect policies in seconds";
        metrics.register("localredirectpolicy_controller_duration_seconds", help, durations.clone());
        let (name, on) =
            ("network_policies_local_redirect_policy_enabled", p.config.enable_local_redirect_policy);
        metrics.register_feature(name, "Whether local redirect policies are in force", move || on);
    }
    let Some(pods) = p.pods.filter(|_| p.config.enable_local_redirect_policy) else { return Ok(()) };
    let tables = Tables {
        objects: (*p.objects).clone(),
        pods: (*pods).clone(),
        endpoints: p.endpoints.map(|endpoints| (*endpoints).clone()),
        policies: (*p.policies).clone(),
        skips: (*p.skips).clone(),
    };
    let controller = Controller::new((*p.writer).clone(), tables, p.config.ranges()?, durations);
    p.jobs.one_shot("controller", move |cx: JobCx| controller.follow(cx)).add();
    Ok(())
}

fn reconcile(
    config: Config<RedirectConfig>,
    skips: Arc<RwTable<DesiredSkip>>,
    maps: Arc<SkipMapsProvider>,
    jobs: JobGroup,
) {
    if config.enable_local_redirect_policy {
        Reconciler::builder((*skips).clone())
            .status(|row: &DesiredSkip| &row.status, |row, status| row.status = status)
            .merge(|current, reconciled| current.reconciled = reconciled.reconciled.clone())
            .ops(SkipOps::new(maps))
            .spawn(&jobs);
    }
}

fn route(
    policies: Arc<Table<LocalRedirectPolicy>>,
    backends: Arc<Table<Backend>>,
    pods: Option<Arc<Table<Row<Pod>>>>,
) -> Member<Route> {
    Member(Route::new(Operation::GetLrp, move |_| {
        let answer = rest::get_lrp(&policies, &backends, pods.as_deref());
        async move { answer }
    }))
}
