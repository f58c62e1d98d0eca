//! The datapath's policy lookup, on the rows of a policy map.

use std::collections::BTreeMap;

use crate::model::Direction;
use crate::rows::{Key, L4, Row};

/// The decision on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The packet passes.
    Allow,
    /// A row drops it.
    Deny,
    /// No row matches: it is dropped.
    NoMatch,
}

/// The decision on a packet, with the row behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The decision.
    pub decision: Decision,
    /// The row that decides.
    pub row: Option<(Key, Row)>,
    /// The authentication that the packet needs to pass, as in [`Row::auth`].
    pub auth: u8,
}

/// Looks a packet up by the datapath's rules. Candidates are the longest match of the peer's identity and the longest
/// match of any identity. Of the two, the higher precedence takes effect; at equal precedence it is the peer's own row
/// if that is a deny or at least as long, else the row of any identity. `port` is the destination port, for ICMP the
/// type.
pub fn lookup(
    rows: &BTreeMap<Key, Row>,
    direction: Direction,
    peer: u32,
    protocol: u8,
    port: u16,
) -> Verdict {
    let own = longest(rows, direction, peer, protocol, port);
    let any = longest(rows, direction, 0, protocol, port);
    let row = match (own, any) {
        (Some(own), Some(any)) => Some(if own_decides(own, any) { own } else { any }),
        (own, any) => own.or(any),
    };
    let decision = match row {
        None => Decision::NoMatch,
        Some((_, row)) if row.deny => Decision::Deny,
        Some(_) => Decision::Allow,
    };
    let other = match row {
        chosen if chosen == own => any,
        _ => own,
    };
    let auth = row.filter(|(_, row)| !row.deny).map_or(0, |(_, row)| auth_of(row, other.map(|(_, row)| row)));
    Verdict { decision, row, auth }
}

/// Returns the authentication of an allow: its own or, unless a rule sets that, the type of the other candidate if it is
/// larger and the other's priority is at least as high.
fn auth_of(row: Row, other: Option<Row>) -> u8 {
    let other =
        other.filter(|other| !row.has_explicit_auth() && other.precedence >> 8 >= row.precedence >> 8);
    other.map_or(0, |other| other.auth & !Row::EXPLICIT_AUTH).max(row.auth)
}

fn own_decides((own_key, own): (Key, Row), (any_key, any): (Key, Row)) -> bool {
    match own.precedence.cmp(&any.precedence) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => own.deny || own_key.l4.bits >= any_key.l4.bits,
    }
}

fn longest(
    rows: &BTreeMap<Key, Row>,
    direction: Direction,
    identity: u32,
    protocol: u8,
    port: u16,
) -> Option<(Key, Row)> {
    let exact = L4::port(protocol, port);
    let lengths = (8..=L4::EXACT).rev().chain([0]);
    lengths.map(|bits| Key { direction, identity, l4: exact.truncated(bits) }).find_map(|key| {
        let row = rows.get(&key)?;
        Some((key, *row))
    })
}
