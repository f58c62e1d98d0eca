//! Errors of node routes.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// A reason for which there is no route, or no start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Routes past the tunnel are asked for.
    #[error(
        "auto-direct-node-routes is for routing-mode=native or hybrid: with a tunnel all nodes are reached by it; set one of the two"
    )]
    DirectRoutesInTunnel,
    /// An option without the option that it belongs to.
    #[error("direct-routing-skip-unreachable is for auto-direct-node-routes, which is off; set both or none")]
    SkipWithoutDirectRoutes,
    /// The node is behind a gateway, which does not know the pods.
    #[error("route to destination {destination} contains gateway {gateway}, must be directly reachable")]
    Gateway {
        /// The node's address.
        destination: IpAddr,
        /// The gateway.
        gateway: IpAddr,
    },
    /// The kernel has no route to the node.
    #[error("no route to destination {destination}")]
    Unreachable {
        /// The node's address.
        destination: IpAddr,
    },
    /// The node's address is one of this node or of its pods.
    #[error("route to destination {destination} is by {device}, which leads to no other node")]
    Local {
        /// The node's address.
        destination: IpAddr,
        /// The device.
        device: String,
    },
    /// The kernel could not be asked.
    #[error("route to destination {destination} not known: {reason}")]
    Lookup {
        /// The node's address.
        destination: IpAddr,
        /// The cause.
        reason: String,
    },
    /// Another node claims a range that pods of this node have addresses of.
    #[error("range {range} is part of this node's own {own}")]
    OwnRange {
        /// The range that the other node claims.
        range: IpNetwork,
        /// This node's range.
        own: IpNetwork,
    },
}
