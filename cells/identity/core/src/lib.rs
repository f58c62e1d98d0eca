//! Identities as agents and the operator agree on them: the labels that make them up, their ids, their objects.
//!
//! **Owns** the labels of a pod ([`pod_labels`]), the options of the filter of those that count, the ranges of ids ([`Range`],
//! [`Scope`]) with the order in which free ones are searched, and the form of CiliumIdentities ([`ClusterIdentity`]).
//! **Needs** nothing and **provides** nothing: functions without state.
//!
//! ```
//! use identity_core::{Range, pod_labels};
//! use k8s_types::core::Pod;
//! use labels::{Filter, LabelArray};
//!
//! let mut pod = Pod::default();
//! pod.metadata.namespace = "shop".into();
//! pod.metadata.labels = [("app", "web"), ("pod-template-hash", "abc")].into_iter().collect();
//! let (labels, _ports) = pod_labels(&pod, None, "default");
//! let (identity, information) = Filter::new(["k8s:app"])?.split(&labels);
//! assert_eq!(information.texts(), ["k8s:pod-template-hash=abc"]);
//! // Each allocator begins to search at the same id.
//! let labels = LabelArray::from(&identity);
//! let range = Range::of_cluster(0, 255);
//! assert_eq!(range.candidates(&labels).next(), range.candidates(&labels).next());
//! # Ok::<(), labels::BadPrefix>(())
//! ```

#![forbid(unsafe_code)]

mod object;
mod pod;
mod prefix_file;
mod range;

pub use object::{ClusterIdentity, ClusterObject, Fault, HEARTBEAT, manifest, number, reserved_label};
pub use pod::pod_labels;
pub use prefix_file::{BadFile, FilterError, filter_of_file, filter_of_options};
pub use range::{Range, Scope, label_key};
