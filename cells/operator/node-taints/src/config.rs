//! Options.

/// Which marks of nodes follow the readiness of their agents. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Node taints")]
pub struct NodeTaintsConfig {
    /// Whether a node loses its taint when its agent is ready
    #[flag(default = true)]
    pub remove_cilium_node_taints: bool,
    /// Whether a node gets the taint while it has an agent pod but none that is ready; needs one of the other two
    #[flag(default = false)]
    pub set_cilium_node_taints: bool,
    /// Whether a node with a ready agent gets the condition that its network is available
    #[flag(default = true)]
    pub set_cilium_is_up_condition: bool,
    /// Key of the taint of nodes without a ready agent
    #[flag(default = "node.cilium.io/agent-not-ready")]
    pub agent_not_ready_taint_key: String,
    /// Selector of agent pods
    #[flag(default = "k8s-app=cilium")]
    pub cilium_pod_labels: String,
    /// Namespace of agent pods; empty for that of the operator
    #[flag(default = "")]
    pub cilium_pod_namespace: String,
}
