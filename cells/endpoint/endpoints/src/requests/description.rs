//! Labels, identity and named ports of endpoints, by the objects of their pods.

use std::time::{Duration, SystemTime};

use identity::IdentityRequest;
use labels::{LabelArray, Labels, NamedPorts};
use reconciler::StatusKind;
use statedb::{Obj, Snapshot};
use tokio::time::Instant;

use crate::model::endpoint::{Endpoint, RESOLVING, UPDATED};
use crate::model::id::EndpointId;
use crate::model::record::{Record, SecurityLabel};
use crate::model::state::State;
use crate::pod_metadata::{self, Lookup, Metadata};
use crate::requests::service::{Endpoints, Refused, WAIT_LIMIT};

/// The interval at which a request that waits for an identity reads the labels again, as they may have changed.
const LABELS_INTERVAL: Duration = Duration::from_secs(1);

/// A record with new labels and their identity, and new named ports.
pub(crate) struct Description {
    pub(crate) record: Record,
    pub(crate) named_ports: NamedPorts,
}

/// The outcome of a description of a row.
pub(crate) enum Described {
    /// The row has it already.
    Same,
    /// The row is to get it.
    New(Description),
    /// The new labels wait for an identity of the cluster; the endpoint keeps the one that it has.
    Waiting(Description),
}

impl Description {
    /// Returns the current row with the description, which was made for `row`; none if its record has changed since.
    /// Changes of the reconciliation status are ignored.
    pub(crate) fn applied(self, row: &Endpoint, current: Option<&Obj<Endpoint>>) -> Option<Endpoint> {
        Some(self.applied_to(unchanged(row, current)?))
    }

    /// Returns the row with the description, to be regenerated.
    pub(super) fn applied_to(self, current: &Endpoint) -> Endpoint {
        let now = SystemTime::now();
        let has_other_identity = self.record.sec_label != current.record.sec_label;
        let waited = current.state == State::WaitingForIdentity;
        let next = Endpoint { named_ports: self.named_ports, ..current.with_record(self.record) };
        let next = if has_other_identity || waited { next.identified(RESOLVING, now) } else { next };
        match next.state {
            State::Restoring => next,
            _ => next.triggered("LabelsUpdate", UPDATED, now),
        }
    }

    /// As [`applied`](Self::applied) while the labels wait for their identity: the endpoint goes on with the one that it has.
    /// None as well while a regeneration is in progress, which must not wait.
    fn waiting(self, row: &Endpoint, current: Option<&Obj<Endpoint>>) -> Option<Endpoint> {
        let current = unchanged(row, current)?;
        let is_idle = current.state == State::Ready && current.status.kind() == StatusKind::Done;
        let next = Endpoint { named_ports: self.named_ports, ..current.with_record(self.record) };
        (is_idle || current.state == State::WaitingForIdentity)
            .then(|| next.enter_waiting_for_identity(SystemTime::now()))
    }
}

/// Returns the current row if its record is that of `row`.
fn unchanged<'a>(row: &Endpoint, current: Option<&'a Obj<Endpoint>>) -> Option<&'a Obj<Endpoint>> {
    let holds = |current: &&Obj<Endpoint>| {
        let is_same = current.record == row.record && current.named_ports == row.named_ports;
        is_same && !current.state.is_leaving()
    };
    current.filter(holds)
}

impl Endpoints {
    /// Sets a new endpoint's labels and identity, and triggers its regeneration.
    pub(super) async fn describe_first(
        &self,
        id: EndpointId,
        fetched: Option<Metadata>,
    ) -> Result<(), Refused> {
        self.with_identity(move |endpoints| endpoints.describe(id, fetched.as_ref())).await.map(drop)
    }

