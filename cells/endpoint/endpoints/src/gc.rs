//! Endpoints with an interface that changes without a request of the plugin: an endpoint without an interface is
//! collected, an endpoint with a recreated interface takes over the new one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use devices::Device;
use hive::{ConfigWatch, JobCx};
use statedb::{Batch, Table};

use crate::config::EndpointsConfig;
use crate::links::{Link, LinkSource, Links};
use crate::model::endpoint::Endpoint;
use crate::model::id::EndpointId;
use crate::model::record::Record;
use crate::model::state::State;
use crate::requests::service::Endpoints;

/// The reason for regeneration after the index of an endpoint's interface has changed.
const INDEX_CHANGED: &str = "another number of its interface";
/// The minimum time between two searches for recreated interfaces.
const TAKE_OVER_INTERVAL: Duration = Duration::from_secs(1);

/// The job `endpoint-gc`.
pub(crate) struct EndpointGc {
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) links: Arc<LinkSource>,
    /// Interfaces as they change, if the agent follows them.
    pub(crate) devices: Option<Arc<Table<Device>>>,
    pub(crate) config: ConfigWatch<EndpointsConfig>,
}

impl EndpointGc {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let mut sweep = Sweep::default();
        let mut last = tokio::time::Instant::now();
        loop {
            let interval = self.config.get().endpoint_gc_interval;
            tokio::select! {
                () = tokio::time::sleep_until(last + interval), if !interval.is_zero() => {}
                () = self.config.changed() => continue,
                () = take_over_recreated(&self.endpoints, self.devices.as_deref()) => {}
                () = cx.cancelled() => return Ok(()),
            }
            let _working = cx.working();
            last = tokio::time::Instant::now();
            let links = self.links.clone();
            match hive::blocking(move || links.list()).await {
                Ok(links) => {
                    let missing = sweep.run(&self.endpoints, &links).await;
                    report_missing(&missing, interval, &cx);
                }
                Err(error) => {
                    if cx.health.degraded_anew("Unable to list links", &error) {
                        tracing::warn!(%error, "Unable to list links");
                    }
                }
            }
        }
    }
}

fn report_missing(missing: &[(EndpointId, String)], interval: Duration, cx: &JobCx) {
    let [(id, interface), more @ ..] = missing else {
        return cx.health.ok("all endpoints have their interface");
    };
    let error = format!(
        "endpoint {id}: interface {interface} is gone, and {} more; they are removed in {interval:?} unless it comes back or \
         their pod is deleted",
        more.len()
    );
    if cx.health.degraded_anew("Endpoints without interface", &error) {
        tracing::warn!(%error, "Endpoints without interface");
    }
}

/// Collects endpoints without an interface in two sweeps in a row. One sweep does not suffice: a DEL in progress
/// removes the interface first and its endpoint a moment later.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    marked: BTreeSet<EndpointId>,
}

impl Sweep {
    /// Returns the interfaces that are missing for the first time, by endpoint: the next sweep removes those.
    pub(crate) async fn run(&mut self, endpoints: &Endpoints, links: &Links) -> Vec<(EndpointId, String)> {
        let table = endpoints.table();
        let snapshot = table.snapshot();
        let is_gone = |endpoint: &&Endpoint| {
            endpoint.state == State::Ready
                && endpoint.record.has_interface()
                && !has_interface(links, &endpoint.record)
        };
        let rows = table.all(&snapshot).map(|row| &**row).filter(is_gone);
        let described = |record: &Record| match links.contains_key(&record.if_name) {
            true => format!("{} (another has its name)", record.if_name),
            false => record.if_name.clone(),
        };
        let missing: Vec<(EndpointId, String)> =
            rows.map(|endpoint| (endpoint.id(), described(&endpoint.record))).collect();
        let (again, first): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|(id, _)| self.marked.contains(id));
        for (id, interface) in again {
            tracing::info!(endpointID = id.0, %interface, "Removing endpoint without an interface");
            endpoints.remove(id).await;
        }
        self.marked = first.iter().map(|(id, _)| *id).collect();
        first
    }
}

/// Takes over recreated interfaces whenever devices change, forever.
async fn take_over_recreated(endpoints: &Endpoints, devices: Option<&Table<Device>>) {
    let Some(devices) = devices else { return std::future::pending().await };
    loop {
        let snapshot = devices.snapshot();
        let (rows, watch) = devices.all_watch(&snapshot);
        let links = rows.map(|device| (device.name.clone(), Link::from(&**device))).collect();
        take_over(endpoints, &links);
        drop(snapshot);
        watch.changed().await;
        tokio::time::sleep(TAKE_OVER_INTERVAL).await;
    }
}

/// Takes over interfaces that another process has recreated with the same name and MAC address, so that only the index
/// differs. An interface with the same name and another MAC address is not the pod's.
pub(crate) fn take_over(endpoints: &Endpoints, links: &Links) {
    let table = endpoints.table();
    let snapshot = table.snapshot();
    let rows = table.all(&snapshot).filter(|row| row.state == State::Ready && row.record.has_interface());
    for row in rows.filter(|row| !has_interface(links, &row.record)) {
        let is_recreated = |link: &&Link| link.mac.is_some() && link.mac == row.record.node_mac;
        let Some(link) = links.get(&row.record.if_name).filter(is_recreated) else { continue };
        let (id, interface, index) = (row.id(), &row.record.if_name, link.index);
        tracing::info!(endpointID = id.0, %interface, index, "The interface of an endpoint was created again");
        endpoints.change(id, |endpoint| {
            let record = Record { if_index: index, ..(*endpoint.record).clone() };
            endpoint.with_record(record).triggered("interface", INDEX_CHANGED, SystemTime::now())
        });
    }
}

/// Whether the endpoint's interface exists: by index, and by name or MAC address, as it may have been renamed.
fn has_interface(links: &Links, record: &Record) -> bool {
    links.iter().any(|(name, link)| {
        link.index == record.if_index
            && (*name == record.if_name || link.mac.is_some() && link.mac == record.node_mac)
    })
}

/// The job `forget-removed`: deletes rows of endpoints if the removal succeeded only after the request had timed out.
pub(crate) fn forget_removed(endpoints: &Endpoints, changes: &Batch<Endpoint>) {
    let removed =
        changes.iter().filter(|change| !change.deleted && change.object.state == State::Disconnected);
    for change in removed {
        endpoints.forget(change.object.id());
    }
}
