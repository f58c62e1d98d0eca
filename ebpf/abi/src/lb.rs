//! Load balancing entries.

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
    /// Number of quarantined backends, in the slots after the active ones.
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

/// Key of `cilium_lb_affinity_match` (HASH, 8 bytes): a backend to which affinity of a service applies. Its value is
/// one unused byte.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct LbAffinityMatch {
    /// Backend id.
    pub backend_id: u32,
    /// Service id, big-endian.
    pub rev_nat_id: u16,
    /// Zero.
    pub pad: u16,
}
layout!(LbAffinityMatch, 8, { backend_id: 0, rev_nat_id: 4, pad: 6 });

/// Key of `cilium_lb4_affinity` and `cilium_lb6_affinity` (LRU_HASH, 16 or 24 bytes): a client of a service.
/// `A` is `[u32; 2]` or `[u32; 4]`: the client's address padded by zeros, or the cookie of its network namespace.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct LbAffinityKey<A> {
    /// The client.
    pub client: A,
    /// Service id, big-endian.
    pub rev_nat_id: u16,
    /// 1 if the client is a cookie.
    pub netns_cookie: u8,
    /// Zero.
    pub pad1: u8,
    /// Zero.
    pub pad2: u32,
}

/// Key of cilium_lb4_affinity.
pub type LbAffinityKey4 = LbAffinityKey<[u32; 2]>;
/// Key of cilium_lb6_affinity.
pub type LbAffinityKey6 = LbAffinityKey<[u32; 4]>;
layout!(LbAffinityKey4, 16, { client: 0, rev_nat_id: 8, netns_cookie: 10, pad1: 11, pad2: 12 });
layout!(LbAffinityKey6, 24, { client: 0, rev_nat_id: 16, netns_cookie: 18, pad1: 19, pad2: 20 });

/// Value of `cilium_lb4_affinity` and `cilium_lb6_affinity` (16 bytes): the backend that a client was last sent to.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct LbAffinity {
    /// Time of the last use, by the clock of the connection tracking entries.
    pub last_used: u64,
    /// Backend id.
    pub backend_id: u32,
    /// Zero.
    pub pad: u32,
}
layout!(LbAffinity, 16, { last_used: 0, backend_id: 8, pad: 12 });

/// Key of `cilium_lb4_reverse_sk` and `cilium_lb6_reverse_sk` (LRU_HASH, 16 or 32 bytes): a socket and the backend that
/// it was translated to. `P` is `u16` or `[u16; 3]`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct LbReverseSkKey<A, P> {
    /// Cookie of the socket.
    pub cookie: u64,
    /// The backend's address as on the wire.
    pub address: A,
    /// The backend's port as on the wire.
    pub port: u16,
    /// Zero.
    pub pad: P,
}

/// Key of cilium_lb4_reverse_sk.
pub type LbReverseSkKey4 = LbReverseSkKey<u32, u16>;
/// Key of cilium_lb6_reverse_sk.
pub type LbReverseSkKey6 = LbReverseSkKey<[u32; 4], [u16; 3]>;
layout!(LbReverseSkKey4, 16, { cookie: 0, address: 8, port: 12, pad: 14 });
layout!(LbReverseSkKey6, 32, { cookie: 0, address: 8, port: 24, pad: 26 });

/// Value of `cilium_lb4_reverse_sk` and `cilium_lb6_reverse_sk` (8 or 20 bytes): the frontend that the socket was
/// connected to.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct LbReverseSk<A> {
    /// Frontend address as on the wire.
    pub address: A,
    /// Frontend port as on the wire.
    pub port: u16,
    /// Service id, big-endian.
    pub rev_nat_index: u16,
}

/// Value of cilium_lb4_reverse_sk.
pub type LbReverseSk4 = LbReverseSk<u32>;
/// Value of cilium_lb6_reverse_sk.
pub type LbReverseSk6 = LbReverseSk<[u32; 4]>;
layout!(LbReverseSk4, 8, { address: 0, port: 4, rev_nat_index: 6 });
layout!(LbReverseSk6, 20, { address: 0, port: 16, rev_nat_index: 18 });

/// Key of `cilium_lb4_source_range` and `cilium_lb6_source_range` (LPM_TRIE, 12 or 24 bytes): clients that a service
/// admits, or refuses. Its value is one unused byte.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct LbSourceRange<A> {
    /// 32 and the length of the prefix.
    pub prefixlen: u32,
    /// Service id, big-endian.
    pub rev_nat_id: u16,
    /// Zero.
    pub pad: u16,
    /// The prefix as on the wire.
    pub address: A,
}

