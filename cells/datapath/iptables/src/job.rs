//! The job that keeps the rules: a pass after each change of what they depend on, after notifications of the kernel,
//! and every half an hour.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use datapath_api::HostMark;
use devices::{Device, Route};
use futures::future::{FutureExt as _, OptionFuture, select_all};
use hive::JobCx;
use hive::job::Backoff;
use ipnetwork::IpNetwork;
use local_node::LocalNode;
use masquerade::{BpfMasquerading, MasqueradeConfig};
use proxy_ports::Proxies;
use statedb::{Table, Watch};
use tokio::time::{Instant, sleep, sleep_until};
use tunnel::Tunnel;

use crate::backend::Backend;
use crate::config::IptablesConfig;
use crate::desired::Facts;
use crate::no_track::NoTrack;
use crate::notifications::Notifications;
use crate::pass::{self, Desired, Known, Report};
use crate::program::Runner;
use crate::rules::Family;

/// The least time between two passes.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// The interval of passes without a reason; the older backend reports no changes.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// The first and the longest delay after a failed pass.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(120);
/// The longest delay of repairs while another program changes the rules again and again.
const MAX_REPAIR_INTERVAL: Duration = Duration::from_secs(2);
/// After this time without repairs, the next one is not delayed.
const QUIET_TIME: Duration = Duration::from_secs(60);
/// The longest duration of a pass, in which programs may wait for the lock.
const PASS_LIMIT: Duration = Duration::from_secs(600);

/// Tables that the rules depend on.
#[derive(hive::Params, Clone)]
pub(crate) struct Tables {
    pub(crate) node: Arc<Table<LocalNode>>,
    pub(crate) devices: Arc<Table<Device>>,
    pub(crate) routes: Arc<Table<Route>>,
    pub(crate) no_track: Arc<Table<NoTrack>>,
}

/// Keeps the rules.
pub(crate) struct Job {
    pub(crate) config: IptablesConfig,
    pub(crate) masquerade: MasqueradeConfig,
    /// Whether the programs masquerade.
    pub(crate) masquerading: Arc<BpfMasquerading>,
    pub(crate) tunnel: Arc<Tunnel>,
    pub(crate) has_endpoint_routes: bool,
    pub(crate) families: Vec<Family>,
    pub(crate) untracked_range: Option<IpNetwork>,
    pub(crate) tables: Tables,
    pub(crate) host_mark: Arc<HostMark>,
    pub(crate) proxies: Option<Arc<Proxies>>,
}

/// The reason of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Inputs of the rules may have changed.
    Inputs,
    /// The kernel has reported a change.
    Notification,
    /// Time has passed, or the previous pass has failed.
    Time,
}

impl Job {
    /// Runs until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        if self.masquerade.enable_bpf_masquerade {
            // Rules of the previous run masquerade until the programs do.
            cx.health.ok("waiting for the programs that masquerade");
            tokio::select! {
                () = self.masquerading.in_force() => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
        let runner = Runner::new(self.config.iptables_lock_timeout, cx.token().clone());
        let mut retries = Backoff::exponential(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        let mut repairs = Backoff::exponential(DEBOUNCE, MAX_REPAIR_INTERVAL);
        let mut known = Known::default();
        // Before the first pass, so that no change after it is missed. The agent's own changes are reported as well: the
        // pass that follows finds nothing to do. Dropping their reports could drop that of another program.
        let mut notifications = self.config.install_iptables_rules.then(Notifications::open);
        let (mut applied, mut repaired): (Option<Desired>, Option<Instant>) = (None, None);
        let (mut reason, mut next) = (Reason::Time, None);
        loop {
            let (desired, watches) = self.observe();
            let is_due = reason != Reason::Inputs || desired != applied;
            if let Some(desired) = desired.filter(|_| is_due) {
                let report;
                (known, report) = {
                    let _working = cx.working_within(PASS_LIMIT);
                    let (runner, desired, enforced) =
                        (runner.clone(), desired.clone(), reason != Reason::Notification);
                    hive::blocking(move || {
                        let report = pass::run(&mut known, &desired, &runner, enforced);
                        (known, report)
                    })
                    .await
                };
                if cx.is_cancelled() {
                    return Ok(());
                }
                if known.tools.as_ref().is_some_and(|tools| tools.backend == Backend::Legacy) {
                    notifications = None;
                }
                let is_ok = report.as_ref().is_ok_and(Report::is_ok);
                let has_written = report.as_ref().is_ok_and(Report::has_written);
                self.report(&desired, &known, report, reason, &cx);
                applied = is_ok.then_some(desired);
                let delay = if is_ok {
                    retries.reset();
                    RESYNC_INTERVAL
                } else {
                    retries.next_wait().unwrap_or(MAX_RETRY_INTERVAL)
                };
                next = Some(Instant::now() + delay);
                let mut pause = DEBOUNCE;
                if reason == Reason::Notification && has_written {
                    if repaired.is_none_or(|at: Instant| at.elapsed() > QUIET_TIME) {
                        repairs.reset();
                    }
                    repaired = Some(Instant::now());
                    pause = repairs.next_wait().unwrap_or(MAX_REPAIR_INTERVAL);
                }
                tokio::select! {
                    () = sleep(pause) => {}
                    () = cx.cancelled() => return Ok(()),
                }
            }
            if let Some(proxies) = self.proxies.as_ref().filter(|_| known.no_proxy_rules) {
                // Also of rules that were in force: marked packets would reach other sockets of the host.
                proxies.set_reachable(&BTreeMap::new());
            }
            if let (Some(proxies), Some(applied)) = (&self.proxies, &applied) {
                // Also without a pass: a proxy may listen at the same port again.
                let reachable = applied.families.first().map(|(_, inputs)| inputs.proxies.clone());
                proxies.set_reachable(&reachable.unwrap_or_default());
            }
            let changed = OptionFuture::from(notifications.as_mut().map(Notifications::changed));
            let due = OptionFuture::from(next.map(sleep_until));
            reason = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = any_changed(&watches) => Reason::Inputs,
                Some(()) = changed => Reason::Notification,
                Some(()) = due => Reason::Time,
            };
            if reason == Reason::Inputs {
                // Several changes come together.
                tokio::select! {
                    () = sleep(DEBOUNCE) => {}
                    () = cx.cancelled() => return Ok(()),
                }
            }
        }
    }

