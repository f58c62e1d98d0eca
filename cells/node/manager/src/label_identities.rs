//! The identities of other nodes by their labels (`enable-node-selector-labels`); without it they have one.

use std::collections::BTreeMap;

use ::identity::NodeIdentities;
use datapath_abi::identity;
use labels::{Filter, K8S, Label, LabelArray, Labels, POLICY_CLUSTER};

use crate::model::{Key, Rows};
use crate::node::Node;

/// The source of a node's labels.
const NODE: &str = "node";

/// The allocator with the identities that nodes have now.
#[derive(Debug)]
pub(crate) struct LabelIdentities {
    allocator: NodeIdentities,
    filter: Filter,
    identities: BTreeMap<Key, u32>,
    /// Errors of allocations, by the node's name; such a node has the identity of nodes without labels.
    failed: BTreeMap<Key, String>,
}

/// The identities of a batch of rows.
#[derive(Debug, Default)]
pub(crate) struct Assigned {
    /// The identities before and after, where they differ.
    changed: BTreeMap<Key, [Option<u32>; 2]>,
    current: BTreeMap<Key, u32>,
}

impl Assigned {
    /// Returns the node's identity before and after the batch.
    pub(crate) fn of(&self, key: &Key) -> [u32; 2] {
        let current = self.current.get(key).copied();
        let both = self.changed.get(key).copied().unwrap_or([current; 2]);
        both.map(|id| id.unwrap_or(identity::REMOTE_NODE))
    }
}

impl LabelIdentities {
    pub(crate) fn new(allocator: NodeIdentities, filter: Filter) -> LabelIdentities {
        LabelIdentities { allocator, filter, identities: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// Allocates the identities of rows that are inserted, and waits until policy has rows for new ones.
    pub(crate) async fn assign(&mut self, rows: &Rows) -> Assigned {
        let mut assigned = Assigned::default();
        for (key, row) in rows {
            self.failed.remove(key);
            let before = self.identities.get(key).copied();
            let after = match row.as_ref().filter(|node| !node.is_local()) {
                None => None,
                Some(node) => {
                    let (allocator, labels) = (self.allocator.clone(), self.labels(node));
                    let name = node.full_name();
                    match hive::blocking(move || allocator.allocate(&name, &labels)).await {
                        Ok(id) => Some(id),
                        Err(error) => {
                            self.failed.insert(key.clone(), error.to_string());
                            None
                        }
                    }
                }
            };
            match after {
                Some(id) => drop(self.identities.insert(key.clone(), id)),
                None => drop(self.identities.remove(key)),
            }
            assigned.current.extend(after.map(|id| (key.clone(), id)));
            if before != after {
                assigned.changed.insert(key.clone(), [before, after]);
            }
        }
        if assigned.changed.values().any(|[_, after]| after.is_some()) {
            self.allocator.policy_follows().await;
        }
        assigned
    }

    /// Releases the identities that nodes of a batch had before. Call it when the ipcache does not have them any more.
    pub(crate) async fn release(&self, assigned: Assigned) {
        let allocator = self.allocator.clone();
        let stale = assigned.changed.into_iter().filter_map(|(key, [before, _])| Some((key, before?)));
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

    fn labels(&self, node: &Node) -> LabelArray {
        let label = |source: &str, key: &str, value: &str| Label {
            source: source.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let own: Labels = node.labels.iter().map(|(key, value)| label(NODE, key, value)).collect();
        let (counted, _) = self.filter.split(&own);
        let cluster = label(K8S, POLICY_CLUSTER, &node.cluster);
        counted.0.into_values().chain([cluster, Label::reserved("remote-node")]).collect()
    }
}
