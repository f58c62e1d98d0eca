//! Messages of the perf ring `cilium_signals`: requests of the datapath to the agent.

use crate::pod::layout;

/// A NAT map is full.
pub const NAT_FILL_UP: u32 = 0;
/// A connection tracking map is full.
pub const CT_FILL_UP: u32 = 1;
/// Two identities have to authenticate.
pub const AUTH_REQUIRED: u32 = 2;

/// The family of a full map: IPv4.
pub const FAMILY_V4: u32 = 0;
/// The family of a full map: IPv6.
pub const FAMILY_V6: u32 = 1;

/// A signal about a full map (8 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct FillUp {
    /// [`NAT_FILL_UP`] or [`CT_FILL_UP`].
    pub signal: u32,
    /// [`FAMILY_V4`] or [`FAMILY_V6`].
    pub family: u32,
}
layout!(FillUp, 8, { signal: 0, family: 4 });

/// Two identities that have to authenticate before the first may talk to the second (16 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct AuthRequired {
    /// [`AUTH_REQUIRED`].
    pub signal: u32,
    /// The two identities that have to authenticate.
    pub key: AuthKey,
}
layout!(AuthRequired, 16, { signal: 0, key: 4 });

/// Key of `cilium_auth_map` (HASH, 12 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct AuthKey {
    /// Identity of the endpoint of this node.
    pub local_identity: u32,
    /// Identity of the peer.
    pub remote_identity: u32,
    /// Node of the peer, 0 for this one.
    pub remote_node: u16,
    /// Authentication type.
    pub auth_type: u8,
    /// Zero.
    pub pad: u8,
}
layout!(AuthKey, 12, { local_identity: 0, remote_identity: 4, remote_node: 8, auth_type: 10, pad: 11 });

/// Value of `cilium_auth_map` (8 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct AuthEntry {
    /// The end of the authentication: the time since 1970 in units of 512 ns
    /// ([`UTIME_SHIFT`](crate::runtime_config::UTIME_SHIFT)).
    pub expiration: u64,
}
layout!(AuthEntry, 8, { expiration: 0 });
