//! Options.

/// Options of the kinds of objects that an agent reads. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Kubernetes")]
pub struct KindsConfig {
    /// Take NetworkPolicies of Kubernetes
    #[flag(default = true, hidden)]
    pub enable_k8s_networkpolicy: bool,
    /// Take ClusterNetworkPolicies of Kubernetes (policy.networking.k8s.io/v1alpha2)
    #[flag(default = false, hidden)]
    pub enable_k8s_cluster_network_policy: bool,
}

/// Options of the sources of cluster objects.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Kubernetes")]
pub struct K8sConfig {
    /// Folder of Kubernetes manifests of all kinds that the agent reads, which is the cluster; empty for none. It may be
    /// made later
    #[flag(default = "")]
    pub cluster_folder: String,
    /// Folder of CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy manifests, beside those of the cluster; empty
    /// for none
    #[flag(default = "")]
    pub static_cnp_path: String,
}
