//! The object of XDP: an entry for the devices of the node, and what it calls.

use datapath_abi::slot;

use crate::{Aligned, Program, attached, tail};

/// The ELF object, aligned as parsers want it. Its constants are those of [`NODE_CONFIG`](crate::NODE_CONFIG).
pub fn object() -> &'static [u8] {
    static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(env!("XDP_OBJECT")));
    &OBJECT.0
}

/// The program of devices.
pub const ENTRY: &str = "cil_xdp_entry";

/// All programs. The array of those with a slot is [`CALLS`](crate::CALLS), too.
pub const PROGRAMS: [Program; 7] = [
    attached(ENTRY),
    tail("tail_xdp_request_ipv4", slot::IPV4_FROM_NETDEV),
    tail("tail_xdp_request_ipv6", slot::IPV6_FROM_NETDEV),
    tail("tail_xdp_send_ipv4", slot::IPV4_NODEPORT_NAT_EGRESS),
    tail("tail_xdp_send_ipv6", slot::IPV6_NODEPORT_NAT_EGRESS),
    tail("tail_xdp_reply_ipv4", slot::IPV4_NAT_INGRESS),
    tail("tail_xdp_reply_ipv6", slot::IPV6_NAT_INGRESS),
];
