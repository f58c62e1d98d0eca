//! What is wanted of an object.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_types::{ApiError, Patch, Preconditions, SmolStr};
use serde_json::{Value, json};

/// One step towards what is wanted. Objects need neither type nor name: these are the target's.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing is to be done.
    Done,
    /// Makes the object.
    Create(Value),
    /// Replaces the object: in the version that it says, else in the one that was looked at.
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

/// What a request does, as roles name it.
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

    /// What a role has behind the resource's name: `/status` or nothing.
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

/// What is wanted of an object: a function that looks at the object and says what is to be done.
///
/// It is asked again after whatever went wrong - a conflict, an answer that was lost, an hour without a server -
/// with the object as it is then, so it should compare what is with what is wanted and say [`Step::Done`] when they are equal.
#[derive(Clone)]
pub struct Mutation {
    pub(crate) decide: Decide,
    pub(crate) first: Option<Step>,
    pub(crate) look: Look,
    pub(crate) limit: Option<Limit>,
}

/// How the object is looked at.
#[derive(Clone)]
pub(crate) enum Look {
    /// By a request.
    Get,
    /// In what the agent knows anyway.
    Find(Find),
    /// Not at all.
    Never,
}

/// How often something is tried, and how long is waited in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) tries: u32,
    pub(crate) apart: Duration,
}

impl Mutation {
    /// Looks at the object, which may not be there, and does what the function says.
    pub fn new(decide: impl Fn(Option<&Value>) -> Step + Send + Sync + 'static) -> Mutation {
        Mutation { decide: Arc::new(decide), first: None, look: Look::Get, limit: None }
    }

    /// The object is to be what this function makes of it: it is made if it is not there (the function gets `{}`), replaced
    /// in the version that was looked at if the function changes it, and left alone otherwise.
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

    /// One request, sent without a look at the object until it succeeds.
    pub fn request(step: Step) -> Mutation {
        Mutation { look: Look::Never, ..Mutation::new(move |_| step.clone()) }
    }

    /// The object with this uid is to be gone; without a uid whatever has its name.
    pub fn delete(uid: Option<SmolStr>) -> Mutation {
        let Some(uid) = uid else { return Mutation::request(Step::Delete(Preconditions::default())) };
        let first = Step::delete(uid.clone());
        let decide = move |present: Option<&Value>| match present {
            Some(object) if object["metadata"]["uid"] == uid.as_str() => Step::delete(uid.clone()),
            _ => Step::Done,
        };
        Mutation::new(decide).at_first(first)
    }

    /// Begins with a step that is likely to be right, without a look at the object. What comes of it when it is not - the
    /// object is there, gone, or another one - is found by the look that follows.
    #[must_use]
    pub fn at_first(self, step: Step) -> Mutation {
        Mutation { first: Some(step), ..self }
    }

    /// Looks at what this function knows of the object instead of asking the server, for kinds that the agent watches
    /// anyway or may not get one by one.
    #[must_use]
    pub fn known_by(self, find: impl Fn() -> Option<Value> + Send + Sync + 'static) -> Mutation {
        Mutation { look: Look::Find(Arc::new(find)), ..self }
    }

    /// Gives up after so many tries that the server has answered, with so much time between two of them. Without this a
    /// mutation is tried for ever, at growing intervals.
    #[must_use]
    pub fn tries(self, tries: u32, apart: Duration) -> Mutation {
        Mutation { limit: Some(Limit { tries, apart }), ..self }
    }

    /// What it begins with.
    pub(crate) fn verb(&self) -> Verb {
        let constant = || matches!(self.look, Look::Never).then(|| (self.decide)(None));
        self.first.clone().or_else(constant).and_then(|step| step.verb()).unwrap_or(Verb::Get)
    }
}

impl fmt::Debug for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wish").field("first", &self.first).field("limit", &self.limit).finish_non_exhaustive()
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
    /// The mutation itself said so.
    #[error("{target}: {reason}")]
    GaveUp {
        /// The object.
        target: String,
        /// What it said.
        reason: String,
    },
    /// It was tried as often as it was to be.
    #[error("{target}: {verb} failed {tries} times, last: {error}")]
    Failed {
        /// The object.
        target: String,
        /// What failed last.
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
