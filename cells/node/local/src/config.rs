//! The options of the local node.

/// Options about the node. Changes take effect at the next start.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Node and cluster")]
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
    /// IPv4 source of a pod that reaches itself through a service
    #[flag(default = "169.254.42.1")]
    pub ipv4_service_loopback_address: String,
    /// IPv6 source of a pod that reaches itself through a service
    #[flag(default = "fe80::1")]
    pub ipv6_service_loopback_address: String,
}
