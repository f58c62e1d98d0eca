//! Services for clients outside the cluster: NodePort, external and load balancer addresses, ports of pods on the node.
//!
//! A device's packet to a frontend is translated to a backend before anything else is decided about it ([`request`], [`frontend`]).
//! Later programs, and the host's stack, see only the backend. Replies are translated where they leave: at the pod's
//! interface ([`reply::from_pod`]), or at the device if the backend uses the host's network ([`reply::at_device`]); they
//! leave by the host's routes for the frontend's address ([`fib`]). Packets to frontends without backends are refused
//! ([`refusal`]), and so are packets with an exhausted hop limit that would leave to another machine.
//!
//! Packets to a backend of another node leave with an address of this node ([`remote`]), so that its replies come back
//! here, or with the client's if the backend's node replies to it itself ([`dsr`]). A packet that another balancer has
//! sent to an address of this node in an outer IP header is for a backend there ([`ipip`]). Health probes of backends leave
//! in such a header as well ([`probe`]).
//!
//! Uses `conntrack`, `endpoint`, `lb`, `nat`, `overlay`, `packet` and `snat`.

pub(crate) mod dsr;
pub(crate) mod fib;
pub(crate) mod frontend;
#[cfg(not(feature = "xdp"))]
pub(crate) mod ipip;
#[cfg(not(feature = "xdp"))]
pub(crate) mod probe;
#[cfg(not(feature = "xdp"))]
pub(crate) mod refusal;
#[cfg(not(feature = "xdp"))]
pub(crate) mod remote;
#[cfg(not(feature = "xdp"))]
pub(crate) mod reply;
#[cfg(not(feature = "xdp"))]
pub(crate) mod request;
pub(crate) mod way;

use crate::lb::Services;
use crate::maps::btf::Rows;
use crate::maps::{cilium_lb4_source_range, cilium_lb6_source_range};
use crate::nodeport::fib::Routed;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use datapath_abi::{LbSourceRange, slot};

/// The maps and programs of an IP family that only services at devices need.
pub(crate) trait NodePort: Services + Routed {
    /// The slot of the program that refuses packets to services without backends.
    const REFUSAL_SLOT: u32;
    /// The slot of the program that translates replies of pods.
    const POD_REPLY_SLOT: u32;
    /// The slot of the program that translates replies of the host, at devices.
    const DEVICE_REPLY_SLOT: u32;
    /// The slot of the program that sends packets to backends of other nodes.
    const REMOTE_SLOT: u32;
    /// The slot of the program that sends packets to backends of other nodes which reply to clients themselves.
    const DSR_SLOT: u32;
    /// The slot of the program that handles packets which may name a frontend of another node.
    const DSR_RECEIVE_SLOT: u32;

    fn source_ranges() -> Rows<LbSourceRange<Self::Address>, u8>;
}

impl NodePort for V4 {
    const REFUSAL_SLOT: u32 = slot::IPV4_NODEPORT_REFUSAL;
    const POD_REPLY_SLOT: u32 = slot::IPV4_NODEPORT_REVNAT;
    const DEVICE_REPLY_SLOT: u32 = slot::IPV4_NODEPORT_NAT_FWD;
    const REMOTE_SLOT: u32 = slot::IPV4_NODEPORT_NAT_EGRESS;
    const DSR_SLOT: u32 = slot::IPV4_NODEPORT_DSR;
    const DSR_RECEIVE_SLOT: u32 = slot::IPV4_NODEPORT_DSR_RECEIVE;

    #[inline(always)]
    fn source_ranges() -> Rows<LbSourceRange<u32>, u8> {
        cilium_lb4_source_range.rows()
    }
}

impl NodePort for V6 {
    const REFUSAL_SLOT: u32 = slot::IPV6_NODEPORT_REFUSAL;
    const POD_REPLY_SLOT: u32 = slot::IPV6_NODEPORT_REVNAT;
    const DEVICE_REPLY_SLOT: u32 = slot::IPV6_NODEPORT_NAT_FWD;
    const REMOTE_SLOT: u32 = slot::IPV6_NODEPORT_NAT_EGRESS;
    const DSR_SLOT: u32 = slot::IPV6_NODEPORT_DSR;
    const DSR_RECEIVE_SLOT: u32 = slot::IPV6_NODEPORT_DSR_RECEIVE;

    #[inline(always)]
    fn source_ranges() -> Rows<LbSourceRange<[u32; 4]>, u8> {
        cilium_lb6_source_range.rows()
    }
}
