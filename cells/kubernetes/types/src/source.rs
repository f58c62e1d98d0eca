//! What a source of cluster objects is, and what takes requests about them.

use std::fmt;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use smol_str::SmolStr;

use crate::Kind;

/// Where cluster objects come from: an API server, a folder of manifests, the tracker of a script.
pub trait Source: Send + Sync + 'static {
    /// Its name, unique among the sources of an agent: `kubernetes`, `cluster-folder`, `tracker`.
    fn name(&self) -> &str;

    /// Whether it has objects of a kind at all. One that has not is not asked for them.
    fn has(&self, kind: Kind) -> bool;

    /// Whether it tells its troubles in health and log itself: who reads it does not do so once more.
    fn tells_troubles(&self) -> bool {
        false
    }

    /// Whether the namespaces of its objects are objects of its as well, as an API server sees to. A pod of a source that
    /// does so is not known whole before its namespace is.
    fn has_namespaces(&self) -> bool {
        true
    }

    /// What there is, and then what changes, for ever.
    ///
    /// The stream begins with [`Restart`](WatchEvent::Restart), objects and [`Listed`](WatchEvent::Listed): all that there
    /// is. Changes follow. A source that has lost its place says `Restart` again and lists again; whoever reads
    /// the stream takes the difference. Errors are told as they come and do not end the stream: the source
    /// goes on by itself, with a delay that grows. Dropping the stream ends what it does.
    fn watch(&self, what: Selection) -> BoxStream<'static, Result<WatchEvent, SourceError>>;
}

/// Which objects are asked for.
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

    /// Only those whose fields are so.
    #[must_use]
    pub fn with_fields(self, fields: &str) -> Selection {
        Selection { fields: fields.into(), ..self }
    }

    /// Only those whose labels are so.
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
    /// The object is like this (JSON), new or changed. `origin` says where a person finds it, file and document; it
    /// is empty for those of an API server.
    Applied {
        /// The object.
        json: Bytes,
        /// Where it was read.
        origin: SmolStr,
    },
    /// There is such an object, and its source cannot show it: what it was before counts.
    Unreadable {
        /// Its name, if that much is known of it.
        key: Option<Key>,
        /// What is wrong with it, and what to do.
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

/// Why a source has nothing to say at the moment, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// What comes of a request.
pub type Answer<T> = BoxFuture<'static, Result<T, ApiError>>;

/// Requests about single objects. Each is one request to the server: no retries, no queue.
///
/// Objects are JSON with `apiVersion` and `kind`. What comes back is the object as the server has it then.
pub trait Api: Send + Sync + 'static {
    /// The object as it is.
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes>;

    /// Makes an object. [`ApiError::AlreadyExists`] if there is one.
    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes>;

    /// Replaces an object. With `metadata.resourceVersion` in it only that version, else [`ApiError::Conflict`].
    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes>;

    /// Replaces an object's status and nothing else.
    fn update_status(&self, kind: Kind, object: Bytes) -> Answer<Bytes>;

    /// Changes an object.
    fn patch(&self, kind: Kind, key: &Key, status: bool, patch: Patch) -> Answer<Bytes>;

    /// Deletes an object, if it is the one that the preconditions say.
    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> Answer<()>;
}

/// How an object is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch {
    /// JSON patch (RFC 6902), a list of operations.
    Json(Bytes),
    /// JSON merge patch (RFC 7386).
    Merge(Bytes),
    /// Kubernetes' merge patch, which knows how lists are keyed. Only for Kubernetes' own kinds.
    Strategic(Bytes),
}

/// What must be so for a deletion.
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
    /// It is not the version or the object that was meant (409, `Conflict`), or a test of a JSON patch failed.
    #[error("{0}")]
    Conflict(String),
    /// The server does not take it, now or later (400, 422).
    #[error("{0}")]
    Invalid(String),
    /// The server knows who asks and does not allow it (403), or does not know who asks (401).
    #[error("{0}")]
    Forbidden(String),
    /// The version asked for is too old (410).
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
