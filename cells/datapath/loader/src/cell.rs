//! The wiring: restore in the start hook, then jobs for the host's side, for policy maps and for unknown interfaces.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::StatusSource;
use devices::{Device, NodeAddress, Route};
use futures::future::OptionFuture;
use hive::prelude::*;
use ipnetwork::IpNetwork;
use local_node::LocalNode;
use maps::{ClockConfig, FamilyConfig, Maps, MapsConfig};
use metrics::Metrics;
use runtime_options::{Follower, Progress, RuntimeOption, follower};
use statedb::{Table, Watch};
use sysctl::{Setting, Sysctl};

use crate::config::{ConntrackConfig, HostRouting, LoaderConfig, Notifications};
use crate::endpoints::conntrack_purge::OwnAddresses;
use crate::endpoints::kernel::{KernelDatapath, KernelOptions};
use crate::guard::nftables::Chain;
use crate::guard::unknown;
use crate::interfaces::controller::{Controller, LOAD_THREADS, Report};
use crate::interfaces::desired::{Desired, Facts};
use crate::interfaces::device_links::Style;
use crate::interfaces::host::{HOST_DEVICE, NET_DEVICE};
use crate::interfaces::sysctls;
use crate::programs::live::Live;
use crate::programs::set::ProgramSet;
use crate::services::ServicesConfig;
use crate::watchdog::job::{self, Watchdog};
use crate::watchdog::repairs::Repairs;
use datapath_api::Datapath;

/// How long a failed round waits before the next, at most.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How long endpoints that go are waited for before connections of all are forgotten at once.
const DEPARTURES: Duration = Duration::from_millis(100);

/// The health message on kernels without nftables.
const UNMARKED: &str = "The host's packets cannot be marked: policy takes them for the world's";

/// Loads the programs, keeps the host's side; provides `Arc<dyn Datapath>`.
pub fn cell() -> Cell {
    module(
        "loader",
        "Datapath programs, endpoints and devices",
        [
            config::<LoaderConfig>(),
            config::<ConntrackConfig>(),
            config::<ServicesConfig>(),
            provide(new_datapath),
            provide(new_status),
        ],
    )
}

