//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::net::IpAddr;

/// Whether cloud load balancers get answers.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Services")]
pub struct HealthServerConfig {
    /// Answer on the port healthCheckNodePort of services whose external traffic policy is Local
    #[flag(default = true)]
    pub enable_health_check_nodeport: bool,
    /// Answer on that port of the services' load balancer addresses, too
    #[flag(default = false)]
    pub enable_health_check_loadbalancer_ip: bool,
}

/// The only address on which the servers listen, for tests; without it they listen on all addresses of the node.
#[derive(Clone, Copy, Debug)]
pub struct ListenOn(pub IpAddr);
