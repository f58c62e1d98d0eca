//! Labels, identity and named ports of endpoints, by the objects of their pods.

use std::time::SystemTime;

use labels::{Labels, NamedPorts};
use statedb::{Obj, Snapshot};

use crate::identity_labels::pod::{self, Lookup, Metadata};
use crate::model::endpoint::{Endpoint, RESOLVING, UPDATED};
use crate::model::id::EndpointId;
use crate::model::record::{Record, SecurityLabel};
use crate::model::state::State;
use crate::requests::service::{Endpoints, Refused};

/// New labels with their identity, in a record, and new named ports.
pub(crate) struct Description {
    pub(crate) record: Record,
    pub(crate) named_ports: NamedPorts,
}

impl Description {
    /// Returns the current row with the description, which was made for `row`; none if its record has changed since.
    /// Changes of the reconciliation status are ignored.
    pub(crate) fn applied(self, row: &Endpoint, current: Option<&Obj<Endpoint>>) -> Option<Endpoint> {
        let holds = |current: &&Obj<Endpoint>| {
            let is_same = current.record == row.record && current.named_ports == row.named_ports;
            is_same && !current.state.is_leaving()
        };
        let current = current.filter(holds)?;
        let now = SystemTime::now();
        let has_other_identity = self.record.sec_label != current.record.sec_label;
        let next = Endpoint { named_ports: self.named_ports, ..current.with_record(self.record) };
        let next = if has_other_identity { next.identified(RESOLVING, now) } else { next };
        Some(match next.state {
            State::Restoring => next,
            _ => next.triggered("LabelsUpdate", UPDATED, now),
        })
    }
}

impl Endpoints {
    /// Sets a new endpoint's labels and identity, and triggers its regeneration.
    pub(super) async fn describe_first(
        &self,
        id: EndpointId,
        fetched: Option<Metadata>,
    ) -> Result<(), Refused> {
        // Most pods share an existing identity: then no file is written, and no blocking thread is needed.
        if self.describe_at_once(id, fetched.as_ref())? {
            return Ok(());
        }
        let endpoints = self.clone();
        hive::blocking(move || endpoints.describe(id, fetched.as_ref())).await.map(drop)
    }

    /// As [`describe`](Self::describe), but only if no new identity is needed. Returns false, without a change, if one
    /// is needed or the row was changed concurrently.
    fn describe_at_once(&self, id: EndpointId, fetched: Option<&Metadata>) -> Result<bool, Refused> {
        let snapshot = self.table.snapshot();
        let row = self.table.get(&snapshot, Endpoint::by_id(id)).ok_or(Refused::NotFound)?;
        let Some(mut description) = self.drafted(&snapshot, row, fetched)? else { return Ok(true) };
        if let Some(labels) = without_identity(&description.record) {
            let known = self.context.identities.allocate_known(&labels, &Endpoint::user(id.0));
            let Some(id) = known else { return Ok(false) };
            description.record.sec_label = Some(SecurityLabel { id, labels });
        }
        Ok(self.apply(row, description))
    }

    /// Writes the row with its description; false if the row has changed since.
    fn apply(&self, row: &Endpoint, description: Description) -> bool {
        let mut txn = self.table.write();
        let Some(next) = description.applied(row, txn.get(Endpoint::by_id(row.id()))) else { return false };
        txn.insert(next);
        txn.commit();
        true
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
            let Some(description) = self.described(&snapshot, row, fetched)? else { return Ok(false) };
            if self.apply(row, description) {
                return Ok(true);
            }
        }
    }

    /// As [`describe`](Self::describe) for several at once, by the objects of one snapshot and in one transaction, so
    /// that changes that belong together reach the reconciler together. Returns the outcome for each, in order.
    pub(crate) fn describe_all(&self, ids: &[EndpointId], snapshot: &Snapshot) -> Vec<Result<bool, Refused>> {
        let describe = |id: &EndpointId| {
            let row = self.table.get(snapshot, Endpoint::by_id(*id)).ok_or(Refused::NotFound)?;
            Ok(self.described(snapshot, row, None)?.map(|description| (row, description)))
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

    /// Returns the row's description by the pod's object; none if the row has it already.
    fn described(
        &self,
        snapshot: &Snapshot,
        row: &Endpoint,
        fetched: Option<&Metadata>,
    ) -> Result<Option<Description>, Refused> {
        let Some(mut description) = self.drafted(snapshot, row, fetched)? else { return Ok(None) };
        self.identify(&mut description.record)?;
        Ok(Some(description))
    }

    /// As [`described`](Self::described), with the identity of the row.
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
            record.op_labels = pod::described(&record.op_labels, &metadata, &self.context.filter);
            named_ports = metadata.ports;
        }
        let is_same = record == *row.record && named_ports == row.named_ports;
        let has_changed = !is_same || without_identity(&record).is_some();
        Ok(has_changed.then_some(Description { record, named_ports }))
    }

    /// Sets a record's identity by its labels. May write a file, so call it on a blocking thread.
    pub(super) fn identify(&self, record: &mut Record) -> Result<(), Refused> {
        let Some(labels) = without_identity(record) else { return Ok(()) };
        let id = self.context.identities.allocate(&labels, &Endpoint::user(record.id));
        record.sec_label = Some(SecurityLabel { id: id?, labels });
        Ok(())
    }
}

/// Returns the record's labels if its identity belongs to other labels.
fn without_identity(record: &Record) -> Option<Labels> {
    let labels = record.op_labels.identity();
    let is_theirs = record.sec_label.as_ref().is_some_and(|label| label.labels == labels);
    (!is_theirs).then_some(labels)
}
