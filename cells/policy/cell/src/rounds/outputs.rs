//! The tables that rounds write: the policy of endpoints, the status of objects, selectors.

use policy_engine::SelectorChanges;
use statedb::RwTable;

use crate::computation::core::{Outcome, Prepared};
use crate::model::computation::PolicyComputation;
use crate::model::decisions::Decisions;
use crate::model::endpoint::{EndpointPolicy, RealizationState};
use crate::model::logs::PolicyLog;
use crate::model::object::{ObjectId, ObjectState, PolicyStatus};
use crate::model::selectors::{PeerSelector, SubjectSelector, apply_changes};

/// The tables.
pub(crate) struct Outputs {
    pub(crate) endpoints: RwTable<EndpointPolicy>,
    pub(crate) statuses: RwTable<PolicyStatus>,
    pub(crate) selectors: RwTable<PeerSelector>,
    pub(crate) subject_selectors: RwTable<SubjectSelector>,
    pub(crate) logs: RwTable<PolicyLog>,
    pub(crate) computations: RwTable<PolicyComputation>,
}

impl Outputs {
    /// Writes the policies of endpoints whose maps are not written yet.
    pub(crate) fn write_prepared(&self, prepared: &[Prepared]) {
        let snapshot = self.endpoints.snapshot();
        let changed = prepared.iter().filter_map(|prepared| {
            let row = self.endpoints.get(&snapshot, EndpointPolicy::by_endpoint(prepared.endpoint))?;
            let new = EndpointPolicy {
                revision: prepared.revision,
                ingress_enforced: prepared.enforced[0],
                egress_enforced: prepared.enforced[1],
                filters: prepared.filters.clone(),
                ..(**row).clone()
            };
            (row.generation == prepared.generation && **row != new).then_some(new)
        });
        let changed: Vec<EndpointPolicy> = changed.collect();
        if changed.is_empty() {
            return;
        }
        self.endpoints.transact(|txn| {
            for new in changed {
                let row = txn.get(EndpointPolicy::by_endpoint(new.subject.endpoint));
                if row.is_some_and(|row| row.generation == new.generation) {
                    txn.insert(new);
                }
            }
        });
    }

    /// Writes the changed outcomes of endpoints: the table wakes the job and all tasks that wait for policy.
    pub(crate) fn write_outcomes(&self, outcomes: &[Outcome]) {
        let snapshot = self.endpoints.snapshot();
        let is_change = |outcome: &&Outcome| {
            let row = self.endpoints.get(&snapshot, EndpointPolicy::by_endpoint(outcome.endpoint));
            row.is_some_and(|row| outcome.row(row).is_some_and(|new| new != **row))
        };
        let changes: Vec<&Outcome> = outcomes.iter().filter(is_change).collect();
        if changes.is_empty() {
            return;
        }
        self.endpoints.transact(|txn| {
            for outcome in changes {
                let row = txn.get(EndpointPolicy::by_endpoint(outcome.endpoint));
                let Some((row, new)) = row.and_then(|row| Some((row, outcome.row(row)?))) else { continue };
                log_transition(row, &new);
                txn.insert(new);
            }
        });
    }

    /// Writes the status of objects; those without a status are deleted.
    pub(crate) fn write_statuses(&self, statuses: Vec<(ObjectId, Option<PolicyStatus>)>) {
        if statuses.is_empty() {
            return;
        }
        self.statuses.transact(|txn| {
            for (object, status) in statuses {
                let Some(mut status) = status else {
                    txn.delete(PolicyStatus::by_object(&object));
                    continue;
                };
                // A refused version leaves the previous one in force, with its revision.
                if status.state != ObjectState::Applied {
                    let old = txn.get(PolicyStatus::by_object(&object));
                    status.revision = old.map_or(0, |old| old.revision);
                }
                txn.insert(status);
            }
        });
    }

    /// Writes the computations of these identities; those without one are deleted.
    pub(crate) fn write_computations(&self, changed: Vec<(u32, Option<PolicyComputation>)>) {
        if changed.is_empty() {
            return;
        }
        self.computations.transact(|txn| {
            for (identity, row) in changed {
                match row {
                    Some(row) => drop(txn.insert(row)),
                    None => drop(txn.delete(PolicyComputation::by_identity(identity))),
                }
            }
        });
    }

    /// Writes changes of selectors.
    pub(crate) fn write_selectors(&self, [peers, subjects]: [SelectorChanges; 2]) {
        apply_changes(&self.selectors, peers, PeerSelector::by_text);
        apply_changes(&self.subject_selectors, subjects, SubjectSelector::by_text);
    }
}

/// Logs an endpoint's change of state.
fn log_transition(row: &EndpointPolicy, new: &EndpointPolicy) {
    let endpoint = row.subject.endpoint;
    let error = new.error.as_deref().unwrap_or_default();
    if new.missing_redirects > 0 && new.missing_redirects != row.missing_redirects {
        tracing::warn!(endpointID = endpoint, %error, "Unable to redirect traffic of an endpoint to a proxy");
    }
    match (row.state, new.state) {
        (old, new) if old == new => {}
        (_, RealizationState::Full) => {
            tracing::warn!(endpointID = endpoint, %error, "The policy map of an endpoint is full: it is denied wholly");
        }
        (_, RealizationState::Failed) => {
            tracing::warn!(endpointID = endpoint, %error, "Unable to write the policy map of an endpoint, trying again");
        }
        (_, RealizationState::Conflict) => {
            tracing::warn!(endpointID = endpoint, %error, "Rules of an endpoint contradict each other");
        }
        (RealizationState::Full | RealizationState::Failed | RealizationState::Conflict, _) => {
            tracing::info!(endpointID = endpoint, "The policy of an endpoint is in force again");
        }
        _ => {}
    }
}

impl Outcome {
    /// Returns the endpoint's row with this outcome; `None` if the row has another subject by now.
    fn row(&self, row: &EndpointPolicy) -> Option<EndpointPolicy> {
        if row.generation != self.generation {
            return None;
        }
        let (realized, realized_filters) = match self.state {
            RealizationState::Realized => (self.revision, self.filters.clone()),
            _ => (row.realized, row.realized_filters.clone()),
        };
        let decisions = match self.state {
            RealizationState::Realized => self.decisions.clone(),
            // No rule decides: the map denies everything.
            RealizationState::Full => Decisions::default(),
            _ => row.decisions.clone(),
        };
        Some(EndpointPolicy {
            revision: self.revision,
            realized,
            ingress_enforced: self.enforced[0],
            egress_enforced: self.enforced[1],
            ingress: self.counts[0],
            egress: self.counts[1],
            filters: self.filters.clone(),
            realized_filters,
            decisions,
            missing_redirects: self.missing_redirects,
            state: self.state,
            error: self.error.clone(),
            ..row.clone()
        })
    }
}