#[derive(Params)]
struct LoaderParams {
    config: ConfigWatch<LoaderConfig>,
    conntrack: ConfigWatch<ConntrackConfig>,
    services: ConfigWatch<ServicesConfig>,
    clock: Config<ClockConfig>,
    families: Config<FamilyConfig>,
    map_options: Config<MapsConfig>,
    maps: Arc<Maps>,
    tables: Tables,
    options: Option<Arc<Table<RuntimeOption>>>,
    metrics: Option<Arc<Metrics>>,
    sysctl: Arc<Sysctl>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

#[derive(Params, Clone)]
struct Tables {
    node: Arc<Table<LocalNode>>,
    devices: Arc<Table<Device>>,
    addresses: Arc<Table<NodeAddress>>,
    routes: Arc<Table<Route>>,
}

fn new_datapath(p: LoaderParams) -> anyhow::Result<(Arc<dyn Datapath>, Member<Follower>)> {
    let maps = p.maps.clone();
    let config = p.config.get();
    let options =
        KernelOptions { filter_priority: config.bpf_filter_priority, icmp_rules: config.enable_icmp_rules };
    let datapath = Arc::new(KernelDatapath::new(p.maps.clone(), options));
    let (restored, node) = (datapath.clone(), p.tables.node.clone());
    p.lifecycle.hook("datapath").on_start(move |_| async move {
        restored.conntrack_purge().set_own_addresses(own_addresses(&node));
        let count = hive::blocking(move || crate::restore(&restored)).await?;
        tracing::info!(count, "Endpoints in the datapath");
        Ok(())
    });

    if !p.config.get().enable_host_legacy_routing && p.config.get().host_routing() == HostRouting::Legacy {
        tracing::info!(
            "BPF host routing needs kube-proxy replacement and masquerading in the datapath, falling back to legacy host routing"
        );
    }
    let (progress, follower) = follower("datapath");
    let repairs = Repairs::default();
    if let Some(metrics) = &p.metrics {
        repairs.register(metrics);
        let conntrack = p.conntrack.clone();
        let name = "adv_connect_and_lb_sctp_enabled";
        metrics.register_feature(name, "Whether SCTP is tracked", move || conntrack.get().enable_sctp);
    }
    let host = HostJob {
        live: Live::new(p.config, p.conntrack, p.services)?,
        options: p.options,
        progress,
        clock: (*p.clock).clone(),
        map_options: (*p.map_options).clone(),
        families: (*p.families).clone(),
        maps: p.maps,
        tables: p.tables.clone(),
        sysctl: p.sysctl,
        datapath: datapath.clone(),
        repairs,
    };
    p.jobs.one_shot("host-datapath", move |cx: JobCx| host.run(cx));
    let pool = datapath.clone();
    p.jobs.one_shot("policy-maps", move |cx: JobCx| keep_pool(pool, cx));
    let (left, shared) = (datapath.clone(), maps.clone());
    p.jobs.one_shot("departed-endpoints", move |cx: JobCx| purge_deleted_endpoints(left, shared, cx));
    let (guarded, devices) = (datapath.clone(), p.tables.devices);
    p.jobs.one_shot("unknown-interfaces", move |cx: JobCx| unknown::guard(guarded, devices, cx));
    Ok((datapath, Member(follower)))
}

/// What `GET /healthz` says of the datapath.
fn new_status(
    config: Config<LoaderConfig>,
    clock: Config<ClockConfig>,
    maps: Arc<Maps>,
    devices: Arc<Table<Device>>,
) -> Member<StatusSource> {
    let probed = OnceLock::new();
    let source = move |status: &mut api_models::StatusResponse| {
        if let bpf::Clock::Jiffies { hz, .. } = probed.get_or_init(|| clock.clock()) {
            let (mode, hertz) = ("jiffies".to_owned(), i64::from(*hz));
            status.clock_source = Some(api_models::ClockSource { mode, hertz });
        }
        let tcx = config.enable_tcx && maps.features().tcx;
        status.attach_mode = if tcx { "tcx" } else { "tc" }.to_owned();
        if let Some(routing) = &mut status.routing {
            routing.intra_host_routing_mode = config.host_routing().word().to_owned();
        }
        if let Some(firewall) = &mut status.host_firewall {
            let snapshot = devices.snapshot();
            let names = devices.list(&snapshot, Device::by_selected(true)).map(|device| device.name.clone());
            firewall.devices = names.collect::<Vec<_>>().into();
        }
    };
    Member(StatusSource::new("datapath", source))
}

/// Keeps the host's side as options and tables want it.
struct HostJob {
    live: Live,
    clock: ClockConfig,
    map_options: MapsConfig,
    options: Option<Arc<Table<RuntimeOption>>>,
    /// Tells `PATCH /config` which options are in force.
    progress: Progress,
    families: FamilyConfig,
    maps: Arc<Maps>,
    tables: Tables,
    sysctl: Arc<Sysctl>,
    datapath: Arc<KernelDatapath>,
    repairs: Repairs,
}

impl HostJob {
    /// From now on packets of pods that were not announced go nowhere. Without the mark of our programs they could not
    /// be told from those of the others, which must pass then.
    async fn refuse_unknown_pods(&self) {
        if !self.live.config.enable_identity_mark {
            if let Err(error) = hive::blocking(|| Chain::UnknownPods.remove()).await {
                tracing::debug!(%error, "No rule of nftables was removed");
            }
            return;
        }
        if let Err(error) = hive::blocking(|| Chain::UnknownPods.install()).await {
            tracing::warn!(%error, "Unannounced pods are held back only once their interface is seen: no rule in nftables");
        }
    }

