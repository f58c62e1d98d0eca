//! Connection tracking entries.

use crate::pod::layout;

/// Key of the `cilium_ct*_global` maps (LRU_HASH, 14 or 38 bytes, packed). Stored keys have the addresses
/// reversed (`daddr` = the packet's source) and the ports in the packet's order.
#[repr(C, packed(2))]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct CtTuple<A: Copy> {
    /// Destination address as on the wire.
    pub daddr: A,
    /// Source address as on the wire.
    pub saddr: A,
    /// Destination port as on the wire.
    pub dport: u16,
    /// Source port as on the wire.
    pub sport: u16,
    /// IP protocol.
    pub nexthdr: u8,
    /// [`tuple_flag`] bits.
    pub flags: u8,
}

/// Key of cilium_ct4_global and cilium_ct_any4_global.
pub type CtTuple4 = CtTuple<u32>;
/// Key of cilium_ct6_global and cilium_ct_any6_global.
pub type CtTuple6 = CtTuple<[u32; 4]>;
layout!(CtTuple4, 14, { daddr: 0, saddr: 4, dport: 8, sport: 10, nexthdr: 12, flags: 13 });
layout!(CtTuple6, 38, { daddr: 0, saddr: 16, dport: 32, sport: 34, nexthdr: 36, flags: 37 });

/// Bits of [`CtTuple::flags`] (constants: tuple_flag).
pub mod tuple_flag {
    /// An outgoing connection.
    pub const OUT: u8 = 0;
    /// An incoming connection.
    pub const IN: u8 = 1;
    /// ICMP errors of a connection.
    pub const RELATED: u8 = 2;
    /// A service's connection.
    pub const SERVICE: u8 = 4;
}

/// Value of the `cilium_ct*_global` maps (56 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct CtEntry {
    /// First half of `nat_addr` (egress entries); zero in service entries.
    pub reserved0: u64,
    /// Backend id (service entries), or the second half of `nat_addr`.
    pub backend_id: u64,
    /// Packets, with accounting enabled.
    pub packets: u64,
    /// Bytes, with accounting enabled.
    pub bytes: u64,
    /// The expiry time, by the clock of the node (seconds, or jiffies >> 8).
    pub lifetime: u32,
    /// [`ct_flag`] bits.
    pub flags: u16,
    /// Service id of the reverse translation, big-endian.
    pub rev_nat_index: u16,
    /// Port of `nat_addr`, as on the wire.
    pub nat_port: u16,
    /// TCP flags seen in the direction of the connection.
    pub tx_flags_seen: u8,
    /// TCP flags seen in the opposite direction.
    pub rx_flags_seen: u8,
    /// Identity of the side that opened the connection.
    pub src_sec_id: u32,
    /// Last report of the direction.
    pub last_tx_report: u32,
    /// Last report of the other direction.
    pub last_rx_report: u32,
}
layout!(CtEntry, 56, {
    reserved0: 0, backend_id: 8, packets: 16, bytes: 24, lifetime: 32, flags: 36, rev_nat_index: 38, nat_port: 40,
    tx_flags_seen: 42, rx_flags_seen: 43, src_sec_id: 44, last_tx_report: 48, last_rx_report: 52,
});

impl CtEntry {
    /// Sets `nat_addr` and `nat_port`: the destination of the first packet, if it is not in the service's reverse
    /// translation.
    #[inline(always)]
    pub fn set_nat(&mut self, address: [u32; 4], port: u16) {
        self.reserved0 = u64::from(address[0]) | u64::from(address[1]) << 32;
        self.backend_id = u64::from(address[2]) | u64::from(address[3]) << 32;
        self.nat_port = port;
    }

    /// Returns `nat_addr`, in the format of map keys.
    #[inline(always)]
    pub fn nat_address(&self) -> [u32; 4] {
        let (low, high) = (self.reserved0, self.backend_id);
        [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
    }
}

/// Bits of [`CtEntry::flags`].
pub mod ct_flag {
    /// The other side is closing.
    pub const RX_CLOSING: u16 = 1;
    /// This side is closing.
    pub const TX_CLOSING: u16 = 1 << 1;
    /// A pod talks to itself through a service.
    pub const LB_LOOPBACK: u16 = 1 << 3;
    /// Packets other than the SYN were seen.
    pub const SEEN_NON_SYN: u16 = 1 << 4;
    /// The connection came in by a NodePort.
    pub const NODE_PORT: u16 = 1 << 5;
    /// The connection goes to the proxy.
    pub const PROXY_REDIRECT: u16 = 1 << 6;
    /// Direct server return.
    pub const DSR_INTERNAL: u16 = 1 << 7;
    /// From the L7 load balancer.
    pub const FROM_L7LB: u16 = 1 << 8;
    /// From the tunnel.
    pub const FROM_TUNNEL: u16 = 1 << 10;
}

/// Key of `cilium_ipv4_frag_datagrams` (LRU_HASH, 12 bytes): a fragmented datagram.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct FragmentKey4 {
    /// Destination address as on the wire.
    pub daddr: u32,
    /// Source address as on the wire.
    pub saddr: u32,
    /// Identification as on the wire.
    pub id: u16,
    /// IP protocol.
    pub proto: u8,
    /// Zero.
    pub pad: u8,
}
layout!(FragmentKey4, 12, { daddr: 0, saddr: 4, id: 8, proto: 10, pad: 11 });

/// Key of `cilium_ipv6_frag_datagrams` (LRU_HASH, 40 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct FragmentKey6 {
    /// Identification as on the wire.
    pub id: u32,
    /// Next header of the Fragment header.
    pub proto: u8,
    /// The content of the entry: zero for ports, or [`FragmentKey6::PROTOCOL`]. Padding in Cilium.
    pub row: u8,
    /// Zero.
    pub pad: [u8; 2],
    /// Source address as on the wire.
    pub saddr: [u32; 4],
    /// Destination address as on the wire.
    pub daddr: [u32; 4],
}
layout!(FragmentKey6, 40, { id: 0, proto: 4, row: 5, pad: 6, saddr: 8, daddr: 24 });

impl FragmentKey6 {
    /// The entry's `sport` is the protocol after the extension headers of the first fragment. Only datagrams with such
    /// headers after the Fragment header have this entry.
    pub const PROTOCOL: u8 = 1;
}

/// Value of the fragment maps (4 bytes): the ports of the first fragment, as on the wire.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct FragmentPorts {
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
}
layout!(FragmentPorts, 4, { sport: 0, dport: 2 });
