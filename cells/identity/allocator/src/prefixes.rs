//! Identities of prefixes, valid on this node only; the file that they and those of other nodes are in.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use datapath_abi::identity::{WORLD, WORLD_IPV4, WORLD_IPV6};
use identity_core::{Range, Scope};
use ipnetwork::IpNetwork;
use labels::{KUBE_APISERVER, Label, LabelArray, LabelRef, RESERVED};
use state_file::Rewrite;
use statedb::{RwTable, Writer};
use tokio::sync::watch;

use crate::allocator::find;
use crate::cidr::{cidr_labels, prefix};
use crate::error::Error;
use crate::identity::Identity;
use crate::nodes::{NodeIdentities, PolicyRevision};
use crate::store::{Form, Store};
use crate::users::Users;

/// The user of all identities of prefixes.
pub(crate) const PREFIX_USER: &str = "policy";
/// The user of all identities of DNS names.
const NAMES: &str = "fqdn";
/// The user of all identities of the API server's addresses outside of the cluster.
const API_SERVERS: &str = "kube-apiserver";
/// The source of labels of DNS names.
const FQDN: &str = "fqdn";

/// Allocates identities for prefixes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Prefixes {
    table: RwTable<Identity>,
    families: [bool; 2],
    store: Arc<Store>,
    /// Start of the search for a free id; ids are reused as late as possible.
    next: Arc<AtomicU32>,
    /// Whether the ipcache no longer has restored identities without a user.
    ipcache_complete: Arc<watch::Sender<bool>>,
    policy: PolicyRevision,
    nodes: NodeIdentities,
}

impl Prefixes {
    /// Returns an allocator with its file; without a path nothing is stored. `families`: whether IPv4 and IPv6 are
    /// enabled.
    pub(crate) fn new(table: RwTable<Identity>, families: [bool; 2], path: Option<PathBuf>) -> Prefixes {
        let next = Arc::new(AtomicU32::new(Range::PREFIXES.first));
        let ipcache_complete = Arc::new(watch::Sender::new(false));
        let (store, policy) = (Arc::new(Store::new(path, Form::List)), PolicyRevision::default());
        let nodes = NodeIdentities::new(table.clone(), store.clone(), policy.clone());
        Prefixes { table, families, store, next, ipcache_complete, policy, nodes }
    }

    /// Returns the allocator of identities of other nodes, which are in the same file.
    pub fn of_nodes(&self) -> NodeIdentities {
        self.nodes.clone()
    }

    /// Records that policy maps have rows for the identities of this revision of the table.
    pub fn policy_follows(&self, revision: u64) {
        self.policy.set(revision);
    }

    /// Returns the labels of a prefix on this node.
    pub fn labels(&self, prefix: IpNetwork) -> LabelArray {
        cidr_labels(prefix, self.families[0], self.families[1])
    }

    /// Allocates and references the identities of prefixes: of all or none. Does not wait for the disk: an identity
    /// that is not in the file yet is in the kernel's ipcache before any packet carries it, and a start restores it
    /// from there. A prefix of length zero has the world's identity, which always exists.
    pub fn allocate(&self, prefixes: &[IpNetwork]) -> Result<BTreeMap<IpNetwork, u32>, Error> {
        let held = self.store.hold();
        let mut identities = BTreeMap::new();
        let mut new = Vec::new();
        let mut full = false;
        let users = Users::one(PREFIX_USER);
        self.table.transact(|w| {
            for &prefix in prefixes {
                if prefix.prefix() == 0 {
                    identities.insert(prefix, self.world(prefix));
                    continue;
                }
                let labels = self.labels(prefix);
                let id = match find(w, &labels) {
                    Some(row) => {
                        if !row.users.contains(PREFIX_USER) {
                            w.insert(row.with_user(PREFIX_USER));
                        }
                        row.id
                    }
                    None => {
                        let Some(id) = self.free(w) else {
                            full = true;
                            break;
                        };
                        w.insert(Identity { users: users.clone(), ..Identity::new(id, labels) });
                        new.push(id);
                        id
                    }
                };
                identities.insert(prefix, id);
            }
        });
        let undo = |new: Vec<u32>| {
            self.table.transact(|w| new.into_iter().for_each(|id| drop(w.delete(Identity::by_id(id)))));
        };
        // All or none: policies need all of their prefixes.
        if full {
            undo(new);
            let used = self.count();
            return Err(Error::Exhausted { range: Range::PREFIXES, used, waiting: 0 });
        }
        if !new.is_empty() {
            held.write_or_later(|| Store::local_entries(&self.table));
        }
        Ok(identities)
    }

