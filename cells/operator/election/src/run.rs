//! The participant: requests, timers, and the life of the leader's scope.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use hive::{JobCx, Scope, Shutdowner};
use jiff::Timestamp;
use k8s_types::{Api, ApiError, Key, Kind};
use rand::RngExt as _;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};

use crate::election::{Election, Next};
use crate::leadership::Leadership;
use crate::{Error, LEASE_NAME};

/// A participant of the election.
pub(crate) struct Participant<L: ?Sized> {
    pub(crate) api: Arc<dyn Api>,
    pub(crate) scope: Arc<Scope<L>>,
    pub(crate) namespace: String,
    pub(crate) identity: String,
    pub(crate) election: Election,
    pub(crate) request_timeout: Duration,
    pub(crate) leadership: Leadership,
    pub(crate) shutdown: Shutdowner,
}

impl<L: ?Sized + 'static> Participant<L> {
    /// Takes part until the job is cancelled, or until the lease is lost, which ends the process.
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        tracing::info!(lease = self.lease_name(), id = self.identity, "Attempting to acquire leader lease");
        let mut reported = String::new();
        let mut leads = false;
        let mut started = futures::future::pending().boxed();
        loop {
            let step = self.election.next(Instant::now(), &now());
            let until = match step {
                Next::Wait(until) => until,
                Next::Lost { silence } => return Err(self.lost(silence)),
                request => {
                    if cx.token().run_until_cancelled(self.carry_out(request)).await.is_none() {
                        break;
                    }
                    self.leadership.set(self.election.leads_until());
                    self.report(&cx, &mut reported);
                    if !leads && self.election.leads_until().is_some() {
                        leads = true;
                        tracing::info!(id = self.identity, "Leading the operator HA deployment");
                        let scope = self.scope.clone();
                        started = async move { scope.start().await }.boxed();
                    }
                    continue;
                }
            };
            tokio::select! {
                () = sleep_until(until) => {}
                () = cx.cancelled() => break,
                start = &mut started => {
                    started = futures::future::pending().boxed();
                    if let Err(error) = start {
                        if self.shutdown.is_shutting_down() {
                            continue;
                        }
                        self.shutdown.shutdown_with(Error::Start(error));
                    }
                }
            }
        }
        self.leave().await;
        Ok(())
    }

    /// Sends a request about the lease and records its answer.
    async fn carry_out(&mut self, request: Next) {
        let key = Key::new(self.namespace.as_str(), LEASE_NAME);
        let is_read = matches!(request, Next::Read);
        let write = |object: Value| named(object, &key).to_string().into();
        let answer = match request {
            Next::Read => self.api.get(Kind::Lease, &key),
            Next::Create(lease) => self.api.create(Kind::Lease, write(lease)),
            Next::Update(lease) => self.api.update(Kind::Lease, write(lease)),
            Next::Wait(_) | Next::Lost { .. } => return,
        };
        let limit = self.request_timeout;
        let answer = timeout(limit, answer).await.unwrap_or_else(|_| {
            let message = format!("no answer within {limit:?}");
            Err(ApiError::Unavailable { message, retry_after: None })
        });
        let answer = answer.and_then(|json| {
            serde_json::from_slice::<Value>(&json).map_err(|error| ApiError::Unavailable {
                message: format!("the answer is no JSON: {error}"),
                retry_after: None,
            })
        });
        let (at, jitter) = (Instant::now(), rand::rng().random_range(0.0..1.0));
        match (is_read, answer) {
            (true, Err(ApiError::NotFound(_))) => self.election.read(at, Ok(None), jitter),
            (true, answer) => self.election.read(at, answer.map(Some), jitter),
            (false, answer) => self.election.written(at, answer, jitter),
        }
    }

    /// Reports changes of the holder and errors in health and log.
    fn report(&self, cx: &JobCx, reported: &mut String) {
        let holder = self.election.holder().map_or("", |holder| holder.identity.as_str());
        let state = match (self.election.error.as_str(), holder) {
            ("", "") => return,
            ("", holder) if holder == self.identity => "This process leads".to_owned(),
            ("", holder) => format!("{holder} leads, this process waits for the lease"),
            (error, _) => {
                let message = format!("Cannot get or renew the lease {}", self.lease_name());
                if cx.health.degraded_anew(&message, error) {
                    tracing::warn!(lease = self.lease_name(), error, "Cannot get or renew the leader lease");
                }
                reported.clear();
                return;
            }
        };
        if *reported != state {
            if holder != self.identity {
                tracing::info!(new_leader = holder, id = self.identity, "Leader re-election complete");
            }
            cx.health.ok(&state);
            *reported = state;
        }
    }

    fn lost(&self, silence: Duration) -> anyhow::Error {
        self.leadership.set(None);
        let reason = match self.election.error.as_str() {
            "" => "the process did not run".to_owned(),
            error => error.to_owned(),
        };
        let error = || Error::Lost {
            namespace: self.namespace.clone(),
            name: LEASE_NAME,
            silence,
            reason: reason.clone(),
        };
        self.shutdown.shutdown_with(error());
        error().into()
    }

    /// Stops the leader's cells, then releases the lease for the next process.
    async fn leave(mut self) {
        if self.election.leads_until().is_none() {
            return;
        }
        // Built anew or stopped by the hive: then there is nothing to stop.
        let _ = self.scope.stop().await;
        self.leadership.set(None);
        let Some(lease) = self.election.release(&now()) else { return };
        self.carry_out(Next::Update(lease)).await;
        match self.election.error.as_str() {
            "" => tracing::info!(lease = self.lease_name(), "Leader lease is released"),
            error => tracing::warn!(lease = self.lease_name(), error, "Cannot release the leader lease"),
        }
    }

    fn lease_name(&self) -> String {
        format!("{}/{LEASE_NAME}", self.namespace)
    }
}

/// Completes the object for a request.
fn named(mut object: Value, key: &Key) -> Value {
    object["apiVersion"] = Kind::Lease.api_version().into();
    object["kind"] = Kind::Lease.name().into();
    object["metadata"]["name"] = key.name.as_str().into();
    object["metadata"]["namespace"] = key.namespace.as_str().into();
    object
}

/// The time as leases have it, to the microsecond.
fn now() -> String {
    format!("{:.6}", Timestamp::now())
}
