//! Cluster objects as tables: Kubernetes' own and those of `cilium.io`, from all sources.
//!
//! **Owns** a table for each kind that the agent reads ([`tables()`]): rows are [`Row<T>`](Row) of a slim type with
//! only the fields that are used. `k8s-policies` has both kinds of policies, as written. `k8s-sources` has the files of
//! manifests with their faults.
//! **Needs** sources, members of `Group<Arc<dyn Source>>`: an API server, the tracker of a script. The folders of
//! [`K8sConfig`] are sources, too: `cluster-folder` with objects of all kinds, and `static-cnp-path` with policies.
//! **Provides** `Arc<Table<Row<T>>>` of each table; [`table()`], [`selected`] for tables of further kinds, [`projected`] for those of a [part](Projection) of each object;
//! [`events()`] follows a source without a table. A reader that misses an object that may be new waits for
//! [`Sources::refresh`].
//! `GET /apiary/k8s-<plural>` lists the complete objects of a kind for `apiary get`; the tables' JSON may omit fields.
//!
//! ```
//! use std::sync::Arc;
//!
//! use k8s_tables::{Row, core::Service};
//! use statedb::Table;
//!
//! fn cluster_ip(services: &Table<Row<Service>>) -> Option<String> {
//!     let snapshot = services.snapshot();
//!     let service = services.get(&snapshot, Row::by_name("kube-system", "kube-dns"))?;
//!     Some(service.spec.cluster_ip.to_string())
//! }
//! ```
//!
//! **Life of a table.** A job for each source that has the kind (`k8s-reflector-<table>-<source>`) keeps the table in
//! step with the source. A list is applied as a difference in one transaction, and the first one initializes the table;
//! without a source it is initialized and empty. The last good version of an invalid object is kept, also across lists;
//! health, a log line and `k8s_wrong_objects` report it until it is valid or deleted. An object in two sources belongs
//! to the one that had it first, until that one deletes it. Policies of two sources are two policies.
//!
//! **Life of a folder.** A job scans it once and follows the changes that inotify reports: a file that is closed after
//! writing or renamed into place is read at once, one that is being written is not. Links are followed, so that changes
//! of a mounted ConfigMap and the replacement of the whole folder are detected. A file's objects are kept for 0.1 s
//! after it is removed or truncated (1 s for the whole folder), for editors and scripts that replace it in two steps.
//! Only a rename is atomic: the kernel reports a write in place with a delay, in which a partially written file can be
//! read. The objects of a kind in one file are one transaction, up to 1,000 objects; its kinds follow each other within
//! milliseconds, in arbitrary order.
//!
//! **An invalid manifest** is refused with file, document, line, path and remedy in `k8s-sources`, in health and once
//! in the log; all others apply. Its object keeps its last good version, also that of the previous run: the last valid
//! objects of files are recorded in `state/manifests`. Missing fields are defaulted as by an API server; a pod without
//! a node belongs to this node.
//!
//! ```
//! use k8s_tables::core::Pod;
//!
//! let text = "
//! apiVersion: v1
//! kind: Pod
//! metadata: {name: web-0, namespace: shop, labels: {app: web}}
//! spec:
//!   containers: [{name: web, ports: [{name: http, containerPort: 0}]}]
//! ";
//! let document = k8s_tables::documents(text).remove(0).unwrap();
//! let refusal = k8s_tables::manifest::<Pod>(&document.value).unwrap_err();
//! assert_eq!(
//!     refusal.to_string(),
//!     "spec.containers[0].ports[0].containerPort: expected a whole number from 1 to 65535, found 0"
//! );
//! assert_eq!(document.lines().of(&refusal.0[0].path), 6);
//! ```
//!
//! **Names.** Of several manifests of one object in a folder the last takes precedence, by file name and position, as
//! after
//! `kubectl apply -f FOLDER`. Sub-folders are not read.

mod cell;
mod config;
mod error;
mod events;
mod faults;
mod filter;
mod folder;
mod in_memory_source;
mod numbers;
mod object;
mod page;
mod policy;
mod pool;
mod projection;
mod reflect;
mod row;
mod source_file;
mod sources;
mod table;
mod tables;

pub use cell::{cell, pods, tables};
pub use config::{K8sConfig, KindsConfig};
pub use error::Error;
pub use events::{InvalidObject, ObjectEvent, events};
pub use in_memory_source::{Change, InMemorySource, Raw};
pub use k8s_types::{
    Answer, Api, ApiError, Broken, DEFAULT_NAMESPACE, Document, ItemPath, JsonItem, Key, Kind, Lines,
    MAX_DEPTH, MAX_FILE, Manifest, ObjectMeta, Patch, Preconditions, Problem, Refusal, Resource, Selection,
    SmolStr, Source, SourceError, StringMap, WatchEvent, cilium, core, decode, documents, documents_of_bytes,
    json_items, selector,
};
pub use object::{manifest, manifest_of_json};
pub use policy::{PolicyBody, PolicyKind, PolicyObject};
pub use pool::Pool;
pub use projection::{Projected, Projection};
pub use row::{Row, Tabled};
pub use source_file::{ManifestFault, SourceFile};
pub use sources::Sources;
pub use table::{optional, optional_pruned, projected, selected, table};
pub use tables::SERVICE_NAME;
