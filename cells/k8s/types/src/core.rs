//! Kubernetes' own kinds.

mod config;
mod endpoint_slice;
mod namespace;
mod node;
mod pod;
mod service;

pub use config::ConfigMap;
pub use endpoint_slice::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
pub use namespace::Namespace;
pub use node::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, Taint};
pub use pod::{Container, ContainerPort, Pod, PodCondition, PodIp, PodSpec, PodStatus, VolumeMount};
pub use service::{
    ClientIpConfig, LoadBalancerIngress, LoadBalancerStatus, PortStatus, Service, ServicePort, ServiceSpec,
    ServiceStatus, SessionAffinityConfig,
};
