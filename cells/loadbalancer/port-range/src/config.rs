//! The option, in Cilium's spelling. A change takes effect at the next start.

/// The option of ports that are reserved.
#[derive(hive::Config, Clone, Debug, PartialEq, Eq)]
#[config(group = "Services")]
pub struct PortRangeConfig {
    /// Reserve node-port-range where the kernel would pick source ports from it (net.ipv4.ip_local_reserved_ports)
    #[flag(default = true)]
    pub enable_auto_protect_node_port_range: bool,
}
