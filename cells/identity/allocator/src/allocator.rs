//! Identities of workloads.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath_abi::identity::HOST;
use identity_core::{Range, Scope, reserved_label};
use k8s_types::Time;
use labels::{LabelArray, LabelRef, Labels, NamedPorts};
use state_file::Rewrite;
use statedb::{Initializer, Obj, RwTable, Table, Writer};

use crate::error::Error;
use crate::identity::Identity;
use crate::nodes::is_api_server;
use crate::request::{IdentityRequest, Requests};
use crate::store::{Entry, Form, Store};

/// How long an identity without a user is kept for its labels: Cilium's interval of identity garbage collection.
pub const QUARANTINE: Duration = Duration::from_secs(15 * 60);

/// Allocates identities for label sets. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Identities {
    pub(crate) table: RwTable<Identity>,
    pub(crate) range: Range,
    pub(crate) store: Arc<Store>,
    /// Label sets that wait for the cluster; none if identities are this node's alone.
    pub(crate) requests: Option<Requests>,
}

impl Identities {
    /// Sets the labels of this node's host, whose id is fixed. That of the API server stays, which
    /// [`NodeIdentities::set_host_is_api_server`](crate::NodeIdentities::set_host_is_api_server) sets.
    pub fn set_host_labels(&self, labels: LabelArray) {
        self.table.transact(|w| {
            let Some(host) = w.get(Identity::by_id(HOST)).cloned() else { return };
            let server = host.labels.iter().find(is_api_server);
            let labels: LabelArray = labels.iter().chain(server).collect();
            if host.labels != labels {
                w.insert(Identity { labels, ..(*host).clone() });
            }
        });
    }

    /// Returns an allocator of a range, with its file; without a path nothing is stored.
    pub(crate) fn new(table: RwTable<Identity>, range: Range, path: Option<PathBuf>) -> Identities {
        Identities { table, range, store: Arc::new(Store::new(path, Form::Versioned)), requests: None }
    }

    /// Returns an allocator whose identities are the cluster's. It has no file: the cluster has the identities of label sets,
    /// and records have those that packets carry.
    pub(crate) fn of_cluster(table: RwTable<Identity>, range: Range, requests: Requests) -> Identities {
        Identities { requests: Some(requests), ..Identities::new(table, range, None) }
    }

    /// Returns the identity of a label set, referenced by the user from now on. A new one is on disk when this returns.
    /// Costs a write of the file for labels without an identity, else some map operations; waits for concurrent writes.
    /// Call it on a blocking thread.
    ///
    /// In a cluster labels that are new to it get their identity from the API server: the error is [`Error::Waiting`] then,
    /// and a call after a change of [`requests`](Self::requests) may succeed.
    pub fn allocate(&self, labels: &Labels, user: &str) -> Result<u32, Error> {
        self.allocate_after(labels, user, Duration::ZERO)
    }

    /// As [`allocate`](Self::allocate); for labels that are new to a cluster none is created before the delay is over. In
    /// the meantime another node may create it: many pods are relabelled at once, and all their nodes see it.
    pub fn allocate_after(&self, labels: &Labels, user: &str, delay: Duration) -> Result<u32, Error> {
        if let Some(requests) = &self.requests {
            return self.allocate_known(labels, user).ok_or_else(|| {
                let labels = LabelArray::from(labels);
                if let Some(label) = reserved_label(&labels).map(LabelRef::to_label) {
                    self.withdraw(user);
                    return Error::Reserved { labels, label };
                }
                requests.add(&labels, user, delay);
                Error::Waiting { labels }
            });
        }
        let labels = LabelArray::from(labels);
        let held = self.store.hold();
        let (found, _) = self.table.transact(|w| match find(w, &labels) {
            Some(row) => {
                hold(w, &row, user);
                Ok((row.id, false))
            }
            None => self.insert(w, labels.clone(), user).map(|id| (id, true)),
        });
        let (id, new) = found?;
        if new {
            tracing::info!(identity = id, labels = ?labels.texts(), "Allocated identity");
            // Roll back: other requests for these labels wait for the file, so nothing has used the identity yet.
            held.write(|| self.entries()).inspect_err(|_| {
                self.table.transact(|w| w.delete(Identity::by_id(id)));
            })?;
        }
        Ok(id)
    }

