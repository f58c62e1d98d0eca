//! Fills the node sets' rows from the nodes of the cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use hive::JobCx;
use local_node::AddressType;
use node_manager::Node;
use statedb::{Initializer, RwTable, Table};

use crate::ipset::{SetEntry, node_set};
use crate::rules::Family;

/// The job that keeps table `ipsets` equal to the nodes' addresses.
pub(crate) struct Follow {
    /// The families with a set.
    pub(crate) families: Vec<Family>,
    pub(crate) nodes: Arc<Table<Node>>,
    pub(crate) entries: Arc<RwTable<SetEntry>>,
    /// Kept until the nodes of the cluster are known: no member is removed before.
    pub(crate) initializer: Initializer<SetEntry>,
}

/// Addresses, each with its set.
type Members = BTreeSet<(&'static str, IpAddr)>;

impl Follow {
    /// Runs until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let Follow { families, nodes: table, entries, initializer } = self;
        let mut initializer = Some(initializer);
        let mut known = Members::new();
        loop {
            let snapshot = table.snapshot();
            let (is_complete, completed) = table.initialized_watch(&snapshot);
            let (nodes, changed) = table.all_watch(&snapshot);
            let wanted = members(&families, nodes.map(|node| &**node));
            // The transaction is a lock, which no wait may hold.
            replace(&entries, &known, &wanted, initializer.take_if(|_| is_complete));
            cx.health.ok(format!("{} addresses of nodes", wanted.len()));
            known = wanted;
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = changed.changed() => {}
                () = completed.changed(), if !is_complete => {}
            }
        }
    }
}

fn replace(
    entries: &RwTable<SetEntry>,
    known: &Members,
    wanted: &Members,
    complete: Option<Initializer<SetEntry>>,
) {
    let mut txn = entries.write();
    for (set, addr) in known.difference(wanted) {
        txn.delete(SetEntry::by_member(set, *addr));
    }
    for (set, addr) in wanted.difference(known) {
        txn.insert(SetEntry::new(set, *addr));
    }
    if let Some(initializer) = complete {
        initializer.done(&mut txn);
    }
    txn.commit();
}

/// Returns the own addresses of all nodes, with the sets that they belong into.
fn members<'a>(families: &[Family], nodes: impl Iterator<Item = &'a Node>) -> Members {
    let internal = |node: &'a Node| {
        node.addresses
            .iter()
            .filter(|address| address.kind == AddressType::InternalIP)
            .map(|address| address.ip)
    };
    let member = |ip: IpAddr| {
        let family = if ip.is_ipv4() { Family::V4 } else { Family::V6 };
        families.contains(&family).then(|| (node_set(family), ip))
    };
    nodes.flat_map(internal).filter_map(member).collect()
}

#[cfg(test)]
mod tests {
    use node_manager::NodeAddress;

    use super::*;

    #[test]
    fn own_addresses_of_enabled_families_are_members_once() {
        let node = |addresses: &[(AddressType, &str)]| Node {
            addresses: addresses
                .iter()
                .map(|(kind, ip)| NodeAddress { kind: *kind, ip: ip.parse().unwrap() })
                .collect(),
            ..Node::default()
        };
        let nodes = [
            node(&[
                (AddressType::InternalIP, "192.0.2.1"),
                (AddressType::InternalIP, "2001:db8::1"),
                (AddressType::ExternalIP, "198.51.100.1"),
                (AddressType::CiliumInternalIP, "10.244.0.1"),
            ]),
            node(&[(AddressType::InternalIP, "192.0.2.1")]),
            node(&[]),
        ];
        let of = |families: &[Family]| {
            let all = members(families, nodes.iter()).into_iter();
            all.map(|(set, ip)| format!("{set} {ip}")).collect::<Vec<_>>()
        };
        assert_eq!(of(&Family::ALL), ["cilium_node_set_v4 192.0.2.1", "cilium_node_set_v6 2001:db8::1"]);
        assert_eq!(of(&[Family::V6]), ["cilium_node_set_v6 2001:db8::1"]);
        assert!(of(&[]).is_empty());
    }
}
