//! The metrics map: packets and bytes by reason, direction, file and line.

use crate::drop;
use crate::pod::layout;

/// Key of `cilium_metrics` (PERCPU_HASH, 8 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct MetricsKey {
    /// A [`metric`] reason or a [drop reason](crate::drop).
    pub reason: u8,
    /// [`direction`] in bits 0 and 1.
    pub dir: u8,
    /// Source line.
    pub line: u16,
    /// [Source file](crate::file).
    pub file: u8,
    /// Zero.
    pub reserved: [u8; 3],
}
layout!(MetricsKey, 8, { reason: 0, dir: 1, line: 2, file: 4, reserved: 5 });

/// Value of `cilium_metrics` (16 bytes a CPU).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct MetricsValue {
    /// Packets.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}
layout!(MetricsValue, 16, { count: 0, bytes: 8 });

/// Directions of [`MetricsKey::dir`] (constants: metric_dir).
pub mod direction {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// Into an endpoint or the node.
    pub const INGRESS: u8 = 1;
    /// Out of an endpoint or the node.
    pub const EGRESS: u8 = 2;
    /// Socket load balancing.
    pub const SERVICE: u8 = 3;

    /// Returns the name that `cilium-dbg bpf metrics list` prints for a direction.
    pub fn label(dir: u8) -> &'static str {
        match dir & 3 {
            INGRESS => "INGRESS",
            EGRESS => "EGRESS",
            SERVICE => "SERVICE",
            _ => "UNKNOWN",
        }
    }
}

/// Reasons that are not drops (constants: metric_reason).
pub mod metric {
    /// Forwarded.
    pub const FORWARDED: u8 = 0;
    /// Seen unencrypted on an interface.
    pub const PLAINTEXT: u8 = 3;
    /// Seen decrypted on an interface.
    pub const DECRYPT: u8 = 4;
    /// Socket load balancing: no backend slot.
    pub const LB_NO_BACKEND_SLOT: u8 = 5;
    /// Socket load balancing: no backend.
    pub const LB_NO_BACKEND: u8 = 6;
    /// Socket load balancing: the reverse entry could not be written.
    pub const LB_REVNAT_UPDATE: u8 = 7;
    /// Socket load balancing: the reverse entry was stale.
    pub const LB_REVNAT_STALE: u8 = 8;
    /// A fragment.
    pub const FRAG_PACKET: u8 = 9;
    /// A fragment's entry could not be written.
    pub const FRAG_PACKET_UPDATE: u8 = 10;
    /// Into decryption.
    pub const DECRYPTING: u8 = 12;
    /// Into encryption.
    pub const ENCRYPTING: u8 = 13;
    /// Socket load balancing: the reverse entry was deleted.
    pub const LB_REVNAT_DELETE: u8 = 14;
    /// An ICMP error about the MTU was sent.
    pub const MTU_ERROR_MSG: u8 = 15;

    /// Returns the name that `cilium-dbg bpf metrics list` prints for a reason, drop or not; `None` if it has none.
    pub fn label(reason: u8) -> Option<&'static str> {
        Some(match reason {
            0 => "Success",
            2 => "Invalid packet",
            3 => "Interface",
            4 => "Interface Decrypted",
            5 => "LB, sock cgroup: No backend slot entry found",
            6 => "LB, sock cgroup: No backend entry found",
            7 => "LB, sock cgroup: Reverse entry update failed",
            8 => "LB, sock cgroup: Reverse entry stale",
            9 => "Fragmented packet",
            10 => "Fragmented packet entry update failed",
            11 => "Missed tail call to custom program",
            12 => "Interface Decrypting",
            13 => "Interface Encrypting",
            14 => "LB: sock cgroup: Reverse entry delete succeeded",
            15 => "MTU error message",
            code => return super::drop::label(code),
        })
    }
}

impl MetricsKey {
    /// True if the entry counts drops.
    pub const fn is_drop(&self) -> bool {
        self.reason >= drop::FIRST
    }
}
