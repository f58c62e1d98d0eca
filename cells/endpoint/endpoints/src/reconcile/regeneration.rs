//! The reconciler's operations, and the steps of a regeneration: from the desired row of an endpoint to its state in the
//! kernel.
//!
//! A new endpoint: record on disk, program and map entries, policy, ipcache, interface up; the ipcache in parallel with
//! policy if another endpoint has the identity already. A change of identity:
//! the endpoint's policy and its peers' rows about the new identity, then record and map entries, then the ipcache;
//! packets carry the new identity only once every policy map has it, and the old one is kept in quarantine.
//!
//! Other cells write policy and ipcache to the kernel. An endpoint that waits for them is a row with a [`Step`] and
//! continues when a watch closes; the thread works on other endpoints meanwhile.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipcache::Change;
use ipnetwork::IpNetwork;
use labels::LabelArray;
use policy::{NotRealized, Realization, Subject};
use reconciler::{
    BatchEntry, BatchOps, Builder, OpCx, OpError, OpResult, Operations, Ops, Reconciler, StatusField, Waiting,
};
use statedb::{Obj, Rows, RwTable, Table, Watch};
use tokio::time::Instant;

use crate::metrics::Counts;
use crate::model::endpoint::Endpoint;
use crate::model::id::EndpointId;
use crate::model::log::{Code, Component};
use crate::model::regeneration::{Regeneration, RegenerationError, Step};
use crate::model::state::State;
use crate::reconcile::identity_change::{Group, carried_identity, changes_identity, is_behind, is_new};
use crate::reconcile::targets::Targets;

/// Maximum number of changes in a round.
const ROUND_SIZE: usize = 1000;
/// Rounds per second, and the burst. An endpoint takes a round for each cell that it waits for, so a low limit would
/// delay the creation of a single endpoint.
const ROUNDS_PER_SECOND: u32 = 10_000;
const ROUNDS_BURST: u32 = 1000;

/// Limit of the wait for other cells, which takes milliseconds once all sources have been read.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// Upper bound of the time between a program's lookup of an identity and its lookup in the policy map.
const IN_FLIGHT: Duration = Duration::from_millis(1);

/// The scope of the time of a whole regeneration.
const TOTAL: &str = "total";

/// Regenerates and removes endpoints, by the states of their rows.
pub(crate) struct Regenerator {
    pub(crate) table: Table<Endpoint>,
    pub(crate) targets: Targets,
    pub(crate) counts: Counts,
}

/// Returns the reconciler, with nothing running yet.
pub(crate) fn builder(
    table: RwTable<Endpoint>,
    regenerator: Regenerator,
) -> Builder<Endpoint, StatusField<Endpoint>, Operations<Endpoint>> {
    Reconciler::builder(table)
        .name("endpoints")
        .status(|endpoint| &endpoint.status, |endpoint, status| endpoint.status = status)
        .batch_ops(regenerator)
        .round(ROUND_SIZE, ROUNDS_PER_SECOND, ROUNDS_BURST)
        .blocking()
}

impl BatchOps<Endpoint> for Regenerator {
    /// Takes the endpoint of each row through the steps that need not wait. The result of an endpoint that has to wait
    /// is its watch.
    fn update_batch(&mut self, _: &OpCx<'_>, batch: &mut [BatchEntry<Endpoint>]) {
        let mut regenerating = Vec::new();
        for entry in batch {
            match entry.object.state {
                State::Disconnecting => {
                    entry.result = self.targets.remove(&entry.object.record);
                    if entry.result.is_ok() {
                        let now = SystemTime::now();
                        entry.object = entry.object.enter(State::Disconnected, "Endpoint removed", now);
                    }
                }
                // Nothing to do before there is an identity, or before the datapath is known to be ready.
                State::WaitingForIdentity | State::Restoring | State::Disconnected | State::Invalid => {}
                State::WaitingToRegenerate | State::Regenerating | State::Ready => regenerating.push(entry),
            }
        }
        self.begin(&mut regenerating);
        self.await_policy(&mut regenerating);
        self.await_ipcache(&mut regenerating);
        self.await_peers(&mut regenerating);
        regenerating.into_iter().for_each(|entry| self.finish(entry));
    }

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<Endpoint>>]) {
        for entry in batch {
            entry.result = self.delete(cx, &entry.object);
        }
    }
}

impl Ops<Endpoint> for Regenerator {
    fn update(&mut self, cx: &OpCx<'_>, endpoint: &mut Endpoint) -> OpResult {
        let mut one = [BatchEntry::new(endpoint.clone(), 0)];
        self.update_batch(cx, &mut one);
        let [BatchEntry { object, result, .. }] = one;
        *endpoint = object;
        result
    }

