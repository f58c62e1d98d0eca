//! The wiring: configuration, table, handle, start hook, reconciler, jobs, REST.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use api::{ControllerUuids, DebugSource, Route};
use datapath_api::Datapath;
use devices::Device;
use hive::prelude::*;
use identity::Identities;
use ipam::Ipam;
use ipcache::IpcacheWriter;
use k8s_tables::core::{Namespace, Pod};
use k8s_tables::{Api, Row, Source, Sources};
use local_node::{LocalNodeStore, StateConfig};
use memory_limit::MemoryLimit;
use metrics::Metrics;
use policy::Policies;
use runtime_options::{RuntimeOption, SOURCE_IP_VERIFICATION};
use statedb::{Initializer, RwTable, Table};
use tokio::sync::oneshot;

use crate::api::{debug, rest};
use crate::cilium_endpoint_uids::CiliumEndpointUids;
use crate::config::EndpointsConfig;
use crate::gc::{self, EndpointGc};
use crate::links::LinkSource;
use crate::metrics::Counts;
use crate::model::endpoint::Endpoint;
use crate::model::options::{Defaults, Options};
use crate::names::NameRecords;
use crate::pod_metadata::Objects;
use crate::reconcile::regeneration::{Regenerator, builder};
use crate::reconcile::targets::{HostIp, Targets};
use crate::requests::fence::fence;
use crate::requests::pods;
use crate::requests::service::{Context, Endpoints};
use crate::restore::damaged::ReportDamaged;
use crate::restore::files::StateFolder;
use crate::restore::finish::FinishRestore;
use crate::restore::host::HostLabels;
use crate::restore::ingress::IngressEndpoint;
use crate::restore::queue::DeletionQueue;
use crate::restore::start::{PreviousRun, StartHook};

/// Provides `Arc<Endpoints>` and `Arc<Table<Endpoint>>`, restores endpoints, serves the operations under `/endpoint`.
pub fn cell() -> Cell {
    module(
        "endpoints",
        "Workloads on this node",
        [
            config::<EndpointsConfig>(),
            statedb::table::<Endpoint>(),
            provide_private(|state: Config<StateConfig>| Arc::new(StateFolder::new(state.state()))),
            provide_private(|| Arc::new(LinkSource::kernel())),
            provide(restored_addresses),
            provide(endpoints),
            provide(|table: Arc<RwTable<Endpoint>>, files: Arc<StateFolder>| {
                Arc::new(CiliumEndpointUids::new((*table).clone(), (*files).clone()))
            }),
            // With the endpoints: their start hook, which reads the records, is before those of others.
            provide(|table: Arc<Table<Endpoint>>, files: Arc<StateFolder>, _: Arc<Endpoints>| {
                Arc::new(NameRecords::new((*table).clone(), (*files).clone()))
            }),
            provide(|endpoints: Arc<Endpoints>| -> Members<Route> { Members(rest::routes(&endpoints)) }),
            provide(|endpoints: Arc<Endpoints>| -> Member<DebugSource> {
                Member(debug::ongoing_creations(&endpoints))
            }),
        ],
    )
}

fn restored_addresses(files: Arc<StateFolder>) -> Member<ipam::Restored> {
    Member(ipam::Restored::new(move || files.restored_addresses().map_err(io::Error::other)))
}

/// The cells that an endpoint's state is written to.
#[derive(Params)]
struct TargetParams {
    table: Arc<RwTable<Endpoint>>,
    files: Arc<StateFolder>,
    ipam: Arc<Ipam>,
    ipcache: Arc<IpcacheWriter>,
    identities: Arc<Identities>,
    policies: Arc<Policies>,
    datapath: Arc<dyn Datapath>,
    node: Arc<LocalNodeStore>,
}

impl TargetParams {
    fn targets(&self) -> Targets {
        let node = self.node.clone();
        let host_ip: HostIp = Arc::new(move |address| {
            let node = node.node()?;
            if address.is_ipv4() { node.ipv4.map(IpAddr::V4) } else { node.ipv6.map(IpAddr::V6) }
        });
        Targets {
            datapath: self.datapath.clone(),
            ipcache: (*self.ipcache).clone(),
            identities: (*self.identities).clone(),
            policies: (*self.policies).clone(),
            ipam: (*self.ipam).clone(),
            files: (*self.files).clone(),
            host_ip,
        }
    }
}

/// Cluster objects; absent without a source of them.
#[derive(Params)]
struct ClusterParams {
    pods: Option<Arc<Table<Row<Pod>>>>,
    namespaces: Option<Arc<Table<Row<Namespace>>>>,
    sources: Option<Arc<Sources>>,
    origins: Group<Arc<dyn Source>>,
    api: Option<Arc<dyn Api>>,
}

impl ClusterParams {
    fn objects(self, node: Arc<LocalNodeStore>, counts: Counts) -> Option<Objects> {
        let (pods, namespaces) = self.pods.zip(self.namespaces)?;
        let partial = self.origins.iter().filter(|source| !source.has_namespaces());
        let partial = Arc::new(partial.map(|source| source.name().to_owned()).collect());
        let cluster = Arc::new(move || node.node().map(|node| node.cluster.clone()).unwrap_or_default());
        Some(Objects { pods, namespaces, sources: self.sources, api: self.api, partial, cluster, counts })
    }
}