    /// As [`allocate`](Self::allocate) for labels with an identity, without blocking: returns `None` if they have none,
    /// or another allocation is in flight.
    pub fn allocate_known(&self, labels: &Labels, user: &str) -> Option<u32> {
        let labels = LabelArray::from(labels);
        // An allocation in flight is undone if its write fails: its identity must not be used before.
        let _held = match self.requests {
            None => Some(self.store.try_hold()?),
            Some(_) => None,
        };
        // Check a snapshot first: for labels without an identity a transaction would wake the readers of the table for
        // nothing.
        let snapshot = self.table.snapshot();
        let mut rows = self.table.list(&snapshot, Identity::by_labels(&labels));
        rows.find(|row| self.is_usable(row))?;
        let (found, _) = self.table.transact(|w| {
            let row = find(w, &labels).filter(|row| self.is_usable(row))?;
            hold(w, &row, user);
            Some(row.id)
        });
        if let (Some(_), Some(requests)) = (found, &self.requests) {
            requests.remove_user(user);
        }
        found
    }

    /// Whether packets may carry the identity at once. In a cluster one that is quarantined here may be another's already.
    fn is_usable(&self, row: &Identity) -> bool {
        let in_use = row.scope() == Scope::Reserved || row.object.is_some() || !row.users.is_empty();
        self.requests.is_none() || in_use
    }

    /// Returns the label sets that wait for the cluster, if identities are the cluster's.
    pub fn requests(&self) -> Option<Table<IdentityRequest>> {
        self.requests.as_ref().map(Requests::table)
    }

    /// The user waits for no identity any more.
    pub fn withdraw(&self, user: &str) {
        if let Some(requests) = &self.requests {
            requests.remove_user(user);
        }
    }

    /// Whether the cluster has taken the identity away from the user: its object has other labels, or has gone and another
    /// one has its labels. The user needs another one.
    pub fn has_lost(&self, id: u32, user: &str) -> bool {
        let snapshot = self.table.snapshot();
        let row = self.table.get(&snapshot, Identity::by_id(id));
        self.requests.is_some()
            && row.is_some_and(|row| row.scope() == Scope::Global && !row.users.contains(user))
    }

    /// Reserves the identity that the user has had in the previous run: its record, and so packets, carry it. Returns the
    /// identity that the user holds from now on, which is another one only if
    /// - it cannot be allocated on this node, or
    /// - another record has already reserved it for other labels.
    ///
    /// The record has precedence over the file.
    pub fn reserve(&self, id: u32, labels: &Labels, user: &str) -> Result<u32, Error> {
        let labels = LabelArray::from(labels);
        let held = self.store.hold();
        let (outcome, _) = self.table.transact(|w| {
            let known = w.get(Identity::by_id(id)).cloned();
            match known {
                Some(row) if row.labels == labels => {
                    hold(w, &row, user);
                    Reserved::Known
                }
                Some(row) if row.users.is_empty() && row.object.is_none() && row.scope() == Scope::Global => {
                    w.insert(Identity::new(id, labels.clone()).with_user(user));
                    Reserved::Replaced(row.labels.clone())
                }
                None if self.range.contains(id) => {
                    w.insert(Identity::new(id, labels.clone()).with_user(user));
                    Reserved::New
                }
                Some(row) => Reserved::Taken(Some(row.labels.clone())),
                None => Reserved::Taken(None),
            }
        });
        match outcome {
            Reserved::Known => return Ok(id),
            Reserved::New => {}
            Reserved::Replaced(file) => tracing::warn!(
                identity = id,
                labels = ?labels.texts(),
                file = ?file.texts(),
                user,
                "The state file gives this identity other labels than the endpoint's record; the record counts, as \
                 packets carry its identity"
            ),
            Reserved::Taken(other) => {
                // Drop the lock: `allocate` takes it itself.
                drop(held);
                let numeric = self.allocate(&labels.to_labels(), user)?;
                tracing::warn!(
                    identity = id,
                    new_identity = numeric,
                    labels = ?labels.texts(),
                    owner = ?other.map(|labels| labels.texts()),
                    range = %self.range,
                    user,
                    "The identity of an endpoint's record is another's or not of this node's range; it gets a new one"
                );
                return Ok(numeric);
            }
        }
        held.write_or_later(|| self.entries());
        Ok(id)
    }

