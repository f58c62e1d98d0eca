//! The table `endpoints`: one immutable row an endpoint, and the changes a row can go through.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use k8s_tables::core::Pod;
use labels::NamedPorts;
use reconciler::Status;
use serde::Serialize;
use statedb::{Index, Query, TableDisplay, TableSpec};

use crate::model::id::{EndpointId, Name};
use crate::model::log::{Code, Component, Log};
use crate::model::record::{Record, is_of};
use crate::model::regeneration::Regeneration;
use crate::model::state::State;

/// The reason for regeneration after a change of labels.
pub(crate) const UPDATED: &str = "LabelsUpdate: updated security labels";
pub(crate) const RESOLVING: &str = "Triggering identity resolution due to updated identity labels";

/// A failure in the log: this, the error, [`REASON`], the reason of the regeneration, a bracket.
const FAILURE: &str = "Error regenerating endpoint: ";
const REASON: &str = " (Reason: ";

/// A workload, or the host. Immutable: a change is a new value.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Endpoint {
    /// The record on disk.
    pub record: Arc<Record>,
    /// The named ports of the pod.
    pub named_ports: NamedPorts,
    /// The identity realized in the kernel; zero before there is one.
    pub applied_identity: u32,
    /// Its state.
    #[serde(serialize_with = "state_name")]
    pub state: State,
    /// Its recent events.
    #[serde(skip)]
    pub log: Log,
    /// The reason for the current or last regeneration.
    pub reason: Arc<str>,
    /// The regeneration in progress, if any.
    #[serde(rename = "WaitingFor", serialize_with = "waiting_for")]
    pub regeneration: Option<Arc<Regeneration>>,
    /// The number of regenerations since the agent's start.
    pub builds: u64,
    /// Whether the kernel and the state folder have this row.
    pub status: Status,
}

fn state_name<S: serde::Serializer>(state: &State, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state.name())
}

fn waiting_for<S: serde::Serializer>(
    regeneration: &Option<Arc<Regeneration>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    regeneration.as_ref().map(|regeneration| regeneration.step).serialize(to)
}

const BY_ADDRESS: Index<Endpoint, IpAddr> =
    Index::new("address", |e, keys| e.record.addresses().for_each(|address| keys.add(&address)));
const BY_CONTAINER: Index<Endpoint, str> = Index::new("container-id", |e, keys| {
    if !e.record.container_id.is_empty() {
        keys.add(&e.record.container_id);
    }
});
const BY_ATTACHMENT: Index<Endpoint, str> = Index::new("cni-attachment-id", |e, keys| {
    let id = e.record.cni_attachment_id();
    if !id.is_empty() {
        keys.add(&id);
    }
});
const BY_POD: Index<Endpoint, str> = Index::new("pod-name", |e, keys| {
    if !e.record.k8s_pod_name.is_empty() {
        keys.add(&e.record.pod_name());
    }
});

impl Endpoint {
    /// Queries the endpoint with an id.
    pub fn by_id(id: EndpointId) -> Query<Endpoint> {
        Query::primary(id.0)
    }

    /// Queries the endpoint with an address; there is at most one.
    pub fn by_address(address: IpAddr) -> Query<Endpoint> {
        BY_ADDRESS.query(&address)
    }

    /// Queries the endpoints of a container.
    pub fn by_container(id: &str) -> Query<Endpoint> {
        BY_CONTAINER.query(id)
    }

    /// Queries the endpoint of `CONTAINER:INTERFACE`; there is at most one.
    pub fn by_attachment(id: &str) -> Query<Endpoint> {
        BY_ATTACHMENT.query(id)
    }

    /// Queries the endpoints of `NAMESPACE/POD`.
    pub fn by_pod(name: &str) -> Query<Endpoint> {
        BY_POD.query(name)
    }

    /// Returns the query of a request's `{id}`; `None` if no endpoint can have the name.
    pub(crate) fn by_name(name: &Name) -> Option<Query<Endpoint>> {
        Some(match name {
            Name::Local(id) => Endpoint::by_id(*id),
            Name::CniAttachment(id) => Endpoint::by_attachment(id),
            Name::Container(id) => Endpoint::by_container(id),
            Name::Pod(name) | Name::CiliumEndpoint(name) => Endpoint::by_pod(name),
            Name::Ipv4(address) => Endpoint::by_address((*address)?.into()),
            Name::Ipv6(address) => Endpoint::by_address((*address)?.into()),
            Name::Nothing => return None,
        })
    }

