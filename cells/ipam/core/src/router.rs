//! The router's addresses: those of the previous run if they are free, else new ones.

use std::net::IpAddr;
use std::sync::Arc;

use hive::JobCx;
use local_node::{LocalNode, LocalNodeStore, LocalRouters};

use crate::address::DEFAULT_POOL;
use crate::error::Error;
use crate::handle::Ipam;
use crate::range::Family;

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
    let pools = ipam.pools();
    for ((family, before), configured) in [Family::V4, Family::V6].into_iter().zip(before).zip(configured) {
        if configured.is_some()
            || !pools.enabled(family)
            || pools.wait(family).is_some()
            || ipam.has(ROUTER, family)
        {
            continue;
        }
        let kept = before.filter(|&address| match ipam.allocate_ip(address, ROUTER, DEFAULT_POOL) {
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
    cx: JobCx,
) -> anyhow::Result<()> {
    let table = store.table();
    loop {
        let snapshot = table.snapshot();
        let (_, watch) = table.get_watch(&snapshot, LocalNode::query());
        match ensure(&ipam, &store, &configured) {
            Ok(()) => cx.health.ok(report(&ipam)),
            Err(error) => {
                if cx.health.degraded_anew("The router has no address", &error) {
                    tracing::error!(%error, "The router has no address");
                }
            }
        }
        tokio::select! {
            () = watch.changed() => {}
            () = cx.cancelled() => return Ok(()),
        }
    }
}

fn report(ipam: &Ipam) -> String {
    let pools = ipam.pools();
    let waits = [Family::V4, Family::V6].into_iter().filter_map(|family| Some((family, pools.wait(family)?)));
    let waits: Vec<String> = waits.map(|(family, reason)| format!("{family}: {reason}")).collect();
    match waits.is_empty() {
        true => "The router has its addresses".to_owned(),
        false => format!("Waits for pod ranges; {}", waits.join("; ")),
    }
}
