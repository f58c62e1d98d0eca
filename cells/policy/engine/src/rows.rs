//! Rows of an endpoint's policy map, independent of the kernel's layout.

use crate::model::{Direction, Port};

/// Protocol and port of a row. Ordered by protocol, port, number of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct L4 {
    /// IP protocol number; 0 with `bits` 0 is every protocol.
    pub protocol: u8,
    /// First port of the block, or the ICMP type.
    pub port: u16,
    /// The length of the prefix: 0 for none, 8 for the protocol, 9 to 24 for the protocol and the first 1 to 16 bits of
    /// the port.
    pub bits: u8,
}

impl L4 {
    /// Every protocol.
    pub const ALL: L4 = L4 { protocol: 0, port: 0, bits: 0 };
    /// Prefix length of a single port.
    pub const EXACT: u8 = 24;

    /// Returns all ports of a protocol.
    pub fn protocol(protocol: u8) -> L4 {
        L4 { protocol, port: 0, bits: 8 }
    }

    /// Returns a single port.
    pub fn port(protocol: u8, port: u16) -> L4 {
        L4 { protocol, port, bits: L4::EXACT }
    }

    /// Returns the prefix of this length that contains `self`; lengths below 8 are every protocol.
    pub fn truncated(self, bits: u8) -> L4 {
        match bits {
            0..8 => L4::ALL,
            8 => L4::protocol(self.protocol),
            _ => {
                let mask = u16::MAX << (L4::EXACT - bits.min(L4::EXACT));
                L4 { protocol: self.protocol, port: self.port & mask, bits }
            }
        }
    }

    /// Whether `self` matches all traffic that `other` matches.
    pub fn covers(self, other: L4) -> bool {
        self.bits <= other.bits && other.truncated(self.bits) == self
    }

    /// Returns the minimal list of aligned blocks that cover exactly the ports from `first` to `last`; at most 30
    /// blocks.
    pub fn blocks(protocol: u8, first: u16, last: u16) -> Vec<L4> {
        let (mut at, end) = (u32::from(first), u32::from(last) + 1);
        let mut blocks = Vec::new();
        while at < end {
            let aligned = if at == 0 { 16 } else { at.trailing_zeros().min(16) };
            let fits = (end - at).ilog2();
            let size = aligned.min(fits);
            blocks.push(L4 { protocol, port: at as u16, bits: L4::EXACT - size as u8 });
            at += 1 << size;
        }
        blocks
    }

    /// Returns the blocks of a numeric port or range; `None` for a named port, which only an endpoint can resolve.
    pub(crate) fn of_port(protocol: u8, port: &Port) -> Option<Vec<L4>> {
        match port {
            Port::All | Port::Range(0, _) => Some(vec![L4::protocol(protocol)]),
            Port::Range(first, last) => Some(L4::blocks(protocol, *first, *first.max(last))),
            Port::Named { .. } => None,
        }
    }
}

/// The key of a row: the traffic that it matches. Ordered by direction, identity, protocol, port, number of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Direction, seen from the endpoint.
    pub direction: Direction,
    /// Identity of the peer; 0 = any.
    pub identity: u32,
    /// Protocol and port.
    pub l4: L4,
}

/// The value of a row: the verdict on the traffic that its key matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Whether the traffic is dropped.
    pub deny: bool,
    /// Its precedence: of two matching rows the one with the higher precedence decides.
    pub precedence: u32,
    /// The port of the proxy that the traffic passes through; 0 for none.
    pub proxy_port: u16,
    /// The type of authentication that the traffic needs, with [`EXPLICIT_AUTH`](Self::EXPLICIT_AUTH) if a rule for
    /// exactly this traffic sets it.
    pub auth: u8,
    /// The id of its reason, see [`Resolved::reason`](crate::Resolved::reason). Ids differ between two computations of
    /// the same rows: compare rows by [`Row::same_effect`].
    pub origin: u32,
}

impl Row {
    /// The bit of [`auth`](Self::auth) of a type that a rule sets; without it, the type is of a broader row.
    pub const EXPLICIT_AUTH: u8 = 0x80;

    pub(crate) fn has_explicit_auth(self) -> bool {
        self.auth & Row::EXPLICIT_AUTH != 0
    }

    /// Whether both rows are the same map entry in the kernel.
    pub fn same_effect(self, other: Row) -> bool {
        Row { origin: 0, ..self } == Row { origin: 0, ..other }
    }
}