    /// Returns the id.
    pub fn id(&self) -> EndpointId {
        EndpointId(self.record.id)
    }

    /// Whether an object is that of its pod, and not of another pod of the name.
    pub fn is_of(&self, pod: &Pod) -> bool {
        is_of(pod, &self.record)
    }

    /// Returns a new endpoint. There is nothing to reconcile before it has an identity.
    pub fn created(record: Record, now: SystemTime) -> Endpoint {
        let first = Endpoint::first(record, State::WaitingForIdentity, "Endpoint creation", now);
        Endpoint { status: Status::done(), ..first }
    }

    /// Returns an endpoint of the previous run.
    pub fn restored(record: Record, now: SystemTime) -> Endpoint {
        // Rules may use its named ports before the sources of pods are complete.
        let named_ports = labels::ports_of_labels(record.op_labels.identity().0.values());
        let first = Endpoint::first(record, State::Restoring, "Restoring endpoint from previous run", now);
        Endpoint { named_ports, ..first }
    }

    fn first(record: Record, state: State, message: &str, now: SystemTime) -> Endpoint {
        Endpoint {
            record: Arc::new(record),
            named_ports: NamedPorts::default(),
            applied_identity: 0,
            state,
            log: Log::default().with(now, Component::Other, Code::Ok, message, state),
            reason: message.into(),
            regeneration: None,
            builds: 0,
            status: Status::pending(),
        }
    }

    /// Returns the endpoint in another state. An invalid transition is refused and logged.
    #[must_use]
    pub fn enter(&self, next: State, message: &str, now: SystemTime) -> Endpoint {
        if self.state.may_become(next) {
            let log = self.log.with(now, Component::Other, Code::Ok, message, next);
            Endpoint { state: next, log, ..self.clone() }
        } else {
            let message = format!("Skipped invalid state transition to {next} due to: {message}");
            self.note(Component::Other, Code::Warning, &message, now)
        }
    }

    /// Returns the endpoint with one more line in its log.
    #[must_use]
    pub fn note(&self, component: Component, code: Code, message: &str, now: SystemTime) -> Endpoint {
        Endpoint { log: self.log.with(now, component, code, message, self.state), ..self.clone() }
    }

    /// Returns the endpoint with another record; the datapath does not have it yet.
    #[must_use]
    pub fn with_record(&self, record: Record) -> Endpoint {
        Endpoint { record: Arc::new(record), ..self.clone() }
    }

    /// Returns the endpoint after its identity was allocated; an endpoint in state `restoring` stays in it.
    #[must_use]
    pub fn identified(&self, why: &str, now: SystemTime) -> Endpoint {
        match self.state {
            State::Restoring => self.clone(),
            State::WaitingForIdentity => self.enter(State::Ready, "Set identity for this endpoint", now),
            _ => self.enter(State::WaitingForIdentity, why, now).enter(
                State::Ready,
                "Set identity for this endpoint",
                now,
            ),
        }
    }

    /// Returns the endpoint while its labels wait for an identity of the cluster: it keeps the identity that it has.
    #[must_use]
    pub(crate) fn enter_waiting_for_identity(&self, now: SystemTime) -> Endpoint {
        let next = match self.state {
            State::WaitingForIdentity => self.clone(),
            _ => self.enter(State::WaitingForIdentity, RESOLVING, now),
        };
        Endpoint { regeneration: None, status: Status::done(), ..next }
    }

    /// Returns the owner name under which an endpoint references its identity.
    pub(crate) fn user(id: u16) -> String {
        format!("endpoint/{id}")
    }

    /// Returns the endpoint waiting for regeneration. The row is new even if it waits already, so that a regeneration
    /// in flight does not complete it.
    #[must_use]
    pub fn triggered(&self, reason: &str, why: &str, now: SystemTime) -> Endpoint {
        let message = format!("Triggering endpoint regeneration due to {why}");
        let next = match self.state {
            State::WaitingToRegenerate => self.clone(),
            _ => self.enter(State::WaitingToRegenerate, &message, now),
        };
        Endpoint { reason: reason.into(), regeneration: None, status: Status::pending(), ..next }
    }

