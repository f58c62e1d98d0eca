//! The labels of a pod by its object and that of its namespace: equal in agents and operator, as both create identities.

use k8s_types::core::{ContainerPort, Namespace, Pod};
use labels::{
    K8S, Label, Labels, NAMESPACE_LABELS, NamedPorts, POD_NAMESPACE, POLICY_CLUSTER, POLICY_SERVICE_ACCOUNT,
};

/// The label that every namespace has.
const METADATA_NAME: &str = "kubernetes.io/metadata.name";

/// Returns all labels of a pod, those of its named ports included, and its named ports. A namespace without an object has the
/// one label that every namespace has.
pub fn pod_labels(pod: &Pod, namespace: Option<&Namespace>, cluster: &str) -> (Labels, NamedPorts) {
    let ports = ports(pod);
    let named = labels::port_labels(&ports);
    (labels_of(pod, namespace, cluster).0.into_values().chain(named).collect(), ports)
}

/// Returns the labels of a pod: its own, those of its namespace, and those that the agent generates.
fn labels_of(pod: &Pod, namespace: Option<&Namespace>, cluster: &str) -> Labels {
    let label = |key: String, value: &str| Label { key, value: value.to_owned(), source: K8S.to_owned() };
    // A pod's own labels must not override those of its namespace or of the agent.
    let own = pod.metadata.labels.iter().filter(|(key, _)| !key.starts_with("io.cilium.k8s."));
    let own = own.map(|(key, value)| label(key.to_string(), value));
    let name = [(METADATA_NAME, pod.metadata.namespace.clone())].into_iter().collect();
    let of_namespace = namespace.map_or(&name, |namespace| &namespace.metadata.labels);
    let of_namespace =
        of_namespace.iter().map(|(key, value)| label(format!("{NAMESPACE_LABELS}{key}"), value));
    let account = &pod.spec.service_account_name;
    let account = (!account.is_empty()).then(|| label(POLICY_SERVICE_ACCOUNT.to_owned(), account));
    let generated =
        [label(POD_NAMESPACE.to_owned(), &pod.metadata.namespace), label(POLICY_CLUSTER.to_owned(), cluster)];
    // The later of two labels with the same key wins: a pod must not assume another identity by its own labels.
    own.chain(of_namespace).chain(generated).chain(account).collect()
}

fn ports(pod: &Pod) -> NamedPorts {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let named = containers.flat_map(|container| &container.ports).filter(|port| !port.name.is_empty());
    named.filter_map(|port| Some((port.name.as_str(), protocol(port)?, port.container_port))).collect()
}

/// Returns the IP protocol number; none for a protocol without ports.
fn protocol(port: &ContainerPort) -> Option<u8> {
    match port.protocol.as_str() {
        "" => labels::port_protocol("TCP"),
        name => labels::port_protocol(name),
    }
}
