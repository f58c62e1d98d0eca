//! Well-known sources and keys of labels.

/// Source of labels that come from Kubernetes objects.
pub const K8S: &str = "k8s";
/// Source that matches every source in a selector.
pub const ANY: &str = "any";
/// Source of the labels of prefixes.
pub const CIDR: &str = "cidr";
/// Key of a pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Prefix of the keys of a namespace's own labels, including the dot.
pub const NAMESPACE_LABELS: &str = "io.cilium.k8s.namespace.labels.";
/// Key of the cluster's name.
pub const POLICY_CLUSTER: &str = "io.cilium.k8s.policy.cluster";
/// Key of a pod's service account.
pub const POLICY_SERVICE_ACCOUNT: &str = "io.cilium.k8s.policy.serviceaccount";