/// Key of cilium_lb4_source_range.
pub type LbSourceRange4 = LbSourceRange<u32>;
/// Key of cilium_lb6_source_range.
pub type LbSourceRange6 = LbSourceRange<[u32; 4]>;
layout!(LbSourceRange4, 12, { prefixlen: 0, rev_nat_id: 4, pad: 6, address: 8 });
layout!(LbSourceRange6, 24, { prefixlen: 0, rev_nat_id: 4, pad: 6, address: 8 });

/// Key of `cilium_skip_lb4` (HASH, 16 bytes): traffic of a network namespace to an address is not redirected to pods of
/// the node. Its value is one unused byte.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct SkipLb4Key {
    /// Cookie of the network namespace.
    pub netns_cookie: u64,
    /// The frontend's address as on the wire.
    pub address: u32,
    /// The frontend's port, big-endian.
    pub port: u16,
    /// Zero.
    pub pad: u16,
}
layout!(SkipLb4Key, 16, { netns_cookie: 0, address: 8, port: 12, pad: 14 });

/// Key of `cilium_skip_lb6` (HASH, 32 bytes): the same for IPv6.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct SkipLb6Key {
    /// Cookie of the network namespace.
    pub netns_cookie: u64,
    /// The frontend's address as on the wire.
    pub address: [u32; 4],
    /// Zero.
    pub pad: u32,
    /// The frontend's port, big-endian.
    pub port: u16,
    /// Zero.
    pub pad2: u16,
}
layout!(SkipLb6Key, 32, { netns_cookie: 0, address: 8, pad: 24, port: 28, pad2: 30 });

/// Bits of [`LbService::flags`].
pub mod lb_flag {
    /// Frontend is an external IP.
    pub const EXTERNAL_IP: u8 = 1;
    /// Frontend is a node port.
    pub const NODE_PORT: u8 = 2;
    /// External traffic goes only to backends of this node.
    pub const EXT_LOCAL_SCOPE: u8 = 4;
    /// Frontend is a pod's host port.
    pub const HOST_PORT: u8 = 8;
    /// Clients stay with their backend.
    pub const SESSION_AFFINITY: u8 = 16;
    /// Frontend is a load balancer's address.
    pub const LOAD_BALANCER: u8 = 32;
    /// Reachable from outside.
    pub const ROUTABLE: u8 = 64;
    /// Clients are checked against the service's source ranges.
    pub const SOURCE_RANGE: u8 = 128;
}

/// Bits of [`LbService::flags2`].
pub mod lb_flag2 {
    /// Redirected to pods of this node.
    pub const LOCAL_REDIRECT: u8 = 1;
    /// Frontend and backends are of different families.
    pub const NAT_46X64: u8 = 2;
    /// Goes to the proxy; its port is in [`LbService::backend_id`](super::LbService::backend_id).
    pub const L7_LOAD_BALANCER: u8 = 4;
    /// With [`HOST_PORT`](super::lb_flag::HOST_PORT) only from the node itself, else handled by the local proxy.
    pub const LOOPBACK: u8 = 8;
    /// Traffic inside the cluster goes only to backends of this node.
    pub const INT_LOCAL_SCOPE: u8 = 16;
    /// The address has an entry in each scope.
    pub const TWO_SCOPES: u8 = 32;
    /// In slot 0 the source ranges are refused instead of admitted, in others the backend is quarantined.
    pub const QUARANTINED_OR_DENY: u8 = 64;
    /// Replies go to the client directly.
    pub const FORWARDING_DSR: u8 = 128;
}

/// Algorithms in the upper eight bits of [`LbService::backend_id`] in slot 0; another value stands for the node's.
pub mod lb_algorithm {
    /// A random backend.
    pub const RANDOM: u32 = 1;
    /// By the Maglev table.
    pub const MAGLEV: u32 = 2;
    /// Number of bits below it.
    pub const SHIFT: u32 = 24;
}

/// Positions of the Maglev tables of the object. The kernel's maps have the size of `bpf-lb-maglev-table-size`.
pub const MAGLEV_TEMPLATE_SIZE: u32 = 251;

/// Values of [`LbBackend::state`].
pub mod lb_backend_state {
    /// Takes connections.
    pub const ACTIVE: u8 = 0;
    /// Keeps its connections.
    pub const TERMINATING: u8 = 1;
    /// Failed its health check.
    pub const QUARANTINED: u8 = 2;
    /// Takes none, keeps none.
    pub const MAINTENANCE: u8 = 3;
}

/// Values of [`LbServiceKey::scope`].
pub mod lb_scope {
    /// Traffic from outside of the cluster; also the only entry of a service without a separate internal scope.
    pub const EXTERNAL: u8 = 0;
    /// Traffic inside of the cluster.
    pub const INTERNAL: u8 = 1;
}
