//! Table `k8s-writes`: pending mutations.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use statedb::{Table, age};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::mutation::{Mutation, NotWritten, Verb, Written};
use crate::target::Target;

/// A row of `k8s-writes`: the newest mutation of an object, until it is completed.
#[derive(Clone, Debug, Serialize, Table)]
#[table(name = "k8s-writes")]
pub struct Write {
    /// The object, as `ciliumendpoints/shop/web-0`, with a suffix such as `#labels` for a part.
    #[primary]
    pub object: String,
    /// The verb of the current or last request.
    pub verb: Verb,
    /// Its state.
    pub state: WriteState,
    /// The number of attempts.
    pub attempts: u32,
    /// The last error.
    pub error: String,
    /// The time at which it was enqueued.
    #[column("Age", with = |since: &Instant| age::of(since.elapsed()))]
    #[serde(rename = "age", serialize_with = "seconds")]
    pub since: Instant,
    /// The time of the last attempt.
    #[column(skip)]
    #[serde(skip)]
    pub(crate) tried: Option<Instant>,
    #[column(skip)]
    #[serde(skip)]
    pub(crate) mutation: Arc<QueuedMutation>,
}

/// The state of a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteState {
    /// Not tried yet.
    Waiting,
    /// A request is in flight.
    Writing,
    /// Has failed; retried soon.
    Retrying,
    /// Was refused; retried rarely.
    Refused,
}

impl fmt::Display for WriteState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WriteState::Waiting => "waiting",
            WriteState::Writing => "writing",
            WriteState::Retrying => "retrying",
            WriteState::Refused => "refused",
        })
    }
}

impl Serialize for WriteState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Verb {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn seconds<S: Serializer>(since: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(since.elapsed().as_secs())
}

/// A mutation with its sequence number and the sender of its outcome.
#[derive(Debug)]
pub(crate) struct QueuedMutation {
    pub(crate) target: Target,
    pub(crate) number: u64,
    pub(crate) mutation: Mutation,
    pub(crate) ended: watch::Sender<Option<Result<Written, NotWritten>>>,
}

impl QueuedMutation {
    /// Sends its outcome to the ticket; only the first outcome takes effect.
    pub(crate) fn finish(&self, end: Result<Written, NotWritten>) {
        self.ended.send_if_modified(|ended| {
            let new = ended.is_none();
            if new {
                *ended = Some(end);
            }
            new
        });
    }

    pub(crate) fn superseded(&self) {
        self.finish(Err(NotWritten::Superseded { target: self.target.to_string() }));
    }
}
