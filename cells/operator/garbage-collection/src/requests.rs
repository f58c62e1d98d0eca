//! Requests, and their outcomes in a run.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hive::Health;
use k8s_types::{Api, ApiError, Key, Kind, Preconditions, SmolStr};
use operator_election::Leadership;
use tokio::time::timeout;

use crate::Error;

/// The timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Failures that health names at most.
const MAX_REPORTED_FAILURES: usize = 3;

/// Failures after which a run ends: the server refuses such requests altogether.
const MAX_FAILURES: usize = 10;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The object is as desired.
    Done,
    /// The object has changed since it was read, and was left alone.
    Changed,
}

/// Requests of the leader.
#[derive(Clone)]
pub(crate) struct Requests {
    pub(crate) api: Arc<dyn Api>,
    pub(crate) leadership: Leadership,
}

impl Requests {
    /// Deletes the object with this uid, at this version if one is given.
    pub(crate) async fn delete(
        &self,
        kind: Kind,
        key: &Key,
        uid: &SmolStr,
        version: Option<&SmolStr>,
    ) -> Result<Outcome, Error> {
        let only_if = Preconditions { uid: Some(uid.clone()), resource_version: version.cloned() };
        match self.request("delete", kind, key, self.api.delete(kind, key, only_if)).await {
            // Another client was faster.
            Err(Error::Request { error: ApiError::NotFound(_), .. }) => Ok(Outcome::Done),
            answer => answer,
        }
    }

    /// Replaces an object at the version that it has.
    pub(crate) async fn update(&self, kind: Kind, key: &Key, object: Bytes) -> Result<Outcome, Error> {
        match self.request("update", kind, key, self.api.update(kind, object)).await {
            Err(Error::Request { error: ApiError::NotFound(_), .. }) => Ok(Outcome::Changed),
            answer => answer,
        }
    }

    async fn request<T>(
        &self,
        verb: &'static str,
        kind: Kind,
        key: &Key,
        request: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<Outcome, Error> {
        if !self.leadership.holds() {
            return Err(Error::NotLeading);
        }
        let answer = timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(|_| {
            let message = format!("no answer within {} s", REQUEST_TIMEOUT.as_secs());
            Err(ApiError::Unavailable { message, retry_after: None })
        });
        match answer {
            Ok(_) => Ok(Outcome::Done),
            Err(ApiError::Conflict(_)) => Ok(Outcome::Changed),
            Err(error) => Err(Error::Request { verb, object: format!("{}/{key}", kind.plural()), error }),
        }
    }
}

/// The requests of a run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Requests that were executed.
    pub(crate) done: usize,
    /// Objects that had changed.
    pub(crate) changed: usize,
    /// Errors.
    pub(crate) failures: Vec<Error>,
}

impl Run {
    /// Counts a request. Returns whether the run goes on.
    pub(crate) fn count(&mut self, answer: Result<Outcome, Error>) -> bool {
        match answer {
            Ok(Outcome::Done) => self.done += 1,
            Ok(Outcome::Changed) => self.changed += 1,
            Err(error) => {
                let ends_run = error.ends_run() || self.failures.len() + 1 >= MAX_FAILURES;
                self.failures.push(error);
                return !ends_run;
            }
        }
        true
    }

    /// Reports the run in health; a failure that is new also in the log.
    pub(crate) fn report(&self, health: &Health, summary: &str) {
        if self.failures.is_empty() {
            health.ok(summary);
            return;
        }
        let error = hive::health::summarize(&self.failures, MAX_REPORTED_FAILURES, "; ");
        if health.degraded_anew(summary, &error) {
            tracing::warn!(error, "Objects cannot be collected, they are tried again at the next interval");
        }
    }
}
