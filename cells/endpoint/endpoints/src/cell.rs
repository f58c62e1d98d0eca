//! The wiring: table, reconciler, start, REST.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use api::{ControllerUuids, DebugSource, Operation, Request, Response, Route};
use datapath_api::Datapath;
use devices::{Device, Netlink};
use hive::prelude::*;
use identity::Identities;
use ipam::{Ipam, RestoredAddress};
use ipcache::IpcacheWriter;
use k8s_tables::core::{Namespace, Pod};
use k8s_tables::{Api, Row, Source, Sources};
use local_node::{LocalNodeStore, StateConfig};
use memory_limit::MemoryLimit;
use policy::Policies;
use runtime_options::{RuntimeOption, SOURCE_IP_VERIFICATION};
use statedb::{Obj, RwTable, Table};

use crate::api::rest;
use crate::config::EndpointsConfig;
use crate::gc;
use crate::identity_labels::pod::Objects;
use crate::metrics::Counts;
use crate::model::endpoint::Endpoint;
use crate::model::mac::Mac;
use crate::model::options::{Defaults, Options};
use crate::reconcile::{EndpointOps, builder};
use crate::requests::fence::fence;
use crate::requests::pods;
use crate::requests::service::{Context, Endpoints};
use crate::restore::damaged;
use crate::restore::files::StateFolder;
use crate::restore::queue::DeletionQueue;
use crate::restore::start::{self, Link, Links};

/// How long requests wait for cluster objects after a start.
const OBJECTS_PATIENCE: Duration = Duration::from_secs(20);
/// The minimum time between two searches for recreated interfaces.
const TAKE_UP: Duration = Duration::from_secs(1);
/// How long endpoints of the previous run may take until their jobs count as stuck; the steps in between have limits of
/// their own.
const REGENERATION: Duration = Duration::from_secs(300);
/// Between tries to read from the kernel at a start, growing.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Tries before the start fails.
const START_RETRIES: u32 = 5;

/// Provides `Arc<Endpoints>` and `Arc<Table<Endpoint>>`, restores endpoints, serves the operations under `/endpoint`.
pub fn cell() -> Cell {
    module(
        "endpoints",
        "Workloads on this node",
        [
            config::<EndpointsConfig>(),
            statedb::table::<Endpoint>(),
            provide_private(|state: Config<StateConfig>| Arc::new(StateFolder::new(state.state()))),
            provide(restored_addresses),
            provide_private(|| -> Arc<LinkSource> { Arc::new(LinkSource(Box::new(links))) }),
            provide(endpoints),
            provide(routes),
            provide(debug),
        ],
    )
}

/// The source of the node's links; tests replace it.
#[cfg_attr(
    not(any(test, feature = "test-util")),
    expect(unreachable_pub, reason = "tests of others name it")
)]
pub struct LinkSource(pub(crate) Box<dyn Fn() -> Result<Links, devices::NetlinkError> + Send + Sync>);

fn links() -> Result<Links, devices::NetlinkError> {
    let links = Netlink::open()?.links()?.into_iter();
    Ok(links
        .map(|link| {
            (
                link.name,
                Link { index: link.index, mac: link.hardware_addr.ethernet().map(Mac), peer: link.parent },
            )
        })
        .collect())
}

/// The addresses of the records, for the allocator, which starts before this cell.
fn restored_addresses(files: Arc<StateFolder>) -> Member<ipam::Restored> {
    Member(ipam::Restored::new(move || {
        let found = files.scan().map_err(io::Error::other)?.into_iter();
        let records = found.filter_map(|found| found.record?.ok());
        let addresses =
            records.filter(|record| !record.datapath_configuration.external_ipam).flat_map(|record| {
                let (endpoint, owner) = (record.id, record.pod_name());
                let addresses: Vec<IpAddr> = record.addresses().collect();
                addresses.into_iter().map(move |address| RestoredAddress {
                    address,
                    endpoint,
                    owner: owner.clone(),
                })
            });
        Ok(addresses.collect())
    }))
}

