//! Policy entries of an endpoint and their counters.

use crate::pod::layout;

/// Key of `cilium_policy_v2_NNNNN` (LPM_TRIE, 12 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct PolicyKey {
    /// [`Self::STATIC_BITS`] plus 0 (any protocol), 8 (protocol) or 8 + 1..=16 (bits of the port).
    pub prefixlen: u32,
    /// Identity of the peer, or zero for any.
    pub sec_label: u32,
    /// 1 for egress, 0 for ingress.
    pub egress: u8,
    /// IP protocol.
    pub protocol: u8,
    /// Destination port as on the wire.
    pub dport: u16,
}
layout!(PolicyKey, 12, { prefixlen: 0, sec_label: 4, egress: 8, protocol: 9, dport: 10 });

impl PolicyKey {
    /// Bits of identity and direction, always part of the match.
    pub const STATIC_BITS: u32 = 40;
    /// `prefixlen` of every lookup.
    pub const FULL_BITS: u32 = 64;

    /// Returns the key that matches every peer, protocol and port of a direction.
    pub const fn any(egress: bool) -> Self {
        Self { prefixlen: Self::STATIC_BITS, sec_label: 0, egress: egress as u8, protocol: 0, dport: 0 }
    }
}

/// Value of `cilium_policy_v2_NNNNN` (12 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct PolicyEntry {
    /// Proxy port as on the wire, or zero.
    pub proxy_port: u16,
    /// [`policy_flag::DENY`], and the bits of the key after identity and direction in bits 3..=7.
    pub flags: u8,
    /// Authentication type in bits 0..=6, [`policy_flag::EXPLICIT_AUTH`].
    pub auth_type: u8,
    /// Higher wins: `(0xffffff - priority) << 8` and a low byte by kind (see [`Self::allow`]).
    pub precedence: u32,
    /// Index into the agent's policy log strings.
    pub cookie: u32,
}
layout!(PolicyEntry, 12, { proxy_port: 0, flags: 2, auth_type: 3, precedence: 4, cookie: 8 });

impl PolicyEntry {
    /// Returns an allow entry of the highest priority for a key with `lpm_prefix_length` bits after the static ones.
    pub const fn allow(lpm_prefix_length: u8) -> Self {
        let flags = lpm_prefix_length << policy_flag::PREFIX_SHIFT;
        Self { proxy_port: 0, flags, auth_type: 0, precedence: 0xffff_ff00 | 1, cookie: 0 }
    }

    /// True if the entry denies.
    pub const fn deny(&self) -> bool {
        self.flags & policy_flag::DENY != 0
    }

    /// Returns the number of bits of the key after identity and direction: 0, 8 or 9..=24.
    pub const fn lpm_prefix_length(&self) -> u8 {
        self.flags >> policy_flag::PREFIX_SHIFT
    }
}

/// Bits of [`PolicyEntry::flags`] and [`PolicyEntry::auth_type`].
pub mod policy_flag {
    /// The entry denies.
    pub const DENY: u8 = 1;
    /// Shift of the prefix length in `flags`.
    pub const PREFIX_SHIFT: u8 = 3;
    /// In `auth_type`: a rule requests the type, it is not derived.
    pub const EXPLICIT_AUTH: u8 = 0x80;
}

/// The parts of an entry that matched a packet (constants: policy_match).
pub mod policy_match {
    /// Nothing did.
    pub const NONE: u8 = 0;
    /// The peer.
    pub const L3_ONLY: u8 = 1;
    /// Peer and port.
    pub const L3_L4: u8 = 2;
    /// The port.
    pub const L4_ONLY: u8 = 3;
    /// An entry that matches everything.
    pub const ALL: u8 = 4;
    /// Peer and protocol.
    pub const L3_PROTO: u8 = 5;
    /// The protocol.
    pub const PROTO_ONLY: u8 = 6;

    /// Returns the match of an entry for one peer or for all, with this many bits of protocol and port.
    pub const fn of(any_peer: bool, lpm_prefix_length: u8) -> u8 {
        match (any_peer, lpm_prefix_length) {
            (false, 0) => L3_ONLY,
            (false, 1..=8) => L3_PROTO,
            (false, _) => L3_L4,
            (true, 0) => ALL,
            (true, 1..=8) => PROTO_ONLY,
            (true, _) => L4_ONLY,
        }
    }
}

/// Key of `cilium_policystats` (LRU_PERCPU_HASH, 12 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct PolicyStatsKey {
    /// Endpoint id.
    pub endpoint_id: u16,
    /// Zero.
    pub pad1: u8,
    /// Bits of the entry's key after identity and direction.
    pub prefix_len: u8,
    /// Identity in the deciding entry.
    pub sec_label: u32,
    /// 1 for egress, 0 for ingress.
    pub egress: u8,
    /// IP protocol.
    pub protocol: u8,
    /// Destination port as on the wire.
    pub dport: u16,
}
layout!(PolicyStatsKey, 12, {
    endpoint_id: 0, pad1: 2, prefix_len: 3, sec_label: 4, egress: 8, protocol: 9, dport: 10,
});

/// Value of `cilium_policystats` (16 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct PolicyStatsValue {
    /// Packets for which the entry decided.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}
layout!(PolicyStatsValue, 16, { packets: 0, bytes: 8 });
