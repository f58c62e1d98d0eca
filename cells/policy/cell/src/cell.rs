//! The wiring.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use api::{Operation, Page, Route};
use datapath_api::Datapath;
use hive::prelude::*;
use hive_command::Command;
use identity::{Identity, Prefixes};
use ipcache::{Entry, IpcacheWriter};
use k8s_tables::cilium::CiliumCIDRGroup;
use k8s_tables::core::{ClusterNetworkPolicy, NetworkPolicy};
use k8s_tables::{PolicyObject, Row};
use loadbalancer::{Backend, Service};
use local_node::{LocalNodeConfig, StateConfig};
use maps::FamilyConfig;
use metrics::Metrics;
use policy_engine::SelectorClasses;
use proxy_ports::Proxies;
use runtime_options::{Follower, RuntimeOption, follower};
use state_file::StateFile;
use statedb::{RwTable, Table};
use tokio::sync::Notify;

use crate::api::map_state::MapState;
use crate::api::preview::Preview;
use crate::api::repository::RepositoryCommands;
use crate::api::rest;
use crate::api::rules::Rules;
use crate::api::why::Why;
use crate::computation::core::Core;
use crate::computation::keep::{self, Keep};
use crate::computation::log_cookies::{self, LogCookies};
use crate::config::PolicyConfig;
use crate::handle::Policies;
use crate::model::computation::PolicyComputation;
use crate::model::endpoint::EndpointPolicy;
use crate::model::logs::PolicyLog;
use crate::model::object::PolicyStatus;
use crate::model::selectors::{PeerSelector, SubjectSelector};
use crate::rounds::inputs::Inputs;
use crate::rounds::job::Job;
use crate::rounds::metrics::{Counters, Scrape};
use crate::rounds::outputs::Outputs;
use crate::rounds::prefixes::PolicyPrefixes;
use crate::rounds::services::ServiceTables;
use crate::rounds::state::Shared;

/// Provides `Arc<Policies>` and the tables `endpoint-policies`, `policies`, `policy-computations`, `policy-logs`, `selectors`
/// and `subject-selectors`, reconciles policy maps, serves the operations under `/policy`, contributes the commands
/// `policy/mapstate/*`, `policy/compute-all`, `policy/lookup-flow` and `policyrepo/*`.
pub fn cell() -> Cell {
    module(
        "policy",
        "Network policy",
        [
            config::<PolicyConfig>(),
            supply(Member(keep::version())),
            supply(Member(log_cookies::version())),
            statedb::table::<EndpointPolicy>(),
            statedb::table::<PolicyStatus>(),
            statedb::table::<PeerSelector>(),
            statedb::table::<SubjectSelector>(),
            statedb::table::<PolicyLog>(),
            statedb::table::<PolicyComputation>(),
            provide_private(shared),
            provide(policies),
            provide(routes),
            provide(why),
            provide(preview),
            provide(rules),
            provide(map_state),
        ],
    )
}

#[derive(Params)]
struct SharedParams {
    config: Config<PolicyConfig>,
    node: Config<LocalNodeConfig>,
    families: Config<FamilyConfig>,
    datapath: Arc<dyn Datapath>,
    proxies: Option<Arc<Proxies>>,
    state: Option<Config<StateConfig>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
    health: Health,
}

fn shared(p: SharedParams) -> anyhow::Result<Arc<Shared>> {
    let l7_proxy = p.proxies.as_ref().is_none_or(|proxies| proxies.config().enable_l7_proxy);
    let settings = p.config.settings(&p.node, &p.families, &*p.datapath, l7_proxy)?;
    let log_cookies = match &p.state {
        Some(state) => LogCookies::restore(StateFile::new(state.state().join(log_cookies::FILE)))?,
        None => LogCookies::default(),
    };
    let keep = p.state.map_or_else(Keep::default, |state| {
        let records = keep::records(state.state().join("policies"));
        records.run("last-good-policies", &p.lifecycle, &p.jobs, &p.health);
        Keep::new(records)
    });
    let lockdown = p.config.enable_endpoint_lockdown_on_policy_overflow;
    let core =
        Core::new(settings, p.datapath, p.proxies).with_lockdown(lockdown).with_log_cookies(log_cookies);
    Ok(Arc::new(Shared::new(core, keep)))
}

#[derive(Params)]
struct PolicyParams {
    config: ConfigWatch<PolicyConfig>,
    shared: Arc<Shared>,
    endpoints: Arc<RwTable<EndpointPolicy>>,
    statuses: Arc<RwTable<PolicyStatus>>,
    selectors: Arc<RwTable<PeerSelector>>,
    subject_selectors: Arc<RwTable<SubjectSelector>>,
    logs: Arc<RwTable<PolicyLog>>,
    computations: Arc<RwTable<PolicyComputation>>,
    objects: Arc<Table<PolicyObject>>,
    network_policies: Arc<Table<Row<NetworkPolicy>>>,
    cluster_network_policies: Arc<Table<Row<ClusterNetworkPolicy>>>,
    cidr_groups: Arc<Table<Row<CiliumCIDRGroup>>>,
    identities: Arc<Table<Identity>>,
    options: Option<Arc<Table<RuntimeOption>>>,
    services: Option<Arc<Table<Service>>>,
    backends: Option<Arc<Table<Backend>>>,
    prefixes: Arc<Prefixes>,
    ipcache: Arc<IpcacheWriter>,
    datapath: Arc<dyn Datapath>,
    proxies: Option<Arc<Proxies>>,
    metrics: Arc<Metrics>,
    jobs: JobGroup,
}

