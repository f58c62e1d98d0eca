//! The option, in Cilium's spelling.

use crate::Topology;

/// Subnets and their groups. A change in a cluster object takes effect at once, others at the next start.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Datapath")]
pub struct SubnetConfig {
    /// With routing-mode=hybrid: subnets that route natively to each other, ',' within a group and ';' between groups
    #[flag(default = "", parse = "groups of CIDRs, such as 10.0.0.0/16,10.1.0.0/16;10.2.0.0/16", hidden)]
    pub subnet_topology: Topology,
}
