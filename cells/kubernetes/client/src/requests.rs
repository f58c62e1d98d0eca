//! Requests on single objects.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderValue, Method, header};
use k8s_types::{Answer, Api, ApiError, Key, Kind, Patch, Preconditions, SmolStr};
use kube::client::Body;
use serde_json::json;

use crate::definitions::Definitions;
use crate::link::{Link, request};
use crate::request_error::{ErrorKind, RequestError};
use crate::scan::key;
use crate::target::{path, path_of};

/// Requests to an API server.
pub(crate) struct Requests {
    pub(crate) link: Arc<Link>,
    pub(crate) definitions: Definitions,
}

const JSON: &str = "application/json";

impl Requests {
    fn send(
        &self,
        method: Method,
        kind: Kind,
        uri: String,
        name: String,
        body: Bytes,
        form: &'static str,
    ) -> Answer<Bytes> {
        let link = self.link.clone();
        async move {
            let empty = body.is_empty();
            let mut request = request(method, &uri, JSON, Body::from(body));
            if !empty {
                request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(form));
            }
            let name = format!("{} {name}", kind.plural());
            link.fetch(request, &name, kind.plural(), kind.group()).await.map_err(failed)
        }
        .boxed()
    }

    fn put(&self, kind: Kind, object: Bytes, status: bool) -> Answer<Bytes> {
        let key = key(&object);
        if key.name.is_empty() {
            return unnamed(kind);
        }
        self.send(Method::PUT, kind, path_of(kind, &key, status), key.to_string(), object, JSON)
    }
}

fn unnamed<T: Send + 'static>(kind: Kind) -> Answer<T> {
    let error = ApiError::Invalid(format!("the {kind} has no metadata.name: give it one"));
    std::future::ready(Err(error)).boxed()
}

fn failed(error: RequestError) -> ApiError {
    let RequestError { kind, text, after } = error;
    match kind {
        ErrorKind::NotFound => ApiError::NotFound(text),
        ErrorKind::Exists => ApiError::AlreadyExists(text),
        ErrorKind::Conflict => ApiError::Conflict(text),
        ErrorKind::Invalid => ApiError::Invalid(text),
        ErrorKind::Forbidden | ErrorKind::Unauthorized => ApiError::Forbidden(text),
        ErrorKind::Gone => ApiError::Expired(text),
        ErrorKind::Unreachable
        | ErrorKind::Dropped
        | ErrorKind::Cut
        | ErrorKind::Stalled
        | ErrorKind::Slow
        | ErrorKind::Nonsense
        | ErrorKind::Rewound
        | ErrorKind::TooNew
        | ErrorKind::Busy
        | ErrorKind::Failed
        | ErrorKind::Fenced => {
            ApiError::Unavailable { message: text, retry_after: after.map(|after| after.as_secs()) }
        }
    }
}

impl Api for Requests {
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes> {
        if key.name.is_empty() {
            return unnamed(kind);
        }
        self.send(Method::GET, kind, path_of(kind, key, false), key.to_string(), Bytes::new(), JSON)
    }

    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        let key = key(&object);
        let namespace = Some(&key.namespace).filter(|namespace| !namespace.is_empty());
        let default = SmolStr::new_static(k8s_types::DEFAULT_NAMESPACE);
        let uri = path(kind, namespace.or(Some(&default)), None, false);
        let request = self.send(Method::POST, kind, uri, key.to_string(), object, JSON);
        let Some(end) = self.definitions.paused_until(kind) else { return request };
        async move {
            tokio::time::sleep_until(end).await;
            request.await
        }
        .boxed()
    }

    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.put(kind, object, false)
    }

    fn update_status(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.put(kind, object, true)
    }

    fn patch(&self, kind: Kind, key: &Key, status: bool, patch: Patch) -> Answer<Bytes> {
        if key.name.is_empty() {
            return unnamed(kind);
        }
        let (body, form) = match patch {
            Patch::Json(body) => (body, "application/json-patch+json"),
            Patch::Merge(body) => (body, "application/merge-patch+json"),
            Patch::Strategic(body) => (body, "application/strategic-merge-patch+json"),
        };
        self.send(Method::PATCH, kind, path_of(kind, key, status), key.to_string(), body, form)
    }

    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> Answer<()> {
        if key.name.is_empty() {
            return unnamed(kind);
        }
        let mut conditions = serde_json::Map::new();
        if let Some(uid) = &only_if.uid {
            conditions.insert("uid".to_owned(), uid.as_str().into());
        }
        if let Some(version) = &only_if.resource_version {
            conditions.insert("resourceVersion".to_owned(), version.as_str().into());
        }
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if !conditions.is_empty() {
            options["preconditions"] = conditions.into();
        }
        let body = Bytes::from(options.to_string());
        let sent = self.send(Method::DELETE, kind, path_of(kind, key, false), key.to_string(), body, JSON);
        sent.map(|answer| answer.map(drop)).boxed()
    }
}
