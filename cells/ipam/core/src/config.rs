//! The options.

use std::time::Duration;

/// Options about addresses that the CiliumNode of this node has. Changes take effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "IPAM")]
pub struct IpamConfig {
    /// Shortest time between two writes of addresses into the CiliumNode
    #[flag(default = "15s")]
    pub ipam_cilium_node_update_rate: Duration,
}
