//! Cluster objects as tables, from a folder of manifests.
//!
//! **Owns** the tables `k8s-namespaces`, `k8s-pods` and `k8s-policies`, which do not know where their rows come from,
//! and `k8s-sources`, the files of manifests with what is wrong with them.
//! **Needs** the options of [`K8sConfig`]: `cluster-folder`, a folder that is the cluster, and `static-cnp-path`, a
//! folder of policies beside it.
//! **Gives** readers of the tables; the reader of manifests, [`documents`]; [`Service`] and [`EndpointSlice`] for those
//! who read them from a file of their own. A further source writes through [`Objects`]. Who misses an object that may
//! have come just now waits for [`Sources::look`].
//!
//! **Life.** A job for each folder reads it once, which completes the tables, and follows its changes as the kernel
//! tells them: a file that is closed after writing or renamed into place is read at once, one that is being written is
//! not. Links are followed, so that a mounted ConfigMap and a folder replaced as a whole are noticed. What a file said
//! stays for 0.1 s after it has gone or is empty (1 s for the whole folder), for those who replace it in two steps.
//! Only a rename is exact: the kernel tells of a change in place a moment after it, in which half a file can be read.
//!
//! **A manifest that is wrong** is refused with file, document, line, path and remedy in `k8s-sources`, in health and
//! once in the log; all others apply. What it named stays as it was before, also as it was in the run before: what files
//! said when they were right is kept in `state/manifests`.
//!
//! ```
//! use k8s::Pod;
//!
//! let text = "
//! apiVersion: v1
//! kind: Pod
//! metadata: {name: web-0, namespace: shop, labels: {app: web}}
//! spec:
//!   containers: [{name: web, ports: [{name: http, containerPort: 0}]}]
//! ";
//! let document = k8s::documents(text).remove(0).unwrap();
//! let refusal = Pod::decode(&document.value).unwrap_err();
//! assert_eq!(
//!     refusal.to_string(),
//!     "spec.containers[0].ports[0].containerPort: expected a whole number from 1 to 65535, found 0"
//! );
//! assert_eq!(document.lines().of(&refusal.0[0].path), 6);
//! ```
//!
//! **Names.** Of several manifests of one object in a folder the last counts, by file name and place, as after
//! `kubectl apply -f FOLDER`. Sub-folders are not read.

mod cell;
mod config;
mod endpoint_slice;
mod error;
mod events;
mod faults;
mod field;
mod filter;
mod folder;
mod meta;
mod namespace;
mod object;
mod pod;
mod policy;
mod pool;
mod protocol;
mod reflect;
mod row;
mod service;
mod shelf;
mod source_file;
mod sources;
mod table;
mod tables;
mod writer;

pub use cell::cell;
pub use config::K8sConfig;
pub use endpoint_slice::{AddressType, Endpoint, EndpointPort, EndpointSlice};
pub use error::Error;
pub use events::{Said, Wrong, events};
pub use k8s_types::{
    Api, ApiError, Key, Resource, Selection, SmolStr, Source, SourceError, StringMap, WatchEvent, core,
};
pub use k8s_types::{
    Broken, Document, ItemPath, Lines, MAX_DEPTH, MAX_FILE, Manifest, Problem, Refusal, documents,
    documents_of_bytes,
};
pub use meta::{DEFAULT_NAMESPACE, ObjectMeta};
pub use namespace::Namespace;
pub use object::{Kind, Object, ObjectKey};
pub use pod::{Container, ContainerPort, Pod};
pub use policy::{PolicyKind, PolicyObject};
pub use pool::Pool;
pub use protocol::Protocol;
pub use row::{Row, Tabled};
pub use service::{Ingress, Service, ServicePort, ServiceType};
pub use shelf::{Raw, RawChange, Shelf};
pub use source_file::{ManifestFault, SourceFile};
pub use sources::Sources;
pub use table::{selected, table};
pub use tables::SERVICE_NAME;
pub use writer::{Change, Objects, SourceWriter};
