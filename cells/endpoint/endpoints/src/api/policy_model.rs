//! An endpoint's policy as a model of the REST API.

use std::collections::BTreeSet;
use std::sync::Arc;

use api_models::{EndpointPolicy, EndpointPolicyStatus, List};
use policy::{Filters, RealizationState, l4_policy};
use runtime_options::POLICY_AUDIT_MODE;

use crate::model::endpoint::Endpoint;
use crate::requests::service::Context;

/// The policy of an endpoint, desired and realized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PolicyView {
    /// `none`, `ingress`, `egress` or `both`; the last three with the prefix `audit-` in audit mode.
    enabled: &'static str,
    /// The revision computed last, and the realized one.
    revisions: [u64; 2],
    /// Peers that map entries for all ports allow, by direction; zero for all.
    allowed: [BTreeSet<u32>; 2],
    /// Peers that such entries deny.
    denied: [BTreeSet<u32>; 2],
    /// The rules of each of the revisions.
    filters: [Arc<Filters>; 2],
    /// Whether writing the desired policy to the kernel fails.
    pub(crate) failing: bool,
}

impl PolicyView {
    /// Returns the policy of an endpoint without a policy map: everything passes.
    pub(crate) fn open(revision: u64) -> PolicyView {
        let everybody = || BTreeSet::from([0]);
        PolicyView {
            enabled: "none",
            revisions: [revision; 2],
            allowed: [everybody(), everybody()],
            denied: Default::default(),
            filters: Default::default(),
            failing: false,
        }
    }

    /// Reads the endpoint's policy map.
    pub(crate) fn of(context: &Context, endpoint: &Endpoint) -> PolicyView {
        let policies = &context.policies;
        if !endpoint.record.has_interface() {
            return PolicyView::open(policies.revision());
        }
        let table = policies.table();
        let snapshot = table.snapshot();
        let row = table.get(&snapshot, policy::EndpointPolicy::by_endpoint(endpoint.record.id));
        let mut view = PolicyView { enabled: "none", allowed: Default::default(), ..PolicyView::open(0) };
        if let Some(row) = row {
            view.enabled = row.enabled_audited(endpoint.record.options.map.enabled(POLICY_AUDIT_MODE));
            view.revisions = [row.revision, row.realized];
            view.filters = [row.filters.clone(), row.realized_filters.clone()];
            view.failing = matches!(
                row.state,
                RealizationState::Full | RealizationState::Conflict | RealizationState::Failed
            );
        }
        // A map that does not exist yet has no entries.
        let rows = context.datapath.policy_rows(endpoint.record.id).unwrap_or_default();
        // As in Cilium, peers of single ports are in the rules only.
        for (key, entry) in rows.into_iter().filter(|(key, _)| key.dport == 0) {
            let peers = if entry.deny() { &mut view.denied } else { &mut view.allowed };
            peers[usize::from(key.egress == 1)].insert(key.sec_label);
        }
        view
    }

    /// Returns the policy part of the endpoint's status.
    pub(crate) fn model(&self, endpoint: &Endpoint) -> EndpointPolicyStatus {
        let record = &endpoint.record;
        let list = |peers: &BTreeSet<u32>| {
            List((!peers.is_empty()).then(|| peers.iter().map(|&peer| peer.into()).collect()))
        };
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let of = |revision: u64, filters: &Filters| EndpointPolicy {
            allowed_egress_identities: list(&self.allowed[1]),
            allowed_ingress_identities: list(&self.allowed[0]),
            build: number(endpoint.builds),
            denied_egress_identities: list(&self.denied[1]),
            denied_ingress_identities: list(&self.denied[0]),
            id: record.identity().into(),
            l4: Some(l4_policy(filters)),
            policy_enabled: self.enabled.to_owned(),
            policy_revision: if endpoint.builds == 0 { 0 } else { number(revision) },
            ..EndpointPolicy::default()
        };
        EndpointPolicyStatus {
            proxy_policy_revision: if record.is_host() { 0 } else { number(self.revisions[1]) },
            proxy_statistics: List(Some(Vec::new())),
            realized: Some(of(self.revisions[1], &self.filters[1])),
            spec: Some(of(self.revisions[0], &self.filters[0])),
        }
    }
}