    fn delete(&mut self, _: &OpCx<'_>, endpoint: &Endpoint) -> OpResult {
        match endpoint.state {
            State::Disconnected => Ok(()),
            _ => self.targets.remove(&endpoint.record),
        }
    }

    fn prune(&mut self, _: &OpCx<'_>, endpoints: Rows<'_, Endpoint>) -> OpResult {
        let known: BTreeSet<u16> =
            endpoints.filter(|e| e.state != State::Disconnected).map(|e| e.record.id).collect();
        let pruned = self.targets.datapath.prune(&known)?;
        if !pruned.endpoints.is_empty() || pruned.leftovers > 0 {
            let (endpoints, leftovers) = (&pruned.endpoints, pruned.leftovers);
            tracing::info!(?endpoints, leftovers, "Removed datapath state that belongs to no endpoint");
        }
        Ok(())
    }
}

impl Regenerator {
    /// Announces the endpoints that begin a regeneration; claims addresses at once where that need not wait for policy.
    fn begin(&self, batch: &mut [&mut BatchEntry<Endpoint>]) {
        let group = Group::beginning(batch.iter().map(|entry| &entry.object));
        for entry in batch.iter_mut().filter(|entry| entry.object.regeneration.is_none()) {
            let endpoint = &entry.object;
            let changes = changes_identity(endpoint);
            if changes && let Some(waiting) = self.other_identity_change(endpoint) {
                entry.result = Err(waiting.into());
                continue;
            }
            let begun = Instant::now();
            entry.result = self.announce(endpoint, &group);
            let entered = Instant::now();
            let ok = entry.result.is_ok();
            if ok || entry.result.as_ref().is_err_and(|error| !error.is::<Waiting>()) {
                self.counts.took("prepareBuild", ok, entered - begun);
            }
            if ok {
                let regeneration = Regeneration {
                    step: Step::Policy,
                    policy: self.targets.policies.revision(),
                    begun,
                    entered,
                    deadline: entered + WAIT_LIMIT,
                    together: group.members.clone().filter(|_| changes),
                };
                entry.object.regeneration = Some(Arc::new(regeneration));
            }
        }
        self.claim_known(batch);
    }

    /// Claims the addresses of new endpoints with an identity that packets of other endpoints carry already, so that
    /// ipcache and policy are written in parallel. This is safe: all policy maps have rows about such an identity, and
    /// the endpoint itself denies everything before its own map is written, so no packet gets another verdict.
    fn claim_known(&self, batch: &mut [&mut BatchEntry<Endpoint>]) {
        let new: Vec<&Endpoint> =
            at_step(batch, Step::Policy).map(|entry| &entry.object).filter(|e| is_new(e)).collect();
        if new.is_empty() {
            return;
        }
        // Read after the identities were reserved: their references are held without a gap, so their policy rows stay.
        let snapshot = self.table.snapshot();
        let carried: HashSet<u32> =
            self.table.all(&snapshot).filter_map(|row| carried_identity(row)).collect();
        let known = new.into_iter().filter(|endpoint| carried.contains(&endpoint.record.identity()));
        let claims: Vec<Change> = known.flat_map(|endpoint| self.targets.claims(&endpoint.record)).collect();
        if !claims.is_empty() {
            self.targets.ipcache.apply(claims);
        }
    }

    /// Returns a wait for another endpoint that is changing its identity, if there is one.
    fn other_identity_change(&self, endpoint: &Endpoint) -> Option<Waiting> {
        let snapshot = self.table.snapshot();
        let is_other = |other: &&Obj<Endpoint>| {
            other.record.id != endpoint.record.id && other.regeneration.is_some() && changes_identity(other)
        };
        let other = self.table.all(&snapshot).find(is_other)?.id();
        Some(Waiting::on(self.table.get_watch(&snapshot, Endpoint::by_id(other)).1))
    }

    /// References the identity and announces the endpoint to policy. A new endpoint is attached before that: its policy
    /// map must exist; it is empty, which denies everything.
    fn announce(&self, endpoint: &Endpoint, group: &Group) -> OpResult {
        let Targets { identities, policies, .. } = &self.targets;
        let record = &*endpoint.record;
        if let Some(label) = record.sec_label.as_ref().filter(|_| !record.op_labels.is_reserved()) {
            let user = Endpoint::user(record.id);
            // Referenced already, unless this change of labels has overtaken another one.
            let id = identities.reserve(label.id, &label.labels, &user)?;
            if id != label.id {
                let labels = label.labels.clone();
                return Err(RegenerationError::IdentityReused { identity: label.id, labels }.into());
            }
            identities.set_named_ports(id, &user, &endpoint.named_ports);
        }
        if is_new(endpoint) {
            self.targets.attach(record)?;
        }
        if let Some(subject) = self.subject(endpoint) {
            match changes_identity(endpoint) && group.members.is_some() {
                true => policies.enforce_in_transition(subject, &group.old_identities),
                false => policies.enforce(subject),
            }
        }
        Ok(())
    }