#[derive(Params)]
struct EndpointsParams {
    config: ConfigWatch<EndpointsConfig>,
    state: Config<StateConfig>,
    table: Arc<RwTable<Endpoint>>,
    files: Arc<StateFolder>,
    links: Arc<LinkSource>,
    devices: Option<Arc<Table<Device>>>,
    options: Option<Arc<Table<RuntimeOption>>>,
    ipam: Arc<Ipam>,
    ipcache: Arc<IpcacheWriter>,
    identities: Arc<Identities>,
    policies: Arc<Policies>,
    pods: Option<Arc<Table<Row<Pod>>>>,
    namespaces: Option<Arc<Table<Row<Namespace>>>>,
    sources: Option<Arc<Sources>>,
    origins: Group<Arc<dyn Source>>,
    api: Option<Arc<dyn Api>>,
    datapath: Arc<dyn Datapath>,
    node: Arc<LocalNodeStore>,
    memory: Option<Arc<MemoryLimit>>,
    metrics: Arc<metrics::Metrics>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
    health: Health,
}

fn endpoints(p: EndpointsParams) -> anyhow::Result<Arc<Endpoints>> {
    let config = p.config.get();
    let start = Options::default().with(SOURCE_IP_VERIFICATION, config.enable_source_ip_verification);
    let defaults = Defaults::new(start, p.options);
    let counts = Counts::default();
    counts.register(&p.metrics, p.table.reader());
    let (gate, fence) = fence();
    let node = p.node.clone();
    let cluster = Arc::new(move || node.node().map(|node| node.cluster.clone()).unwrap_or_default());
    let partial = p.origins.iter().filter(|source| !source.has_namespaces());
    let partial = Arc::new(partial.map(|source| source.name().to_owned()).collect());
    let objects = p.pods.zip(p.namespaces).map(|(pods, namespaces)| Objects {
        pods,
        namespaces,
        sources: p.sources.clone(),
        api: p.api.clone(),
        partial,
        cluster,
    });
    let filter = Arc::new(config.filter()?);
    let context = Context {
        identities: (*p.identities).clone(),
        policies: (*p.policies).clone(),
        datapath: p.datapath.clone(),
        filter: filter.clone(),
        objects: objects.clone(),
        memory: p.memory.unwrap_or_default(),
        uuids: ControllerUuids::default(),
    };
    let (table, ipam) = ((*p.table).clone(), (*p.ipam).clone());
    let endpoints = Arc::new(Endpoints::new(table, ipam, fence, defaults.clone(), context));

    let initializer = {
        let mut txn = p.table.write();
        let initializer = txn.register_initializer("restore");
        txn.commit();
        initializer
    };
    let ipcache_initializer = p.ipcache.register("endpoints");
    let (identities, identity_initializer) = (p.identities.clone(), p.identities.register("endpoints"));

    let (restored, folder, ipam, source) =
        (p.table.clone(), p.files.clone(), p.ipam.clone(), p.links.clone());
    let unfinished = Arc::new(OnceLock::new());
    let damaged = Arc::new(OnceLock::new());
    let (counted, found, found_damaged) = (counts.clone(), unfinished.clone(), damaged.clone());
    let known_to = p.datapath.clone();
    let renewed = (!config.keep_config).then(|| defaults.clone());
    let (service, own, datapath) = (endpoints.clone(), defaults.clone(), p.datapath.clone());
    p.lifecycle.hook("endpoint-restore").on_start(move |_| async move {
        let begin = Instant::now();
        // Retry before giving up: a restart of the agent by its supervisor takes longer than these delays.
        let backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL).retries(START_RETRIES);
        let links = start::read("list links", None, backoff, move || (source.0)()).await?;
        let options = renewed.as_ref().map(Defaults::now);
        // Without an answer the interface of a damaged record is unknown.
        let known = || known_to.restored().unwrap_or_default();
        let allocators = (&*identities, &*filter);
        let outcome = start::restore(&restored, &folder, &ipam, allocators, &links, options.as_ref(), known)?;
        identities.complete(identity_initializer);
        start::host(&service, &links, &own.now());
        if let Some(id) = start::host_id(&restored.reader()) {
            datapath.expect_host(id);
        }
        // Set by this hook only, once.
        let _ = found.set(start::unfinished(&links, &restored.reader()));
        let start::Outcome { restored, failed, skipped, damaged } = outcome;
        let _ = found_damaged.set(damaged);
        counted.phase("restoration", begin.elapsed(), restored, failed, skipped);
        tracing::info!(restored, failed, skipped, "Endpoints of the previous run read");
        Ok(())
    });

    let (node, table, files) = (p.node.clone(), p.table.clone(), p.files.clone());
    let (datapath, ipcache, ipam) = (p.datapath.clone(), p.ipcache.clone(), p.ipam.clone());
    let host_ip = move |address: IpAddr| {
        let node = node.node()?;
        if address.is_ipv4() { node.ipv4.map(IpAddr::V4) } else { node.ipv6.map(IpAddr::V6) }
    };
    let ops = EndpointOps {
        table: table.reader(),
        datapath,
        ipcache: (*ipcache).clone(),
        identities: (*p.identities).clone(),
        policies: (*p.policies).clone(),
        ipam: (*ipam).clone(),
        files: (*files).clone(),
        counts: counts.clone(),
        host_ip: Arc::new(host_ip),
    };
    builder((*table).clone(), ops).spawn(&p.jobs);

    let queue = DeletionQueue::new(p.state.run());
    let (service, table, ipcache, source, datapath) =
        (endpoints.clone(), p.table.clone(), p.ipcache.clone(), p.links.clone(), p.datapath.clone());
    p.jobs.one_shot("finish-endpoint-restore", move |cx: JobCx| async move {
        let work = async {
            datapath.ready().await;
            // Requests wait for this: it is retried until it succeeds.
            let (health, backoff) =
                (Some(&cx.health), || Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL));
            let links = start::read("list links", health, backoff(), move || (source.0)()).await?;
            let known = move || datapath.restored();
            let known = start::read("list the datapath's endpoints", health, backoff(), known).await?;
            let working = cx.working_within(REGENERATION);
            start::host(&service, &links, &defaults.now());
            let begin = Instant::now();
            let applied = known.into_iter().map(|known| (known.id, known.identity)).collect();
            let (total, failed) = start::regenerate(&service, &applied).await;
            counts.phase("regeneration", begin.elapsed(), total - failed, failed, 0);
            table.transact(|txn| initializer.done(txn));
            ipcache.complete(ipcache_initializer);
            match start::drain(&service, &queue).await {
                Ok(0) => {}
                Ok(served) => tracing::info!(served, "Served queued CNI deletions"),
                Err(error) => tracing::warn!(%error, "Unable to read the CNI deletion queue"),
            }
            drop(working);
            if let Some(objects) = &objects
                && tokio::time::timeout(OBJECTS_PATIENCE, objects.complete()).await.is_err()
            {
                tracing::warn!("Cluster objects are not complete; new pods begin as reserved:init");
            }
            gate.open();
            start::remove_unfinished(unfinished.get().cloned().unwrap_or_default()).await;
            match failed {
                0 => cx.health.ok("Endpoints restored"),
                failed => cx.health.degraded("Endpoints restored", format!("{failed} not regenerated yet")),
            }
            anyhow::Ok(())
        };
        tokio::select! {
            result = work => result,
            () = cx.cancelled() => Ok(()),
        }
    });
    if let Some(objects) = endpoints.context.objects.clone() {
        let service = endpoints.clone();
        p.jobs.one_shot("follow-pods", move |cx: JobCx| async move {
            tokio::select! {
                () = pods::follow(&service, &objects) => {}
                () = cx.cancelled() => {}
            }
            Ok(())
        });
    }
    let service = endpoints.clone();
    p.jobs.observer("forget-removed", endpoints.table().observe(), move |cx, changes| {
        let service = service.clone();
        async move {
            let _ended_early = cx.token().run_until_cancelled(gc::forget_removed(&service, &changes)).await;
            Ok(())
        }
    });
    let (source, ipam, health) = (p.links.clone(), p.ipam.clone(), p.health.scope("records"));
    p.jobs.one_shot("damaged-records", move |cx: JobCx| async move {
        let damaged = damaged.get().cloned().unwrap_or_default();
        damaged::tell(damaged, move || (source.0)(), &ipam, health, cx).await;
        Ok(())
    });
    let (service, source, mut config) = (endpoints.clone(), p.links, p.config);
    let devices = p.devices;
    p.jobs.one_shot("endpoint-gc", move |cx: JobCx| async move {
        let mut sweep = gc::Sweep::default();
        let mut last = tokio::time::Instant::now();
        loop {
            let interval = config.get().endpoint_gc_interval;
            tokio::select! {
                () = tokio::time::sleep_until(last + interval), if !interval.is_zero() => {}
                () = config.changed() => continue,
                () = take_up(&service, devices.as_deref()) => {}
                () = cx.cancelled() => return Ok(()),
            }
            let _working = cx.working();
            last = tokio::time::Instant::now();
            let source = source.clone();
            match hive::blocking(move || (source.0)()).await {
                Ok(links) => match &*sweep.run(&service, &links).await {
                    [] => cx.health.ok("all endpoints have their interface"),
                    [(id, interface), more @ ..] => {
                        let what = format!(
                            "endpoint {id}: interface {interface} is gone, and {} more; they are removed in {interval:?} \
                             unless it comes back or their pod is deleted",
                            more.len()
                        );
                        if cx.health.degraded_anew("Endpoints without interface", &what) {
                            tracing::warn!(error = %what, "Endpoints without interface");
                        }
                    }
                },
                Err(error) => {
                    if cx.health.degraded_anew("Unable to list links", &error) {
                        tracing::warn!(%error, "Unable to list links");
                    }
                }
            }
        }
    });
    Ok(endpoints)
}

