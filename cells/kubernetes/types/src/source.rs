//! Sources of cluster objects, and requests about them.

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

    /// Whether it has objects of a kind at all. If not, it is not watched for them.
    fn has(&self, kind: Kind) -> bool;

    /// Whether it reports its errors in health and log itself, so that the reader of its stream must not do so again.
    fn reports_errors(&self) -> bool {
        false
    }

    /// Whether the namespaces of its objects are objects of its as well, as an API server sees to. A pod of a source that
    /// does so is not known whole before its namespace is.
    fn has_namespaces(&self) -> bool {
        true
    }

    /// Lists the selected objects and follows their changes, for ever.
    ///
    /// The stream begins with [`Restart`](WatchEvent::Restart), all existing objects and [`Listed`](WatchEvent::Listed).
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
    /// A selector of fields as requests have it, `spec.nodeName=n1`; empty for all.
    pub fields: SmolStr,
    /// A selector of labels as requests have it; empty for all.
    pub labels: SmolStr,
}

impl Selection {
    /// All objects of a kind.
    pub fn all(kind: Kind) -> Selection {
        Selection { kind, namespace: None, fields: SmolStr::default(), labels: SmolStr::default() }
    }

    /// Only those of a namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Selection {
        Selection { namespace: Some(namespace.into()), ..self }
    }

    /// Only the one of this name, in its namespace.
    #[must_use]
    pub fn named(self, name: &str) -> Selection {
        Selection { fields: format!("metadata.name={name}").into(), ..self }
    }

    /// Only those that match a field selector.
    #[must_use]
    pub fn with_fields(self, fields: &str) -> Selection {
        Selection { fields: fields.into(), ..self }
    }

    /// Only those that match a label selector.
    #[must_use]
    pub fn with_labels(self, labels: &str) -> Selection {
        Selection { labels: labels.into(), ..self }
    }
}

/// A message of a source.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent {
    /// A list begins: the objects until [`Listed`](WatchEvent::Listed) are all that there are.
    Restart,
    /// The list is complete.
    Listed,
    /// An object, new or changed (JSON). `origin` is where its manifest is found, file and document; it
    /// is empty for those of an API server.
    Applied {
        /// The object.
        json: Bytes,
        /// Where it was read.
        origin: SmolStr,
    },
    /// An object exists that its source cannot show: its last known state stays.
    Unreadable {
        /// Its name, if that could be read.
        key: Option<Key>,
        /// The error and its remedy.
        reason: String,
    },
    /// The object is gone.
    Deleted(Key),
    /// Nothing has changed up to now: the source is alive.
    Progress,
}

/// The name of an object among those of its kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace; empty for kinds that are in none.
    pub namespace: SmolStr,
    /// Its name.
    pub name: SmolStr,
}

impl Key {
    /// The object of this name in this namespace.
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

/// Why a source has no objects at the moment, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// The result of a request.
pub type Answer<T> = BoxFuture<'static, Result<T, ApiError>>;

/// Requests about single objects. Each is one request to the server: no retries, no queue.
///
/// Objects are JSON with `apiVersion` and `kind`. The result is the object as the server has it after the request.
pub trait Api: Send + Sync + 'static {
    /// Returns an object.
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes>;

    /// Creates an object. [`ApiError::AlreadyExists`] if there is one.
    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes>;

    /// Replaces an object. With `metadata.resourceVersion` in it only that version, else [`ApiError::Conflict`].
    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes>;

    /// Replaces an object's status and nothing else.
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
    /// Kubernetes' merge patch, which knows how lists are keyed. Only for Kubernetes' own kinds.
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

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// There is no such object (404).
    #[error("{0}")]
    NotFound(String),
    /// There is one of this name (409, `AlreadyExists`).
    #[error("{0}")]
    AlreadyExists(String),
    /// The version or the object is another one (409, `Conflict`), or a test of a JSON patch failed.
    #[error("{0}")]
    Conflict(String),
    /// The server refuses it, now and later (400, 422).
    #[error("{0}")]
    Invalid(String),
    /// The client is not authorized (403) or not authenticated (401).
    #[error("{0}")]
    Forbidden(String),
    /// The requested version is too old (410).
    #[error("{0}")]
    Expired(String),
    /// The server is too busy (429) or cannot be reached, or failed (5xx): the same request may succeed later.
    #[error("{message}")]
    Unavailable {
        /// The error.
        message: String,
        /// How long the server asks to wait, in seconds.
        retry_after: Option<u64>,
    },
}

impl ApiError {
    /// Whether the same request may succeed later.
    pub fn is_temporary(&self) -> bool {
        matches!(self, ApiError::Unavailable { .. })
    }
}
