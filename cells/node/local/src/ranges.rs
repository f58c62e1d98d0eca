//! Which cell supplies pod ranges, automatic ones, and addresses of the router outside of them.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::derive::automatic_ranges;
use crate::settings::Settings;
use crate::{Error, LocalNode};

/// Whether pod ranges come from the cluster; provided by the cell that follows the cluster's objects. Then a family
/// without a range of its options has none until that cell sets one, or the range of the previous run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodCidrSource {
    /// The cluster's objects.
    Cluster,
    /// This node.
    Node,
}

/// Ranges derived from the node's address, for a cluster that assigns none.
#[derive(Clone, Debug)]
pub struct AutomaticRanges(pub(crate) Settings);

impl AutomaticRanges {
    /// Sets the missing range of each enabled family.
    ///
    /// # Errors
    /// The node has no address to derive it from.
    pub fn set(&self, node: &mut LocalNode) -> Result<(), Error> {
        automatic_ranges(&self.0, node)
    }
}

/// The router's addresses that options name: none is allocated for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalRouters {
    /// The IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// The IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}
