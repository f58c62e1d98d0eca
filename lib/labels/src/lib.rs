//! Labels of workloads and identities, each with its source, and named ports: the data that policy selects by.
//!
//! **Owns** parsing and printing of `source:key=value`, sets of labels, the keys that the agent itself writes, named
//! ports, the filter of labels that identities are made of.
//! **Needs** nothing.
//!
//! ```
//! use labels::{LabelArray, Labels};
//!
//! let labels = Labels::parse(["k8s:app=web", "k8s:io.kubernetes.pod.namespace=shop"]);
//! let sorted = LabelArray::from(&labels);
//! assert_eq!(sorted.texts()[0], "k8s:app=web");
//! ```

mod array;
mod filter;
mod keys;
mod label;
mod named_ports;
mod port_labels;

pub use array::{LabelArray, LabelIter};
pub use filter::{BadPrefix, Filter};
pub use keys::*;
pub use label::{GENERATED, KUBE_APISERVER, Label, LabelRef, Labels, PORTS, RESERVED, UNSPECIFIED};
pub use named_ports::NamedPorts;
pub use port_labels::{port_labels, port_protocol, ports_of_labels};