    /// Advances the endpoints that have their policy in the kernel, and claims their addresses. An endpoint of the
    /// previous run proceeds with its existing policy until all sources have been read.
    fn await_policy(&self, batch: &mut [&mut BatchEntry<Endpoint>]) {
        let mut claims = Vec::new();
        for entry in at_step(batch, Step::Policy) {
            entry.result = self.policy_is_realized(&mut entry.object);
            let endpoint = &entry.object;
            if entry.result.is_ok() && !is_new(endpoint) {
                entry.result = self.targets.attach(&endpoint.record);
            }
            if entry.result.is_ok() {
                claims.extend(self.targets.claims(&entry.object.record));
                self.enter(&mut entry.object, Step::Ipcache);
            }
        }
        if !claims.is_empty() {
            self.targets.ipcache.apply(claims);
        }
    }

    fn policy_is_realized(&self, endpoint: &mut Endpoint) -> OpResult {
        let keeps_policy = endpoint.builds == 0 && endpoint.applied_identity == endpoint.record.identity();
        let Some(regeneration) = endpoint.regeneration.clone() else { return Ok(()) };
        if keeps_policy || !endpoint.record.has_interface() {
            return Ok(());
        }
        let id = endpoint.record.id;
        match self.targets.policies.realization(id, regeneration.policy) {
            Ok(Realization::Done(_)) => match self.peer_without_policy(id, &regeneration) {
                Some(watch) => wait(&regeneration, watch),
                None => Ok(()),
            },
            Ok(Realization::Pending(watch)) => wait(&regeneration, watch),
            // All its traffic is denied, which is safe; the table and the metrics of policy report it.
            Err(error @ NotRealized::Full { .. }) => {
                let note = format!("Policy map is full: {error}");
                tracing::warn!(endpointID = id, %error, "Policy of endpoint does not fit");
                *endpoint = endpoint.note(Component::Policy, Code::Warning, &note, SystemTime::now());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a watch on a group member that does not have its policy in the kernel yet: its map has no rows for the
    /// new identity of this endpoint. A member with a failing policy is not waited for.
    fn peer_without_policy(&self, id: u16, regeneration: &Regeneration) -> Option<Watch> {
        let peers = regeneration.together.as_deref().into_iter().flatten().filter(|peer| **peer != id);
        let policies = &self.targets.policies;
        peers.copied().find_map(|peer| match policies.realization(peer, regeneration.policy) {
            Ok(Realization::Pending(watch)) => Some(watch),
            Ok(Realization::Done(_)) | Err(_) => None,
        })
    }

    /// Advances the endpoints that have their addresses in the kernel's ipcache.
    fn await_ipcache(&self, batch: &mut [&mut BatchEntry<Endpoint>]) {
        for entry in at_step(batch, Step::Ipcache) {
            let prefixes: Vec<IpNetwork> = entry.object.record.addresses().map(IpNetwork::from).collect();
            entry.result = match (self.targets.ipcache.pending(&prefixes), &entry.object.regeneration) {
                (Ok(Some(watch)), Some(regeneration)) => wait(regeneration, watch),
                (Ok(_), _) => Ok(()),
                (Err(error), _) => Err(error.into()),
            };
            if entry.result.is_ok() {
                self.enter(&mut entry.object, Step::Peers);
            }
        }
    }

    /// Ends the transition of groups: removes the rows of previous identities from policy maps, once packets and the
    /// ipcache carry the new identities of all members.
    fn await_peers(&self, batch: &mut [&mut BatchEntry<Endpoint>]) {
        let here: BTreeSet<u16> = at_step(batch, Step::Peers).map(|entry| entry.object.record.id).collect();
        let mut ending = Vec::new();
        for entry in at_step(batch, Step::Peers) {
            let Some(regeneration) = entry.object.regeneration.clone() else { continue };
            let Some(group) = &regeneration.together else { continue };
            match group.difference(&here).find_map(|&peer| self.peer_behind(peer, group)) {
                Some(watch) if Instant::now() < regeneration.deadline => {
                    entry.result = wait(&regeneration, watch);
                }
                // A peer that has not reached this step in time is retried alone.
                _ => ending.extend(self.subject(&entry.object)),
            }
        }
        if !ending.is_empty() {
            // Programs in flight may still hold an identity that they looked up before.
            std::thread::sleep(IN_FLIGHT);
            ending.into_iter().for_each(|subject| self.targets.policies.enforce(subject));
        }
    }

    /// Returns a watch on a group member that the others must wait for.
    fn peer_behind(&self, peer: u16, group: &Arc<BTreeSet<u16>>) -> Option<Watch> {
        let snapshot = self.table.snapshot();
        let (row, watch) = self.table.get_watch(&snapshot, Endpoint::by_id(EndpointId(peer)));
        row.filter(|row| is_behind(row, group)).map(|_| watch)
    }

    /// Begins the next step of a regeneration, and counts the time of the one before.
    fn enter(&self, endpoint: &mut Endpoint, step: Step) {
        if let Some(regeneration) = &mut endpoint.regeneration {
            let regeneration = Arc::make_mut(regeneration);
            let now = Instant::now();
            self.counts.took(regeneration.step.scope(), true, now - regeneration.entered);
            (regeneration.step, regeneration.entered) = (step, now);
        }
    }

    /// Counts the time of the last step of a regeneration, and of all of it.
    fn ended(&self, endpoint: &Endpoint, ok: bool) {
        if let Some(regeneration) = &endpoint.regeneration {
            let now = Instant::now();
            if !ok || regeneration.together.is_some() {
                self.counts.took(regeneration.step.scope(), ok, now - regeneration.entered);
            }
            self.counts.took(TOTAL, ok, now - regeneration.begun);
        }
    }

    /// Sets the interface of an endpoint up after all steps, and writes the outcome into its row.
    fn finish(&self, entry: &mut BatchEntry<Endpoint>) {
        let endpoint = &entry.object;
        if entry.result.is_ok() {
            entry.result = self.targets.bring_up(&endpoint.record);
        }
        let now = SystemTime::now();
        entry.object = match &entry.result {
            Ok(()) => {
                let identity = endpoint.record.identity();
                self.targets.identities.keep_only(&Endpoint::user(endpoint.record.id), identity);
                self.counts.regeneration(&endpoint.reason, true);
                self.ended(endpoint, true);
                Endpoint { applied_identity: identity, ..endpoint.regenerated(now) }
            }
            Err(error) if error.is::<Waiting>() => endpoint.waiting(now),
            Err(error) => self.failed(endpoint, error, now),
        };
    }

    /// Returns the endpoint as policy sees it; none without an identity, or if neither a program nor Envoy enforces policy
    /// on it.
    fn subject(&self, endpoint: &Endpoint) -> Option<Subject> {
        let record = &*endpoint.record;
        let is_enforced = record.has_interface()
            || record.is_ingress()
            || record.is_host() && self.targets.datapath.host_firewall();
        let label = record.sec_label.as_ref().filter(|_| is_enforced)?;
        Some(Subject {
            endpoint: record.id,
            identity: label.id,
            labels: LabelArray::from(&label.labels),
            named_ports: endpoint.named_ports.clone(),
        })
    }

    fn failed(&self, endpoint: &Endpoint, error: &OpError, now: SystemTime) -> Endpoint {
        let (id, error) = (endpoint.record.id, error.to_string());
        self.counts.regeneration(&endpoint.reason, false);
        self.ended(endpoint, false);
        // An error that is retried is logged once.
        if !endpoint.has_failed_with(&error) {
            tracing::warn!(endpointID = id, %error, "Regeneration of endpoint failed, trying again");
        }
        endpoint.failed(&error, now)
    }
}

/// Returns the entries that are at this step and have not failed.
fn at_step<'a, 'b>(
    batch: &'a mut [&'b mut BatchEntry<Endpoint>],
    step: Step,
) -> impl Iterator<Item = &'a mut BatchEntry<Endpoint>> + use<'a, 'b> {
    let is_there = move |entry: &&mut BatchEntry<Endpoint>| {
        let regeneration = entry.object.regeneration.as_ref();
        entry.result.is_ok() && regeneration.is_some_and(|regeneration| regeneration.step == step)
    };
    batch.iter_mut().map(|entry| &mut **entry).filter(is_there)
}

/// Waits for the watch until the deadline of the regeneration; an error after that.
fn wait(regeneration: &Regeneration, watch: Watch) -> OpResult {
    match Instant::now() < regeneration.deadline {
        true => Err(Waiting::on(watch).until(regeneration.deadline).into()),
        false => Err(RegenerationError::TimedOut(regeneration.step).into()),
    }
}
