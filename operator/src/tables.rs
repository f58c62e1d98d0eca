//! The tables of the largest kinds, without the fields that no cell of the operator reads.
//!
//! A large cluster has more pods and endpoints than an operator has memory for whole objects. None of these rows is written back.

use hive::prelude::*;
use k8s_types::cilium::CiliumEndpoint;
use k8s_types::core::Pod;
use k8s_types::{ObjectMeta, Shared, SmolStr, StringMap};
use operator_endpoint_slices::EndpointSlicesConfig;

/// Provides the tables of pods and CiliumEndpoints. CiliumIdentities are whole, since they are written back.
#[must_use]
pub fn large_tables() -> Cell {
    type Slices = Config<EndpointSlicesConfig>;
    let endpoint = |slices: Slices| match slices.enable_cilium_endpoint_slice {
        true => prune_endpoint as fn(&mut CiliumEndpoint),
        false => prune_endpoint_without_slice,
    };
    bundle([
        k8s_tables::pruned::<Pod, _>(|()| prune_pod as fn(&mut Pod)),
        k8s_tables::pruned::<CiliumEndpoint, Slices>(endpoint),
    ])
}

fn prune_annotations(metadata: &mut ObjectMeta) {
    metadata.annotations = StringMap::default();
}

/// Keeps the metadata, the service account, the node, the phase, and of agents whether they are ready.
fn prune_pod(pod: &mut Pod) {
    let (spec, status) = (&mut pod.spec, &mut pod.status);
    prune_annotations(&mut pod.metadata);
    spec.init_containers = Vec::new();
    spec.containers = Vec::new();
    // Agents use the network of their host.
    status.conditions.retain(|condition| spec.host_network && condition.r#type == "Ready");
    status.conditions.shrink_to_fit();
    for condition in &mut status.conditions {
        (condition.reason, condition.message) = (Box::default(), Box::default());
    }
    for text in [&mut status.host_ip, &mut status.pod_ip, &mut status.qos_class] {
        *text = SmolStr::default();
    }
    status.pod_ips = Vec::new();
    status.container_statuses = Vec::new();
}

/// Keeps the metadata, the identity's number and what slices have.
fn prune_endpoint(endpoint: &mut CiliumEndpoint) {
    let (metadata, status) = (&mut endpoint.metadata, &mut endpoint.status);
    prune_annotations(metadata);
    let name = metadata.name.clone();
    // That of the pod, which is the endpoint's: one text for both.
    for owner in metadata.owner_references.get_mut().iter_mut().filter(|owner| owner.name == name) {
        owner.name = name.clone();
    }
    status.controllers = Vec::new();
    status.log = Vec::new();
    (status.external_identifiers, status.health, status.policy) = (None, None, None);
    if let Some(identity) = &mut status.identity {
        identity.labels = Vec::new();
    }
}

/// Keeps the metadata and the identity's number.
fn prune_endpoint_without_slice(endpoint: &mut CiliumEndpoint) {
    prune_endpoint(endpoint);
    let (metadata, status) = (&mut endpoint.metadata, &mut endpoint.status);
    // An endpoint without owners is that of the pod of its name.
    if let [owner] = &*metadata.owner_references
        && owner.kind == "Pod"
        && owner.name == metadata.name
    {
        metadata.owner_references = Shared::default();
    }
    status.networking = None;
    status.named_ports = Vec::new();
}
