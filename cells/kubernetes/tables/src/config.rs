//! Options.

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
