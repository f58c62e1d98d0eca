//! The result of a round, for health and for the schedule.

use std::sync::Arc;

use hive::Health;

use crate::computation::core::{MapWrites, Outcome};
use crate::model::endpoint::RealizationState;

/// The result of a round.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The first error that is retried.
    pub(crate) error: Option<RoundError>,
    /// An endpoint whose rows do not fit into its map.
    full: Option<RoundError>,
    /// An endpoint with rules that contradict each other.
    conflict: Option<RoundError>,
    /// An endpoint with traffic that no proxy takes.
    no_proxy: Option<RoundError>,
    /// The objects that are refused.
    refused: Option<String>,
}

/// The error of a round after which some policy is not in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoundError {
    /// There are no identities for prefixes that policies name.
    #[error(transparent)]
    Prefixes(#[from] identity::Error),
    /// The policy map of an endpoint does not have its rows.
    #[error("endpoint {endpoint}: {error}")]
    Endpoint {
        /// The endpoint.
        endpoint: u16,
        /// The error of its row.
        error: Arc<str>,
    },
}

impl Report {
    /// Returns the result of a round from its writes and its other error.
    pub(crate) fn new(writes: &MapWrites, error: Option<RoundError>, refused: Option<String>) -> Report {
        let first = |state| {
            let outcome = writes.outcomes.iter().find(|outcome| outcome.state == state);
            outcome.map(RoundError::of_endpoint)
        };
        let error = error.or_else(|| first(RealizationState::Failed));
        let no_proxy = writes.outcomes.iter().find(|outcome| outcome.missing_redirects > 0);
        Report {
            error,
            full: first(RealizationState::Full),
            conflict: first(RealizationState::Conflict),
            no_proxy: no_proxy.map(RoundError::of_endpoint),
            refused,
        }
    }

    /// Reports the most severe error, or that there is none.
    pub(crate) fn set_health(&self, health: &Health, revision: u64) {
        if let Some(error) = &self.error {
            health.degraded("Unable to bring policy into force, trying again", error);
        } else if let Some(full) = &self.full {
            health.degraded("Endpoints are denied wholly", full);
        } else if let Some(conflict) = &self.conflict {
            health.degraded("Rules contradict each other", conflict);
        } else if let Some(refused) = &self.refused {
            health.degraded("Policies are refused", refused);
        } else if let Some(no_proxy) = &self.no_proxy {
            health.degraded("Traffic that rules send to a proxy is denied", no_proxy);
        } else {
            health.ok(format!("at revision {revision}"));
        }
    }
}

impl RoundError {
    fn of_endpoint(outcome: &Outcome) -> RoundError {
        RoundError::Endpoint { endpoint: outcome.endpoint, error: outcome.error.clone().unwrap_or_default() }
    }
}