    /// Releases a user's reference to an identity. An identity without users is quarantined.
    pub fn release(&self, id: u32, user: &str) {
        let now = Instant::now();
        self.table.transact(|w| {
            if let Some(row) = w.get(Identity::by_id(id)).filter(|row| row.users.contains(user)).cloned() {
                w.insert(row.without_user(user, now));
            }
        });
    }

    /// Releases a user's references to all identities but this one.
    pub fn keep_only(&self, user: &str, id: u32) {
        let now = Instant::now();
        self.table.transact(|w| {
            let others: Vec<_> =
                w.list(Identity::by_user(user)).filter(|row| row.id != id).cloned().collect();
            others.iter().for_each(|row| drop(w.insert(row.without_user(user, now))));
        });
    }

    /// Ends a user's hold on all identities, and its wait for one.
    pub fn release_all(&self, user: &str) {
        self.withdraw(user);
        self.keep_only(user, 0);
    }

    /// Sets the user's named ports, if it references the identity.
    pub fn set_named_ports(&self, id: u32, user: &str, ports: &NamedPorts) {
        self.table.transact(|w| {
            let Some(row) = w.get(Identity::by_id(id)) else { return };
            if row.users.get(user).is_some_and(|known| known != ports) {
                let mut row = (**row).clone();
                row.users.insert(user, ports.clone());
                w.insert(row);
            }
        });
    }

    /// Registers a source of identities that packets carry already: the table is not initialised before
    /// [`complete`](Self::complete).
    pub fn register(&self, name: &str) -> Initializer<Identity> {
        self.table.transact(|w| w.register_initializer(name)).0
    }

    /// Marks a source as complete.
    pub fn complete(&self, initializer: Initializer<Identity>) {
        self.table.transact(|w| initializer.done(w));
    }

    /// Reads the file of the previous run. A damaged file is quarantined: records and kernel have all identities that
    /// packets carry.
    pub(crate) fn restore(&self) -> Result<usize, Error> {
        let held = self.store.hold();
        let entries = held.read(
            "endpoints keep the identities of their records, labels that no endpoint has now may get other ones",
        )?;
        let (now, all) = (Instant::now(), entries.len());
        let (count, _) = self.table.transact(|w| {
            let mut count = 0;
            for entry in entries {
                let labels = entry.label_array();
                let usable = self.range.contains(entry.id) && find(w, &labels).is_none();
                if !usable || w.get(Identity::by_id(entry.id)).is_some() {
                    let (identity, labels) = (entry.id, labels.texts());
                    tracing::warn!(identity, ?labels, range = %self.range, "Ignoring an identity of the state file");
                    continue;
                }
                // Quarantined until an endpoint's record reserves it: if none does, no packets carry it by the end of
                // the quarantine.
                w.insert(Identity { unused_since: Some(now), ..Identity::new(entry.id, labels) });
                count += 1;
            }
            count
        });
        if count < all {
            // Entries that were ignored must not be read by the next run, either.
            held.write_or_later(|| self.entries());
        }
        Ok(count)
    }

