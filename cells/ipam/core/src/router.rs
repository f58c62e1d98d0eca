//! The router's addresses: those of the previous run if they are free, else new ones.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hive::JobCx;
use local_node::{LocalNode, LocalNodeStore, LocalRouters};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::address::DEFAULT_POOL;
use crate::error::Error;
use crate::handle::Ipam;
use crate::ingress;
use crate::pools::Pools;
use crate::range::Family;

/// A wait for ranges is logged at once, then after this time, which doubles.
const FIRST_REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// The longest time between two reports of a wait.
const MAX_REPORT_INTERVAL: Duration = Duration::from_secs(600);

/// The owner of the router's addresses.
const ROUTER: &str = "router";

/// Allocates the router's addresses of the enabled families that have ranges. One that the router has already stays,
/// as an address of this family is allocated to the router. Addresses of options are not allocated, but no pod gets them.
pub(crate) fn ensure(ipam: &Ipam, store: &LocalNodeStore, configured: &LocalRouters) -> Result<(), Error> {
    let Some(node) = store.node() else { return Ok(()) };
    let configured = [configured.ipv4.map(IpAddr::V4), configured.ipv6.map(IpAddr::V6)];
    for address in configured.into_iter().flatten() {
        let is_new = !ipam.has(ROUTER, Family::of(address));
        if is_new && ipam.allocate_ip(address, ROUTER, DEFAULT_POOL).is_ok() {
            tracing::warn!(ip = %address, "The router's address of the options is one of the node's pod range; pods do not get it");
        }
    }
    let before = [node.router_ipv4.map(IpAddr::V4), node.router_ipv6.map(IpAddr::V6)];
    let (pools, default) = (ipam.pools(), ipam.default_pool());
    for ((family, before), configured) in [Family::V4, Family::V6].into_iter().zip(before).zip(configured) {
        if configured.is_some()
            || !pools.enabled(family)
            || !pools.has(&default, family)
            || ipam.has(ROUTER, family)
        {
            continue;
        }
        let kept = before.filter(|&address| pools.pool_of(address).is_none_or(|pool| *pool == default)).filter(|&address| match ipam.allocate_ip(address, ROUTER, DEFAULT_POOL) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(ip = %address, %error, "Router address of the previous run is not available");
                false
            }
        });
        let address = match kept {
            Some(address) => Some(address),
            None => ipam.allocate(ROUTER, Some(family), false)?.first().map(|given| given.address),
        };
        store.update(|node| match address {
            Some(IpAddr::V4(address)) => node.router_ipv4 = Some(address),
            Some(IpAddr::V6(address)) => node.router_ipv6 = Some(address),
            None => {}
        });
    }
    Ok(())
}

/// Allocates the router's addresses when ranges come that the start had not.
pub(crate) async fn follow(
    ipam: Arc<Ipam>,
    store: Arc<LocalNodeStore>,
    configured: Arc<LocalRouters>,
    has_ingress: bool,
    mut pools: Option<watch::Receiver<Pools>>,
    cx: JobCx,
) -> anyhow::Result<()> {
    let table = store.table();
    // When the wait began, and when it is reported again.
    let mut reported: Option<(Instant, Instant, Duration)> = None;
    loop {
        if let Some(pools) = &mut pools {
            pools.mark_unchanged();
        }
        let snapshot = table.snapshot();
        let (_, watch) = table.get_watch(&snapshot, LocalNode::query());
        match ensure(&ipam, &store, &configured).and_then(|()| ingress::ensure(&ipam, &store, has_ingress)) {
            Ok(()) => match missing_ranges(&ipam) {
                None => {
                    reported = None;
                    cx.health.ok("The router has its addresses");
                }
                Some(missing) => {
                    let now = Instant::now();
                    let (begin, due, interval) = reported.get_or_insert((now, now, FIRST_REPORT_INTERVAL));
                    let message = format!("Waits for pod ranges; {missing}");
                    if *due <= now {
                        let waited = now.duration_since(*begin).as_secs();
                        tracing::warn!(
                            reason = missing,
                            seconds = waited,
                            "Pods get no addresses: waiting for pod ranges"
                        );
                        cx.health.degraded(message, format!("pods get no addresses for {waited} s"));
                        (*due, *interval) = (now + *interval, (*interval * 2).min(MAX_REPORT_INTERVAL));
                    }
                }
            },
            Err(error) => {
                if cx.health.degraded_anew("The router or the ingress has no address", &error) {
                    tracing::error!(%error, "The router or the ingress has no address");
                }
            }
        }
        drop(snapshot);
        tokio::select! {
            () = watch.changed() => {}
            () = changed(&mut pools) => {}
            () = sleep_until(reported.map_or_else(Instant::now, |(_, due, _)| due)), if reported.is_some() => {}
            () = cx.cancelled() => return Ok(()),
        }
    }
}

/// Waits for other pools of a source; forever without one.
async fn changed(pools: &mut Option<watch::Receiver<Pools>>) {
    if let Some(pools) = pools
        && pools.changed().await.is_ok()
    {
        return;
    }
    // A source that has ended: the agent stops.
    std::future::pending().await
}

/// Describes the ranges that the node's own addresses and those of pods without another pool wait for.
pub(crate) fn missing_ranges(ipam: &Ipam) -> Option<String> {
    let (pools, default) = (ipam.pools(), ipam.default_pool());
    let is_missing = |family: &Family| pools.enabled(*family) && !pools.has(&default, *family);
    let wait = |family| pools.wait(family).map(ToString::to_string).or_else(|| ipam.wait(family));
    let reasons = [Family::V4, Family::V6].into_iter().filter(is_missing).map(|family| match wait(family) {
        Some(reason) => format!("{family}: {reason}"),
        None => format!("{family}: this node has no range of the pool {default} yet"),
    });
    let reasons: Vec<String> = reasons.collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}
