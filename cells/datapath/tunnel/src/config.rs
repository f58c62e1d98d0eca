//! The options, in Cilium's spelling.

use hive::config::FlagValue;

use crate::{Protocol, RoutingMode, SourcePorts};

/// The IP family of packets between nodes, as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FlagValue)]
pub enum UnderlayProtocol {
    /// IPv4 if it is enabled, else IPv6.
    Auto,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// How packets travel between nodes. Changes take effect at the next start.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Datapath")]
pub struct TunnelConfig {
    /// How packets travel between nodes: tunnel, native for the network's own routes, or hybrid
    #[flag(default = RoutingMode::Tunnel)]
    pub routing_mode: RoutingMode,
    /// Encapsulation protocol: vxlan or geneve
    #[flag(default = Protocol::Vxlan)]
    pub tunnel_protocol: Protocol,
    /// UDP port of the tunnel, 0 for that of the protocol: 8472 of vxlan, 6081 of geneve
    #[flag(default = 0)]
    pub tunnel_port: u16,
    /// Source ports of the tunnel, LOW-HIGH, 0-0 for the kernel's choice
    #[flag(default = "0-0", parse = "two ports, LOW-HIGH, such as 1024-65535, or 0-0")]
    pub tunnel_source_port_range: SourcePorts,
    /// IP family between nodes: auto, ipv4 or ipv6; auto is IPv4 if it is enabled
    #[flag(default = UnderlayProtocol::Auto)]
    pub underlay_protocol: UnderlayProtocol,
}

/// How packets reach the pods of this node. A change takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Datapath")]
pub struct EndpointRoutesConfig {
    /// Route packets to each pod of this node by its own interface, not by cilium_host
    #[flag(default = false)]
    pub enable_endpoint_routes: bool,
}