    /// Reads tables. Returns the desired state, none while the node is unknown, and watches on what was read.
    fn observe(&self) -> (Option<Desired>, Vec<Watch>) {
        let snapshot = self.tables.node.snapshot();
        let (mut nodes, node_watch) = self.tables.node.all_watch(&snapshot);
        let mut watches = vec![node_watch];
        let (mut routes, mut devices) = (Vec::new(), Vec::new());
        if self.masquerade.enable_masquerade_to_route_source {
            let (all, watch) = self.tables.routes.all_watch(&snapshot);
            routes.extend(all.map(|route| &**route));
            watches.push(watch);
            let (all, watch) = self.tables.devices.all_watch(&snapshot);
            devices.extend(all.map(|device| &**device));
            watches.push(watch);
        }
        let mut ports = BTreeMap::new();
        if let Some(proxies) = self.proxies.as_ref().filter(|p| !p.config().is_assigned_by_programs()) {
            let (table, snapshot) = (proxies.ports(), proxies.ports().snapshot());
            let (all, watch) = table.all_watch(&snapshot);
            // Also of proxies that do not listen yet: packets marked for them must not reach other sockets.
            ports.extend(all.filter(|row| row.port != 0).map(|row| (row.name.clone(), row.port)));
            watches.push(watch);
        }
        let (untracked, watch) = self.tables.no_track.all_watch(&snapshot);
        let (is_complete, completed) = self.tables.no_track.initialized_watch(&snapshot);
        let untracked = (untracked.map(|row| &**row).collect(), is_complete);
        watches.extend([watch].into_iter().chain((!is_complete).then_some(completed)));
        let desired = nodes.next().map(|node| {
            let (config, masquerade, tunnel) = (&self.config, &self.masquerade, &self.tunnel);
            let (families, has_endpoint_routes) = (&self.families[..], self.has_endpoint_routes);
            let proxies = ports;
            Facts {
                config,
                masquerade,
                tunnel,
                has_endpoint_routes,
                families,
                node,
                routes,
                devices,
                proxies,
                untracked_range: self.untracked_range,
                untracked,
            }
            .desired()
        });
        (desired, watches)
    }

    /// Reports to health, to the log and to the owner of the other rule that marks the host's packets.
    fn report(
        &self,
        desired: &Desired,
        known: &Known,
        report: Result<Report, crate::Error>,
        reason: Reason,
        cx: &JobCx,
    ) {
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                self.host_mark.set(false);
                if cx.health.degraded_anew("Rules of iptables are not installed", &error) {
                    tracing::warn!(%error, "Rules of iptables are not installed, trying again");
                }
                return;
            }
        };
        let marks = report.families.iter().all(|outcome| outcome.marks_host) && !report.families.is_empty();
        self.host_mark.set(marks);
        let mut errors = Vec::new();
        for outcome in &report.families {
            let family = outcome.family.as_str();
            match &outcome.result {
                Ok(chains) if chains.is_empty() => {}
                Ok(chains) if reason == Reason::Notification => {
                    tracing::info!(
                        family,
                        chains,
                        "Another program has changed rules of iptables, repaired them"
                    );
                }
                Ok(chains) => tracing::info!(family, chains, "Wrote rules of iptables"),
                Err(error) => errors.push(format!("{family}: {error}")),
            }
        }
        errors.extend(report.leftovers.err().map(|error| error.to_string()));
        if !errors.is_empty() {
            let errors = errors.join("; ");
            if cx.health.degraded_anew("Rules of iptables are not all in force", &errors) {
                tracing::warn!(error = errors, "Rules of iptables are not all in force, trying again");
            }
            return;
        }
        match (&known.tools, desired.families.is_empty()) {
            (_, true) => cx.health.ok("Off by install-iptables-rules=false"),
            (Some(tools), false) => {
                let backend = match tools.backend {
                    Backend::Nft => "nf_tables",
                    Backend::Legacy => "legacy",
                };
                let proxies = if known.no_socket_match { ", without the match of sockets" } else { "" };
                cx.health.ok(format!("Rules are in force ({backend}{proxies})"));
            }
            (None, false) => {}
        }
    }
}

/// Resolves when any of these watches does.
async fn any_changed(watches: &[Watch]) {
    match watches {
        [] => std::future::pending().await,
        watches => drop(select_all(watches.iter().map(|watch| watch.changed().boxed())).await),
    }
}
