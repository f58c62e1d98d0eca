//! The job that makes addresses of other nodes forwardable.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use hive::JobCx;
use node_manager::{Family, Node};
use statedb::{Initializer, Table};

use crate::forwardable::{self, ForwardableIp, ForwardableIps, Owner};

/// Follows the table of nodes as long as the hive runs.
pub(crate) async fn run(
    nodes: Arc<Table<Node>>,
    ips: Arc<ForwardableIps>,
    initializer: Initializer<ForwardableIp>,
    cx: JobCx,
) {
    let token = cx.token().clone();
    token.run_until_cancelled(follow(&nodes, &ips, initializer)).await;
}

async fn follow(nodes: &Table<Node>, ips: &ForwardableIps, initializer: Initializer<ForwardableIp>) {
    let mut initializer = Some(initializer);
    let mut changes = nodes.changes();
    // Addresses of each node that are in the table.
    let mut known: HashMap<Owner, Vec<IpAddr>> = HashMap::new();
    loop {
        let snapshot = nodes.snapshot();
        let (batch, changed) = changes.read(&snapshot, usize::MAX);
        let (is_complete, completed) = nodes.initialized_watch(&snapshot);
        let finished = if is_complete { initializer.take() } else { None };
        ips.change(|txn| {
            for change in batch.iter() {
                let owner = Owner::node(&change.object.full_name());
                let new = if change.deleted { Vec::new() } else { addresses(&change.object) };
                let old = known.remove(&owner).unwrap_or_default();
                for ip in old.iter().filter(|ip| !new.contains(ip)) {
                    forwardable::delete(txn, *ip, &owner);
                }
                new.iter().for_each(|ip| forwardable::insert(txn, *ip, &owner));
                if !new.is_empty() {
                    known.insert(owner, new);
                }
            }
            if let Some(initializer) = finished {
                initializer.done(txn);
            }
        });
        drop(snapshot);
        tokio::select! {
            () = changed.changed() => {}
            () = completed.changed(), if !is_complete => {}
        }
    }
}

/// Returns the addresses of a node by which others reach it; none of this node.
fn addresses(node: &Node) -> Vec<IpAddr> {
    if node.is_local() {
        return Vec::new();
    }
    [Family::Ipv4, Family::Ipv6].into_iter().filter_map(|family| node.tunnel_endpoint(family)).collect()
}
