//! Cluster objects as tables, from a folder of manifests.

mod age;
mod document;
mod endpoint_slice;
mod field;
mod meta;
mod names;
mod namespace;
mod pod;
mod policy;
mod problem;
mod protocol;
mod service;

pub use document::{
    Broken, Document, ItemPath, MAX_DEPTH, MAX_FILE, Manifest, documents, documents_of_bytes,
};
pub use endpoint_slice::{AddressType, Endpoint, EndpointPort, EndpointSlice};
pub use meta::{DEFAULT_NAMESPACE, ObjectMeta};
pub use namespace::Namespace;
pub use pod::{Container, ContainerPort, Pod};
pub use policy::{PolicyKind, PolicyObject};
pub use problem::{Problem, Refusal};
pub use protocol::Protocol;
pub use service::{Ingress, Service, ServicePort, ServiceType};