    async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let tcx = self.live.config.enable_tcx && self.maps.features().tcx;
        let style = Style { tcx, filter_priority: self.live.config.bpf_filter_priority };
        let controller = Controller::new(self.maps.clone(), self.datapath.clone(), style);
        let mut host_endpoint = self.datapath.host_endpoint();
        let mut done: Option<Desired> = None;
        let mut in_force: Option<Notifications> = None;
        // A load that failed half-way: some programs have these options, some those before.
        let mut mixed = false;
        let mut backoff = hive::job::Backoff::exponential(Duration::from_millis(200), RETRY_MAX);

        let shared = self.maps.clone();
        let open_maps = hive::blocking(move || {
            if let Err(error) = ProgramSet::open_maps(&shared, LOAD_THREADS) {
                // Loading meets it again.
                tracing::debug!(%error, "The maps of the datapath could not be opened ahead");
            }
        });
        let make_devices = async {
            let _working = cx.working();
            let (controller, devices) = blocking(controller, |c| c.devices()).await;
            if let Err(error) = devices {
                tracing::debug!(%error, "The host devices are not there yet");
            }
            self.apply_settings(&cx).await;
            controller
        };
        let ((), mut controller) = tokio::join!(open_maps, make_devices);
        let clock = self.clock.clock();
        // The programs carry the host endpoint's id: without it they would be loaded twice.
        let told = async { drop(host_endpoint.wait_for(|id| *id != 0).await) };
        tokio::select! {
            () = told => {}
            () = cx.cancelled() => return Ok(()),
        }
        let mut seen = None;
        let mut watchdog =
            Watchdog::new(self.live.config.endpoint_bpf_prog_watchdog_interval, &self.maps, &cx);
        loop {
            let working = cx.working();
            let endpoint = *host_endpoint.borrow_and_update();
            let snapshot = self.tables.node.snapshot();
            let (nodes, node_watch) = self.tables.node.all_watch(&snapshot);
            let (devices, device_watch) =
                self.tables.devices.list_watch(&snapshot, Device::by_selected(true));
            let (addresses, address_watch) = self.tables.addresses.all_watch(&snapshot);
            let (host, host_watch) = self.tables.devices.get_watch(&snapshot, Device::by_name(HOST_DEVICE));
            let (net, net_watch) = self.tables.devices.get_watch(&snapshot, Device::by_name(NET_DEVICE));
            let host_routes = Route::by_link(host.map_or(0, |device| device.index));
            let (routes, route_watch) = self.tables.routes.list_watch(&snapshot, host_routes);
            // Compared, not waited for: what changes during a look or a load wakes no watch.
            let host_side = (
                [host, net].map(|device| device.map(|device| Device::clone(device))),
                routes.map(|route| Route::clone(route)).collect::<Vec<Route>>(),
            );
            if seen.replace(host_side.clone()).is_some_and(|before| before != host_side) {
                watchdog.soon();
            }
            let (notifications, options_revision, options_watch) = self.notifications();
            let desired = match nodes.map(|node| &**node).next() {
                Some(node) => {
                    let facts = Facts {
                        config: &self.live.config,
                        conntrack: &self.live.conntrack,
                        services: &self.live.services,
                        clock: &clock,
                        maps: &self.map_options,
                        notifications,
                        families: &self.families,
                        node,
                        host_endpoint: endpoint,
                    };
                    Desired::compute(&facts, devices.map(|d| &**d), addresses.map(|a| &**a))
                }
                None => None,
            };
            // Another process deleted the host devices or switched them off.
            if ![host, net].iter().all(|device| device.is_some_and(|d| d.is_up())) {
                done = None;
            }
            let mut wait = None;
            match desired.filter(|desired| done.as_ref() != Some(desired)) {
                Some(desired) => {
                    let (back, result) = blocking(controller, move |c| (c.apply(&desired), desired)).await;
                    controller = back;
                    let (result, desired) = result;
                    let result = match result {
                        Ok(mut report) => {
                            if report.loaded.is_some() {
                                self.refuse_unknown_pods().await;
                            }
                            // Host devices that were made anew have lost theirs.
                            if report.loaded.is_some() {
                                self.apply_settings(&cx).await;
                            }
                            self.maps.set_forwarding();
                            report.not_switched.take().map_or(Ok(report), Err)
                        }
                        Err(error) => Err(error),
                    };
                    match result {
                        Ok(report) => {
                            report_load(&report, tcx);
                            match report.unmarked {
                                false => cx.health.ok("host datapath ready"),
                                true => cx.health.degraded(UNMARKED, "no nftables in the kernel"),
                            }
                            watchdog.confirm();
                            backoff.reset();
                            done = Some(desired);
                            (in_force, mixed) = (Some(notifications), false);
                        }
                        Err(error) => {
                            if cx.health.degraded_anew("Could not bring the host's datapath up", &error) {
                                tracing::warn!(%error, "Could not bring the host's datapath up, trying again");
                            }
                            self.progress.failed(&error);
                            // The failed round may have undone parts of the previous state: going back is a change, too.
                            done = None;
                            mixed |= in_force != Some(notifications);
                            wait = backoff.next_wait();
                        }
                    }
                }
                None if done.is_none() => cx.health.ok("waiting for the router's address"),
                None => {}
            }
            // Without programs there are none to change: the first ones begin with these options.
            if !mixed && in_force.is_none_or(|loaded| loaded == notifications) {
                self.progress.applied(options_revision);
            }
            let (back, retired) = blocking(controller, Controller::retire).await;
            controller = back;
            let wait = wait.or(retired.unwrap_or_else(|error| {
                tracing::debug!(%error, "Could not remove what was replaced");
                Some(RETRY_MAX)
            }));
            drop(working);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = node_watch.changed() => {}
                () = device_watch.changed() => {}
                () = address_watch.changed() => {}
                () = host_watch.changed() => {}
                () = net_watch.changed() => {}
                () = route_watch.changed() => {}
                Some(()) = OptionFuture::from(options_watch.as_ref().map(Watch::changed)) => {}
                taken = self.live.changed() => {
                    taken?;
                    watchdog.every(self.live.config.endpoint_bpf_prog_watchdog_interval);
                }
                _ = host_endpoint.changed() => {}
                Some(()) = OptionFuture::from(wait.map(tokio::time::sleep)) => {}
                () = watchdog.due(), if self.datapath.programs().is_some() => {
                    let _working = cx.working();
                    let guarded = self.live.config.enable_identity_mark;
                    let (back, found) = blocking(controller, move |c| job::look(c, guarded)).await;
                    controller = back;
                    if watchdog.report(found, &self.repairs) {
                        done = None;
                    }
                }
            }
        }
    }

    /// Returns the events that are reported to monitors: by the table of runtime options, else by the agent's own options.
    /// With the table's revision and a watch on it.
    fn notifications(&self) -> (Notifications, u64, Option<Watch>) {
        let Some(options) = &self.options else { return (self.live.notifications, 0, None) };
        let snapshot = options.snapshot();
        let (rows, watch) = options.all_watch(&snapshot);
        let now = rows.fold(self.live.notifications, |now, option| now.with(option));
        (now, options.revision(&snapshot), Some(watch))
    }

    /// Forwarding and reverse path checks of the host's devices. What fails is tried again by the owner of the settings.
    async fn apply_settings(&self, cx: &JobCx) {
        let settings: Vec<Setting> = sysctls::settings(&self.families);
        if let Err(error) = self.sysctl.apply(settings).await {
            tracing::warn!(%error, "Could not make a kernel setting");
            cx.health.degraded("Could not make a kernel setting", &error);
        }
    }
}

