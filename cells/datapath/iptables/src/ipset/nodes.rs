//! Fills the node sets' rows from the nodes of the cluster.

use std::collections::{BTreeSet, HashMap};
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

impl Follow {
    /// Runs until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let Follow { families, nodes: table, entries, initializer } = self;
        let mut initializer = Some(initializer);
        let mut members = Members { families, ..Members::default() };
        let mut changes = table.changes();
        loop {
            let snapshot = table.snapshot();
            let (is_complete, completed) = table.initialized_watch(&snapshot);
            let (batch, changed) = changes.read(&snapshot, usize::MAX);
            let mut touched = BTreeSet::new();
            for change in &batch {
                let node = (!change.deleted).then(|| &*change.object);
                members.replace(&change.object, node, &mut touched);
            }
            // The transaction is a lock, which no wait may hold.
            write(&entries, &members, touched, initializer.take_if(|_| is_complete));
            cx.health.ok(format!("{} addresses of nodes", members.uses.len()));
            drop(snapshot);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = changed.changed() => {}
                () = completed.changed(), if !is_complete => {}
            }
        }
    }
}

/// An address with its set.
type Member = (&'static str, IpAddr);

/// The members of the sets, with the numbers of nodes that have them.
#[derive(Default)]
struct Members {
    families: Vec<Family>,
    of_nodes: HashMap<(Arc<str>, Arc<str>), Vec<Member>>,
    uses: HashMap<Member, usize>,
}

impl Members {
    /// Replaces the members of a node by those of its new state; adds members that may be gone or new to `touched`.
    fn replace(&mut self, of: &Node, node: Option<&Node>, touched: &mut BTreeSet<Member>) {
        let new = node.map(|node| own_members(&self.families, node)).unwrap_or_default();
        let key = (of.cluster.clone(), of.name.clone());
        for member in &new {
            *self.uses.entry(*member).or_default() += 1;
        }
        touched.extend(new.iter().copied());
        let old = match new.is_empty() {
            true => self.of_nodes.remove(&key),
            false => self.of_nodes.insert(key, new),
        };
        for member in old.into_iter().flatten() {
            touched.insert(member);
            if let Some(uses) = self.uses.get_mut(&member) {
                *uses -= 1;
                if *uses == 0 {
                    self.uses.remove(&member);
                }
            }
        }
    }
}

fn write(
    entries: &RwTable<SetEntry>,
    members: &Members,
    touched: BTreeSet<Member>,
    complete: Option<Initializer<SetEntry>>,
) {
    if touched.is_empty() && complete.is_none() {
        return;
    }
    let mut txn = entries.write();
    for member in touched {
        let (set, addr) = member;
        let is_there = txn.get(SetEntry::by_member(set, addr)).is_some();
        match members.uses.contains_key(&member) {
            true if !is_there => drop(txn.insert(SetEntry::new(set, addr))),
            false if is_there => drop(txn.delete(SetEntry::by_member(set, addr))),
            _ => {}
        }
    }
    if let Some(initializer) = complete {
        initializer.done(&mut txn);
    }
    txn.commit();
}

/// Returns the own addresses of a node, with the sets that they belong into.
fn own_members(families: &[Family], node: &Node) -> Vec<Member> {
    let internal = node.addresses.iter().filter(|address| address.kind == AddressType::InternalIP);
    let member = |ip: IpAddr| {
        let family = if ip.is_ipv4() { Family::V4 } else { Family::V6 };
        families.contains(&family).then(|| (node_set(family), ip))
    };
    internal.filter_map(|address| member(address.ip)).collect()
}

#[cfg(test)]
mod tests {
    use node_manager::NodeAddress;

    use super::*;

    fn node(name: &str, addresses: &[(AddressType, &str)]) -> Node {
        let address = |(kind, ip): &(AddressType, &str)| NodeAddress { kind: *kind, ip: ip.parse().unwrap() };
        Node { name: name.into(), addresses: addresses.iter().map(address).collect(), ..Node::default() }
    }

    fn texts(members: impl IntoIterator<Item = Member>) -> Vec<String> {
        members.into_iter().map(|(set, ip)| format!("{set} {ip}")).collect()
    }

    #[test]
    fn own_addresses_of_enabled_families_are_members() {
        let n1 = node(
            "n1",
            &[
                (AddressType::InternalIP, "192.0.2.1"),
                (AddressType::InternalIP, "2001:db8::1"),
                (AddressType::ExternalIP, "198.51.100.1"),
                (AddressType::CiliumInternalIP, "10.244.0.1"),
            ],
        );
        let of = |families: &[Family]| texts(own_members(families, &n1));
        assert_eq!(of(&Family::ALL), ["cilium_node_set_v4 192.0.2.1", "cilium_node_set_v6 2001:db8::1"]);
        assert_eq!(of(&[Family::V6]), ["cilium_node_set_v6 2001:db8::1"]);
        assert!(of(&[]).is_empty());
    }

    #[test]
    fn an_address_stays_until_its_last_node_has_left() {
        let mut members = Members { families: Family::ALL.to_vec(), ..Members::default() };
        let internal = |name, ip| node(name, &[(AddressType::InternalIP, ip)]);
        let (first, second) = (internal("n1", "192.0.2.1"), internal("n2", "192.0.2.1"));
        let mut touched = BTreeSet::new();
        members.replace(&first, Some(&first), &mut touched);
        members.replace(&second, Some(&second), &mut touched);
        members.replace(&first, None, &mut touched);
        assert_eq!(texts(members.uses.keys().copied()), ["cilium_node_set_v4 192.0.2.1"]);
        touched.clear();
        let moved = internal("n2", "192.0.2.2");
        members.replace(&second, Some(&moved), &mut touched);
        assert_eq!(texts(touched), ["cilium_node_set_v4 192.0.2.1", "cilium_node_set_v4 192.0.2.2"]);
        assert_eq!(texts(members.uses.keys().copied()), ["cilium_node_set_v4 192.0.2.2"]);
    }
}
