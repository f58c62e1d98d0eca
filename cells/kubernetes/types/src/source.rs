//! Sources of cluster objects, and requests on objects.

use std::fmt;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use smol_str::SmolStr;

use crate::Kind;

/// A source of cluster objects: an API server, a folder of manifests, the tracker of a script.
pub trait Source: Send + Sync + 'static {
    /// Returns its name, unique among the sources of an agent: `kubernetes`, `cluster-folder`, `tracker`.
    fn name(&self) -> &str;

    /// Whether it supports a kind. If not, it is not watched for it.
    fn has(&self, kind: Kind) -> bool;

    /// Whether it reports its errors in health and log itself, so that readers of its streams must not.
    fn reports_errors(&self) -> bool {
        false
    }

    /// Whether it contains the namespaces of its objects, as an API server ensures. For such a source, readers wait for
    /// the namespace of a pod before they use the pod.
    fn has_namespaces(&self) -> bool {
        true
    }

    /// Lists the selected objects and follows their changes, without end.
    ///
    /// It starts with [`Restart`](WatchEvent::Restart), all existing objects and [`Listed`](WatchEvent::Listed).
    /// Changes follow. A source that cannot continue sends `Restart` and lists again; the reader of the stream
    /// applies the difference. Errors are items of the stream and do not end it: the source retries with
    /// backoff. Dropping the stream stops the watch.
    fn watch(&self, selection: Selection) -> BoxStream<'static, Result<WatchEvent, SourceError>>;
}

/// A selection of objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Their kind.
    pub kind: Kind,
    /// Their namespace; none for all.
    pub namespace: Option<SmolStr>,
    /// A field selector as in requests, `spec.nodeName=n1`; empty for all.
    pub fields: SmolStr,
    /// A label selector as in requests; empty for all.
    pub labels: SmolStr,
}

impl Selection {
    /// Selects all objects of a kind.
    pub fn all(kind: Kind) -> Selection {
        Selection { kind, namespace: None, fields: SmolStr::default(), labels: SmolStr::default() }
    }

    /// Restricts the selection to a namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Selection {
        Selection { namespace: Some(namespace.into()), ..self }
    }

    /// Restricts the selection to the object with a name, in its namespace.
    #[must_use]
    pub fn named(self, name: &str) -> Selection {
        Selection { fields: format!("metadata.name={name}").into(), ..self }
    }

    /// Restricts the selection by a field selector.
    #[must_use]
    pub fn with_fields(self, fields: &str) -> Selection {
        Selection { fields: fields.into(), ..self }
    }

    /// Restricts the selection by a label selector.
    #[must_use]
    pub fn with_labels(self, labels: &str) -> Selection {
        Selection { labels: labels.into(), ..self }
    }
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent {
    /// A list begins: the objects until [`Listed`](WatchEvent::Listed) are all that exist.
    Restart,
    /// The list is complete.
    Listed,
    /// An object is new or has changed. `origin` is the location of its manifest, file and document; it
    /// is empty for objects of an API server.
    Applied {
        /// The object as JSON.
        json: Bytes,
        /// The location where it was read.
        origin: SmolStr,
    },
    /// An object exists, but cannot be read: its last known state is kept.
    Unreadable {
        /// Its name, if that could be read.
        key: Option<Key>,
        /// The error and its remedy.
        reason: String,
    },
    /// The object was deleted.
    Deleted(Key),
    /// Nothing has changed up to now: a keep-alive.
    Progress,
}

/// The name of an object among those of its kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: SmolStr,
    /// Its name.
    pub name: SmolStr,
}

impl Key {
    /// Returns the key of an object with a name in a namespace.
    pub fn new(namespace: impl Into<SmolStr>, name: impl Into<SmolStr>) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.is_empty() {
            true => f.write_str(&self.name),
            false => write!(f, "{}/{}", self.namespace, self.name),
        }
    }
}

/// The error of a source that has no objects at the moment, with its remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// The result of a request.
pub type Answer<T> = BoxFuture<'static, Result<T, ApiError>>;

/// Requests on single objects. Each is one request to the server, without retries or queue.
///
/// Objects are JSON with `apiVersion` and `kind`. The result is the server's object after the request.
pub trait Api: Send + Sync + 'static {
    /// Returns an object.
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes>;

    /// Creates an object. [`ApiError::AlreadyExists`] if it exists.
    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes>;

    /// Replaces an object; if it has `metadata.resourceVersion`, only that version, else [`ApiError::Conflict`].
    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes>;

    /// Replaces only an object's status.
    fn update_status(&self, kind: Kind, object: Bytes) -> Answer<Bytes>;

    /// Patches an object.
    fn patch(&self, kind: Kind, key: &Key, status: bool, patch: Patch) -> Answer<Bytes>;

    /// Deletes an object, if it fulfils the preconditions.
    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> Answer<()>;
}

/// A patch of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch {
    /// JSON patch (RFC 6902), a list of operations.
    Json(Bytes),
    /// JSON merge patch (RFC 7386).
    Merge(Bytes),
    /// Strategic merge patch, which merges lists by key. Only for Kubernetes' own kinds.
    Strategic(Bytes),
}

/// Preconditions of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// The object's uid.
    pub uid: Option<SmolStr>,
    /// The object's version.
    pub resource_version: Option<SmolStr>,
}

/// The error of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The object does not exist (404).
    #[error("{0}")]
    NotFound(String),
    /// An object of this name exists (409, `AlreadyExists`).
    #[error("{0}")]
    AlreadyExists(String),
    /// The version or uid differs (409, `Conflict`), or a test of a JSON patch failed.
    #[error("{0}")]
    Conflict(String),
    /// The server refuses it permanently (400, 422).
    #[error("{0}")]
    Invalid(String),
    /// The client is not authorized (403) or not authenticated (401).
    #[error("{0}")]
    Forbidden(String),
    /// The requested version is too old (410).
    #[error("{0}")]
    Expired(String),
    /// The server is overloaded (429), unreachable, or has failed (5xx): the same request may succeed later.
    #[error("{message}")]
    Unavailable {
        /// The error.
        message: String,
        /// The `Retry-After` of the server, in seconds.
        retry_after: Option<u64>,
    },
}

impl ApiError {
    /// Whether the same request may succeed later.
    pub fn is_temporary(&self) -> bool {
        matches!(self, ApiError::Unavailable { .. })
    }
}
