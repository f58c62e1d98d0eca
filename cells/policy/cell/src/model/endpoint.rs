//! The table `endpoint-policies`: each endpoint's subject and policy, desired and realized.

use std::collections::BTreeSet;
use std::sync::Arc;

use datapath_abi::identity::INGRESS;
use labels::LabelArray;
use policy_engine::{Filters, NamedPorts};
use serde::Serialize;
use statedb::{Query, TableDisplay, TableSpec};

use crate::model::decisions::Decisions;

/// The properties of an endpoint that policy depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Subject {
    /// The endpoint.
    pub endpoint: u16,
    /// Its identity.
    pub identity: u32,
    /// The labels of that identity.
    pub labels: LabelArray,
    /// Its named ports.
    pub named_ports: NamedPorts,
}

impl Subject {
    /// Whether the datapath has a policy map of the endpoint. The ingress has none: its policy is Envoy's.
    #[must_use]
    pub fn has_policy_map(&self) -> bool {
        self.identity != INGRESS
    }
}

/// A simultaneous change of several endpoints' identities, as seen from one of them: until packets and the ipcache
/// carry the new ones, traffic with a peer that still has its old identity keeps its former verdict. The rows of the
/// new subject cover the old identity, too, but for a pair of which only one side has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Transition {
    /// The endpoint before the change.
    pub from: Subject,
    /// The old identities of all endpoints that change.
    pub peers: BTreeSet<u32>,
}

/// The state of an endpoint's policy in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum RealizationState {
    /// The kernel does not have it yet: sources are incomplete, or it is being written.
    Pending,
    /// The kernel has it.
    Realized,
    /// It does not fit into the policy map: all traffic of the endpoint is denied until it does.
    Full,
    /// Its rules contradict each other: the kernel keeps the policy that it has.
    Conflict,
    /// The write to the kernel has failed and is retried.
    Failed,
}

/// The number of rows of a policy map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct RowCounts {
    /// Rows that allow.
    pub allow: usize,
    /// Rows that deny.
    pub deny: usize,
}

/// An endpoint and its policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct EndpointPolicy {
    /// The endpoint's properties.
    pub subject: Subject,
    /// The change of identities in progress.
    pub transition: Option<Arc<Transition>>,
    /// The sequence number of the call that announced the endpoint: the same id with another number is another
    /// endpoint.
    pub announced: u64,
    /// The sequence number of the call that changed the subject last.
    pub generation: u64,
    /// The revision of the policies that was computed last; 0 before the first computation.
    pub revision: u64,
    /// The revision in the kernel; 0 before the first write.
    pub realized: u64,
    /// Whether any policy selects it as receiver.
    pub ingress_enforced: bool,
    /// Whether any policy selects it as sender.
    pub egress_enforced: bool,
    /// Rows of the map for ingress.
    pub ingress: RowCounts,
    /// Rows of the map for egress.
    pub egress: RowCounts,
    /// The rules of the revision that was computed last; shared by all endpoints of an identity.
    #[serde(skip)]
    pub filters: Arc<Filters>,
    /// The rules of the revision in the kernel.
    #[serde(skip)]
    pub realized_filters: Arc<Filters>,
    /// The rules behind the rows in the kernel.
    #[serde(skip)]
    pub decisions: Decisions,
    /// The number of redirects that cannot be made, since their proxy has no port: their traffic is denied.
    pub missing_redirects: usize,
    /// The state in the kernel.
    pub state: RealizationState,
    /// The error, with its remedy.
    pub error: Option<Arc<str>>,
}

impl EndpointPolicy {
    /// Queries the policy of an endpoint.
    pub fn by_endpoint(endpoint: u16) -> Query<EndpointPolicy> {
        Query::primary(endpoint)
    }

    /// Returns the row of an endpoint that was announced by call `number`.
    pub(crate) fn new(subject: Subject, number: u64) -> EndpointPolicy {
        EndpointPolicy {
            subject,
            transition: None,
            announced: number,
            generation: number,
            revision: 0,
            realized: 0,
            ingress_enforced: false,
            egress_enforced: false,
            ingress: RowCounts::default(),
            egress: RowCounts::default(),
            filters: Arc::default(),
            realized_filters: Arc::default(),
            decisions: Decisions::default(),
            missing_redirects: 0,
            state: RealizationState::Pending,
            error: None,
        }
    }

    /// Returns the directions in which policies are enforced, with their names in the API.
    pub fn enabled(&self) -> &'static str {
        self.enabled_audited(false)
    }

    /// Returns the directions for an endpoint in audit mode (`PolicyAuditMode`): drops are only reported.
    pub fn enabled_audited(&self, audit: bool) -> &'static str {
        match (self.ingress_enforced, self.egress_enforced, audit) {
            (false, false, _) => "none",
            (true, false, false) => "ingress",
            (false, true, false) => "egress",
            (true, true, false) => "both",
            (true, false, true) => "audit-ingress",
            (false, true, true) => "audit-egress",
            (true, true, true) => "audit-both",
        }
    }
}

impl TableSpec for EndpointPolicy {
    const NAME: &'static str = "endpoint-policies";
    type Key<'a> = u16;

    fn key(&self) -> u16 {
        self.subject.endpoint
    }
}

impl TableDisplay for EndpointPolicy {
    fn columns() -> &'static [&'static str] {
        &["Endpoint", "Identity", "Enforced", "Revision", "Realized", "Ingress", "Egress", "Status", "Error"]
    }

    fn row(&self) -> Vec<String> {
        let counts = |rows: &RowCounts| match rows.deny {
            0 => format!("{} allow", rows.allow),
            deny => format!("{} allow, {deny} deny", rows.allow),
        };
        vec![
            self.subject.endpoint.to_string(),
            self.subject.identity.to_string(),
            self.enabled().to_owned(),
            self.revision.to_string(),
            self.realized.to_string(),
            counts(&self.ingress),
            counts(&self.egress),
            format!("{:?}", self.state),
            self.error.as_deref().unwrap_or_default().to_owned(),
        ]
    }
}