    /// Runs a function that needs an identity, on a thread for blocking work. If its error is that the labels wait for an
    /// identity of the cluster, runs it again once they have one, until the time limit of requests.
    pub(super) async fn with_identity<T: Send + 'static>(
        &self,
        run: impl Fn(&Endpoints) -> Result<T, Refused> + Clone + Send + 'static,
    ) -> Result<T, Refused> {
        let deadline = Instant::now() + WAIT_LIMIT.min(self.context.identity_allocation_timeout);
        loop {
            let (endpoints, run) = (self.clone(), run.clone());
            let outcome = hive::blocking(move || run(&endpoints)).await;
            match &outcome {
                Err(Refused::Identity(identity::Error::Waiting { labels })) if Instant::now() < deadline => {
                    let look = deadline.min(Instant::now() + LABELS_INTERVAL);
                    let _ = tokio::time::timeout_at(look, self.identity_of(labels)).await;
                }
                _ => return outcome,
            }
        }
    }

    /// Waits until labels do not wait for an identity.
    async fn identity_of(&self, labels: &LabelArray) {
        let Some(requests) = self.context.identities.requests() else { return };
        loop {
            let snapshot = requests.snapshot();
            match requests.get_watch(&snapshot, IdentityRequest::by_labels(labels)) {
                (Some(_), watch) => watch.changed().await,
                (None, _) => return,
            }
        }
    }

    /// Returns the description of a new endpoint, whose row is not in the table yet. Most pods share an existing identity: then
    /// no file is written, and no blocking thread is needed. `None` if a new one is.
    pub(super) fn described_at_once(
        &self,
        snapshot: &Snapshot,
        row: &Endpoint,
        fetched: Option<&Metadata>,
    ) -> Result<Option<Description>, Refused> {
        let Some(mut description) = self.drafted(snapshot, row, fetched)? else { return Ok(None) };
        if let Some(labels) = self.unidentified(&description.record) {
            let user = Endpoint::user(row.record.id);
            let Some(id) = self.context.identities.allocate_known(&labels, &user) else { return Ok(None) };
            description.record.sec_label = Some(SecurityLabel { id, labels });
        }
        Ok(Some(description))
    }

    /// Writes the row with its description; false if the row has changed since.
    fn apply(&self, row: &Endpoint, description: Description) -> bool {
        let mut txn = self.table.write();
        let Some(next) = description.applied(row, txn.get(Endpoint::by_id(row.id()))) else { return false };
        txn.insert(next);
        txn.commit();
        true
    }

    /// Marks the row as waiting for an identity of the cluster.
    fn apply_waiting(&self, row: &Endpoint, description: Description) {
        let mut txn = self.table.write();
        if let Some(next) = description.waiting(row, txn.get(Endpoint::by_id(row.id()))) {
            tracing::info!(endpointID = row.record.id, "The new labels wait for an identity of the cluster");
            txn.insert(next);
            txn.commit();
        }
    }

    /// Updates labels, identity and names of ports to those of the pod's object, or of the API server's answer
    /// `fetched` while the tables have no object of the pod. True if something has changed.
    ///
    /// Retries with the current row if its record was changed concurrently: the identity is allocated, and may be
    /// written to disk, without holding the table's lock.
    pub(crate) fn describe(&self, id: EndpointId, fetched: Option<&Metadata>) -> Result<bool, Refused> {
        loop {
            let snapshot = self.table.snapshot();
            let row = self.table.get(&snapshot, Endpoint::by_id(id)).ok_or(Refused::NotFound)?;
            match self.described(&snapshot, row, fetched)? {
                Described::Same => return Ok(false),
                Described::New(description) => {
                    if self.apply(row, description) {
                        return Ok(true);
                    }
                }
                Described::Waiting(description) => {
                    self.apply_waiting(row, description);
                    return Ok(false);
                }
            }
        }
    }

    /// As [`describe`](Self::describe) for several at once, by the objects of one snapshot and in one transaction, so
    /// that changes that belong together reach the reconciler together. Returns the outcome for each, in order.
    pub(crate) fn describe_all(&self, ids: &[EndpointId], snapshot: &Snapshot) -> Vec<Result<bool, Refused>> {
        let describe = |id: &EndpointId| {
            let row = self.table.get(snapshot, Endpoint::by_id(*id)).ok_or(Refused::NotFound)?;
            Ok(match self.described(snapshot, row, None)? {
                Described::Same => None,
                Described::New(description) => Some((row, description)),
                Described::Waiting(description) => {
                    self.apply_waiting(row, description);
                    None
                }
            })
        };
        let described: Vec<_> = ids.iter().map(describe).collect();
        let mut overtaken = Vec::new();
        let mut outcomes = Vec::with_capacity(ids.len());
        let mut txn = self.table.write();
        for described in described {
            outcomes.push(match described {
                Ok(Some((row, description))) => {
                    let id = row.id();
                    match description.applied(row, txn.get(Endpoint::by_id(id))) {
                        Some(next) => drop(txn.insert(next)),
                        None => overtaken.push((outcomes.len(), id)),
                    }
                    Ok(true)
                }
                Ok(None) => Ok(false),
                Err(error) => Err(error),
            });
        }
        txn.commit();
        for (at, id) in overtaken {
            outcomes[at] = self.describe(id, None);
        }
        outcomes
    }

    /// Whether the objects of a snapshot differ from an endpoint's row there.
    pub(crate) fn is_outdated(&self, id: EndpointId, snapshot: &Snapshot) -> bool {
        let row = self.table.get(snapshot, Endpoint::by_id(id));
        row.is_some_and(|row| !matches!(self.drafted(snapshot, row, None), Ok(None)))
    }

    /// Returns the row's description by the pod's object.
    fn described(
        &self,
        snapshot: &Snapshot,
        row: &Endpoint,
        fetched: Option<&Metadata>,
    ) -> Result<Described, Refused> {
        let Some(mut description) = self.drafted(snapshot, row, fetched)? else { return Ok(Described::Same) };
        let delay = self.jitter(row, &description.record);
        let identified = self.identify(&mut description.record, delay);
        // A deletion releases what the endpoint holds and requests once it is marked as leaving: this request may have
        // come after that.
        let (id, now) = (row.id(), self.table.snapshot());
        if self.table.get(&now, Endpoint::by_id(id)).is_none_or(|row| row.state.is_leaving()) {
            self.context.identities.release_all(&Endpoint::user(id.0));
            return Err(Refused::NotFound);
        }
        match identified {
            Ok(()) => Ok(Described::New(description)),
            Err(Refused::Identity(identity::Error::Waiting { .. }))
                if description.record.sec_label.is_some() =>
            {
                let is_same = description.record == *row.record && description.named_ports == row.named_ports;
                match is_same && row.state == State::WaitingForIdentity {
                    true => Ok(Described::Same),
                    false => Ok(Described::Waiting(description)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the labels and named ports that a row should have, still with its present identity; none if it has them.
    fn drafted(
        &self,
        snapshot: &Snapshot,
        row: &Endpoint,
        fetched: Option<&Metadata>,
    ) -> Result<Option<Description>, Refused> {
        if row.state.is_leaving() {
            return Err(Refused::NotFound);
        }
        if row.record.op_labels.is_reserved() {
            return Ok(None);
        }
        let mut record = (*row.record).clone();
        let mut named_ports = row.named_ports.clone();
        let metadata = match self.context.objects.as_ref().map(|objects| objects.lookup(snapshot, &record)) {
            Some(Lookup::Found(metadata)) => Some(metadata),
            Some(_) => fetched.cloned(),
            None => None,
        };
        if let Some(metadata) = metadata {
            record.op_labels = pod_metadata::described(&record.op_labels, &metadata, &self.context.filter);
            named_ports = metadata.ports;
        }
        let is_same = record == *row.record && named_ports == row.named_ports;
        let waits = || row.state == State::WaitingForIdentity && row.record.sec_label.is_some();
        let has_changed = !is_same || self.unidentified(&record).is_some() || waits();
        Ok(has_changed.then_some(Description { record, named_ports }))
    }

    /// Returns the delay of an identity that is new to the cluster: none for a new endpoint, which waits for its first labels.
    fn jitter(&self, row: &Endpoint, described: &Record) -> Duration {
        let labels = row.record.sec_label.as_ref().map(|label| &label.labels);
        // The id of unchanged labels belongs to others by now.
        let is_lost = labels == Some(&described.op_labels.identity()) && row.state == State::Ready;
        match labels.is_none() || row.record.op_labels.is_init() || is_lost {
            true => Duration::ZERO,
            false => self.context.identity_max_jitter.mul_f64(rand::random()),
        }
    }

    /// Sets a record's identity by its labels; one that is new to the cluster is created after the delay. May write a
    /// file, so call it on a blocking thread.
    pub(super) fn identify(&self, record: &mut Record, delay: Duration) -> Result<(), Refused> {
        let user = Endpoint::user(record.id);
        let Some(labels) = self.unidentified(record) else {
            self.context.identities.withdraw(&user);
            return Ok(());
        };
        let id = self.context.identities.allocate_after(&labels, &user, delay);
        record.sec_label = Some(SecurityLabel { id: id?, labels });
        Ok(())
    }

    /// Returns the record's labels if its identity is not theirs, or is another's by now in the cluster.
    fn unidentified(&self, record: &Record) -> Option<Labels> {
        let labels = record.op_labels.identity();
        let is_theirs = record.sec_label.as_ref().is_some_and(|label| {
            let user = Endpoint::user(record.id);
            label.labels == labels && !self.context.identities.has_lost(label.id, &user)
        });
        (!is_theirs).then_some(labels)
    }
}
