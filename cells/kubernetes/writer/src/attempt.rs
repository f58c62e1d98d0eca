//! One attempt at a mutation: a read, a decision, a request.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use k8s_types::{Api, ApiError, Preconditions};
use serde_json::Value;
use tokio::time::timeout;

use crate::metrics::Numbers;
use crate::mutation::{Mutation, ReadFrom, Step, Verb, Written};
use crate::target::Target;

/// The timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) enum Attempt {
    Done(Written),
    GaveUp(String),
    Failed { verb: Verb, error: ApiError },
}

/// The parameters of requests.
#[derive(Clone, Copy)]
pub(crate) struct Requests<'a> {
    pub(crate) api: &'a dyn Api,
    pub(crate) target: &'a Target,
    pub(crate) numbers: &'a Numbers,
}

impl Requests<'_> {
    /// Tries a mutation once, without reading the object first if `blind`. Also returns whether the next attempt may be
    /// blind. A panic of the mutation is a failure.
    pub(crate) async fn attempt(self, mutation: &Mutation, blind: bool) -> (Attempt, bool) {
        let tried = AssertUnwindSafe(self.tried(mutation, blind)).catch_unwind().await;
        tried.unwrap_or_else(|_| {
            let error = ApiError::Invalid("the mutation panicked, which is a fault of the agent".into());
            (Attempt::Failed { verb: Verb::Get, error }, false)
        })
    }

    async fn tried(self, mutation: &Mutation, blind: bool) -> (Attempt, bool) {
        if let Some(first) = mutation.first.as_ref().filter(|_| blind) {
            match self.step(first.clone(), None).await {
                Attempt::Failed { error, .. } if is_stale(&error) => {}
                other => return (other, true),
            }
        }
        match self.read(&mutation.read_from).await {
            Ok(present) => (self.step((mutation.decide)(present.as_ref()), present.as_ref()).await, false),
            Err(error) => (Attempt::Failed { verb: Verb::Get, error }, false),
        }
    }

    async fn read(self, from: &ReadFrom) -> Result<Option<Value>, ApiError> {
        match from {
            ReadFrom::Nothing => Ok(None),
            ReadFrom::Cache(find) => Ok(find()),
            ReadFrom::Server => {
                let Target { kind, key, .. } = self.target;
                match self.request(Verb::Get, self.api.get(*kind, key)).await {
                    Ok(object) => match serde_json::from_slice(&object) {
                        Ok(object) => Ok(Some(object)),
                        Err(error) => {
                            let message = format!("the answer is no JSON: {error}");
                            Err(ApiError::Unavailable { message, retry_after: None })
                        }
                    },
                    Err(ApiError::NotFound(_)) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }

    async fn step(self, step: Step, present: Option<&Value>) -> Attempt {
        let (api, kind, key) = (self.api, self.target.kind, &self.target.key);
        let Some(verb) = step.verb() else {
            return match step {
                Step::GiveUp(reason) => Attempt::GaveUp(reason),
                Step::Later(reason) => Attempt::Failed { verb: Verb::Get, error: ApiError::Conflict(reason) },
                _ => Attempt::Done(Written { object: present.map(|object| object.to_string().into()) }),
            };
        };
        let answer = match step {
            Step::Create(object) => self.request(verb, api.create(kind, self.named(object, None))).await,
            Step::Update(object) => self.request(verb, api.update(kind, self.named(object, present))).await,
            Step::UpdateStatus(object) => {
                self.request(verb, api.update_status(kind, self.named(object, present))).await
            }
            Step::Patch { patch, status } => self.request(verb, api.patch(kind, key, status, patch)).await,
            Step::Delete(only_if) => {
                return match self.delete(only_if).await {
                    Ok(()) => Attempt::Done(Written { object: None }),
                    Err(error) => Attempt::Failed { verb, error },
                };
            }
            Step::Recreate { uid, object } => {
                // Conditional on the uid, so that a retry after a lost response cannot delete the new object.
                if let Err(error) =
                    self.delete(Preconditions { uid: Some(uid), resource_version: None }).await
                {
                    return Attempt::Failed { verb, error };
                }
                let answer = self.request(Verb::Create, api.create(kind, self.named(object, None))).await;
                return done(Verb::Create, answer);
            }
            Step::Done | Step::Later(_) | Step::GiveUp(_) => return Attempt::Done(Written { object: None }),
        };
        done(verb, answer)
    }

    /// Deletes the object; a missing one is a success.
    async fn delete(self, only_if: Preconditions) -> Result<(), ApiError> {
        let Target { kind, key, .. } = self.target;
        match self.request(Verb::Delete, self.api.delete(*kind, key, only_if)).await {
            Err(ApiError::NotFound(_)) => Ok(()),
            answer => answer,
        }
    }

    async fn request<T>(
        self,
        verb: Verb,
        request: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let answer = timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(|_| {
            let message = format!("no answer within {} s", REQUEST_TIMEOUT.as_secs());
            Err(ApiError::Unavailable { message, retry_after: None })
        });
        self.numbers.request(verb, self.target.kind, answer.as_ref().err());
        answer
    }

    /// Completes the object for a request: with type and name, and with the version that was read, unless it has one.
    fn named(self, mut object: Value, present: Option<&Value>) -> Bytes {
        let Target { kind, key, .. } = self.target;
        if !object.is_object() {
            object = Value::Object(serde_json::Map::new());
        }
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.name().into();
        if !object["metadata"].is_object() {
            object["metadata"] = Value::Object(serde_json::Map::new());
        }
        let metadata = &mut object["metadata"];
        metadata["name"] = key.name.as_str().into();
        if kind.namespaced() {
            metadata["namespace"] = key.namespace.as_str().into();
        }
        let version = present.map(|present| &present["metadata"]["resourceVersion"]);
        if let Some(version) =
            version.filter(|version| version.is_string() && metadata["resourceVersion"].is_null())
        {
            metadata["resourceVersion"] = version.clone();
        }
        object.to_string().into()
    }
}

fn done(verb: Verb, answer: Result<Bytes, ApiError>) -> Attempt {
    match answer {
        Ok(object) => Attempt::Done(Written { object: Some(object) }),
        Err(error) => Attempt::Failed { verb, error },
    }
}

/// Whether an error means that the object has changed since it was read. Servers also refuse a JSON patch as invalid if
/// its path does not exist.
fn is_stale(error: &ApiError) -> bool {
    use ApiError::{AlreadyExists, Conflict, Expired, Invalid, NotFound};
    matches!(error, NotFound(_) | AlreadyExists(_) | Conflict(_) | Expired(_) | Invalid(_))
}
