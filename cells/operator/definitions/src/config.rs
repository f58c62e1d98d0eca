//! Options.

/// Options of the registration. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Kubernetes")]
pub struct DefinitionsConfig {
    /// Do not register CustomResourceDefinitions; they are installed otherwise
    #[flag(default = false)]
    pub skip_crd_creation: bool,
    /// Whether agents have an object of their node
    #[flag(default = true)]
    pub enable_ciliumnode_crd: bool,
    /// Whether CiliumNetworkPolicies are in use
    #[flag(default = true)]
    pub enable_cilium_network_policy: bool,
    /// Whether CiliumClusterwideNetworkPolicies are in use
    #[flag(default = true)]
    pub enable_cilium_clusterwide_network_policy: bool,
}