    /// Releases prefixes and removes their identities. Call it when neither ipcache nor policy maps have them.
    pub fn release(&self, prefixes: &[IpNetwork]) {
        let held = self.store.hold();
        let (released, _) = self.table.transact(|w| {
            let mut released = 0;
            for &prefix in prefixes {
                let row = find(w, &self.labels(prefix)).filter(|row| row.scope() == Scope::Local);
                let Some(row) = row else { continue };
                let left = row.without_user(PREFIX_USER, Instant::now());
                match left.users.is_empty() {
                    true => released += usize::from(w.delete(Identity::by_id(row.id)).is_some()),
                    false => drop(w.insert(left)),
                }
            }
            released
        });
        if released > 0 {
            held.write_or_later(|| Store::local_entries(&self.table));
        }
    }

    /// Allocates and references the identities of addresses by the labels of their DNS names: of all label sets or none,
    /// in the order of the sets. The file has them before this returns, unless its write fails: a start cannot derive
    /// these labels from the kernel's ipcache.
    pub fn allocate_names(&self, sets: &[LabelArray]) -> Result<Vec<u32>, Error> {
        self.allocate_sets(NAMES, sets)
    }

    /// Allocates and references the identities of the API server's addresses outside of the cluster, as
    /// [`allocate_names`](Self::allocate_names) does: they have the labels of the address, of its world and of the API server.
    pub fn allocate_api_servers(&self, addresses: &[IpAddr]) -> Result<Vec<u32>, Error> {
        let server = Label::reserved(KUBE_APISERVER);
        let labels = |address: &IpAddr| {
            let of_address = self.labels((*address).into());
            of_address.iter().map(LabelRef::to_label).chain([server.clone()]).collect()
        };
        self.allocate_sets(API_SERVERS, &addresses.iter().map(labels).collect::<Vec<_>>())
    }

    fn allocate_sets(&self, user: &'static str, sets: &[LabelArray]) -> Result<Vec<u32>, Error> {
        let held = self.store.hold();
        let (mut ids, mut new) = (Vec::new(), Vec::new());
        self.table.transact(|w| {
            for labels in sets {
                let id = match find(w, labels) {
                    Some(row) => {
                        if !row.users.contains(user) {
                            w.insert(row.with_user(user));
                        }
                        row.id
                    }
                    None => {
                        let Some(id) = self.free(w) else { break };
                        w.insert(Identity::new(id, labels.clone()).with_user(user));
                        new.push(id);
                        id
                    }
                };
                ids.push(id);
            }
        });
        if ids.len() < sets.len() {
            self.table.transact(|w| new.into_iter().for_each(|id| drop(w.delete(Identity::by_id(id)))));
            let used = self.count();
            return Err(Error::Exhausted { range: Range::PREFIXES, used, waiting: 0 });
        }
        if !new.is_empty() {
            held.write_or_later(|| Store::local_entries(&self.table));
        }
        Ok(ids)
    }

    /// Releases identities of names. Call it when the ipcache does not have them any more.
    pub fn release_names(&self, ids: &[u32]) {
        self.release_sets(NAMES, ids);
    }

    /// Releases identities of the API server's addresses. Call it when the ipcache does not have them any more.
    pub fn release_api_servers(&self, ids: &[u32]) {
        self.release_sets(API_SERVERS, ids);
    }

    fn release_sets(&self, user: &'static str, ids: &[u32]) {
        let held = self.store.hold();
        let (released, _) = self.table.transact(|w| {
            let mut released = 0;
            for &id in ids {
                let row = w.get(Identity::by_id(id)).filter(|row| row.scope() == Scope::Local).cloned();
                let Some(row) = row.filter(|row| row.users.contains(user)) else { continue };
                let left = row.without_user(user, Instant::now());
                match left.users.is_empty() {
                    true => released += usize::from(w.delete(Identity::by_id(id)).is_some()),
                    false => drop(w.insert(left)),
                }
            }
            released
        });
        if released > 0 {
            held.write_or_later(|| Store::local_entries(&self.table));
        }
    }

    /// Waits until the first policies are in force.
    pub async fn policy_in_force(&self) {
        self.policy.in_force().await;
    }

    /// Reserves the identities of prefixes in the kernel's ipcache: packets carry these, so they have precedence over
    /// the file. Ignores identities outside of the range of prefixes.
    pub fn restored(&self, rows: &[(IpNetwork, u32)]) {
        let held = self.store.hold();
        let mut changed = false;
        let now = Instant::now();
        self.table.transact(|w| {
            for &(prefix, id) in rows.iter().filter(|(_, id)| Range::PREFIXES.contains(*id)) {
                let labels = self.labels(prefix);
                let known = w.get(Identity::by_id(id)).cloned();
                // An address of a DNS name or of the API server has the labels of the file: the prefix does not show them.
                let has_more = |row: &Identity| {
                    let of_name = row.labels.iter().any(|label| label.source == FQDN);
                    of_name || row.labels.has(RESERVED, KUBE_APISERVER)
                };
                if known.as_ref().is_some_and(|row| row.labels == labels || has_more(row)) {
                    continue;
                }
                if let Some(row) = known {
                    tracing::warn!(
                        identity = id,
                        %prefix,
                        file = ?row.labels.texts(),
                        "The checkpoint gives this identity to another prefix than the ipcache; the ipcache counts, as \
                         packets carry its identities"
                    );
                }
                let others: Vec<u32> = w.list(Identity::by_labels(&labels)).map(|row| row.id).collect();
                // A prefix has one identity; others came from the file, and no packet carries them.
                for other in others {
                    w.delete(Identity::by_id(other));
                }
                w.insert(Identity { unused_since: Some(now), ..Identity::new(id, labels) });
                changed = true;
            }
        });
        self.advance_next();
        if changed {
            held.write_or_later(|| Store::local_entries(&self.table));
        }
    }

