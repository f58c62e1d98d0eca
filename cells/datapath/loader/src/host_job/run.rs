//! The shell of the host's job: performs what the machine decides, and turns watches and timers into its events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath_abi::DIRECT_ROUTING;
use datapath_api::{HostMark, SocketCoverage};
use devices::{Device, NodeAddress};
use futures::future::{FutureExt as _, OptionFuture, select_all};
use hive::job::Backoff;
use hive::{JobCx, Params};
use local_node::LocalNode;
use maps::{ClockConfig, FamilyConfig, Maps, MapsConfig};
use masquerade::BpfMasquerading;
use runtime_options::{Progress, RuntimeOption};
use statedb::{Table, Watch};
use sysctl::{Setting, Sysctl};
use tokio::sync::watch;
use tunnel::{EndpointRoutesConfig, MtuConfig, Tunnel};

use crate::config::Notifications;
use crate::endpoints::kernel::KernelDatapath;
use crate::guard::nftables::Chain;
use crate::host_job::machine::{Action, Applied, Event, HostLinks, HostMachine, Observation, Status};
use crate::interfaces::acceleration::Accelerated;
use crate::interfaces::controller::Controller;
use crate::interfaces::desired::{Desired, Facts};
use crate::interfaces::device_links::Style;
use crate::interfaces::host::{HOST_DEVICE, NET_DEVICE};
use crate::interfaces::ipip::IpipError;
use crate::interfaces::sysctls;
use crate::interfaces::tunnel::{TunnelError, TunnelSettings};
use crate::programs::balancing::Balancing;
use crate::programs::egress::{self, EgressFeatures};
use crate::programs::host_routing::HostRouting;
use crate::programs::live::Live;
use crate::programs::set::ProgramSet;
use crate::programs::xdp::Acceleration;
use crate::watchdog::alarms::Alarms;
use crate::watchdog::compare::compare;
use crate::watchdog::repairs::Repairs;
use crate::watchdog::reports::Reports;

/// The first wait after a failed round; it doubles.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The longest wait after a failed round.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// The maximum wait for the file of ip-masq-agent.
const MAX_RANGES_WAIT: Duration = Duration::from_secs(2);

/// The health message on kernels without nftables.
const UNMARKED: &str = "The host's packets cannot be marked: policy takes them for the world's";

/// The health message of a host firewall that does not see all packets.
const UNFILTERED: &str = "Policies of nodes do not apply to all packets of the host";

/// The health message without tunnel device.
const NO_TUNNEL: &str = "No tunnel device: packets to pods of other nodes are dropped, trying again";

/// The health message without a device that adds outer headers.
const NO_IPIP: &str =
    "No device for outer IP headers: without XDP services do not reach backends of other nodes, trying again";
/// The health message without an address for packets to backends of services on other nodes.
const UNADDRESSED: &str = "No direct-routing address: services do not reach backends of other nodes";

/// The tables that the desired state is computed from.
#[derive(Params, Clone)]
pub(crate) struct Tables {
    pub(crate) node: Arc<Table<LocalNode>>,
    pub(crate) devices: Arc<Table<Device>>,
    pub(crate) addresses: Arc<Table<NodeAddress>>,
}

/// Reconciles the host's side with options and tables.
pub(crate) struct HostJob {
    pub(crate) live: Live,
    pub(crate) clock: ClockConfig,
    pub(crate) map_options: MapsConfig,
    pub(crate) options: Option<Arc<Table<RuntimeOption>>>,
    /// Reports the options in force to `PATCH /config`.
    pub(crate) progress: Progress,
    pub(crate) families: FamilyConfig,
    pub(crate) maps: Arc<Maps>,
    pub(crate) tables: Tables,
    pub(crate) sysctl: Arc<Sysctl>,
    pub(crate) datapath: Arc<KernelDatapath>,
    pub(crate) repairs: Repairs,
    /// Whether rules of iptables mark the host's packets; none without a cell for iptables.
    pub(crate) host_mark: Option<Arc<HostMark>>,
    /// Which sockets have services translated; none without a cell for them.
    pub(crate) socket_coverage: Option<watch::Receiver<SocketCoverage>>,
    pub(crate) tunnel: Arc<Tunnel>,
    pub(crate) egress: EgressFeatures,
    pub(crate) host_routing: HostRouting,
    pub(crate) balancing: Balancing,
    pub(crate) mesh_auth: bool,
    pub(crate) bpf_tproxy: bool,
    /// There are proxies, and no rules of iptables.
    pub(crate) has_ruleless_proxies: bool,
    pub(crate) acceleration: Acceleration,
    /// Reports that the programs masquerade.
    pub(crate) masquerading: Arc<BpfMasquerading>,
    pub(crate) mtu: MtuConfig,
    pub(crate) endpoint_routes: EndpointRoutesConfig,
}