fn report_load(report: &Report, tcx: bool) {
    if let Some(took) = report.loaded {
        let (interfaces, devices) = (report.switched, report.attached);
        tracing::info!(?took, interfaces, devices, tcx, "Loaded the datapath");
    }
}

/// Runs kernel calls of the controller on a thread for blocking work.
async fn blocking<T: Send + 'static>(
    mut controller: Controller,
    work: impl FnOnce(&mut Controller) -> T + Send + 'static,
) -> (Controller, T) {
    hive::blocking(move || {
        let result = work(&mut controller);
        (controller, result)
    })
    .await
}

/// The addresses that the node gives to its pods; they stay while the agent runs.
fn own_addresses(node: &Table<LocalNode>) -> OwnAddresses {
    let snapshot = node.snapshot();
    let Some(node) = node.get(&snapshot, LocalNode::query()) else { return OwnAddresses::default() };
    let ranges = [node.ipv4_alloc_cidr.map(IpNetwork::V4), node.ipv6_alloc_cidr.map(IpNetwork::V6)];
    let routers = [node.router_ipv4.map(IpAddr::V4), node.router_ipv6.map(IpAddr::V6)];
    OwnAddresses {
        ranges: ranges.into_iter().flatten().collect(),
        routers: routers.into_iter().flatten().collect(),
    }
}

