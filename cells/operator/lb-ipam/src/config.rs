//! Options.

use hive::config::FlagValue;

/// The owner of the addresses of load balancers without a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FlagValue)]
pub enum DefaultIpam {
    /// Pools of the cluster.
    LbIpam,
    /// Addresses of nodes.
    NodeIpam,
    /// Neither.
    None,
}

/// Who gives load balancers their addresses. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "LB-IPAM")]
pub struct LbIpamConfig {
    /// Whether load balancers get addresses of CiliumLoadBalancerIPPools
    #[flag(default = true)]
    pub enable_lb_ipam: bool,
    /// Whether load balancers of the class io.cilium/node get addresses of nodes
    #[flag(default = false)]
    pub enable_node_ipam: bool,
    /// Owner of the addresses of load balancers without a class: lbipam, nodeipam or none
    #[flag(default = "lbipam")]
    pub default_lb_service_ipam: DefaultIpam,
}