impl HostJob {
    /// Runs until the job is cancelled. A command in flight is completed first.
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let tcx = self.live.config.enable_tcx && self.maps.features().tcx;
        let mut controller = self.prepare(tcx, &cx).await;
        let clock = self.clock.clock();
        let mut host_endpoint = self.datapath.host_endpoint();
        // The host endpoint's id is a constant of the programs: loading them before it is known would mean loading
        // twice.
        let known = async { drop(host_endpoint.wait_for(|id| *id != 0).await) };
        tokio::select! {
            () = known => {}
            () = cx.cancelled() => return Ok(()),
        }
        if self.egress.needs_ranges() {
            // A disk that does not answer must not keep the node from forwarding.
            tokio::select! {
                () = self.masquerading.ranges() => {}
                () = tokio::time::sleep(MAX_RANGES_WAIT) => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
        cx.health.child("host-routing").ok(self.host_routing.message());
        let mut alarms = Alarms::new(self.maps.path("ep_config"));
        let drift_checks = self.maps.comparisons().clone();
        let mut reports =
            Reports::new(cx.health.child("watchdog"), self.repairs.clone(), drift_checks.clone());
        let backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        let interval = self.live.config.endpoint_bpf_prog_watchdog_interval;
        let mut machine = HostMachine::new(interval, backoff, now());
        let mut watches = Vec::new();
        loop {
            if cx.is_cancelled() {
                machine.handle(Event::Stop, now());
            }
            while let Some(action) = machine.poll_action() {
                let _working = cx.working();
                let event = match action {
                    Action::Observe => {
                        // Marked as seen before the tables are read, so that no change is missed.
                        let endpoint = *host_endpoint.borrow_and_update();
                        let observation;
                        (observation, watches) = self.observe(endpoint, &clock);
                        Event::Observed(Box::new(observation))
                    }
                    Action::Apply(desired) => {
                        let applied;
                        (controller, applied) = self.apply(controller, *desired, tcx, &cx).await;
                        Event::Applied(applied)
                    }
                    Action::Retire => {
                        let retired;
                        (controller, retired) = blocking(controller, Controller::retire).await;
                        Event::Retired(retired.unwrap_or_else(|error| {
                            tracing::debug!(%error, "Could not remove what was replaced");
                            Some(MAX_RETRY_INTERVAL)
                        }))
                    }
                    Action::Compare => {
                        let guarded = self.live.config.enable_identity_mark;
                        let found;
                        (controller, found) = blocking(controller, move |c| compare(c, guarded)).await;
                        Event::Compared(reports.report(found, now()))
                    }
                    Action::BeginDriftChecks => {
                        drift_checks.begin();
                        continue;
                    }
                    Action::Report(status) => {
                        self.report(status, &cx);
                        continue;
                    }
                    Action::OptionsApplied(revision) => {
                        self.progress.applied(revision);
                        continue;
                    }
                };
                machine.handle(event, now());
                if cx.is_cancelled() {
                    machine.handle(Event::Stop, now());
                }
            }
            let timeout = machine.next_timeout().map(|at| tokio::time::sleep_until(at.into()));
            let event = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = any_changed(&watches) => Event::Changed,
                changed = self.live.changed() => {
                    changed?;
                    let interval = self.live.config.endpoint_bpf_prog_watchdog_interval;
                    machine.handle(Event::Interval(interval), now());
                    Event::Changed
                }
                _ = host_endpoint.changed() => Event::Changed,
                Some(Ok(())) = OptionFuture::from(self.socket_coverage.as_mut().map(|c| c.changed())) => {
                    Event::Changed
                }
                Some(()) = OptionFuture::from(timeout) => Event::Timeout,
                () = alarms.next() => Event::Alarm,
                () = drift_checks.any(), if machine.awaits_drift_repairs() => Event::DriftRepaired,
            };
            machine.handle(event, now());
        }
    }

    /// Creates the parts that do not depend on the router's address: maps, host devices, kernel settings.
    async fn prepare(&self, tcx: bool, cx: &JobCx) -> Controller {
        let style = Style { tcx, filter_priority: self.live.config.bpf_filter_priority };
        let controller =
            Controller::new(self.maps.clone(), self.datapath.clone(), style, self.host_mark.clone());
        let shared = self.maps.clone();
        let open_maps = hive::blocking(move || {
            if let Err(error) = ProgramSet::open_maps(&shared) {
                // The load reports the error again.
                tracing::debug!(%error, "The maps of the datapath could not be opened ahead");
            }
        });
        let make_devices = async {
            let _working = cx.working();
            let (controller, devices) = blocking(controller, |c| c.devices()).await;
            if let Err(error) = devices {
                tracing::debug!(%error, "The host devices are not there yet");
            }
            self.apply_settings(cx).await;
            controller
        };
        let ((), controller) = tokio::join!(open_maps, make_devices);
        controller
    }

