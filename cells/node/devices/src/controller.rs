//! The jobs of the cell: one follows the kernel, one derives the node's addresses.

use std::collections::HashSet;
use std::time::Duration;

use futures::future;
use hive::JobCx;
use statedb::{RwTable, Snapshot, Table, Watch};

use crate::monitor::{Monitor, MonitorOptions, RwTables};
use crate::{
    Device, NetlinkError, NodeAddress, NodeAddressRules, Route, Selection, TABLE_LOCAL, node_addresses,
};

/// Delay before a failed subscription is opened again.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// First delay between attempts to subscribe at the start, which grows up to [`RESTART_DELAY`], and their number.
const START_RETRY_DELAY: Duration = Duration::from_millis(50);
const START_RETRIES: u32 = 10;
/// Changes of devices within this time are coalesced into one change of the addresses.
const COALESCE_TIME: Duration = Duration::from_millis(10);
/// The report of a node that has lost its devices.
const NO_DEVICE: &str = "No device faces the network any more: other nodes and the world are not reached";

/// Keeps the tables of links, routes and neighbours.
pub(crate) struct Follower {
    pub(crate) tables: RwTables,
    pub(crate) selection: Selection,
}

impl Follower {
    /// Subscribes and fills the tables.
    pub(crate) async fn start(&self) -> Result<Monitor, NetlinkError> {
        let (tables, selection) = (self.tables.clone(), self.selection.clone());
        Monitor::start(tables, selection, MonitorOptions::default()).await
    }

    /// Calls [`Follower::start`] with retries: the agent does not start without it, and a lack of descriptors or memory
    /// during a boot is temporary.
    pub(crate) async fn start_with_retry(&self) -> Result<Monitor, NetlinkError> {
        let mut backoff =
            hive::job::Backoff::exponential(START_RETRY_DELAY, RESTART_DELAY).retries(START_RETRIES);
        loop {
            match self.start().await {
                Err(error) if error.is_retryable() => match backoff.next_wait() {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => return Err(error),
                },
                result => return result,
            }
        }
    }

    /// Follows the kernel until the job ends; `monitor` is the first subscription.
    pub(crate) async fn run(self, monitor: Monitor, cx: JobCx) -> anyhow::Result<()> {
        tokio::select! {
            () = cx.cancelled() => {}
            () = self.follow(monitor, &cx) => {}
        }
        Ok(())
    }

    async fn follow(&self, mut monitor: Monitor, cx: &JobCx) {
        loop {
            cx.health.ok("Running");
            let mut seen = monitor.counters;
            monitor.job = Some(cx.clone());
            let result = monitor
                .run(|counters| {
                    if counters.overflows > seen.overflows {
                        tracing::info!(
                            overflows = counters.overflows,
                            "Netlink messages were lost, listed everything again"
                        );
                    }
                    if counters.unknown > seen.unknown {
                        tracing::warn!(
                            count = counters.unknown - seen.unknown,
                            "Netlink messages could not be decoded"
                        );
                    }
                    seen = *counters;
                })
                .await;
            let mut failure = result.err();
            monitor = loop {
                if let Some(error) = failure.take() {
                    tracing::warn!(%error, "Netlink subscription failed, subscribing again");
                    cx.health.degraded("Netlink subscription failed", error);
                }
                tokio::time::sleep(RESTART_DELAY).await;
                let _working = cx.working();
                match self.start().await {
                    Ok(fresh) => break fresh,
                    Err(error) => failure = Some(error),
                }
            };
        }
    }
}

/// Keeps table `node-addresses`.
#[derive(Clone)]
pub(crate) struct Addresses {
    pub(crate) devices: Table<Device>,
    pub(crate) routes: Table<Route>,
    pub(crate) addresses: RwTable<NodeAddress>,
    pub(crate) rules: NodeAddressRules,
}

impl Addresses {
    /// Derives the addresses from a snapshot; returns the watches of their sources.
    pub(crate) fn update(&self, snapshot: &Snapshot) -> [Watch; 2] {
        let (devices, devices_watch) = self.devices.all_watch(snapshot);
        let (routes, routes_watch) = self.routes.prefix_watch(snapshot, Route::by_table(TABLE_LOCAL));
        let devices: Vec<&Device> = devices.map(|row| &**row).collect();
        let desired = node_addresses(&devices, routes.map(|row| &**row), &self.rules);
        self.write(desired);
        [devices_watch, routes_watch]
    }

    fn write(&self, desired: Vec<NodeAddress>) {
        let mut txn = self.addresses.write();
        let keys: HashSet<_> = desired.iter().map(|row| (row.addr, row.device_name.clone())).collect();
        let removed = txn.retain(|row| keys.contains(&(row.addr, row.device_name.clone())));
        let mut changed = removed > 0;
        for row in desired {
            let known = txn.get(NodeAddress::by_id(row.addr, &row.device_name));
            if known.is_none_or(|known| **known != row) {
                changed = true;
                txn.insert(row);
            }
        }
        if changed {
            txn.commit();
        }
    }

    /// Reports the number of addresses; or the devices that faced the network until now, `last`, if there is none any more. A
    /// node that never had one is complete without.
    fn report(&self, cx: &JobCx, snapshot: &Snapshot, last: &mut Vec<String>) {
        let selected = self.devices.list(snapshot, Device::by_selected(true));
        let selected: Vec<String> = selected.map(|device| device.name.clone()).collect();
        if !selected.is_empty() || last.is_empty() {
            if !selected.is_empty() {
                *last = selected;
            }
            let count = self.addresses.len(&self.addresses.snapshot());
            cx.health.ok(format_args!("{count} node address(es)"));
            return;
        }
        let reason = |name: &String| match self.devices.get(snapshot, Device::by_name(name)) {
            Some(device) => format!("{name}: {}", device.not_selected_reason),
            None => format!("{name}: the device is gone"),
        };
        let reasons = last.iter().map(reason).collect::<Vec<_>>().join("; ");
        if cx.health.degraded_anew(NO_DEVICE, &reasons) {
            tracing::warn!(reason = reasons, "{NO_DEVICE}");
        }
    }

    /// Follows the devices until the job ends.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let mut last = Vec::new();
        loop {
            let snapshot = self.devices.snapshot();
            let [devices, routes] = self.update(&snapshot);
            self.report(&cx, &snapshot, &mut last);
            drop(snapshot);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                _ = future::select(
                    Box::pin(devices.changed()),
                    Box::pin(routes.changed()),
                ) => {}
            }
            tokio::time::sleep(COALESCE_TIME).await;
        }
    }
}
