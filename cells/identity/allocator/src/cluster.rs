//! Identities of the cluster in the table: what a CiliumIdentity that comes, changes or goes means to this node's users.

use std::sync::Arc;
use std::time::{Duration, Instant};

use identity_core::{ClusterIdentity, Scope, reserved_label};
use labels::LabelArray;
use statedb::{Obj, Writer};

use crate::allocator::Identities;
use crate::identity::Identity;
use crate::request::Requests;

/// A change of a CiliumIdentity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Upsert(ClusterIdentity),
    Delete(u32),
}

/// Users that have lost their identity, with its labels.
type Lost = Vec<(LabelArray, Vec<Arc<str>>)>;

impl Identities {
    /// Applies changes of objects in one transaction. Users of an identity that has other labels by now wait for another
    /// one from now on.
    pub(crate) fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        let Some(requests) = &self.requests else { return };
        let mut changes = changes.into_iter().peekable();
        if changes.peek().is_none() {
            // An empty transaction would wake the readers.
            return;
        }
        let now = Instant::now();
        let (lost, _) = self.table.transact(|w| {
            let mut lost = Lost::new();
            for change in changes {
                match change {
                    Change::Upsert(identity) => lost.extend(upsert(w, identity)),
                    Change::Delete(id) => delete(w, id, now),
                }
            }
            lost
        });
        request(requests, lost);
    }

    /// Applies changes of objects where this node allocates identities itself: packets of other nodes carry those of objects. An
    /// id that users of this node have with other labels stays theirs. Returns the identities that are left out for that.
    /// Waits for concurrent writes of the file; call it on a blocking thread.
    pub(crate) fn apply_of_others(&self, changes: impl IntoIterator<Item = Change>) -> Vec<ClusterIdentity> {
        let now = Instant::now();
        // An allocation in flight deletes its row if its write fails: no object may be attached to it before.
        let _held = self.store.hold();
        let (left_out, _) = self.table.transact(|w| {
            let mut left_out = Vec::new();
            for change in changes {
                match change {
                    Change::Delete(id) => delete(w, id, now),
                    Change::Upsert(identity) => match w.get(Identity::by_id(identity.id)) {
                        Some(row) if row.labels != identity.labels && !row.users.is_empty() => {
                            delete(w, identity.id, now);
                            left_out.push(identity);
                        }
                        _ => drop(upsert(w, identity)),
                    },
                }
            }
            left_out
        });
        left_out
    }

    /// Whether an object's id can have its labels: users of this node do not have it with other ones.
    pub(crate) fn is_free_for(&self, identity: &ClusterIdentity) -> bool {
        let snapshot = self.table.snapshot();
        let row = self.table.get(&snapshot, Identity::by_id(identity.id));
        row.is_none_or(|row| row.labels == identity.labels || row.users.is_empty())
    }

    /// Takes an identity without an object away from its users if the cluster has another one for its labels: the operator's
    /// is the one that other nodes know.
    pub(crate) fn yield_to_cluster(&self, id: u32) {
        let Some(requests) = &self.requests else { return };
        let has_object = |other: &&Obj<Identity>| other.object.is_some();
        let snapshot = self.table.snapshot();
        let Some(row) = self.table.get(&snapshot, Identity::by_id(id)) else { return };
        if self.table.list(&snapshot, Identity::by_labels(&row.labels)).find(has_object).is_none() {
            return;
        }
        let (lost, _) = self.table.transact(|w| {
            let row = w.get(Identity::by_id(id)).filter(|row| row.object.is_none()).cloned()?;
            w.list(Identity::by_labels(&row.labels)).find(has_object)?;
            let users = row.users.names().cloned().collect();
            w.insert(Identity {
                unused_since: Some(Instant::now()),
                ..Identity::new(id, row.labels.clone())
            });
            Some((row.labels.clone(), users))
        });
        request(requests, lost.into_iter().collect());
    }

    /// Returns an id for labels that have none: one that is quarantined with them, else a free one.
    pub(crate) fn free_id(&self, labels: &LabelArray, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
        let snapshot = self.table.snapshot();
        let mut known = self.table.list(&snapshot, Identity::by_labels(labels));
        let quarantined = known.find(|row| row.scope() == Scope::Global && !is_taken(row.id));
        let is_free = |id: &u32| !is_taken(*id) && self.table.get(&snapshot, Identity::by_id(*id)).is_none();
        quarantined.map(|row| row.id).or_else(|| self.candidates(labels).find(is_free))
    }
}

fn request(requests: &Requests, lost: Lost) {
    for (labels, users) in lost.into_iter().filter(|(labels, _)| reserved_label(labels).is_none()) {
        users.iter().for_each(|user| requests.add(&labels, user, Duration::ZERO));
    }
}

fn upsert(w: &mut Writer<'_, Identity>, identity: ClusterIdentity) -> Option<(LabelArray, Vec<Arc<str>>)> {
    let ClusterIdentity { id, labels, object } = identity;
    let object = Some(Box::new(object));
    match w.get(Identity::by_id(id)).cloned() {
        Some(row) if row.labels == labels => {
            if row.object != object {
                w.insert(Identity { object, unused_since: None, ..(*row).clone() });
            }
            None
        }
        other => {
            w.insert(Identity { object, ..Identity::new(id, labels.clone()) });
            let row = other.filter(|row| !row.users.is_empty())?;
            tracing::warn!(
                identity = id,
                labels = ?row.labels.texts(),
                cluster = ?labels.texts(),
                "The cluster has other labels for an identity that is in use here; its users get another one"
            );
            Some((row.labels.clone(), row.users.names().cloned().collect()))
        }
    }
}

/// Packets may carry the identity for a while, so without a user it is quarantined.
fn delete(w: &mut Writer<'_, Identity>, id: u32, now: Instant) {
    let row = w.get(Identity::by_id(id)).filter(|row| row.object.is_some()).cloned();
    if let Some(row) = row {
        let unused_since = row.users.is_empty().then_some(now);
        w.insert(Identity { object: None, unused_since, ..(*row).clone() });
    }
}

impl Identity {
    /// Whether the object of the identity is to be created again: it is in use here.
    pub(crate) fn lacks_object(&self) -> bool {
        let is_used = self.scope() == Scope::Global && self.object.is_none() && !self.users.is_empty();
        is_used && reserved_label(&self.labels).is_none()
    }

    /// Whether the operator is about to collect the identity, which is in use here.
    pub(crate) fn is_marked(&self) -> bool {
        self.object.as_ref().is_some_and(|object| object.heartbeat) && !self.users.is_empty()
    }
}