    /// Removes identities after their quarantine. Returns their number.
    pub(crate) fn sweep(&self, now: Instant) -> usize {
        let held = self.store.hold();
        let over = |row: &Identity| {
            self.range.contains(row.id)
                && row.unused_since.is_some_and(|since| now.saturating_duration_since(since) >= QUARANTINE)
        };
        let snapshot = self.table.snapshot();
        if !self.table.all(&snapshot).any(|row| over(row)) {
            return 0;
        }
        let (count, _) = self.table.transact(|w| w.retain(|row| !over(row)));
        held.write_or_later(|| self.entries());
        count
    }

    /// Allocates an identity for labels that have none.
    fn insert(&self, w: &mut Writer<'_, Identity>, labels: LabelArray, user: &str) -> Result<u32, Error> {
        let free = self.candidates(&labels).find(|&id| w.get(Identity::by_id(id)).is_none());
        let Some(id) = free else {
            return Err(self.exhausted(w.all().map(|row| &**row)));
        };
        w.insert(Identity::new(id, labels).with_user(user));
        Ok(id)
    }

    /// Returns the number of identities of the range that are not free; `None` until all sources of the table are complete,
    /// which is no growth.
    pub(crate) fn used(&self) -> Option<usize> {
        let snapshot = self.table.snapshot();
        let used = || self.table.all(&snapshot).filter(|row| self.range.contains(row.id)).count();
        self.table.initialized(&snapshot).then(used)
    }

    /// Iterates over the range in the order that the labels determine.
    pub(crate) fn candidates(&self, labels: &LabelArray) -> impl Iterator<Item = u32> + use<> {
        self.range.candidates(labels)
    }

    pub(crate) fn exhausted<'a>(&self, rows: impl Iterator<Item = &'a Identity>) -> Error {
        let (mut used, mut waiting) = (0, 0);
        for row in rows.filter(|row| self.range.contains(row.id)) {
            let in_use = !row.users.is_empty() || row.object.is_some();
            *(if in_use { &mut used } else { &mut waiting }) += 1;
        }
        Error::Exhausted { range: self.range, used, waiting }
    }

    /// Sets the job that retries failed writes, by [`rewrite`](Self::rewrite).
    pub(crate) fn rewrite_by(&self, rewrite: Rewrite) {
        self.store.rewrite_by(rewrite);
    }

    /// Writes the current entries.
    pub(crate) fn rewrite(&self) -> Result<(), Error> {
        self.store.hold().write(|| self.entries())
    }

    /// Returns the entries of the file.
    fn entries(&self) -> Vec<Entry> {
        let snapshot = self.table.snapshot();
        // Those of other nodes come from their objects.
        let is_own = |row: &Identity| row.object.is_none() || !row.users.is_empty();
        let rows = self.table.all(&snapshot).filter(|row| self.range.contains(row.id) && is_own(row));
        rows.map(|row| (&**row).into()).collect()
    }
}

/// The outcome of reserving a record's identity.
enum Reserved {
    Known,
    New,
    /// The file had other labels for it.
    Replaced(LabelArray),
    /// It has a user with other labels, or may not be allocated on this node.
    Taken(Option<LabelArray>),
}

/// Returns the row of a label set; of several a fixed one, then one that this node uses, then the oldest of the cluster.
pub(crate) fn find(w: &Writer<'_, Identity>, labels: &LabelArray) -> Option<Obj<Identity>> {
    w.list(Identity::by_labels(labels)).max_by_key(|row| precedence(row)).cloned()
}

type Precedence = (bool, bool, bool, Reverse<Option<Time>>, Reverse<u32>);

fn precedence(row: &Identity) -> Precedence {
    let created = row.object.as_ref().and_then(|object| object.created);
    let is_fixed = row.scope() == Scope::Reserved;
    (is_fixed, !row.users.is_empty(), row.object.is_some(), Reverse(created), Reverse(row.id))
}

fn hold(w: &mut Writer<'_, Identity>, row: &Identity, user: &str) {
    if !row.users.contains(user) {
        w.insert(row.with_user(user));
    }
}
