//! Rows of policy.

use datapath_abi::{PolicyEntry, PolicyKey, policy_flag};

use super::PolicyRow;

/// Directions of rows.
pub(crate) const OUT: u8 = 1;
pub(crate) const IN: u8 = 0;

/// The verdict of an entry. The number is its priority, 0 the highest.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Allow(u32),
    Deny(u32),
    /// Let through after authentication of this type; asked for by a rule or derived.
    Auth(u8, bool),
    Proxy(u16),
}

/// A row: direction, peer or 0, protocol or 0, port with the number of its bits that count.
pub(crate) fn row(egress: u8, peer: u32, protocol: u8, port: Option<(u16, u8)>, kind: Kind) -> PolicyRow {
    let bits = match (protocol, port) {
        (0, _) => 0,
        (_, None) => 8,
        (_, Some((_, bits))) => 8 + bits,
    };
    let dport = port.map_or(0, |(port, _)| port.to_be());
    let key = PolicyKey {
        prefixlen: PolicyKey::STATIC_BITS + u32::from(bits),
        sec_label: peer,
        egress,
        protocol,
        dport,
    };
    let precedence = |priority: u32, low: u32| (0x00ff_ffff - priority) << 8 | low;
    let mut entry = PolicyEntry::allow(bits);
    match kind {
        Kind::Allow(priority) => entry.precedence = precedence(priority, 1),
        Kind::Deny(priority) => {
            entry.precedence = precedence(priority, 255);
            entry.flags |= policy_flag::DENY;
        }
        Kind::Auth(auth, explicit) => {
            entry.auth_type = auth | if explicit { policy_flag::EXPLICIT_AUTH } else { 0 };
        }
        Kind::Proxy(port) => {
            entry.proxy_port = port.to_be();
            entry.precedence = precedence(0, 2);
        }
    }
    (key, entry)
}
