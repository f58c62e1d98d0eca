//! Limits of requests by kind: rate, parallel requests, waiting time.
//!
//! By default requests are admitted by queue depth and deadline: none waits while slots are free, none waits for ever.
//! A kind in `--api-rate-limit` is limited as by Cilium: by a rate with a burst and by parallel requests, both adjusted
//! to the duration of requests.

mod admission;
mod limiter;
mod parameters;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use limiter::Values;

use admission::Admission;
use limiter::Limiter;
use parameters::parse_config;

use crate::error::Error;
use crate::operation::Operation;

/// The kinds of requests that are limited, all of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Create,
    Delete,
    Get,
    Patch,
    List,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] = [Self::Create, Self::Delete, Self::Get, Self::Patch, Self::List];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "endpoint-create",
            Self::Delete => "endpoint-delete",
            Self::Get => "endpoint-get",
            Self::Patch => "endpoint-patch",
            Self::List => "endpoint-list",
        }
    }

    /// Returns the kind of an operation; `None` if it is not limited.
    pub(crate) fn of(operation: Operation) -> Option<Self> {
        use Operation::*;
        Some(match operation {
            PutEndpointID => Self::Create,
            DeleteEndpointID | DeleteEndpoint => Self::Delete,
            GetEndpointID | GetEndpointIDHealthz | GetEndpointIDLog | GetEndpointIDLabels
            | GetEndpointIDConfig => Self::Get,
            PatchEndpointID | PatchEndpointIDConfig | PatchEndpointIDLabels => Self::Patch,
            GetEndpoint => Self::List,
            _ => return None,
        })
    }
}

/// The reason of a rejected request, which is answered with 429.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum TurnedAway {
    #[error("request would have to wait {wait:?} to be served (maximum wait duration: {max:?})")]
    RateLimit { wait: Duration, max: Duration },
    #[error("timed out while waiting to be served with {parallel} parallel requests")]
    Parallel { parallel: usize },
    #[error("{waiting} requests are waiting already")]
    QueueFull { waiting: usize },
}

enum Gate {
    Admission(Admission),
    Limiter(Limiter),
}

/// The limits of all kinds.
pub(crate) struct Limits {
    gates: BTreeMap<Kind, Arc<Gate>>,
}

/// The permit of a request in flight. Dropping it releases its slot.
#[must_use]
pub(crate) struct Permit {
    gate: Arc<Gate>,
    began: Instant,
    waited: Duration,
    _slot: Option<tokio::sync::OwnedSemaphorePermit>,
}

impl Limits {
    /// Parses the limits of `--api-rate-limit`; an empty text is the default.
    pub(crate) fn new(config: &str) -> Result<Self, Error> {
        let mut configured = parse_config(config)?;
        let gates = Kind::ALL
            .into_iter()
            .map(|kind| {
                let gate = match configured.remove(&kind) {
                    Some(parameters) => Gate::Limiter(Limiter::new(parameters, Instant::now())),
                    None => Gate::Admission(Admission::new(kind)),
                };
                (kind, Arc::new(gate))
            })
            .collect();
        Ok(Self { gates })
    }

    /// Waits until a request of this kind may be served.
    pub(crate) async fn admit(&self, kind: Kind) -> Result<Permit, TurnedAway> {
        let gate = self.gates[&kind].clone();
        let asked = Instant::now();
        let slot = match &*gate {
            Gate::Admission(admission) => Some(admission.admit().await?),
            Gate::Limiter(limiter) => limiter.admit().await?,
        };
        let began = Instant::now();
        Ok(Permit { gate, began, waited: began - asked, _slot: slot })
    }
}

impl Permit {
    /// Ends the request; returns the values to export.
    pub(crate) fn finish(self) -> Values {
        let took = self.began.elapsed();
        match &*self.gate {
            Gate::Admission(admission) => admission.finished(took, self.waited),
            Gate::Limiter(limiter) => limiter.finished(took, self.waited),
        }
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permit").field("began", &self.began).field("waited", &self.waited).finish()
    }
}

#[cfg(test)]
mod tests;