    /// Reads tables and options. Returns the watches on them as well.
    fn observe(&self, host_endpoint: u16, clock: &bpf::Clock) -> (Observation, Vec<Watch>) {
        let tables = &self.tables;
        let snapshot = tables.node.snapshot();
        let (nodes, node_watch) = tables.node.all_watch(&snapshot);
        let (devices, device_watch) = tables.devices.list_watch(&snapshot, Device::by_selected(true));
        let (addresses, address_watch) = tables.addresses.all_watch(&snapshot);
        let (host, host_watch) = tables.devices.get_watch(&snapshot, Device::by_name(HOST_DEVICE));
        let (net, net_watch) = tables.devices.get_watch(&snapshot, Device::by_name(NET_DEVICE));
        let tunnel = TunnelSettings::new(&self.tunnel, 0).map(|settings| settings.device());
        let tunnel = tunnel.map(|name| tables.devices.get_watch(&snapshot, Device::by_name(name)));
        let (tunnel, tunnel_watch) = tunnel.map_or((None, None), |(row, watch)| (row, Some(watch)));
        let (notifications, options_revision, options_watch) = self.notifications();
        let mut watches = vec![node_watch, device_watch, address_watch, host_watch, net_watch];
        watches.extend(options_watch);
        watches.extend(tunnel_watch);

        let links = HostLinks {
            devices: [host, net].map(|device| device.map(|device| Device::clone(device))),
            tunnel: tunnel.map(|device| Device::clone(device)),
        };
        let desired = nodes.map(|node| &**node).next().and_then(|node| {
            let facts = Facts {
                config: &self.live.config,
                conntrack: &self.live.conntrack,
                services: &self.live.services,
                clock,
                maps: &self.map_options,
                notifications,
                socket_coverage: self.socket_coverage.as_ref().map_or_else(Default::default, |c| *c.borrow()),
                families: &self.families,
                node,
                host_endpoint,
                tunnel: &self.tunnel,
                egress: &self.egress,
                host_routing: self.host_routing,
                balancing: &self.balancing,
                mesh_auth: self.mesh_auth,
                bpf_tproxy: self.bpf_tproxy,
                acceleration: self.acceleration,
                mtu: self.mtu,
                endpoint_routes: self.endpoint_routes,
                features: self.maps.features(),
            };
            Desired::compute(&facts, devices.map(|d| &**d), addresses.map(|a| &**a))
        });
        (Observation { desired, links, notifications, options_revision }, watches)
    }

    /// Brings the host's side to the desired state.
    async fn apply(
        &self,
        controller: Controller,
        desired: Desired,
        tcx: bool,
        cx: &JobCx,
    ) -> (Controller, Applied) {
        let masquerades = egress::is_masquerading(&desired.constants);
        let unaddressed = desired.masquerade.get(&DIRECT_ROUTING);
        // Devices may be known later than the node.
        let unaddressed = unaddressed
            .filter(|_| !desired.devices.is_empty())
            .and_then(|row| egress::unaddressed(row, &desired.constants));
        let unfiltered = desired.unfiltered();
        let (controller, result) = blocking(controller, move |c| c.apply(&desired)).await;
        let unmarked = match result {
            Ok(mut report) => {
                self.report_tunnel(report.tunnel.take(), cx);
                report_ipip(report.ipip.take(), cx);
                report_direct_routing(unaddressed, cx);
                report_firewall(unfiltered, cx);
                report_acceleration(report.accelerated.take(), cx);
                if report.loaded.is_some() {
                    self.refuse_unknown_pods().await;
                    // Recreated host devices have the kernel's defaults.
                    self.apply_settings(cx).await;
                }
                self.maps.set_forwarding();
                if masquerades {
                    self.masquerading.set();
                }
                match report.not_switched.or(report.not_accelerated) {
                    Some(error) => Err(error),
                    None => {
                        if let Some(took) = report.loaded {
                            let (interfaces, devices) = (report.switched, report.attached);
                            let kept = report.kept;
                            tracing::info!(?took, kept, interfaces, devices, tcx, "Loaded the datapath");
                        }
                        Ok(report.unmarked)
                    }
                }
            }
            Err(error) => Err(error),
        };
        (controller, Applied { unmarked, has_programs: self.datapath.programs().is_some() })
    }

