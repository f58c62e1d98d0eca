//! The map `cilium_ratelimit`: token buckets that bound what programs emit.

use crate::pod::layout;

/// Usage of buckets: answers to ICMPv6, one bucket for each device.
pub const ICMPV6: u32 = 1;
/// Usage of a bucket: events of packets.
pub const EVENTS: u32 = 2;
/// Usage of a bucket: trace events of sockets, one bucket for the node.
pub const SOCKET_EVENTS: u32 = 3;

/// Key of `cilium_ratelimit` (LRU_HASH, 8 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct RatelimitKey {
    /// The usage of the bucket.
    pub usage: u32,
    /// Interface of a bucket per device, or zero.
    pub ifindex: u32,
}
layout!(RatelimitKey, 8, { usage: 0, ifindex: 4 });

/// Value of `cilium_ratelimit` (16 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct RatelimitBucket {
    /// Time of the last addition of tokens, in nanoseconds of the monotonic clock.
    pub last_topup: u64,
    /// Tokens that are left.
    pub tokens: u64,
}
layout!(RatelimitBucket, 16, { last_topup: 0, tokens: 8 });
