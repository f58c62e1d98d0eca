//! Mutations of objects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_types::{ApiError, Patch, Preconditions, SmolStr};
use serde_json::{Value, json};

/// A step of a mutation. Objects may omit type and name, which are those of the target.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The object is as desired.
    Done,
    /// Creates the object.
    Create(Value),
    /// Replaces the object, at its version if it has one, else at the version that was read.
    Update(Value),
    /// As [`Update`](Step::Update), for the status.
    UpdateStatus(Value),
    /// Patches the object, or its status by the sub-resource.
    Patch {
        /// The patch.
        patch: Patch,
        /// Whether to use the sub-resource.
        status: bool,
    },
    /// Deletes the object.
    Delete(Preconditions),
    /// Deletes the object with this uid, then creates another one of its name.
    Recreate {
        /// The uid of the object to delete.
        uid: SmolStr,
        /// The new object.
        object: Value,
    },
    /// Retry later, with a reason.
    Later(String),
    /// Fail permanently, with a reason, which the ticket returns.
    GiveUp(String),
}

impl Step {
    /// Returns a JSON patch with these operations.
    pub fn json_patch(operations: &Value) -> Step {
        Step::Patch { patch: Patch::Json(Bytes::from(operations.to_string())), status: false }
    }

    /// Replaces the status of the object with exactly this uid, by a JSON patch of the object that tests the uid.
    pub fn replace_status(uid: &str, status: &Value) -> Step {
        Step::json_patch(&json!([
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "replace", "path": "/status", "value": status},
        ]))
    }

    /// Deletes the object with exactly this uid.
    pub fn delete(uid: impl Into<SmolStr>) -> Step {
        Step::Delete(Preconditions { uid: Some(uid.into()), resource_version: None })
    }

    pub(crate) fn verb(&self) -> Option<Verb> {
        match self {
            Step::Done | Step::Later(_) | Step::GiveUp(_) => None,
            Step::Create(_) => Some(Verb::Create),
            Step::Update(_) => Some(Verb::Update),
            Step::UpdateStatus(_) => Some(Verb::UpdateStatus),
            Step::Patch { status: false, .. } => Some(Verb::Patch),
            Step::Patch { status: true, .. } => Some(Verb::PatchStatus),
            Step::Delete(_) | Step::Recreate { .. } => Some(Verb::Delete),
        }
    }
}

/// The verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Reads an object.
    Get,
    /// Creates one.
    Create,
    /// Replaces one.
    Update,
    /// Replaces a status.
    UpdateStatus,
    /// Patches one.
    Patch,
    /// Patches a status.
    PatchStatus,
    /// Deletes one.
    Delete,
}

impl Verb {
    /// Returns the RBAC verb.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Create => "create",
            Verb::Update | Verb::UpdateStatus => "update",
            Verb::Patch | Verb::PatchStatus => "patch",
            Verb::Delete => "delete",
        }
    }

    /// Returns the suffix of the resource in an RBAC rule: `/status` or nothing.
    pub fn sub_resource(self) -> &'static str {
        match self {
            Verb::UpdateStatus | Verb::PatchStatus => "/status",
            _ => "",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        f.write_str(self.sub_resource())
    }
}

type Decide = Arc<dyn Fn(Option<&Value>) -> Step + Send + Sync>;
type Find = Arc<dyn Fn() -> Option<Value> + Send + Sync>;

/// A mutation of an object: a function from the current object to the next step.
///
/// It is called again with the current object after each failure, such as a conflict, a lost response or an outage:
/// compare it with the desired one and return [`Step::Done`] if they are equal.
#[derive(Clone)]
pub struct Mutation {
    pub(crate) decide: Decide,
    pub(crate) first: Option<Step>,
    pub(crate) read_from: ReadFrom,
    pub(crate) limit: Option<Limit>,
}

/// The source of the current object.
#[derive(Clone)]
pub(crate) enum ReadFrom {
    /// A request to the server.
    Server,
    /// A function that reads a table or another cache.
    Cache(Find),
    /// The object is not read.
    Nothing,
}

/// A limit of attempts, with the delay in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) tries: u32,
    pub(crate) apart: Duration,
}

impl Mutation {
    /// Returns a mutation that reads the object, which may be missing, and executes the step that the function returns.
    pub fn new(decide: impl Fn(Option<&Value>) -> Step + Send + Sync + 'static) -> Mutation {
        Mutation { decide: Arc::new(decide), first: None, read_from: ReadFrom::Server, limit: None }
    }

