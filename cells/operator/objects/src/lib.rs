//! Pods and CiliumEndpoints as the operator keeps them.
//!
//! A large cluster has more of them than an operator has memory for whole objects, and it writes none of them. So its tables
//! `k8s-pods` and `k8s-ciliumendpoints` have only the fields that its cells read, in as few bytes as these need.
//!
//! **Owns** both tables. **Needs** the sources of cluster objects. **Provides** `Arc<Table<PodRow>>` and
//! `Arc<Table<EndpointRow>>` by [`pods()`] and [`endpoints()`].
//!
//! **Differences from Cilium**, which keeps slim objects: names of containers, addresses, annotations, versions and most of the
//! metadata are missing here, too.

#![forbid(unsafe_code)]

mod endpoint;
mod pod;
mod uid;

pub use endpoint::{Endpoint, EndpointRow, Owner, endpoints};
pub use pod::{HostPod, Phase, Pod, PodRow, pods};
pub use uid::Uid;
