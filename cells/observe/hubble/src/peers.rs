//! The peer service: the nodes of the cluster and their changes, by which relay finds the servers of flows.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use hubble_api::peer::{ChangeNotification, ChangeNotificationType, Tls};
use local_node::DEFAULT_CLUSTER;
use node_manager::Node;
use statedb::{Table, Watch};
use tokio::time::sleep;

/// The end of the names by which certificates of servers are verified.
const DOMAIN: &str = "hubble-grpc.cilium.io";

/// The time in which changes of nodes are collected.
const COALESCE: Duration = Duration::from_millis(100);

/// How clients reach the servers of all nodes, which have the options of this one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Naming {
    /// The port of the listeners; without it addresses have none.
    pub(crate) port: Option<u16>,
    pub(crate) has_tls: bool,
    pub(crate) prefer_ipv6: bool,
}

/// A peer as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    address: String,
    server_name: Option<String>,
}

impl Naming {
    fn peer(&self, node: &Node) -> Peer {
        let (v4, v6) = (node.ipv4().map(IpAddr::V4), node.ipv6().map(IpAddr::V6));
        let ip = if self.prefer_ipv6 { v6.or(v4) } else { v4.or(v6) };
        let address = match (ip, self.port) {
            (None, _) => String::new(),
            (Some(ip), None) => ip.to_string(),
            (Some(ip), Some(port)) => std::net::SocketAddr::new(ip, port).to_string(),
        };
        Peer { address, server_name: self.has_tls.then(|| server_name(&node.name, &node.cluster)) }
    }
}

/// Returns the name in the certificate of a node's server.
fn server_name(node: &str, cluster: &str) -> String {
    let cluster = if cluster.is_empty() { DEFAULT_CLUSTER } else { cluster };
    format!("{}.{}.{DOMAIN}", node.replace('.', "-"), cluster.replace('.', "-"))
}

/// The changes that one client is still to get: first all nodes, then what changes. A client that does not read costs
/// one list of the nodes, and gets their latest state.
pub(crate) struct Notifications {
    nodes: Table<Node>,
    naming: Naming,
    known: BTreeMap<String, Peer>,
    pending: VecDeque<ChangeNotification>,
    /// Closes with the next change; none before the nodes are read for the first time.
    watch: Option<Watch>,
}

impl Notifications {
    pub(crate) fn new(nodes: Table<Node>, naming: Naming) -> Self {
        Self { nodes, naming, known: BTreeMap::new(), pending: VecDeque::new(), watch: None }
    }

    /// Waits for the next change.
    pub(crate) async fn next(&mut self) -> ChangeNotification {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return change;
            }
            if let Some(watch) = &self.watch {
                watch.changed().await;
                sleep(COALESCE).await;
            }
            let snapshot = self.nodes.snapshot();
            let (rows, watch) = self.nodes.all_watch(&snapshot);
            let current = rows.map(|node| (node.full_name(), self.naming.peer(node))).collect();
            self.pending = changes(&self.known, &current);
            (self.known, self.watch) = (current, Some(watch));
        }
    }
}

/// Returns the changes between two states, deletions first.
fn changes(old: &BTreeMap<String, Peer>, new: &BTreeMap<String, Peer>) -> VecDeque<ChangeNotification> {
    let change = |r#type: ChangeNotificationType, name: &String, peer: &Peer| ChangeNotification {
        name: name.clone(),
        address: peer.address.clone(),
        r#type: r#type.into(),
        tls: peer.server_name.clone().map(|server_name| Tls { server_name }),
    };
    let deleted = old.iter().filter(|(name, _)| !new.contains_key(*name));
    let deleted = deleted.map(|(name, peer)| change(ChangeNotificationType::PeerDeleted, name, peer));
    let changed = new.iter().filter_map(|(name, peer)| match old.get(name) {
        None => Some(change(ChangeNotificationType::PeerAdded, name, peer)),
        Some(before) if before.address != peer.address => {
            Some(change(ChangeNotificationType::PeerUpdated, name, peer))
        }
        Some(_) => None,
    });
    deleted.chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use node_manager::testing::node;

    use super::*;

    const TLS: Naming = Naming { port: Some(4244), has_tls: true, prefer_ipv6: false };

    fn peer(naming: &Naming, addresses: &[&str]) -> (String, Option<String>) {
        let Peer { address, server_name } = naming.peer(&node("a.b", addresses, &[]));
        (address, server_name)
    }

    #[test]
    fn peers_have_the_address_and_the_name_of_their_certificate() {
        let name = Some("a-b.default.hubble-grpc.cilium.io".to_owned());
        let both = ["10.0.0.1", "fd00::1"];
        assert_eq!(peer(&TLS, &both), ("10.0.0.1:4244".to_owned(), name.clone()));
        assert_eq!(peer(&TLS, &both[1..]), ("[fd00::1]:4244".to_owned(), name.clone()));
        assert_eq!(peer(&TLS, &[]), (String::new(), name));
        let prefer_ipv6 = Naming { prefer_ipv6: true, ..Naming::default() };
        assert_eq!(peer(&prefer_ipv6, &both), ("fd00::1".to_owned(), None));
        assert_eq!(peer(&prefer_ipv6, &both[..1]), ("10.0.0.1".to_owned(), None));
        assert_eq!(server_name("a.b", "c.d"), "a-b.c-d.hubble-grpc.cilium.io");
        assert_eq!(server_name("n", ""), "n.default.hubble-grpc.cilium.io");
    }

    #[test]
    fn changes_are_deletions_additions_and_new_addresses() {
        let state = |nodes: &[(&str, &str)]| -> BTreeMap<String, Peer> {
            let peer = |address: &str| Peer { address: address.to_owned(), server_name: None };
            nodes.iter().map(|(name, address)| ((*name).to_owned(), peer(address))).collect()
        };
        let (old, new) =
            (state(&[("a", "1"), ("b", "2"), ("c", "3")]), state(&[("b", "2"), ("c", "4"), ("d", "5")]));
        let seen: Vec<_> = changes(&old, &new)
            .iter()
            .map(|change| (change.r#type().as_str_name(), change.name.clone(), change.address.clone()))
            .collect();
        let expected = [("PEER_DELETED", "a", "1"), ("PEER_UPDATED", "c", "4"), ("PEER_ADDED", "d", "5")];
        assert_eq!(seen, expected.map(|(kind, name, address)| (kind, name.to_owned(), address.to_owned())));
        assert!(changes(&new, &new).is_empty());
    }
}
