//! The job that changes the MTU of pods that are there when it changes, or come while it does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use devices::{Device, HOST_DEVICE, Netlink};
use endpoints::{Endpoint, State};
use futures::future::{BoxFuture, FutureExt as _, OptionFuture, select_all};
use hive::JobCx;
use hive::job::Backoff;
use statedb::{Snapshot, Table};
use tokio::time::sleep;

use crate::pod::{Pod, namespace_paths, set_own};
use crate::{Error, Mtu};

/// Intervals of repetitions, as in Cilium.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// The peer of `cilium_host`.
const NET_DEVICE: &str = "cilium_net";
/// The prefix of the names of interfaces that the CNI plugin makes.
const POD_PREFIX: &str = "lxc";

/// The inputs of the job.
pub(crate) struct Updater {
    pub(crate) mtus: Table<Mtu>,
    pub(crate) devices: Arc<Table<Device>>,
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    /// Folder of network namespaces.
    pub(crate) namespaces: PathBuf,
}

/// The outcome of a round.
#[derive(Debug, Default)]
struct Report {
    /// Pods that have the MTUs, or have ended.
    done: Vec<u16>,
    /// Pods whose namespace may not be entered; another attempt would fail as well.
    refused: Vec<u16>,
    failed: usize,
    first_error: Option<Error>,
}

impl Updater {
    /// Follows the tables as long as the hive runs.
    pub(crate) async fn run(self, cx: &JobCx) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow(cx)).await;
    }

    async fn follow(self, cx: &JobCx) {
        let mut backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        // The MTUs that pods have, by endpoint.
        let mut applied: BTreeMap<u16, [Mtu; 2]> = BTreeMap::new();
        let mut refused: BTreeMap<u16, [Mtu; 2]> = BTreeMap::new();
        let mut is_first = true;
        loop {
            let snapshot = self.endpoints.snapshot();
            let (rows, mtus_changed) = self.mtus.all_watch(&snapshot);
            let rows: Vec<Mtu> = rows.map(|row| **row).collect();
            let (_, endpoints_changed) = self.endpoints.all_watch(&snapshot);
            let (is_complete, completed) = self.endpoints.initialized_watch(&snapshot);
            let Ok(mtus) = <[Mtu; 2]>::try_from(rows) else {
                mtus_changed.changed().await;
                continue;
            };
            let known: Vec<u16> = self.endpoints.all(&snapshot).map(|endpoint| endpoint.record.id).collect();
            applied.retain(|id, _| known.contains(id));
            refused.retain(|id, _| known.contains(id));
            let mut pods = Vec::new();
            let mut devices_changed = Vec::new();
            for endpoint in self.endpoints.all(&snapshot).filter(|endpoint| is_pod(endpoint)) {
                let id = endpoint.record.id;
                if applied.get(&id) == Some(&mtus) {
                    continue;
                }
                let (device, watch) =
                    self.devices.get_watch(&snapshot, Device::by_name(&endpoint.record.if_name));
                if refused.get(&id) == Some(&mtus) || device.is_none() {
                    // The table of devices may be behind the endpoint: the device's row decides once it is there.
                    if device.is_some_and(|device| device.mtu == mtus[0].device) {
                        refused.remove(&id);
                        applied.insert(id, mtus);
                    } else {
                        devices_changed.push(async move { watch.changed().await }.boxed());
                    }
                    continue;
                }
                // A pod that was made meanwhile has the MTUs of `GET /config`, as its device shows.
                let is_new = !is_first && !applied.contains_key(&id) && !refused.contains_key(&id);
                if is_new && self.has_mtu(&snapshot, &endpoint.record.if_name, mtus[0].device) {
                    applied.insert(id, mtus);
                    continue;
                }
                pods.push(Pod {
                    id,
                    interface: endpoint.record.if_name.clone(),
                    namespaces: namespace_paths(&endpoint.record.container_netns_path, &self.namespaces),
                    mtus,
                });
            }
            let mut retry = None;
            let (own, own_changed) = self.own_devices(&snapshot, mtus[0].device);
            let report = if pods.is_empty() && own.is_empty() {
                Report::default()
            } else {
                let _working = cx.working();
                hive::blocking(move || update(&pods, &own, mtus[0].device)).await
            };
            // Unknown MTUs in a pod of the previous run: without the right to look, that of its device decides.
            for id in report.refused {
                let name = self.endpoints.get(&snapshot, Endpoint::by_id(endpoints::EndpointId(id)));
                let name = name.map(|row| row.record.if_name.clone()).unwrap_or_default();
                let is_unchanged = !applied.contains_key(&id) && !refused.contains_key(&id);
                if is_unchanged && self.has_mtu(&snapshot, &name, mtus[0].device) {
                    applied.insert(id, mtus);
                } else {
                    let (_, watch) = self.devices.get_watch(&snapshot, Device::by_name(&name));
                    devices_changed.push(async move { watch.changed().await }.boxed());
                    refused.insert(id, mtus);
                }
            }
            for id in report.done {
                applied.insert(id, mtus);
                refused.remove(&id);
            }
            if report.failed > 0 {
                retry = backoff.next_wait();
            } else {
                backoff.reset();
            }
            report_health(cx, refused.len(), report.failed, report.first_error.as_ref());
            is_first = is_first && !is_complete;
            drop(snapshot);
            tokio::select! {
                () = mtus_changed.changed() => {}
                () = endpoints_changed.changed() => {}
                () = completed.changed(), if !is_complete => {}
                _ = select_all(own_changed.into_iter().chain(devices_changed)) => {}
                Some(()) = OptionFuture::from(retry.map(sleep)) => {}
            }
        }
    }

    /// Returns the names of the agent's own devices with another MTU, and watches on the devices.
    fn own_devices(&self, snapshot: &Snapshot, mtu: u32) -> (Vec<&'static str>, Vec<BoxFuture<'static, ()>>) {
        let mut names = Vec::new();
        let mut watches = Vec::new();
        for name in [NET_DEVICE, HOST_DEVICE] {
            let (device, watch) = self.devices.get_watch(snapshot, Device::by_name(name));
            names.extend(device.filter(|device| device.mtu != mtu).map(|_| name));
            watches.push(async move { watch.changed().await }.boxed());
        }
        (names, watches)
    }

    /// Whether a device has the MTU.
    fn has_mtu(&self, snapshot: &Snapshot, name: &str, mtu: u32) -> bool {
        self.devices.get(snapshot, Device::by_name(name)).is_some_and(|device| device.mtu == mtu)
    }
}

