//! Load balancing rows.

use crate::pod::layout;

/// Key of `cilium_lb4_services_v2` and `cilium_lb6_services_v2` (HASH, 12 or 24 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct LbServiceKey<A> {
    /// Frontend address as on the wire.
    pub address: A,
    /// Frontend port as on the wire.
    pub dport: u16,
    /// 0 is the frontend itself, 1..=count its backends.
    pub backend_slot: u16,
    /// IP protocol, or zero for any.
    pub proto: u8,
    /// 0 external, 1 internal.
    pub scope: u8,
    /// Zero.
    pub pad: [u8; 2],
}

/// Key of cilium_lb4_services_v2.
pub type LbServiceKey4 = LbServiceKey<u32>;
/// Key of cilium_lb6_services_v2.
pub type LbServiceKey6 = LbServiceKey<[u32; 4]>;
layout!(LbServiceKey4, 12, { address: 0, dport: 4, backend_slot: 6, proto: 8, scope: 9, pad: 10 });
layout!(LbServiceKey6, 24, { address: 0, dport: 16, backend_slot: 18, proto: 20, scope: 21, pad: 22 });

/// Value of the service maps (12 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct LbService {
    /// Backend id; in slot 0 the affinity timeout (24 bits) and the algorithm (8 bits), or the L7 proxy port.
    pub backend_id: u32,
    /// Number of active backends (slot 0).
    pub count: u16,
    /// Service id, big-endian.
    pub rev_nat_index: u16,
    /// Service flags.
    pub flags: u8,
    /// More service flags.
    pub flags2: u8,
    /// Number of quarantined backends behind the active ones.
    pub qcount: u16,
}
layout!(LbService, 12, { backend_id: 0, count: 4, rev_nat_index: 6, flags: 8, flags2: 9, qcount: 10 });

/// Value of `cilium_lb4_backends_v3` and `cilium_lb6_backends_v3` (12 or 24 bytes), by backend id.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct LbBackend<A> {
    /// Address as on the wire.
    pub address: A,
    /// Port as on the wire.
    pub port: u16,
    /// IP protocol.
    pub proto: u8,
    /// 0 active, 1 terminating, 2 quarantined, 3 maintenance.
    pub state: u8,
    /// Cluster id.
    pub cluster_id: u16,
    /// Zone id.
    pub zone: u8,
    /// Zero.
    pub pad: u8,
}

/// Value of cilium_lb4_backends_v3.
pub type LbBackend4 = LbBackend<u32>;
/// Value of cilium_lb6_backends_v3.
pub type LbBackend6 = LbBackend<[u32; 4]>;
layout!(LbBackend4, 12, { address: 0, port: 4, proto: 6, state: 7, cluster_id: 8, zone: 10, pad: 11 });
layout!(LbBackend6, 24, { address: 0, port: 16, proto: 18, state: 19, cluster_id: 20, zone: 22, pad: 23 });

/// Value of `cilium_lb4_reverse_nat` and `cilium_lb6_reverse_nat` (6 or 18 bytes, packed), by big-endian id.
#[repr(C, packed(2))]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct LbReverseNat<A: Copy> {
    /// Frontend address as on the wire.
    pub address: A,
    /// Frontend port as on the wire.
    pub port: u16,
}

/// Value of cilium_lb4_reverse_nat.
pub type LbReverseNat4 = LbReverseNat<u32>;
/// Value of cilium_lb6_reverse_nat.
pub type LbReverseNat6 = LbReverseNat<[u32; 4]>;
layout!(LbReverseNat4, 6, { address: 0, port: 4 });
layout!(LbReverseNat6, 18, { address: 0, port: 16 });
