//! Cluster objects: kinds, slim types, manifests, schemas, selectors, and the trait of their sources.
//!
//! A [`Kind`] is one of Kubernetes' own kinds or one of `cilium.io` that the agent supports. Each has a [`Resource`]: a
//! type with only the fields that an agent uses, decoded directly from JSON. Strings are
//! [`SmolStr`]: up to 23 bytes are stored inline, longer ones are shared by clones.
//!
//! Objects are serialized as Go's `encoding/json` serializes Cilium's types: with the same order of fields, and the
//! same fields omitted.
//!
//! ```
//! use k8s_types::{Resource, decode, core::Pod};
//!
//! let pod: Pod = decode(br#"{"metadata": {"name": "web-0", "namespace": "shop"}, "status": {"podIP": "10.0.0.1"}}"#)?;
//! assert_eq!((Pod::KIND.resource().as_str(), &*pod.metadata.name), ("v1.pods", "web-0"));
//! # Ok::<(), k8s_types::Refusal>(())
//! ```

pub mod cilium;
pub mod core;
#[cfg(any(test, feature = "test-util"))]
pub mod corpus;
mod document;
mod kind;
mod meta;
pub mod names;
mod problem;
mod resource;
pub mod schema;
pub mod selector;
mod slim;
mod source;
mod strict;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod time;
mod unknown;
pub mod yaml;

pub use document::{
    Broken, Document, ItemPath, JsonItem, Lines, MAX_FILE, Manifest, documents, documents_of_bytes,
    json_items,
};
pub use kind::{Kind, KindVisitor, Scope};
pub use meta::{
    DEFAULT_NAMESPACE, LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference, Shared, StringMap,
};
pub use problem::{Problem, Refusal};
pub use resource::{Resource, decode, with_type};
pub use slim::{IntOrString, Rare, SmallList};
pub use smol_str::SmolStr;
pub use source::{
    Answer, Api, ApiError, Key, Patch, Preconditions, Selection, Source, SourceError, WatchEvent,
};
pub use time::Time;
pub use unknown::UnknownMembers;
pub use yaml_values::{MAX_DEPTH, push_member};
