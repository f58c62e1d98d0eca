//! Labels of workloads and identities, with the source each came from.
//!
//! Owns: reading and printing `source:key=value`, sets of labels, the keys that the agent itself writes. Needs nothing.
//!
//! ```
//! use labels::{Label, LabelArray, Labels};
//!
//! let labels = Labels::parse(["k8s:app=web", "k8s:io.kubernetes.pod.namespace=shop"]);
//! let sorted = LabelArray::from(&labels);
//! assert_eq!(sorted.iter().map(Label::to_string).collect::<Vec<_>>()[0], "k8s:app=web");
//! ```

mod array;
mod keys;
mod label;

pub use array::LabelArray;
pub use keys::*;
pub use label::{GENERATED, Label, Labels, PORTS, RESERVED, UNSPECIFIED};