    /// Returns the endpoint while its regeneration waits. During a retry it stays `ready`, as after the failure.
    #[must_use]
    pub(crate) fn waiting(&self, now: SystemTime) -> Endpoint {
        match self.state {
            State::Ready => self.clone(),
            _ => self.regenerating(now),
        }
    }

    /// Returns the endpoint after its regeneration.
    #[must_use]
    pub fn regenerated(&self, now: SystemTime) -> Endpoint {
        let reason = &self.reason;
        let done = self
            .regenerating(now)
            .enter(State::Ready, "Completed endpoint regeneration with no pending regeneration requests", now)
            .note(
                Component::Bpf,
                Code::Ok,
                &format!("Successfully regenerated endpoint program (Reason: {reason})"),
                now,
            );
        Endpoint { builds: self.builds + 1, regeneration: None, ..done }
    }

    /// Returns the endpoint after its regeneration has failed; it stays `ready`, as in Cilium, and is retried.
    #[must_use]
    pub fn failed(&self, error: &str, now: SystemTime) -> Endpoint {
        let reason = &self.reason;
        let message = format!("{FAILURE}{error}{REASON}{reason})");
        let failed = match self.state {
            State::Ready => self.note(Component::Bpf, Code::Failure, &message, now),
            _ => self
                .regenerating(now)
                .enter(
                    State::Ready,
                    "Completed endpoint regeneration with no pending regeneration requests",
                    now,
                )
                .note(Component::Bpf, Code::Failure, &message, now),
        };
        Endpoint { regeneration: None, ..failed }
    }

    fn regenerating(&self, now: SystemTime) -> Endpoint {
        let message = format!("Regenerating endpoint: {}", self.reason);
        match self.state {
            State::Regenerating => self.clone(),
            State::Ready => self
                .enter(State::WaitingToRegenerate, "Triggering endpoint regeneration due to retry", now)
                .enter(State::Regenerating, &message, now),
            State::Restoring => self
                .enter(State::WaitingToRegenerate, "Triggering endpoint regeneration due to restore", now)
                .enter(State::Regenerating, &message, now),
            _ => self.enter(State::Regenerating, &message, now),
        }
    }

    /// Whether the last regeneration has failed with this error.
    pub(crate) fn has_failed_with(&self, error: &str) -> bool {
        let message = format!("{FAILURE}{error}{REASON}");
        let mut newest = self.log.newest_first().filter(|change| change.code != Code::Warning);
        let decided = newest.find(|change| {
            change.code == Code::Failure || change.message.starts_with("Successfully regenerated")
        });
        decided.is_some_and(|change| change.code == Code::Failure && change.message.starts_with(&message))
    }

    /// Returns the time and the error of the last failed regeneration in the log.
    pub fn last_failure(&self) -> Option<(SystemTime, &str)> {
        self.log.newest_first().filter(|change| change.code == Code::Failure).find_map(|change| {
            let error = change.message.strip_prefix(FAILURE)?;
            Some((change.at, error.rsplit_once(REASON).map_or(error, |(error, _)| error)))
        })
    }

    /// Whether the last regeneration has failed.
    pub fn is_failing(&self) -> bool {
        self.log
            .newest_first()
            .find(|change| change.code != Code::Warning)
            .is_some_and(|c| c.code == Code::Failure)
    }
}

impl TableSpec for Endpoint {
    const NAME: &'static str = "endpoints";
    type Key<'a> = u16;

    fn key(&self) -> u16 {
        self.record.id
    }

    fn indexes() -> Vec<statedb::IndexDef<Endpoint>> {
        vec![BY_ADDRESS.def(), BY_CONTAINER.def(), BY_ATTACHMENT.def(), BY_POD.def()]
    }
}

impl TableDisplay for Endpoint {
    fn columns() -> &'static [&'static str] {
        &["ID", "State", "Identity", "IPv4", "IPv6", "Interface", "Container", "Pod", "Status"]
    }

    fn row(&self) -> Vec<String> {
        let record = &self.record;
        let text = |address: Option<IpAddr>| address.map(|a| a.to_string()).unwrap_or_default();
        vec![
            record.id.to_string(),
            self.state.to_string(),
            record.identity().to_string(),
            text(record.ipv4.map(IpAddr::V4)),
            text(record.ipv6.map(IpAddr::V6)),
            record.if_name.clone(),
            record.cni_attachment_id(),
            record.pod_name(),
            self.status.to_string(),
        ]
    }
}
