//! Direct server return: packets to backends of other nodes keep the client's address, and the backend's node sends
//! replies to the client itself, in the name of the frontend.
//!
//! A packet names the frontend for the backend's node: in an option of the IP header ([`option`]) or of the tunnel
//! ([`geneve`]). Of a TCP connection only packets with SYN do. The backend's node writes the frontend into an entry of
//! connection tracking ([`receive`]), by which [`reply`](super::reply) translates what goes back. This node has no entry
//! but that of the choice of a backend.
//!
//! By IPIP ([`ipip`]) a packet keeps the frontend as its destination, and gets an outer header with the backend's address.
//! The receiver is a machine that removes it, such as a node with [`ipip`](super::ipip).
//!
//! Packets that get too long for their route by the option or the outer header are refused ([`too_big`]).
//!
//! Uses `conntrack`, `endpoint`, `overlay`, `packet`, `pod` and `snat`.

pub(crate) mod geneve;
pub(crate) mod ipip;
pub(crate) mod option;
#[cfg(not(feature = "xdp"))]
pub(crate) mod receive;
#[cfg(not(feature = "xdp"))]
pub(crate) mod send;
#[cfg(not(feature = "xdp"))]
pub(crate) mod too_big;

use crate::conntrack::SYN;
use crate::monitor::drop::Drop;
use crate::nat::Socket;
use crate::nodeport::NodePort;
use crate::packet::flow::Flow;
use crate::packet::skb::Skb;
use crate::snat::Snat;
use datapath_abi::{LbService, dsr as mode, lb_flag2};

/// How packets of an IP family name the frontend.
pub(crate) trait Dsr: NodePort + Snat {
    /// The slot of the program that refuses packets which get too long by the option.
    const TOO_BIG_SLOT: u32;
    /// Length of the option in the IP header.
    const OPTION_LEN: u16;
    /// Length of the option of the tunnel.
    #[cfg(feature = "xdp")]
    const TUNNEL_OPTION_LEN: u16;

    /// Returns the length of the packet with its header.
    fn length(header: &Self::Header) -> u16;
    /// Inserts the option that names a frontend. The caller must reload its packet pointers.
    fn insert_option(skb: Skb, frontend: Socket<Self::Address>) -> Result<(), Drop>;
    /// Returns the frontend that the option names.
    fn named(skb: Skb, header: &Self::Header) -> Option<Socket<Self::Address>>;
    /// Adds the option of the tunnel that names a frontend to a packet with a tunnel's key; false if the kernel refuses.
    #[cfg(not(feature = "xdp"))]
    fn insert_into_tunnel(skb: Skb, frontend: Socket<Self::Address>) -> bool;
    /// Writes the option of the tunnel that names a frontend behind the tunnel's header; false if the packet is too short.
    #[cfg(feature = "xdp")]
    fn store_tunnel_option(skb: Skb, offset: usize, frontend: Socket<Self::Address>) -> bool;
    /// Returns the frontend that the option of the tunnel names.
    #[cfg(not(feature = "xdp"))]
    fn named_in_tunnel(skb: Skb) -> Option<Socket<Self::Address>>;
}

/// True if backends of other nodes learn the frontend in this way.
#[inline(always)]
pub(crate) fn is_by(way: u8) -> bool {
    node!(dsr_dispatch) == way
}

/// True for a service with direct replies of backends on other nodes.
#[inline(always)]
pub(crate) fn is_mode_of(service: &LbService) -> bool {
    node!(dsr) == mode::ALL || service.flags2 & lb_flag2::FORWARDING_DSR != 0
}

/// True for packets that name the frontend: the first ones of a TCP connection, all of another protocol, which has no
/// first one.
#[inline(always)]
pub(crate) fn names_frontend<A>(flow: &Flow<A>) -> bool {
    !flow.is_tcp() || flow.tcp_flags() & SYN != 0
}
