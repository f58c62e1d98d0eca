//! Messages of the perf ring `cilium_events`: a struct, then `len_cap` bytes of the packet.

use crate::pod::layout;

/// Message type of [`DropNotify`].
pub const DROP: u8 = 1;
/// Message type of a debug message.
pub const DEBUG: u8 = 2;
/// Message type of a debug capture.
pub const DEBUG_CAPTURE: u8 = 3;
/// Message type of [`TraceNotify`].
pub const TRACE: u8 = 4;
/// Message type of [`PolicyVerdictNotify`].
pub const POLICY_VERDICT: u8 = 5;
/// Message type of [`TraceSockNotify`].
pub const TRACE_SOCK: u8 = 7;

/// Version written into drop events.
pub const DROP_VERSION: u8 = 3;
/// Version written into trace events.
pub const TRACE_VERSION: u8 = 2;
/// Version written into policy verdict events.
pub const POLICY_VERDICT_VERSION: u8 = 1;

/// Bits of `flags` in drop and trace events (constants: event_flag).
pub mod flag {
    /// The packet is IPv6.
    pub const IPV6: u8 = 1;
    /// The device has no Ethernet header.
    pub const L3_DEVICE: u8 = 2;
    /// VXLAN.
    pub const VXLAN: u8 = 4;
    /// Geneve.
    pub const GENEVE: u8 = 8;
}

/// The first 16 bytes of drop, trace and policy verdict events.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct CaptureHeader {
    /// Message type.
    pub kind: u8,
    /// Drop reason, trace point or zero.
    pub subtype: u8,
    /// Endpoint id of the program.
    pub source: u16,
    /// Flow hash.
    pub hash: u32,
    /// Length of the packet.
    pub len_orig: u32,
    /// Captured bytes of the packet, which follow the struct.
    pub len_cap: u16,
    /// Version of the struct.
    pub version: u8,
    /// Zero.
    pub ext_version: u8,
}
layout!(CaptureHeader, 16, {
    kind: 0, subtype: 1, source: 2, hash: 4, len_orig: 8, len_cap: 12, version: 14, ext_version: 15,
});

/// A dropped packet (48 bytes, version 3).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct DropNotify {
    /// Subtype is the [drop reason](crate::drop).
    pub header: CaptureHeader,
    /// Source identity.
    pub src_label: u32,
    /// Destination identity.
    pub dst_label: u32,
    /// Destination endpoint, only in events of its ingress.
    pub dst_id: u32,
    /// Source line.
    pub line: u16,
    /// [Source file](crate::file).
    pub file: u8,
    /// Detail of the reason.
    pub ext_error: i8,
    /// Interface.
    pub ifindex: u32,
    /// [`flag`] bits.
    pub flags: u8,
    /// Zero.
    pub pad: [u8; 3],
    /// Trace id of an IP option, or zero.
    pub ip_trace_id: u64,
}
layout!(DropNotify, 48, {
    header: 0, src_label: 16, dst_label: 20, dst_id: 24, line: 28, file: 30, ext_error: 31, ifindex: 32, flags: 36,
    pad: 37, ip_trace_id: 40,
});

/// A packet passing a point of the datapath (56 bytes, version 2).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct TraceNotify {
    /// Subtype is the [trace point](crate::trace).
    pub header: CaptureHeader,
    /// Source identity.
    pub src_label: u32,
    /// Destination identity.
    pub dst_label: u32,
    /// Destination endpoint, or the proxy's port.
    pub dst_id: u16,
    /// [Reason](crate::trace::reason).
    pub reason: u8,
    /// [`flag`] bits.
    pub flags: u8,
    /// Interface the packet goes to, or zero.
    pub ifindex: u32,
    /// Source address before translation, or zero.
    pub orig_ip: [u32; 4],
    /// Trace id of an IP option, or zero.
    pub ip_trace_id: u64,
}
layout!(TraceNotify, 56, {
    header: 0, src_label: 16, dst_label: 20, dst_id: 24, reason: 26, flags: 27, ifindex: 28, orig_ip: 32,
    ip_trace_id: 48,
});

/// Bits of `flags` in policy verdict events.
pub mod verdict_flag {
    /// Into the endpoint ([`direction`](crate::direction) of the metrics map).
    pub const INGRESS: u8 = 1;
    /// Out of the endpoint.
    pub const EGRESS: u8 = 2;
    /// The packet is IPv6.
    pub const IPV6: u8 = 4;
    /// Shift of the [match](crate::policy_match), which has three bits.
    pub const MATCH_SHIFT: u8 = 3;
    /// Allowed by audit mode only.
    pub const AUDITED: u8 = 1 << 6;
    /// The device has no Ethernet header.
    pub const L3_DEVICE: u8 = 1 << 7;
}

/// A policy verdict on a packet (40 bytes, version 1).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct PolicyVerdictNotify {
    /// Subtype is zero.
    pub header: CaptureHeader,
    /// Identity of the peer.
    pub remote_label: u32,
    /// Negative drop reason, zero for allowed, or the proxy port as read from the wire.
    pub verdict: i32,
    /// Destination port in host order.
    pub dport: u16,
    /// IP protocol.
    pub proto: u8,
    /// Direction (bits 0-1), IPv6 (2), match (3-5), audited (6), L3 device (7).
    pub flags: u8,
    /// Authentication type.
    pub auth_type: u8,
    /// Zero.
    pub pad1: [u8; 3],
    /// Index into the agent's policy log strings.
    pub cookie: u32,
    /// Zero.
    pub pad2: u32,
}
layout!(PolicyVerdictNotify, 40, {
    header: 0, remote_label: 16, verdict: 20, dport: 24, proto: 26, flags: 27, auth_type: 28, pad1: 29, cookie: 32,
    pad2: 36,
});

/// Points of a translation at a socket (constants: xlate_point).
pub mod xlate {
    /// Before the service's address is replaced.
    pub const PRE_FWD: u8 = 1;
    /// After it was replaced by a backend's.
    pub const POST_FWD: u8 = 2;
    /// Before the backend's address is replaced.
    pub const PRE_REV: u8 = 3;
    /// After it was replaced by the service's.
    pub const POST_REV: u8 = 4;
}

/// Protocols in socket trace events (constants: trace_sock_l4).
pub mod sock_protocol {
    /// TCP.
    pub const TCP: u8 = 1;
    /// UDP, UDP-Lite too.
    pub const UDP: u8 = 2;
}

/// A translation of an address at a socket (40 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct TraceSockNotify {
    /// [`TRACE_SOCK`].
    pub kind: u8,
    /// [Point](xlate) of the translation.
    pub point: u8,
    /// [Protocol](sock_protocol).
    pub protocol: u8,
    /// Bit 0: the address is IPv6.
    pub is_ipv6: u8,
    /// Port in host order.
    pub dport: u16,
    /// Zero.
    pub pad: u16,
    /// Cookie of the socket.
    pub cookie: u64,
    /// Id of the cgroup of the process.
    pub cgroup: u64,
    /// Address, an IPv4 address in the first four bytes.
    pub address: [u32; 4],
}
layout!(TraceSockNotify, 40, {
    kind: 0, point: 1, protocol: 2, is_ipv6: 3, dport: 4, pad: 6, cookie: 8, cgroup: 16, address: 24,
});