    /// Returns a mutation that edits the object: it is created if it is missing (the function gets `{}`), replaced at
    /// the version that was read if the function changes it, and not written otherwise.
    pub fn edit(edit: impl Fn(&mut Value) + Send + Sync + 'static) -> Mutation {
        Mutation::new(move |present| match edited(present, &edit) {
            (object, _) if present.is_none() => Step::Create(object),
            (object, true) => Step::Update(object),
            (_, false) => Step::Done,
        })
    }

    /// As [`edit`](Mutation::edit), for the status: by the sub-resource, once the object exists.
    pub fn edit_status(edit: impl Fn(&mut Value) + Send + Sync + 'static) -> Mutation {
        Mutation::new(move |present| match edited(present, &edit) {
            _ if present.is_none() => Step::Later("there is no such object yet".into()),
            (object, true) => Step::UpdateStatus(object),
            (_, false) => Step::Done,
        })
    }

    /// Returns a mutation of a single request, which is repeated until it succeeds, without reading the object.
    pub fn request(step: Step) -> Mutation {
        Mutation { read_from: ReadFrom::Nothing, ..Mutation::new(move |_| step.clone()) }
    }

    /// Returns a mutation that deletes the object with this uid; without a uid, any of its name.
    pub fn delete(uid: Option<SmolStr>) -> Mutation {
        let Some(uid) = uid else { return Mutation::request(Step::Delete(Preconditions::default())) };
        let first = Step::delete(uid.clone());
        let decide = move |present: Option<&Value>| match present {
            Some(object) if object["metadata"]["uid"] == uid.as_str() => Step::delete(uid.clone()),
            _ => Step::Done,
        };
        Mutation::new(decide).at_first(first)
    }

    /// Starts with an optimistic step, without reading the object. If it fails since the object exists, is gone, or is
    /// another one, the object is read.
    #[must_use]
    pub fn at_first(self, step: Step) -> Mutation {
        Mutation { first: Some(step), ..self }
    }

    /// Reads the object by this function instead of from the server, for kinds that the agent watches already or has no
    /// permission to `get`.
    #[must_use]
    pub fn read_from_cache(self, find: impl Fn() -> Option<Value> + Send + Sync + 'static) -> Mutation {
        Mutation { read_from: ReadFrom::Cache(Arc::new(find)), ..self }
    }

    /// Limits the attempts that the server has answered, with a fixed delay between them. By default a mutation is
    /// retried forever, with backoff.
    #[must_use]
    pub fn tries(self, tries: u32, apart: Duration) -> Mutation {
        Mutation { limit: Some(Limit { tries, apart }), ..self }
    }

    /// Returns the verb of the first step.
    pub(crate) fn verb(&self) -> Verb {
        let constant = || matches!(self.read_from, ReadFrom::Nothing).then(|| (self.decide)(None));
        self.first.clone().or_else(constant).and_then(|step| step.verb()).unwrap_or(Verb::Get)
    }
}

impl fmt::Debug for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutation")
            .field("first", &self.first)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// Returns the object after an edit, and whether the edit has changed it.
fn edited(present: Option<&Value>, edit: impl Fn(&mut Value)) -> (Value, bool) {
    let mut object = present.cloned().unwrap_or_else(|| json!({}));
    edit(&mut object);
    let changed = present != Some(&object);
    (object, changed)
}

/// The outcome of a completed mutation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The object at that time; none if it does not exist.
    pub object: Option<Bytes>,
}

impl Written {
    /// Returns the object's uid.
    pub fn uid(&self) -> Option<SmolStr> {
        let object: Value = serde_json::from_slice(self.object.as_ref()?).ok()?;
        Some(object.pointer("/metadata/uid")?.as_str()?.into())
    }
}

/// The reason why a mutation was not completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotWritten {
    /// It was replaced by another mutation, or withdrawn.
    #[error("{target}: another mutation has taken the place of this one")]
    Superseded {
        /// The object.
        target: String,
    },
    /// The mutation returned [`Step::GiveUp`].
    #[error("{target}: {reason}")]
    GaveUp {
        /// The object.
        target: String,
        /// Its reason.
        reason: String,
    },
    /// The limit of attempts was reached.
    #[error("{target}: {verb} failed {tries} times, last: {error}")]
    Failed {
        /// The object.
        target: String,
        /// The verb of the last failure.
        verb: Verb,
        /// The number of attempts.
        tries: u32,
        /// The last error.
        #[source]
        error: ApiError,
    },
    /// The agent stops. It is unknown whether the server has received the last request.
    #[error("{target}: not written before the agent stopped")]
    Stopped {
        /// The object.
        target: String,
    },
    /// There is no API server to write to.
    #[error("{target}: the agent runs without a Kubernetes API server")]
    NoServer {
        /// The object.
        target: String,
    },
}
