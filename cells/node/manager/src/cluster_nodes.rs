//! `GET /cluster/nodes`: all nodes of the cluster, or the changes since a client's previous request.
//!
//! A client that sends the header `client-id: 0` gets an id with the answer and sends it with its next request, which
//! then returns only changes. The id is the table's revision at the answer, so that no state is kept per client.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use api_models::{ClusterNodeStatus, NodeAddressing, NodeAddressingElement, NodeElement};
use ipnetwork::IpNetwork;
use parking_lot::Mutex;
use statedb::{Obj, Table, TableTxn};

use crate::model::Key;
use crate::node::Node;

/// Number of changes that a client may be behind; one that is further behind gets all nodes.
const MAX_CHANGES: usize = 1024;
/// Revisions take the low bits of an id. The others are of this process: an id of the previous one is unknown.
const REVISION_BITS: u32 = 40;

/// The latest changes of the table.
#[derive(Debug)]
pub(crate) struct History {
    table: Arc<Table<Node>>,
    process: i64,
    changes: Mutex<Changes>,
}

#[derive(Debug, Default)]
struct Changes {
    /// Rows before their change, with the table's revision after it, newest last.
    past: VecDeque<(u64, Key, Option<Obj<Node>>)>,
    /// The highest revision of which changes were evicted.
    evicted: u64,
}

impl History {
    pub(crate) fn new(table: Arc<Table<Node>>) -> History {
        let random = RandomState::new().hash_one("client-id") >> (REVISION_BITS + 2);
        History {
            table,
            process: i64::try_from(random << REVISION_BITS).unwrap_or_default(),
            changes: Mutex::default(),
        }
    }

    /// Commits a transaction that has changed these rows. A reader sees the rows and their history together.
    pub(crate) fn commit(&self, txn: TableTxn<'_, Node>, past: Vec<(Key, Option<Obj<Node>>)>) {
        let mut changes = self.changes.lock();
        let revision = self.table.revision(&txn.commit());
        changes.past.extend(past.into_iter().map(|(key, before)| (revision, key, before)));
        while changes.past.len() > MAX_CHANGES {
            changes.evicted = changes.past.pop_front().map_or(0, |(revision, ..)| revision);
        }
    }

    /// Returns the response for a client that has sent this id: changes since then, or all nodes without an id.
    pub(crate) fn answer(&self, self_name: String, client: Option<i64>) -> ClusterNodeStatus {
        let changes = self.changes.lock();
        let snapshot = self.table.snapshot();
        let revision = self.table.revision(&snapshot);
        let mut status = ClusterNodeStatus { self_name, ..ClusterNodeStatus::default() };
        let mut since = None;
        if let Some(client) = client {
            status.client_id = self.process | i64::try_from(revision).unwrap_or_default();
            let seen = u64::try_from(client - self.process).unwrap_or(u64::MAX);
            since = Some(seen).filter(|seen| (changes.evicted..=revision).contains(seen) && client > 0);
        }
        let Some(since) = since else {
            let all: Vec<NodeElement> = self.table.all(&snapshot).map(|node| element(node)).collect();
            status.nodes_added = all.into();
            return status;
        };
        // Of several changes of a row the client knows it as it was before the first.
        let mut known: BTreeMap<&Key, Option<&Obj<Node>>> = BTreeMap::new();
        for (at, key, before) in &changes.past {
            if *at > since {
                known.entry(key).or_insert(before.as_ref());
            }
        }
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for ((cluster, name), before) in known {
            let now = self.table.get(&snapshot, Node::by_name(cluster, name)).map(|node| element(node));
            let before = before.map(|node| element(node));
            if before != now {
                removed.extend(before);
                added.extend(now);
            }
        }
        status.nodes_added = added.into();
        status.nodes_removed = removed.into();
        status
    }
}

fn addressing(ip: Option<IpAddr>, range: Option<IpNetwork>) -> NodeAddressingElement {
    NodeAddressingElement {
        address_type: String::new(),
        alloc_range: range.map(|range| range.to_string()).unwrap_or_default(),
        enabled: ip.is_some(),
        ip: ip.map(|ip| ip.to_string()).unwrap_or_default(),
    }
}

fn pair(ipv4: Option<IpAddr>, ipv6: Option<IpAddr>) -> Option<NodeAddressing> {
    (ipv4.is_some() || ipv6.is_some())
        .then(|| NodeAddressing { ipv4: Some(addressing(ipv4, None)), ipv6: Some(addressing(ipv6, None)) })
}

