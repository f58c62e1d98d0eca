//! The options, in Cilium's spelling.

use tunnel::{RoutingMode, Tunnel};

use crate::Error;

/// Routes between nodes. Changes take effect at the next start.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Datapath")]
pub struct NodeRoutesConfig {
    /// Without a tunnel, or with hybrid routing within subnets: routes to pods of nodes that are reached without a gateway
    #[flag(default = false)]
    pub auto_direct_node_routes: bool,
    /// With auto-direct-node-routes: no route to the pods of nodes behind a gateway, instead of an error
    #[flag(default = false)]
    pub direct_routing_skip_unreachable: bool,
    /// Metric of routes to pods, 0 for the kernel's default
    #[flag(default = 0)]
    pub route_metric: u32,
    /// Route to the pods of this node
    #[flag(default = true)]
    pub enable_local_node_route: bool,
}

impl NodeRoutesConfig {
    /// Returns the first combination of options that contradicts itself as an error.
    pub(crate) fn validate(&self, tunnel: &Tunnel) -> Result<(), Error> {
        if self.auto_direct_node_routes && tunnel.mode == RoutingMode::Tunnel {
            return Err(Error::DirectRoutesInTunnel);
        }
        if self.direct_routing_skip_unreachable && !self.auto_direct_node_routes {
            return Err(Error::SkipWithoutDirectRoutes);
        }
        Ok(())
    }
}