    /// Installs the rule that drops packets of pods that were not announced. Not installed if the programs set no mark
    /// (`enable-identity-mark`): then packets of announced pods could not be distinguished from these.
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

    fn report_tunnel(&self, tunnel: Option<Result<&'static str, TunnelError>>, cx: &JobCx) {
        let health = cx.health.child("tunnel");
        match tunnel {
            None => health.close(),
            Some(Ok(device)) => health.ok(format!("{device} on UDP port {}", self.tunnel.port)),
            Some(Err(error)) => {
                if health.degraded_anew(NO_TUNNEL, &error) {
                    tracing::warn!(%error, "{NO_TUNNEL}");
                }
            }
        }
    }

    fn report(&self, status: Status, cx: &JobCx) {
        match status {
            Status::WaitingForRouter => cx.health.ok("waiting for the router's address"),
            Status::Ready { unmarked: false } => cx.health.ok("host datapath ready"),
            Status::Ready { unmarked: true } => cx.health.degraded(UNMARKED, "no nftables in the kernel"),
            Status::Failed(error) => {
                if cx.health.degraded_anew("Could not bring the host's datapath up", &error) {
                    tracing::warn!(%error, "Could not bring the host's datapath up, trying again");
                }
                self.progress.failed(&error);
            }
        }
    }

    /// Returns the events that are reported to monitors, from the table of runtime options if there is one, else from
    /// the agent's options; with the table's revision and a watch on it.
    fn notifications(&self) -> (Notifications, u64, Option<Watch>) {
        let Some(options) = &self.options else { return (self.live.notifications, 0, None) };
        let snapshot = options.snapshot();
        let (rows, watch) = options.all_watch(&snapshot);
        let now = rows.fold(self.live.notifications, |now, option| now.with(option));
        (now, options.revision(&snapshot), Some(watch))
    }

    /// Applies forwarding and reverse path checks of the host's devices. The owner of the settings retries failures.
    async fn apply_settings(&self, cx: &JobCx) {
        let settings: Vec<Setting> =
            sysctls::settings(&self.families, self.egress.ipip.has_devices(), self.has_ruleless_proxies);
        if let Err(error) = self.sysctl.apply(settings).await {
            tracing::warn!(%error, "Could not make a kernel setting");
            cx.health.degraded("Could not make a kernel setting", &error);
        }
    }
}

/// Reports why a device that adds outer headers is missing, if so.
fn report_ipip(ipip: Option<Result<(), IpipError>>, cx: &JobCx) {
    let health = cx.health.child("ipip");
    match ipip {
        None => health.close(),
        Some(Ok(())) => health.ok("direct server return by outer IP headers"),
        Some(Err(error)) => {
            if health.degraded_anew(NO_IPIP, &error) {
                tracing::warn!(%error, "{NO_IPIP}");
            }
        }
    }
}

/// Reports the families, if there are any, for which the node has no direct-routing address.
fn report_direct_routing(unaddressed: Option<&str>, cx: &JobCx) {
    let health = cx.health.child("direct-routing");
    match unaddressed {
        None => health.close(),
        Some(families) => health.degraded(UNADDRESSED, format!("no address of {families}")),
    }
}

/// Reports why policies of nodes do not apply to all packets of the host, if so.
fn report_firewall(unfiltered: Option<String>, cx: &JobCx) {
    let health = cx.health.child("host-firewall");
    match unfiltered {
        None => health.close(),
        Some(reason) => health.degraded(UNFILTERED, reason),
    }
}

/// Reports which devices handle services by XDP, and those that cannot.
fn report_acceleration(accelerated: Option<Accelerated>, cx: &JobCx) {
    let health = cx.health.child("acceleration");
    let Some(Accelerated { devices, refused }) = accelerated else { return health.close() };
    let devices = if devices.is_empty() { "no device".to_owned() } else { devices.join(", ") };
    let refused: Vec<String> = refused.iter().map(|(device, error)| format!("{device} ({error})")).collect();
    match refused.is_empty() {
        true => health.ok(format!("XDP on {devices}")),
        false => health.ok(format!("XDP on {devices}; without: {}", refused.join(", "))),
    }
}

/// Returns the time of the runtime's clock, which tests may pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Resolves when any of these watches does; never if there are none.
async fn any_changed(watches: &[Watch]) {
    match watches {
        [] => std::future::pending().await,
        watches => drop(select_all(watches.iter().map(|watch| watch.changed().boxed())).await),
    }
}

/// Runs kernel calls of the controller on a blocking thread.
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