/// Whether the CNI plugin has made the interface of an endpoint, which is complete.
fn is_pod(endpoint: &Endpoint) -> bool {
    let is_there = matches!(endpoint.state, State::Ready | State::Regenerating | State::WaitingToRegenerate);
    let record = &endpoint.record;
    is_there && record.has_interface() && !record.is_health() && record.if_name.starts_with(POD_PREFIX)
}

fn update(pods: &[Pod], own: &[&str], device: u32) -> Report {
    let mut report = Report::default();
    let mut host = match Netlink::open() {
        Ok(host) => host,
        Err(error) => {
            return Report { failed: pods.len().max(1), first_error: Some(error.into()), ..report };
        }
    };
    let failed = |report: &mut Report, error: Error| {
        report.failed += 1;
        report.first_error.get_or_insert(error);
    };
    for name in own {
        if let Err(error) = set_own(&mut host, name, device) {
            failed(&mut report, error.into());
        }
    }
    for pod in pods {
        if !report.refused.is_empty() {
            // It is the process that lacks the right, for this pod as well.
            report.refused.push(pod.id);
            continue;
        }
        match pod.update(&mut host) {
            Ok(_) => report.done.push(pod.id),
            Err(error) if error.is_permission_denied() => report.refused.push(pod.id),
            Err(error) => failed(&mut report, error),
        }
    }
    report
}

fn report_health(cx: &JobCx, refused: usize, failed: usize, error: Option<&Error>) {
    const FAILED: &str = "MTU of pods could not be changed";
    if let Some(error) = error {
        if cx.health.degraded_anew(format!("{FAILED}: {failed}"), error) {
            tracing::warn!(%error, count = failed, "{FAILED}, trying again");
        }
    } else if refused > 0 {
        let reason = "the agent needs CAP_SYS_ADMIN to enter their network namespaces";
        if cx.health.degraded_anew(format!("Pods keep their previous MTU: {refused}"), reason) {
            tracing::warn!(reason, count = refused, "Pods keep their previous MTU");
        }
    } else {
        cx.health.ok("Endpoint MTU updated");
    }
}
