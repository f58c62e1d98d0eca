//! The options of the local node.

use hive::OptionError;
use hive::config::FlagValue;
use labels::{BadPrefix, Filter};

/// The source of the pods' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FlagValue)]
pub enum IpamMode {
    /// Ranges that the operator assigns in the CiliumNode, `spec.ipam.podCIDRs`.
    #[flag(name = "cluster-pool")]
    ClusterPool,
    /// Ranges that Kubernetes assigns in the Node, `spec.podCIDRs`.
    Kubernetes,
    /// Ranges of several pools that the operator assigns in the CiliumNode, `spec.ipam.pools`.
    #[flag(name = "multi-pool")]
    MultiPool,
    /// Single addresses in the CiliumNode, `spec.ipam.pool`.
    Crd,
    /// Another IPAM plugin of CNI; this agent allocates none.
    #[flag(name = "delegated-plugin")]
    DelegatedPlugin,
    /// Interfaces of AWS; not supported.
    Eni,
    /// As `Crd`, with addresses of Azure that the operator writes.
    Azure,
    /// As `Crd`, with addresses of Alibaba Cloud that the operator writes.
    Alibabacloud,
}

impl IpamMode {
    /// Returns the value of the option.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IpamMode::ClusterPool => "cluster-pool",
            IpamMode::Kubernetes => "kubernetes",
            IpamMode::MultiPool => "multi-pool",
            IpamMode::Crd => "crd",
            IpamMode::DelegatedPlugin => "delegated-plugin",
            IpamMode::Eni => "eni",
            IpamMode::Azure => "azure",
            IpamMode::Alibabacloud => "alibabacloud",
        }
    }
}

/// Options about the node. Changes take effect at the next start.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Node and cluster")]
#[config(check = |config: &Self| {
    config.cidr_rules_select_nodes().map_err(|error| error.to_string())?;
    config.node_label_filter().map(drop).map_err(|error| error.to_string())
})]
pub struct LocalNodeConfig {
    /// Name of this cluster
    #[flag(default = "default")]
    pub cluster_name: String,
    /// ID of this cluster, 0 for none
    #[flag(default = 0)]
    pub cluster_id: u32,
    /// Size of the cluster mesh: 255 or 511
    #[flag(default = 255)]
    pub max_connected_clusters: u32,
    /// IPv4 address of this node, auto to detect it
    #[flag(default = "auto")]
    pub ipv4_node: String,
    /// IPv6 address of this node, auto to detect it
    #[flag(default = "auto")]
    pub ipv6_node: String,
    /// IPv4 range of this node's pods, auto for 10.X.0.0/16 by the node's address
    #[flag(default = "auto")]
    pub ipv4_range: String,
    /// IPv6 range of this node's pods, auto to derive it from the IPv4 range
    #[flag(default = "auto")]
    pub ipv6_range: String,
    /// Prefix of automatic IPv6 ranges
    #[flag(default = "f00d::/64")]
    pub ipv6_cluster_alloc_cidr: String,
    /// Where pods' addresses come from: cluster-pool, multi-pool, kubernetes, crd, azure, alibabacloud, delegated-plugin. Without a cluster the first three use the ranges of this node's options
    #[flag(default = "cluster-pool")]
    pub ipam: IpamMode,
    /// Wait for an IPv4 pod range from Kubernetes in every IPAM mode; cluster-pool and kubernetes always do
    #[flag(default = false)]
    pub k8s_require_ipv4_pod_cidr: bool,
    /// Wait for an IPv6 pod range from Kubernetes in every IPAM mode; cluster-pool and kubernetes always do
    #[flag(default = false)]
    pub k8s_require_ipv6_pod_cidr: bool,
    /// IPv4 address of the router instead of one of the pod range, for instance of a link-local range; empty to allocate one
    #[flag(default = "")]
    pub local_router_ipv4: String,
    /// IPv6 address of the router instead of one of the pod range; empty to allocate one
    #[flag(default = "")]
    pub local_router_ipv6: String,
    /// IPv4 source of a pod that reaches itself through a service
    #[flag(default = "169.254.42.1")]
    pub ipv4_service_loopback_address: String,
    /// IPv6 source of a pod that reaches itself through a service
    #[flag(default = "fe80::1")]
    pub ipv6_service_loopback_address: String,
    /// Give other nodes identities by their labels, so that policies may select them (fromNodes, toNodes)
    #[flag(default = false)]
    pub enable_node_selector_labels: bool,
    /// Select nodes by rules of prefixes, too: nodes, or empty for not
    #[flag(default = "")]
    pub policy_cidr_match_mode: Vec<String>,
    /// Prefixes of the labels of nodes that make up their identities, PATTERN or !PATTERN each; all without any
    #[flag(default = "")]
    pub node_labels: Vec<String>,
}

impl LocalNodeConfig {
    /// Whether rules of prefixes select other nodes by their addresses.
    ///
    /// # Errors
    /// The option names something else.
    pub fn cidr_rules_select_nodes(&self) -> Result<bool, OptionError> {
        match self.policy_cidr_match_mode.iter().find(|mode| *mode != "nodes") {
            None => Ok(!self.policy_cidr_match_mode.is_empty()),
            Some(other) => Err(OptionError::new("policy-cidr-match-mode", other, "nodes, or nothing")),
        }
    }

    /// Returns the filter of the labels that make up identities of nodes.
    pub fn node_label_filter(&self) -> Result<Filter, NodeLabelsError> {
        Ok(Filter::all().with(self.node_labels.iter().map(String::as_str))?)
    }
}

/// A prefix of `node-labels` that is no regular expression.
#[derive(Debug, thiserror::Error)]
#[error("option node-labels: {0}")]
pub struct NodeLabelsError(#[from] BadPrefix);