/// Purges entries of deleted endpoints, many endpoints in one scan.
async fn purge_deleted_endpoints(
    datapath: Arc<KernelDatapath>,
    maps: Arc<Maps>,
    cx: JobCx,
) -> anyhow::Result<()> {
    let mut backoff = hive::job::Backoff::exponential(Duration::from_millis(200), RETRY_MAX);
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = datapath.conntrack_purge().scheduled() => {}
        }
        // Pods go in groups.
        let mut wait = Some(DEPARTURES);
        while wait.is_some() {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                Some(()) = OptionFuture::from(wait.map(tokio::time::sleep)) => {}
            }
            let _working = cx.working();
            let (left, shared) = (datapath.clone(), maps.clone());
            match hive::blocking(move || left.conntrack_purge().purge(&shared)).await {
                Ok(count) => {
                    cx.health.ok(format!("forgot {count} connections and counts"));
                    backoff.reset();
                    wait = None;
                }
                Err(error) => {
                    const TROUBLE: &str = "Could not forget what is left of former endpoints";
                    if cx.health.degraded_anew(TROUBLE, &error) {
                        tracing::warn!(%error, "{TROUBLE}, trying again");
                    }
                    wait = backoff.next_wait();
                }
            }
        }
    }
}

/// Keeps policy maps ready, and empties those of endpoints that went.
async fn keep_pool(datapath: Arc<KernelDatapath>, cx: JobCx) -> anyhow::Result<()> {
    // Nobody takes one before.
    tokio::select! {
        () = datapath.ready() => {}
        () = cx.cancelled() => return Ok(()),
    }
    let mut backoff = hive::job::Backoff::exponential(Duration::from_millis(200), RETRY_MAX);
    loop {
        let mut retry = None;
        let working = cx.working();
        let tended = datapath.clone();
        match hive::blocking(move || tended.pool().tend()).await {
            Ok(ready) => {
                cx.health.ok(format!("{ready} policy maps ready"));
                backoff.reset();
            }
            Err(error) => {
                if cx.health.degraded_anew("Could not make policy maps ready", &error) {
                    tracing::warn!(%error, "Could not make policy maps ready, trying again");
                }
                retry = backoff.next_wait();
            }
        }
        drop(working);
        let rest = datapath.pool().any_quarantined().then_some(crate::QUARANTINE);
        let rest = rest.or(retry).or_else(|| datapath.pool().next_shrink());
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = datapath.pool().wanted() => {}
            Some(()) = OptionFuture::from(rest.map(tokio::time::sleep)) => {}
        }
    }
}