fn policies(p: PolicyParams) -> (Arc<Policies>, Member<Follower>, Members<Command>) {
    let settings = p.shared.lock().core.engine().settings().clone();
    // The repository starts at revision 1, as in Cilium.
    let revision = Arc::new(AtomicU64::new(1));
    let keep_decisions = p.shared.lock().core.keep_decisions();
    let policies = Policies::new((*p.endpoints).clone(), revision.clone()).with_decisions(keep_decisions);
    let counters = Counters::default();
    let scrape = Scrape {
        endpoints: p.endpoints.reader(),
        selectors: p.selectors.reader(),
        classes: SelectorClasses::new(&settings.cluster),
        datapath: p.datapath,
        config: p.config.clone(),
    };
    counters.repository(p.shared.lock().core.engine());
    counters.register(&p.metrics, scrape);
    let (applied_options, follower) = follower("policy");
    let config = p.config.get();
    let recompute = Arc::new(Notify::new());
    let commands = RepositoryCommands {
        shared: (*p.shared).clone(),
        revision: revision.clone(),
        recompute: recompute.clone(),
        computations: p.computations.reader(),
        selectors: p.selectors.reader(),
        subject_selectors: p.subject_selectors.reader(),
    };
    let job = Job {
        shared: (*p.shared).clone(),
        inputs: Inputs {
            endpoints: p.endpoints.reader(),
            objects: p.objects,
            network_policies: p.network_policies,
            cluster_network_policies: p.cluster_network_policies,
            cidr_groups: p.cidr_groups,
            identities: p.identities,
            options: p.options,
            services: p
                .services
                .zip(p.backends)
                .map(|(services, backends)| ServiceTables { services, backends }),
            services_in_use: false,
            proxies: p.proxies,
            settings,
            enable_cnp: config.enable_cilium_network_policy,
            enable_ccnp: config.enable_cilium_clusterwide_network_policy,
        },
        outputs: Outputs {
            endpoints: (*p.endpoints).clone(),
            statuses: (*p.statuses).clone(),
            selectors: (*p.selectors).clone(),
            subject_selectors: (*p.subject_selectors).clone(),
            logs: (*p.logs).clone(),
            computations: (*p.computations).clone(),
        },
        prefixes: PolicyPrefixes {
            allocator: p.prefixes,
            initializer: Some(p.ipcache.register("policy")),
            ipcache: p.ipcache,
        },
        revision,
        applied_options,
        counters,
        recompute,
        config: p.config,
    };
    p.jobs.one_shot("policy-maps", move |cx: JobCx| job.run(cx)).on_own_thread().add();
    (Arc::new(policies), Member(follower), commands.commands())
}

fn routes(
    shared: Arc<Shared>,
    selectors: Arc<Table<PeerSelector>>,
    subject_selectors: Arc<Table<SubjectSelector>>,
    endpoints: Arc<Table<EndpointPolicy>>,
) -> Members<Route> {
    let policy = move |_| {
        let shared = shared.clone();
        async move { shared.with(move |state| rest::policy(state.core.engine())).await }
    };
    let peers = move |_| {
        let snapshot = selectors.snapshot();
        std::future::ready(rest::selectors(selectors.all(&snapshot).map(|row| &row.0), |_| true))
    };
    let subjects = move |_| {
        let snapshot = subject_selectors.snapshot();
        // As in Cilium, whose selectors of subjects know no identities but those of its own endpoints.
        let local: BTreeSet<u32> = endpoints.all(&snapshot).map(|row| row.subject.identity).collect();
        let rows = subject_selectors.all(&snapshot).map(|row| &row.0);
        std::future::ready(rest::selectors(rows, |identity| local.contains(&identity)))
    };
    Members(vec![
        Route::new(Operation::GetPolicy, policy),
        Route::new(Operation::GetPolicySelectors, peers),
        Route::new(Operation::GetPolicySubjectSelectors, subjects),
    ])
}

fn why(
    shared: Arc<Shared>,
    endpoints: Arc<Table<EndpointPolicy>>,
    identities: Arc<Table<Identity>>,
    ipcache: Arc<Table<Entry>>,
    datapath: Arc<dyn Datapath>,
) -> Member<Page> {
    let endpoints = (*endpoints).clone();
    let why = Why { shared: (*shared).clone(), endpoints, identities, ipcache, datapath };
    Member(Page::new("why", move |query| {
        let why = why.clone();
        async move { hive::blocking(move || why.answer(&query)).await }
    }))
}

fn preview(
    shared: Arc<Shared>,
    endpoints: Arc<Table<EndpointPolicy>>,
    ipcache: Arc<Table<Entry>>,
    prefixes: Arc<Prefixes>,
) -> Member<Page> {
    let (shared, endpoints) = ((*shared).clone(), (*endpoints).clone());
    let preview = Preview { shared, endpoints, ipcache, prefixes };
    Member(Page::post("policy-preview", move |body| {
        let preview = preview.clone();
        async move { hive::blocking(move || preview.answer(&body)).await }
    }))
}

fn rules(shared: Arc<Shared>, datapath: Arc<dyn Datapath>) -> Member<Page> {
    let rules = Rules { shared: (*shared).clone(), datapath };
    Member(Page::new("policy-rules", move |_| {
        let rules = rules.clone();
        async move { hive::blocking(move || rules.answer()).await }
    }))
}

fn map_state(shared: Arc<Shared>, ipcache: Arc<Table<Entry>>) -> Members<Command> {
    MapState { shared: (*shared).clone(), ipcache }.commands()
}