/// Options, the node, and the dependencies of the jobs.
#[derive(Params)]
struct AgentParams {
    config: ConfigWatch<EndpointsConfig>,
    state: Config<StateConfig>,
    options: Option<Arc<Table<RuntimeOption>>>,
    links: Arc<LinkSource>,
    devices: Option<Arc<Table<Device>>>,
    memory: Option<Arc<MemoryLimit>>,
    metrics: Arc<Metrics>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
    health: Health,
}

fn endpoints(
    targets: TargetParams,
    cluster: ClusterParams,
    agent: AgentParams,
) -> anyhow::Result<Arc<Endpoints>> {
    let config = agent.config.get();
    let counts = Counts::default();
    counts.register(&agent.metrics, targets.table.reader(), targets.policies.table());
    let configured = Options::default().with(SOURCE_IP_VERIFICATION, config.enable_source_ip_verification);
    let defaults = Defaults::new(configured, agent.options);
    let filter = Arc::new(config.filter()?);
    let objects = cluster.objects(targets.node.clone(), counts.clone());
    let node = targets.node.table();
    let (gate, fence) = fence();
    let context = Context {
        identities: (*targets.identities).clone(),
        policies: (*targets.policies).clone(),
        datapath: targets.datapath.clone(),
        filter: filter.clone(),
        identity_max_jitter: config.identity_max_jitter,
        identity_allocation_timeout: config.identity_allocation_timeout,
        objects: objects.clone(),
        memory: agent.memory.unwrap_or_default(),
        uuids: ControllerUuids::default(),
    };
    let (table, ipam) = ((*targets.table).clone(), (*targets.ipam).clone());
    let endpoints = Arc::new(Endpoints::new(table, ipam, fence, defaults.clone(), context));

    // The hook passes its results to the jobs by channels: a job that starts first waits for them.
    let (unfinished_sender, unfinished) = oneshot::channel();
    let (damaged_sender, damaged) = oneshot::channel();
    let start = StartHook {
        previous: PreviousRun {
            table: (*targets.table).clone(),
            files: (*targets.files).clone(),
            ipam: (*targets.ipam).clone(),
            identities: (*targets.identities).clone(),
            filter: filter.clone(),
        },
        endpoints: endpoints.clone(),
        links: agent.links.clone(),
        datapath: targets.datapath.clone(),
        defaults: defaults.clone(),
        keep_options: config.keep_config,
        counts: counts.clone(),
        identity_initializer: targets.identities.register("endpoints"),
        unfinished: unfinished_sender,
        damaged: damaged_sender,
    };
    agent.lifecycle.hook("endpoint-restore").on_start(move |_| start.run()).add();

    let regenerator =
        Regenerator { table: targets.table.reader(), targets: targets.targets(), counts: counts.clone() };
    builder((*targets.table).clone(), regenerator).spawn(&agent.jobs);

    let finish = FinishRestore {
        endpoints: endpoints.clone(),
        table: targets.table.clone(),
        datapath: targets.datapath,
        ipcache: targets.ipcache.clone(),
        links: agent.links.clone(),
        defaults: defaults.clone(),
        objects: objects.clone(),
        queue: DeletionQueue::new(agent.state.run()),
        counts,
        initializer: initializer(&targets.table),
        ipcache_initializer: targets.ipcache.register("endpoints"),
        gate,
        unfinished,
    };
    agent.jobs.one_shot("finish-endpoint-restore", move |cx: JobCx| finish.run(cx)).add();
    if let Some(objects) = objects {
        let endpoints = endpoints.clone();
        agent.jobs.one_shot("follow-pods", move |cx: JobCx| pods::run(endpoints, objects, cx)).add();
    }
    let service = endpoints.clone();
    agent
        .jobs
        .observer("forget-removed", endpoints.table().observe(), move |_, changes| {
            gc::forget_removed(&service, &changes);
            std::future::ready(Ok(()))
        })
        .add();
    let ingress =
        IngressEndpoint { endpoints: endpoints.clone(), node: node.clone(), defaults: defaults.clone() };
    agent.jobs.one_shot("ingress-endpoint", move |cx: JobCx| ingress.run(cx)).add();
    let labels =
        HostLabels { endpoints: endpoints.clone(), identities: (*targets.identities).clone(), node, filter };
    agent.jobs.one_shot("host-labels", move |cx: JobCx| labels.run(cx)).add();
    let health = agent.health.child("records");
    let damaged = ReportDamaged { damaged, links: agent.links.clone(), ipam: targets.ipam, health };
    agent.jobs.one_shot("damaged-records", move |cx: JobCx| damaged.run(cx)).add();
    let gc = EndpointGc {
        endpoints: endpoints.clone(),
        links: agent.links,
        devices: agent.devices,
        config: agent.config,
    };
    agent.jobs.one_shot("endpoint-gc", move |cx: JobCx| gc.run(cx)).add();
    Ok(endpoints)
}

/// Keeps the table incomplete until the endpoints of the previous run are restored.
fn initializer(table: &RwTable<Endpoint>) -> Initializer<Endpoint> {
    table.transact(|txn| txn.register_initializer("restore")).0
}
