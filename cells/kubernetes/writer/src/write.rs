//! Table `k8s-writes`: pending mutations.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use statedb::{Table, age};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::mutation::{Mutation, NotWritten, Verb, Written};
use crate::target::Target;

/// A row of `k8s-writes`: the newest mutation about an object. It is there until it is fulfilled.
#[derive(Clone, Debug, Serialize, Table)]
#[table(name = "k8s-writes")]
pub struct Write {
    /// The object, as `ciliumendpoints/shop/web-0`, with `#labels` behind it if it is a part of one.
    #[primary]
    pub object: String,
    /// The verb of the present or last request.
    pub verb: Verb,
    /// How far it is.
    pub state: WriteState,
    /// How often it was tried.
    pub attempts: u32,
    /// Why it failed last.
    pub error: String,
    /// When it was enqueued.
    #[column("Age", with = |since: &Instant| age::of(since.elapsed()))]
    #[serde(rename = "age", serialize_with = "seconds")]
    pub since: Instant,
    /// When it was tried last.
    #[column(skip)]
    #[serde(skip)]
    pub(crate) tried: Option<Instant>,
    #[column(skip)]
    #[serde(skip)]
    pub(crate) mutation: Arc<QueuedMutation>,
}

/// How far a mutation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteState {
    /// To be tried.
    Waiting,
    /// Being tried.
    Writing,
    /// Has failed, is tried again soon.
    Retrying,
    /// Was refused, is tried again now and then.
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
    /// Sends its outcome to the ticket; the first one counts.
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