    /// Marks the sources of the ipcache as complete: no packet carries identities of the previous run that have not
    /// been requested since.
    pub fn ipcache_complete(&self) {
        self.ipcache_complete.send_replace(true);
    }

    /// Waits for [`ipcache_complete`](Self::ipcache_complete).
    pub(crate) async fn wait_ipcache_complete(&self) {
        // Never an error: this handle owns the sender.
        let _ = self.ipcache_complete.subscribe().wait_for(|complete| *complete).await;
    }

    /// Reads the checkpoint of the previous run. A damaged one is quarantined: the ipcache has the identities.
    pub(crate) fn restore(&self) -> Result<usize, Error> {
        let held = self.store.hold();
        let entries =
            held.read("prefixes in the kernel's ipcache keep their identities, others may get new ones")?;
        let now = Instant::now();
        let (count, _) = self.table.transact(|w| {
            let mut count = 0;
            for entry in entries {
                // The labels of a family's world depend on whether the other family is on, which may have changed.
                let labels = match prefix(&entry.label_array()) {
                    Some(prefix) => self.labels(prefix),
                    None => entry.label_array(),
                };
                let free = w.get(Identity::by_id(entry.id)).is_none() && find(w, &labels).is_none();
                let is_local =
                    [Range::PREFIXES, Range::REMOTE_NODES].iter().any(|range| range.contains(entry.id));
                if !free || !is_local {
                    let (identity, labels) = (entry.id, labels.texts());
                    tracing::warn!(identity, ?labels, "Ignoring an identity of the checkpoint");
                    continue;
                }
                w.insert(Identity { unused_since: Some(now), ..Identity::new(entry.id, labels) });
                count += 1;
            }
            count
        });
        self.advance_next();
        Ok(count)
    }

    /// Releases identities of the previous run that were not requested since. Returns how many.
    pub(crate) fn release_restored(&self) -> usize {
        let held = self.store.hold();
        let is_local = |row: &Identity| matches!(row.scope(), Scope::Local | Scope::RemoteNode);
        let stale = |row: &Identity| is_local(row) && row.users.is_empty();
        let (count, _) = self.table.transact(|w| w.retain(|row| !stale(row)));
        if count > 0 {
            held.write_or_later(|| Store::local_entries(&self.table));
        }
        count
    }

    fn world(&self, prefix: IpNetwork) -> u32 {
        match (prefix, self.families) {
            (IpNetwork::V4(_), [_, true]) => WORLD_IPV4,
            (IpNetwork::V6(_), [true, _]) => WORLD_IPV6,
            _ => WORLD,
        }
    }

    fn free(&self, w: &Writer<'_, Identity>) -> Option<u32> {
        let start = self.next.load(Ordering::Relaxed);
        let id = Range::PREFIXES.around(start).find(|&id| w.get(Identity::by_id(id)).is_none())?;
        self.next.store(
            if id == Range::PREFIXES.last { Range::PREFIXES.first } else { id + 1 },
            Ordering::Relaxed,
        );
        Some(id)
    }

    /// Moves the start of the search behind the ids of the previous run.
    fn advance_next(&self) {
        let snapshot = self.table.snapshot();
        let last =
            self.table.all(&snapshot).map(|row| row.id).filter(|&id| Range::PREFIXES.contains(id)).max();
        if let Some(last) = last.filter(|&last| last < Range::PREFIXES.last) {
            self.next.fetch_max(last + 1, Ordering::Relaxed);
        }
    }

    fn count(&self) -> usize {
        let snapshot = self.table.snapshot();
        self.table.all(&snapshot).filter(|row| row.scope() == Scope::Local).count()
    }

    /// Sets the job that retries failed writes, by [`rewrite`](Self::rewrite).
    pub(crate) fn rewrite_by(&self, rewrite: Rewrite) {
        self.store.rewrite_by(rewrite);
    }

    /// Writes the current entries.
    pub(crate) fn rewrite(&self) -> Result<(), Error> {
        self.store.hold().write(|| Store::local_entries(&self.table))
    }
}
