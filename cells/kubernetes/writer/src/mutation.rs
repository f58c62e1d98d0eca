//! Mutations of objects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_types::{ApiError, Patch, Preconditions, SmolStr};
use serde_json::{Value, json};

/// A step of a mutation. Objects need neither type nor name: these are the target's.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing is to be done.
    Done,
    /// Makes the object.
    Create(Value),
    /// Replaces the object: in its own version if it has one, else in the one that was read.
    Update(Value),
    /// As [`Update`](Step::Update), of the status alone.
    UpdateStatus(Value),
    /// Changes the object, or its status by the sub-resource.
    Patch {
        /// How.
        patch: Patch,
        /// Whether by the sub-resource.
        status: bool,
    },
    /// Deletes the object.
    Delete(Preconditions),
    /// Deletes the object of this uid, then makes another one of its name.
    Recreate {
        /// Which one goes.
        uid: SmolStr,
        /// The new one.
        object: Value,
    },
    /// Retry later, with the reason.
    Later(String),
    /// Fail for good, with the reason, which callers that wait receive.
    GiveUp(String),
}

impl Step {
    /// A JSON patch, from its list of operations.
    pub fn json_patch(operations: &Value) -> Step {
        Step::Patch { patch: Patch::Json(Bytes::from(operations.to_string())), status: false }
    }

    /// Replaces the status of the object with this uid and of no other: a JSON patch of the object itself.
    pub fn replace_status(uid: &str, status: &Value) -> Step {
        Step::json_patch(&json!([
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "replace", "path": "/status", "value": status},
        ]))
    }

    /// Deletes the object with this uid and no other.
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

/// The verb of a request, as roles name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Reads an object.
    Get,
    /// Makes one.
    Create,
    /// Replaces one.
    Update,
    /// Replaces a status.
    UpdateStatus,
    /// Changes one.
    Patch,
    /// Changes a status.
    PatchStatus,
    /// Deletes one.
    Delete,
}

impl Verb {
    /// The verb of a role.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Create => "create",
            Verb::Update | Verb::UpdateStatus => "update",
            Verb::Patch | Verb::PatchStatus => "patch",
            Verb::Delete => "delete",
        }
    }

    /// The suffix of a resource in a role: `/status` or nothing.
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

/// A mutation of an object: a function that decides by the present object on the next step.
///
/// It is called again after each failure - a conflict, an answer that was lost, an hour without a server -
/// with the object as it is then: compare it with the desired one and return [`Step::Done`] when they are equal.
#[derive(Clone)]
pub struct Mutation {
    pub(crate) decide: Decide,
    pub(crate) first: Option<Step>,
    pub(crate) read_from: ReadFrom,
    pub(crate) limit: Option<Limit>,
}

/// The source of the present object.
#[derive(Clone)]
pub(crate) enum ReadFrom {
    /// By a request.
    Server,
    /// A function that reads a table or another cache.
    Cache(Find),
    /// Not at all.
    Nothing,
}

/// How often something is tried, and how long is waited in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) tries: u32,
    pub(crate) apart: Duration,
}

impl Mutation {
    /// Reads the object, which may be missing, and carries out the step that the function returns.
    pub fn new(decide: impl Fn(Option<&Value>) -> Step + Send + Sync + 'static) -> Mutation {
        Mutation { decide: Arc::new(decide), first: None, read_from: ReadFrom::Server, limit: None }
    }

    /// Makes the object what this function makes of it: it is created if it is missing (the function gets `{}`), replaced
    /// in the version that was read if the function changes it, and not written otherwise.
    pub fn edit(edit: impl Fn(&mut Value) + Send + Sync + 'static) -> Mutation {
        Mutation::new(move |present| match edited(present, &edit) {
            (object, _) if present.is_none() => Step::Create(object),
            (object, true) => Step::Update(object),
            (_, false) => Step::Done,
        })
    }

    /// As [`edit`](Mutation::edit), of the status: by the sub-resource, once the object is there.
    pub fn edit_status(edit: impl Fn(&mut Value) + Send + Sync + 'static) -> Mutation {
        Mutation::new(move |present| match edited(present, &edit) {
            _ if present.is_none() => Step::Later("there is no such object yet".into()),
            (object, true) => Step::UpdateStatus(object),
            (_, false) => Step::Done,
        })
    }

    /// A single request, sent without reading the object until it succeeds.
    pub fn request(step: Step) -> Mutation {
        Mutation { read_from: ReadFrom::Nothing, ..Mutation::new(move |_| step.clone()) }
    }

    /// Deletes the object with this uid; without a uid, any of its name.
    pub fn delete(uid: Option<SmolStr>) -> Mutation {
        let Some(uid) = uid else { return Mutation::request(Step::Delete(Preconditions::default())) };
        let first = Step::delete(uid.clone());
        let decide = move |present: Option<&Value>| match present {
            Some(object) if object["metadata"]["uid"] == uid.as_str() => Step::delete(uid.clone()),
            _ => Step::Done,
        };
        Mutation::new(decide).at_first(first)
    }

    /// Begins with a step that is likely to be right, without reading the object. If it is not - the
    /// object exists, is gone, or is another one - the object is read after it.
    #[must_use]
    pub fn at_first(self, step: Step) -> Mutation {
        Mutation { first: Some(step), ..self }
    }

    /// Reads the object by this function instead of from the server, for kinds that the agent watches
    /// anyway or may not get one by one.
    #[must_use]
    pub fn read_from_cache(self, find: impl Fn() -> Option<Value> + Send + Sync + 'static) -> Mutation {
        Mutation { read_from: ReadFrom::Cache(Arc::new(find)), ..self }
    }

    /// Gives up after so many tries that the server has answered, with so much time between two of them. Without this a
    /// mutation is tried for ever, at growing intervals.
    #[must_use]
    pub fn tries(self, tries: u32, apart: Duration) -> Mutation {
        Mutation { limit: Some(Limit { tries, apart }), ..self }
    }

    /// Returns the first step.
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

/// The object after an edit, and whether that has changed it.
fn edited(present: Option<&Value>, edit: impl Fn(&mut Value)) -> (Value, bool) {
    let mut object = present.cloned().unwrap_or_else(|| json!({}));
    edit(&mut object);
    let changed = present != Some(&object);
    (object, changed)
}

/// A mutation that has been fulfilled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The object as it was then; none if it is gone.
    pub object: Option<Bytes>,
}

impl Written {
    /// The object's uid.
    pub fn uid(&self) -> Option<SmolStr> {
        let object: Value = serde_json::from_slice(self.object.as_ref()?).ok()?;
        Some(object.pointer("/metadata/uid")?.as_str()?.into())
    }
}

/// Why a mutation was not fulfilled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotWritten {
    /// Another mutation has taken its place, or it was withdrawn.
    #[error("{target}: another mutation has taken the place of this one")]
    Superseded {
        /// The object.
        target: String,
    },
    /// The mutation itself gave up.
    #[error("{target}: {reason}")]
    GaveUp {
        /// The object.
        target: String,
        /// Its reason.
        reason: String,
    },
    /// It was tried as often as it was to be.
    #[error("{target}: {verb} failed {tries} times, last: {error}")]
    Failed {
        /// The object.
        target: String,
        /// The verb of the last failure.
        verb: Verb,
        /// How often it was tried.
        tries: u32,
        /// Why it failed last.
        #[source]
        error: ApiError,
    },
    /// The agent stops. Whether the server has got the last request is not known.
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
