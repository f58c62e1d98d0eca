//! The identities of other nodes by their labels (`enable-node-selector-labels`) and addresses (`policy-cidr-match-mode`), and
//! of those of the API server; others have one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ::identity::{NodeIdentities, cidr_labels};
use datapath_abi::identity;
use labels::{CIDR, Filter, K8S, KUBE_APISERVER, Label, LabelArray, LabelRef, Labels, POLICY_CLUSTER};

use crate::model::{Key, Rows};
use crate::node::Node;

/// The source of a node's labels.
const NODE: &str = "node";

/// The labels in identities of nodes, beside `reserved:remote-node`.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The labels of nodes that count (`enable-node-selector-labels`).
    pub(crate) labels: Option<Filter>,
    /// The address, so that rules of prefixes select it (`policy-cidr-match-mode`).
    pub(crate) addresses: bool,
}

/// The allocator with the identities that nodes have now.
#[derive(Debug)]
pub(crate) struct LabelIdentities {
    allocator: NodeIdentities,
    parts: Parts,
    /// The addresses of the API server.
    api_servers: BTreeSet<IpAddr>,
    identities: BTreeMap<Key, OwnIdentities>,
    /// Errors of allocations, by the node's name; such a node has the identity of nodes without labels.
    failed: BTreeMap<Key, String>,
}

/// The identities of a node's own addresses and of those of its router.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OwnIdentities {
    /// That of all addresses.
    node: Option<u32>,
    /// Those of single addresses.
    addresses: BTreeMap<IpAddr, u32>,
}

impl OwnIdentities {
    /// Returns the identity of an address.
    pub(crate) fn of(&self, ip: IpAddr) -> u32 {
        self.addresses.get(&ip).copied().or(self.node).unwrap_or(identity::REMOTE_NODE)
    }

    fn ids(&self) -> BTreeSet<u32> {
        self.addresses.values().copied().chain(self.node).collect()
    }
}

#[cfg(test)]
impl From<u32> for OwnIdentities {
    fn from(node: u32) -> OwnIdentities {
        OwnIdentities { node: Some(node), addresses: BTreeMap::new() }
    }
}

/// The identities of a batch of rows.
#[derive(Debug, Default)]
pub(crate) struct Assigned {
    /// The identities before and after, where they differ.
    changed: BTreeMap<Key, [OwnIdentities; 2]>,
    current: BTreeMap<Key, OwnIdentities>,
}

impl Assigned {
    /// Whether a node has other identities than before.
    pub(crate) fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns the node's identities before and after the batch.
    pub(crate) fn of(&self, key: &Key) -> [OwnIdentities; 2] {
        let current = || self.current.get(key).cloned().unwrap_or_default();
        self.changed.get(key).cloned().unwrap_or_else(|| [current(), current()])
    }
}

impl LabelIdentities {
    pub(crate) fn new(allocator: NodeIdentities, parts: Parts) -> LabelIdentities {
        let (api_servers, identities, failed) = <_>::default();
        LabelIdentities { allocator, parts, api_servers, identities, failed }
    }

    /// Sets the addresses of the API server. Returns those that are new or gone: nodes with one of them are to be
    /// [assigned](Self::assign) again.
    pub(crate) fn set_api_servers(&mut self, addresses: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let changed = self.api_servers.symmetric_difference(&addresses).copied().collect();
        self.api_servers = addresses;
        changed
    }

    /// Allocates the identities of rows that are inserted, and waits until policy has rows for new ones.
    pub(crate) async fn assign(&mut self, rows: &Rows) -> Assigned {
        let mut assigned = Assigned::default();
        let mut is_new = false;
        for (key, row) in rows {
            self.failed.remove(key);
            let before = self.identities.get(key).cloned().unwrap_or_default();
            let after = match row.as_ref().filter(|node| !node.is_local()) {
                None => OwnIdentities::default(),
                Some(node) => self.allocate(key, node).await,
            };
            match after == OwnIdentities::default() {
                true => drop(self.identities.remove(key)),
                false => drop(self.identities.insert(key.clone(), after.clone())),
            }
            assigned.current.insert(key.clone(), after.clone());
            if before != after {
                is_new |= !after.ids().is_subset(&before.ids());
                assigned.changed.insert(key.clone(), [before, after]);
            }
        }
        if is_new {
            self.allocator.policy_follows().await;
        }
        assigned
    }

    async fn allocate(&mut self, key: &Key, node: &Node) -> OwnIdentities {
        let own: BTreeSet<IpAddr> = node.addresses.iter().map(|address| address.ip).collect();
        let has_own = |ip: &IpAddr| self.parts.addresses || self.api_servers.contains(ip);
        let of_addresses = own.into_iter().filter(has_own).map(|ip| (Some(ip), self.labels(node, Some(ip))));
        let mut wanted: Vec<_> = of_addresses.collect();
        if self.parts.labels.is_some() && !self.parts.addresses {
            wanted.push((None, self.labels(node, None)));
        }
        if wanted.is_empty() {
            return OwnIdentities::default();
        }
        let (allocator, name) = (self.allocator.clone(), node.full_name());
        let allocated = hive::blocking(move || -> Vec<_> {
            let allocate = |(ip, labels)| (ip, allocator.allocate(&name, &labels));
            wanted.into_iter().map(allocate).collect()
        });
        let mut identities = OwnIdentities::default();
        for (ip, id) in allocated.await {
            match (ip, id) {
                (Some(ip), Ok(id)) => drop(identities.addresses.insert(ip, id)),
                (None, Ok(id)) => identities.node = Some(id),
                (_, Err(error)) => drop(self.failed.insert(key.clone(), error.to_string())),
            }
        }
        identities
    }

    /// Releases the identities that nodes of a batch had before. Call it when the ipcache does not have them any more.
    pub(crate) async fn release(&self, assigned: Assigned) {
        let allocator = self.allocator.clone();
        let stale = assigned.changed.into_iter().flat_map(|(key, [before, after])| {
            let after = after.ids();
            let stale = before.ids().into_iter().filter(move |id| !after.contains(id));
            stale.map(move |id| (key.clone(), id))
        });
        let stale: Vec<(Key, u32)> = stale.collect();
        if !stale.is_empty() {
            hive::blocking(move || {
                for ((cluster, name), id) in stale {
                    let node = Node { cluster, name, ..Node::default() };
                    allocator.release(&node.full_name(), id);
                }
            })
            .await;
        }
    }

    /// Returns the nodes without an identity of their own, with the errors.
    pub(crate) fn failed(&self) -> impl Iterator<Item = String> {
        self.failed.iter().map(|((_, name), error)| format!("{name}: {error}"))
    }

    fn labels(&self, node: &Node, address: Option<IpAddr>) -> LabelArray {
        let label = |source: &str, key: &str, value: &str| Label {
            source: source.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let mut all = vec![Label::reserved("remote-node")];
        if let Some(filter) = &self.parts.labels {
            let own: Labels = node.labels.iter().map(|(key, value)| label(NODE, key, value)).collect();
            let (counted, _) = filter.split(&own);
            all.extend(counted.0.into_values());
            all.push(label(K8S, POLICY_CLUSTER, &node.cluster));
        }
        if address.is_some_and(|ip| self.api_servers.contains(&ip)) {
            all.push(Label::reserved(KUBE_APISERVER));
        }
        let prefix = address.filter(|_| self.parts.addresses).map(|ip| cidr_labels(ip.into(), true, true));
        let of_prefix = prefix.iter().flat_map(LabelArray::iter).filter(|label| label.source == CIDR);
        all.extend(of_prefix.map(LabelRef::to_label));
        all.into_iter().collect()
    }
}
