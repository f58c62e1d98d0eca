//! The packet that a CPU translates: in a map, as the stack of a program is too small for it, and for the next program.

use crate::hop::Hops;
use crate::ipip::Writer;
use crate::maps::{xdp_packet_v4, xdp_packet_v6};
use crate::nat::Socket;
use crate::nodeport::fib::Exit;
use crate::packet::flow::Flow;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;

/// A packet, and its way.
pub(crate) struct Packet<A> {
    pub(crate) flow: Flow<A>,
    pub(crate) frontend: Socket<A>,
    /// The backend of a request, the client of a reply.
    pub(crate) peer: Socket<A>,
    /// The node's address as the source of a request.
    pub(crate) source: A,
    /// The id of its service, big-endian.
    pub(crate) rev_nat: u16,
    pub(crate) exit: Exit,
    /// The IPv4 addresses of the tunnel that a request leaves by: this node's and the other's; zero without a tunnel.
    pub(crate) tunnel: [u32; 2],
    /// The time of the decision, on the clock of lifetimes.
    pub(crate) now: u32,
    /// The decision about a request.
    pub(crate) chosen: u64,
}

/// The place of the packet that this CPU translates. No program of this hook preempts another one.
pub(crate) trait Place: Writer + Hops {
    fn place() -> Option<&'static mut Packet<Self::Address>>;
}

impl Place for V4 {
    #[inline(always)]
    fn place() -> Option<&'static mut Packet<u32>> {
        xdp_packet_v4.get_mut(&0)
    }
}

impl Place for V6 {
    #[inline(always)]
    fn place() -> Option<&'static mut Packet<[u32; 4]>> {
        xdp_packet_v6.get_mut(&0)
    }
}
