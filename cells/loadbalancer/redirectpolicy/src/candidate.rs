//! Pods to which policies may redirect traffic.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_tables::SmolStr;
use k8s_tables::core::{ContainerPort, Pod};
use labels::{K8S, Label, LabelArray};
use loadbalancer::{LbAddress, Protocol};

/// A ready pod of this node.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// `NAMESPACE/NAME`.
    pub(crate) name: String,
    pub(crate) namespace: SmolStr,
    pub(crate) labels: LabelArray,
    /// Ports of its containers at each of its addresses, with their names.
    pub(crate) ports: Vec<(LbAddress, SmolStr)>,
}

impl Candidate {
    /// Returns the pod, if it is ready.
    pub(crate) fn of(pod: &Pod) -> Option<Candidate> {
        is_ready(pod).then(|| {
            let meta = &pod.metadata;
            let label = |(key, value): (&SmolStr, &SmolStr)| Label {
                source: K8S.into(),
                key: key.as_str().into(),
                value: value.as_str().into(),
            };
            Candidate {
                name: format!("{}/{}", meta.namespace, meta.name),
                namespace: meta.namespace.clone(),
                labels: meta.labels.iter().map(label).collect(),
                ports: ports(pod),
            }
        })
    }
}

/// Whether the latest condition is that it is ready.
fn is_ready(pod: &Pod) -> bool {
    let of_readiness = pod.status.conditions.iter().filter(|condition| condition.r#type == "Ready");
    let latest = of_readiness.max_by_key(|condition| condition.last_transition_time);
    latest.is_some_and(|condition| condition.status == "True")
}

fn ports(pod: &Pod) -> Vec<(LbAddress, SmolStr)> {
    let mut ips: BTreeSet<IpAddr> = pod.status.pod_ips.iter().filter_map(|ip| ip.ip.parse().ok()).collect();
    if ips.is_empty() {
        ips.extend(pod.status.pod_ip.parse::<IpAddr>());
    }
    let of_containers = || pod.spec.containers.iter().flat_map(|container| &container.ports);
    let at = |ip: IpAddr| {
        of_containers().filter_map(move |port| {
            Some((LbAddress::new(ip, port.container_port, protocol(port)?), port.name.clone()))
        })
    };
    ips.into_iter().flat_map(at).collect()
}

fn protocol(port: &ContainerPort) -> Option<Protocol> {
    match port.protocol.as_str() {
        "" => Some(Protocol::Tcp),
        name => Protocol::from_name(name).filter(|protocol| *protocol != Protocol::Any),
    }
}
