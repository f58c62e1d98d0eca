//! Ranges that the cluster has withdrawn: reported with the owners of their addresses, forgotten when they have none.

use std::sync::Arc;

use hive::JobCx;
use ipnetwork::IpNetwork;
use local_node::{LocalNode, LocalNodeStore};
use statedb::Table;

use crate::address::Address;
use crate::handle::Ipam;
use crate::range::PodRange;

/// Owners that health names at most.
const MAX_REPORTED_OWNERS: usize = 5;

/// Drops withdrawn ranges from the node's row when no address of theirs has an owner.
pub(crate) async fn follow(
    ipam: Arc<Ipam>,
    addresses: Table<Address>,
    store: Arc<LocalNodeStore>,
    cx: JobCx,
) -> anyhow::Result<()> {
    let nodes = store.table();
    loop {
        let snapshot = nodes.snapshot();
        let (node, node_watch) = nodes.get_watch(&snapshot, LocalNode::query());
        let withdrawn = node.map(|node| node.withdrawn_alloc_cidrs.clone()).unwrap_or_default();
        let released = addresses.watch(&addresses.snapshot());
        let (used, unused): (Vec<_>, Vec<_>) = withdrawn
            .iter()
            .map(|cidr| (*cidr, ipam.owners_in(PodRange::new(*cidr))))
            .partition(|(_, o)| !o.is_empty());
        if !unused.is_empty() {
            for (cidr, _) in &unused {
                tracing::info!(%cidr, "The last address of a withdrawn pod range is released");
            }
            let is_unused = |cidr: &IpNetwork| unused.iter().any(|(unused, _)| unused == cidr);
            store.update(|node| node.withdrawn_alloc_cidrs.retain(|cidr| !is_unused(cidr)));
        }
        match used.is_empty() {
            true => cx.health.ok("No withdrawn range is in use"),
            false => cx
                .health
                .degraded("Pods have addresses of ranges that are not the node's any more", report(&used)),
        }
        drop(snapshot);
        tokio::select! {
            () = node_watch.changed() => {}
            () = released.changed(), if !withdrawn.is_empty() => {}
            () = cx.cancelled() => return Ok(()),
        }
    }
}

/// `10.0.0.0/24: 2 addresses, of shop/web-0, shop/web-1; they stay valid until their owners are deleted`
fn report(used: &[(IpNetwork, Vec<Address>)]) -> String {
    let range = |(cidr, rows): &(IpNetwork, Vec<Address>)| {
        let owners =
            hive::health::summarize(rows.iter().map(|row| row.owner.clone()), MAX_REPORTED_OWNERS, ", ");
        format!("{cidr}: {} addresses, of {owners}", rows.len())
    };
    let ranges: Vec<String> = used.iter().map(range).collect();
    format!("{}; they stay valid until their owners are deleted", ranges.join("; "))
}
