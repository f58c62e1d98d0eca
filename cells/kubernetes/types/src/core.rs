//! Kubernetes' own kinds.

mod cluster_network_policy;
mod config;
mod definition;
mod endpoint_slice;
mod event;
mod lease;
mod namespace;
mod network_policy;
mod node;
mod pod;
mod secret;
mod service;

pub use cluster_network_policy::ClusterNetworkPolicy;
pub use config::ConfigMap;
pub use definition::CustomResourceDefinition;
pub use endpoint_slice::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
pub use event::{Event, EventSource, ObjectReference};
pub use lease::{Lease, LeaseSpec};
pub use namespace::Namespace;
pub use network_policy::{
    IpBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
pub use node::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, Taint};
pub use pod::{Container, ContainerPort, Pod, PodCondition, PodIp, PodSpec, PodStatus, VolumeMount};
pub use secret::Secret;
pub use service::{
    ClientIpConfig, LoadBalancerIngress, LoadBalancerStatus, PortStatus, Service, ServicePort, ServiceSpec,
    ServiceStatus, SessionAffinityConfig,
};