/// Takes up recreated interfaces, forever.
async fn take_up(endpoints: &Endpoints, devices: Option<&Table<Device>>) {
    let Some(devices) = devices else { return std::future::pending().await };
    loop {
        let snapshot = devices.snapshot();
        let (rows, watch) = devices.all_watch(&snapshot);
        let link = |device: &Device| Link {
            index: device.index,
            mac: device.hardware_addr.ethernet().map(Mac),
            peer: device.parent,
        };
        gc::take_up(endpoints, &rows.map(|device| (device.name.clone(), link(device))).collect());
        drop(snapshot);
        watch.changed().await;
        tokio::time::sleep(TAKE_UP).await;
    }
}

/// The endpoints that have no datapath yet.
fn debug(endpoints: Arc<Endpoints>) -> Member<DebugSource> {
    let table = endpoints.table();
    Member(DebugSource::new("ongoing-endpoint-creations", move || {
        let snapshot = table.snapshot();
        let ongoing = table.all(&snapshot).filter(|endpoint| endpoint.builds == 0);
        let line = |endpoint: &Obj<Endpoint>| {
            let (id, record, state) = (endpoint.id().0, &endpoint.record, endpoint.state);
            format!("{id} {} {}: {state}\n", record.cni_attachment_id(), record.pod_name())
        };
        ongoing.map(line).collect()
    }))
}

