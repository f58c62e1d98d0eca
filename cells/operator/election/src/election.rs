//! The election as a state machine without clock and requests: client-go's `leaderelection`, step by step.

use std::time::Duration;

use k8s_types::ApiError;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Times of the election.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// How long a renewal that was seen counts.
    pub(crate) lease: Duration,
    /// How long the leader tries to renew.
    pub(crate) renew_deadline: Duration,
    /// Time between two attempts.
    pub(crate) retry: Duration,
}

impl Timing {
    /// How long after its last renewal the leader counts itself out: before others may count it out.
    fn trusted(&self) -> Duration {
        (self.retry + self.renew_deadline).min(self.lease)
    }
}

/// The next step of a candidate or leader.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    /// Read the lease.
    Read,
    /// Create the lease.
    Create(Value),
    /// Replace the lease in the version that was read.
    Update(Value),
    /// Nothing until then.
    Wait(Instant),
    /// The lease was not renewed in time.
    Lost {
        /// Time since the last renewal.
        silence: Duration,
    },
}

/// The holder of the lease as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) identity: String,
    duration: Duration,
    /// When this state of the lease was first seen.
    seen: Instant,
}

/// The state of a participant.
#[derive(Debug)]
pub(crate) struct Election {
    identity: String,
    timing: Timing,
    /// The lease as last read or written.
    lease: Option<Value>,
    holder: Option<Holder>,
    /// When the last successful renewal was sent, of the leader.
    renewed: Option<Instant>,
    /// Whether another process took the lease while this one led.
    is_taken: bool,
    /// The request that is to follow.
    pending: Option<Pending>,
    /// When the next attempt begins.
    attempt: Instant,
    /// When the request under way was sent.
    sent: Instant,
    /// Why the last attempt failed.
    pub(crate) error: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Pending {
    Create,
    Update,
}

impl Election {
    pub(crate) fn new(identity: String, timing: Timing, now: Instant) -> Election {
        Election {
            identity,
            timing,
            lease: None,
            holder: None,
            renewed: None,
            is_taken: false,
            pending: None,
            attempt: now,
            sent: now,
            error: String::new(),
        }
    }

    /// Until when this participant leads, if it does.
    pub(crate) fn leads_until(&self) -> Option<Instant> {
        self.renewed.filter(|_| !self.is_taken).map(|at| at + self.timing.trusted())
    }

    /// The holder of the lease, as last seen.
    pub(crate) fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// Returns the next step. `time` is the wall clock as leases have it, which only readers of the lease see.
    pub(crate) fn next(&mut self, now: Instant, time: &str) -> Next {
        if let Some(renewed) = self.renewed
            && self.leads_until().is_none_or(|until| now >= until)
        {
            return Next::Lost { silence: now - renewed };
        }
        if now < self.attempt {
            return Next::Wait(self.leads_until().map_or(self.attempt, |until| until.min(self.attempt)));
        }
        self.sent = now;
        let Some(pending) = self.pending else {
            // A leader whose last write succeeded knows the lease's version.
            let is_known = self.renewed.is_some() && self.lease.is_some();
            return if is_known { Next::Update(self.desired(time)) } else { Next::Read };
        };
        match pending {
            Pending::Create => Next::Create(self.desired(time)),
            Pending::Update => Next::Update(self.desired(time)),
        }
    }

    /// The lease was read; `None` if there is none. `jitter`, from 0 to 1, spreads attempts of candidates.
    pub(crate) fn read(&mut self, now: Instant, answer: Result<Option<Value>, ApiError>, jitter: f64) {
        match answer {
            Ok(Some(lease)) => {
                self.observe(now, lease);
                if self.is_held_by_another(now) {
                    self.retry(now, jitter, String::new());
                    if self.renewed.is_some() {
                        // Another process has taken the lease of a leader: renewing cannot succeed any more.
                        self.is_taken = true;
                        "another process holds the lease".clone_into(&mut self.error);
                    }
                } else {
                    self.pending = Some(Pending::Update);
                }
            }
            Ok(None) => {
                self.lease = None;
                self.holder = None;
                self.pending = Some(Pending::Create);
            }
            Err(error) => self.retry(now, jitter, error.to_string()),
        }
    }

    /// The lease was written, or not.
    pub(crate) fn written(&mut self, now: Instant, answer: Result<Value, ApiError>, jitter: f64) {
        match answer {
            Ok(lease) => {
                self.observe(now, lease);
                self.renewed = Some(self.sent);
                self.pending = None;
                self.attempt = now + self.timing.retry;
                self.error.clear();
            }
            Err(error) => {
                // The version is another one, or unknown: a lost answer may have been a success.
                self.lease = None;
                self.pending = None;
                match self.renewed {
                    // At once, as client-go: first the known version, then by a read.
                    Some(_) if matches!(error, ApiError::Conflict(_)) => self.error = error.to_string(),
                    _ => self.retry(now, jitter, error.to_string()),
                }
            }
        }
    }

    /// Returns the lease without a holder, to be written at an orderly stop; none if this participant does not lead.
    pub(crate) fn release(&self, time: &str) -> Option<Value> {
        self.leads_until()?;
        let mut lease = self.lease.clone()?;
        let transitions = lease["spec"]["leaseTransitions"].as_i64().unwrap_or_default();
        set_spec(
            &mut lease,
            json!({
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "acquireTime": time,
                "renewTime": time,
                "leaseTransitions": transitions,
            }),
        );
        Some(lease)
    }

    fn retry(&mut self, now: Instant, jitter: f64, error: String) {
        self.pending = None;
        self.error = error;
        // A leader has a deadline; candidates spread.
        let factor = if self.renewed.is_some() { 1.0 } else { 1.0 + 1.2 * jitter };
        self.attempt = now + self.timing.retry.mul_f64(factor);
    }

    /// Takes note of the lease; the time of its holder begins anew if anything in its spec has changed.
    fn observe(&mut self, now: Instant, lease: Value) {
        let spec = &lease["spec"];
        let is_same =
            self.holder.is_some() && self.lease.as_ref().is_some_and(|known| known["spec"] == *spec);
        if !is_same {
            let identity = spec["holderIdentity"].as_str().unwrap_or_default().to_owned();
            let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or_default();
            let duration = Duration::from_secs(seconds);
            self.holder = (!identity.is_empty()).then_some(Holder { identity, duration, seen: now });
        }
        self.lease = Some(lease);
    }

    fn is_held_by_another(&self, now: Instant) -> bool {
        self.holder
            .as_ref()
            .is_some_and(|holder| holder.identity != self.identity && now < holder.seen + holder.duration)
    }

    /// The lease with this participant as its holder.
    fn desired(&self, time: &str) -> Value {
        let mut lease = self.lease.clone().unwrap_or_else(|| json!({}));
        let old = &lease["spec"];
        let is_own = old["holderIdentity"] == self.identity.as_str();
        let transitions = old["leaseTransitions"].as_i64().unwrap_or_default();
        let is_new = old.is_null();
        let acquired = old["acquireTime"].clone();
        let spec = json!({
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.timing.lease.as_secs(),
            "acquireTime": if is_own && acquired.is_string() { acquired } else { time.into() },
            "renewTime": time,
            "leaseTransitions": if is_own || is_new { transitions } else { transitions + 1 },
        });
        set_spec(&mut lease, spec);
        lease
    }
}

/// Sets members of the spec; others, such as `strategy`, stay.
fn set_spec(lease: &mut Value, members: Value) {
    match (lease["spec"].as_object_mut(), members) {
        (Some(spec), Value::Object(members)) => spec.extend(members),
        (_, members) => lease["spec"] = members,
    }
}
