//! The sizes of devices, which follow the devices of the node.

use std::sync::Arc;

use devices::rtnetlink::LinkSegments;
use devices::{Device, HOST_DEVICE, Netlink, NetlinkError};
use futures::future::{FutureExt as _, select_all};
use hive::JobCx;
use statedb::{Snapshot, Table, Watch};

use crate::limits::{BigTcp, Families, Limits};

/// The agent's own devices; tunnels are there if a feature needs one.
const OWN_DEVICES: [&str; 4] = [HOST_DEVICE, "cilium_net", "cilium_vxlan", "cilium_geneve"];

/// Keeps the sizes of devices.
#[derive(Clone)]
pub(crate) struct Sizes {
    pub(crate) families: Families,
    pub(crate) devices: Arc<Table<Device>>,
    pub(crate) limits: Arc<BigTcp>,
}

impl Sizes {
    /// Waits until the table of devices is complete.
    pub(crate) async fn devices_complete(&self) {
        loop {
            let (is_complete, completed) = self.devices.initialized_watch(&self.devices.snapshot());
            if is_complete {
                return;
            }
            completed.changed().await;
        }
    }

    /// Sets the sizes after each change of the devices, as long as the hive runs. Without a family a single round
    /// lowers those of a previous run.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow(&cx)).await;
        Ok(())
    }

    async fn follow(&self, cx: &JobCx) {
        self.devices_complete().await;
        loop {
            let (indexes, watches) = self.observe(&self.devices.snapshot());
            let result = self.apply(indexes).await;
            match &result {
                Ok(()) => cx.health.ok(self.message()),
                Err(error) => {
                    if cx.health.degraded_anew("BIG TCP is off: a device refuses its sizes", error) {
                        tracing::warn!(%error, "BIG TCP is off: a device refuses its sizes");
                    }
                }
            }
            if !self.families.is_any() && result.is_ok() {
                return;
            }
            select_all(watches.into_iter().map(|watch| async move { watch.changed().await }.boxed())).await;
        }
    }

    fn message(&self) -> String {
        let limits = self.limits.limits();
        let of = |is_on, size| if is_on { format!("{size} bytes") } else { "off".to_owned() };
        let (ipv4, ipv6) =
            (of(limits.is_ipv4_enabled, limits.ipv4.gso), of(limits.is_ipv6_enabled, limits.ipv6.gso));
        format!("segments: IPv4 {ipv4}, IPv6 {ipv6}")
    }

    /// Returns the indexes of the devices that face the network and of the agent's own, and watches on them.
    pub(crate) fn observe(&self, snapshot: &Snapshot) -> (Indexes, Vec<Watch>) {
        let (selected, watch) = self.devices.list_watch(snapshot, Device::by_selected(true));
        let mut indexes =
            Indexes { selected: selected.map(|device| device.index).collect(), own: Vec::new() };
        let mut watches = vec![watch];
        for name in OWN_DEVICES {
            let (device, watch) = self.devices.get_watch(snapshot, Device::by_name(name));
            indexes.own.extend(device.map(|device| device.index));
            watches.push(watch);
        }
        (indexes, watches)
    }

    /// Sets the sizes of these devices; all, or none with both families off.
    pub(crate) async fn apply(&self, indexes: Indexes) -> Result<(), NetlinkError> {
        let families = self.families;
        let result = hive::blocking(move || set(families, &indexes)).await;
        self.limits.set(*result.as_ref().unwrap_or(&Limits::OFF));
        result.map(drop)
    }
}

/// Indexes of devices.
pub(crate) struct Indexes {
    selected: Vec<u32>,
    own: Vec<u32>,
}

fn set(families: Families, indexes: &Indexes) -> Result<Limits, NetlinkError> {
    let mut netlink = Netlink::open()?;
    let links = netlink.segments()?;
    let of = |indexes: &[u32], link: &LinkSegments| indexes.contains(&link.index);
    let limits = Limits::new(families, links.iter().filter(|link| of(&indexes.selected, link)));
    let affected = links.iter().filter(|link| of(&indexes.selected, link) || of(&indexes.own, link));
    let mut changed: Vec<&LinkSegments> = Vec::new();
    for link in affected {
        let Some((ipv6, ipv4)) = limits.change(link) else { continue };
        match netlink.set_segments(link.index, ipv6, ipv4) {
            Ok(()) => changed.push(link),
            // A device that is gone is in the table for a moment.
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                for before in changed {
                    if let Err(error) = netlink.set_segments(before.index, before.ipv6, before.ipv4) {
                        tracing::info!(device = before.name, %error, "Segment sizes could not be restored");
                    }
                }
                return Err(error);
            }
        }
    }
    if !changed.is_empty() {
        let names: Vec<&str> = changed.iter().map(|link| link.name.as_str()).collect();
        tracing::info!(
            devices = names.join(", "),
            ipv4 = limits.ipv4.gso,
            ipv6 = limits.ipv6.gso,
            "Set segment sizes of devices"
        );
    }
    Ok(limits)
}