fn routes(endpoints: Arc<Endpoints>) -> Members<Route> {
    let get = |operation, answer: fn(&Endpoints, &Request) -> Response| {
        let endpoints = endpoints.clone();
        Route::new(operation, move |request| {
            let answer = answer(&endpoints, &request);
            async move { answer }
        })
    };
    macro_rules! act {
        ($operation:ident, $handler:path) => {{
            let endpoints = endpoints.clone();
            Route::new(Operation::$operation, move |request| $handler((*endpoints).clone(), request))
        }};
    }
    Members(vec![
        get(Operation::GetEndpoint, rest::list),
        get(Operation::GetEndpointID, rest::get),
        get(Operation::GetEndpointIDConfig, rest::get_config),
        get(Operation::GetEndpointIDLabels, rest::get_labels),
        get(Operation::GetEndpointIDLog, rest::get_log),
        get(Operation::GetEndpointIDHealthz, rest::get_healthz),
        get(Operation::GetIdentityEndpoints, rest::identities),
        act!(PutEndpointID, rest::put),
        act!(PatchEndpointID, rest::patch),
        act!(DeleteEndpointID, rest::delete),
        act!(DeleteEndpoint, rest::delete_batch),
        act!(PatchEndpointIDConfig, rest::patch_config),
        act!(PatchEndpointIDLabels, rest::patch_labels),
    ])
}