fn element(node: &Node) -> NodeElement {
    let (ipv4, ipv6) = (node.ipv4().map(IpAddr::V4), node.ipv6().map(IpAddr::V6));
    let range = |is_ipv4: bool| node.pod_cidrs.iter().find(|range| range.is_ipv4() == is_ipv4).copied();
    let others =
        node.addresses.iter().map(|address| Some(address.ip)).filter(|ip| *ip != ipv4 && *ip != ipv6);
    let secondary = others.map(|ip| NodeAddressingElement { enabled: false, ..addressing(ip, None) });
    NodeElement {
        health_endpoint_address: pair(node.health_ipv4.map(IpAddr::V4), node.health_ipv6.map(IpAddr::V6)),
        ingress_address: pair(node.ingress_ipv4.map(IpAddr::V4), node.ingress_ipv6.map(IpAddr::V6)),
        name: node.full_name(),
        primary_address: Some(NodeAddressing {
            ipv4: Some(addressing(ipv4, range(true))),
            ipv6: Some(addressing(ipv6, range(false))),
        }),
        secondary_addresses: secondary.collect::<Vec<_>>().into(),
        source: node.source.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use local_node::LocalNode;
    use statedb::{Db, RwTable};

    use super::*;
    use crate::model::key;
    use crate::testing::node;

    fn history() -> (RwTable<Node>, History) {
        let table = Db::new().table::<Node>().unwrap();
        let history = History::new(Arc::new(table.reader()));
        (table, history)
    }

    fn put(table: &RwTable<Node>, history: &History, node: Node) {
        let mut txn = table.write();
        let key = key(&node);
        let before = txn.insert(node);
        history.commit(txn, vec![(key, before)]);
    }

    fn delete(table: &RwTable<Node>, history: &History, name: &str) {
        let mut txn = table.write();
        let before = txn.delete(Node::by_name("default", name));
        history.commit(txn, vec![(("default".into(), name.into()), before)]);
    }

    fn counts(status: &ClusterNodeStatus) -> (usize, usize) {
        (status.nodes_added.len(), status.nodes_removed.len())
    }

    /// As recorded from Cilium 1.20.
    #[test]
    fn the_answer_is_serialized_as_cilium_does() {
        let (table, history) = history();
        let local = LocalNode {
            name: "peer1".into(),
            cluster: "default".into(),
            ipv4: Some([10, 99, 0, 1].into()),
            ipv4_alloc_cidr: Some("10.244.0.0/16".parse().unwrap()),
            router_ipv4: Some([10, 244, 71, 14].into()),
            health_ipv4: Some([10, 244, 57, 201].into()),
            ..LocalNode::default()
        };
        put(&table, &history, Node::from(&local));
        let status = history.answer("peer1".into(), None);
        assert_eq!(
            serde_json::to_string(&status).unwrap(),
            r#"{"nodes-added":[{"health-endpoint-address":{"ipv4":{"enabled":true,"ip":"10.244.57.201"},"ipv6":{}},"name":"peer1","primary-address":{"ipv4":{"alloc-range":"10.244.0.0/16","enabled":true,"ip":"10.99.0.1"},"ipv6":{}},"secondary-addresses":[{"ip":"10.244.71.14"}],"source":"local"}],"nodes-removed":null,"self":"peer1"}"#
        );
    }

    #[test]
    fn a_client_with_an_id_gets_only_changes() {
        let (table, history) = history();
        put(&table, &history, node("n1", &["192.0.2.1"], &[]));
        put(&table, &history, node("n2", &["192.0.2.2"], &[]));
        let answer = |client| history.answer("n1".into(), Some(client));
        let first = answer(0);
        assert_eq!(counts(&first), (2, 0));
        assert!(first.client_id > 0);
        let again = answer(first.client_id);
        assert_eq!((again.client_id, counts(&again)), (first.client_id, (0, 0)));

        put(&table, &history, node("n2", &["192.0.2.3"], &[]));
        put(&table, &history, node("n2", &["192.0.2.4"], &[]));
        put(&table, &history, node("n3", &["192.0.2.5"], &[]));
        let changed = answer(first.client_id);
        assert_eq!(counts(&changed), (2, 1));
        let ip = |node: &NodeElement| node.primary_address.clone().unwrap().ipv4.unwrap().ip;
        assert_eq!(ip(&changed.nodes_removed[0]), "192.0.2.2", "as the client knows it");
        assert_eq!(ip(&changed.nodes_added[0]), "192.0.2.4");

        delete(&table, &history, "n3");
        assert_eq!(counts(&answer(changed.client_id)), (0, 1));
        assert_eq!(counts(&answer(first.client_id)), (1, 1), "n3 came and went");
        for unknown in [-1, 12345, changed.client_id + 1000, i64::MAX] {
            assert_eq!(counts(&answer(unknown)), (2, 0), "{unknown}");
        }
        for last in 0..=MAX_CHANGES {
            put(&table, &history, node("n2", &[&format!("192.0.{}.{}", last / 256, last % 256)], &[]));
        }
        assert_eq!(counts(&answer(changed.client_id)), (2, 0), "too far behind");
        assert_eq!(history.changes.lock().past.len(), MAX_CHANGES);
    }

    #[test]
    fn an_id_of_the_previous_process_is_unknown() {
        let (table, history) = history();
        put(&table, &history, node("n1", &["192.0.2.1"], &[]));
        let other = History::new(history.table.clone());
        let id = other.answer("n1".into(), Some(0)).client_id;
        if other.process != history.process {
            assert_eq!(counts(&history.answer("n1".into(), Some(id))), (1, 0));
        }
    }
}
