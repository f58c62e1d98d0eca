//! Why a packet passes or does not.

use std::fmt;

use crate::lookup::{Decision, Verdict, lookup};
use crate::model::Direction;
use crate::plan::Reason;
use crate::resolve::Resolved;
use crate::rows::{Key, L4, Row};

/// What an endpoint's policy does with a packet, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What happens.
    pub decision: Decision,
    /// The row that decides, and why it exists; none if no row matches.
    pub row: Option<(Key, Row, Reason)>,
    /// Whether rules decide about this direction at all.
    pub enforced: bool,
    /// How many rules select the endpoint in this direction.
    pub rules: usize,
    /// Revision of the policies.
    pub revision: u64,
}

impl Resolved {
    /// What the datapath does with a packet: `peer` is the identity of the other side, `port` the destination port, of
    /// ICMP the type.
    pub fn lookup(&self, direction: Direction, peer: u32, protocol: u8, port: u16) -> Verdict {
        lookup(&self.rows, direction, peer, protocol, port)
    }

    /// The same, with the reason.
    pub fn explain(&self, direction: Direction, peer: u32, protocol: u8, port: u16) -> Explanation {
        let Verdict { decision, row } = self.lookup(direction, peer, protocol, port);
        Explanation {
            decision,
            row: row.map(|(key, row)| (key, row, self.reason(row))),
            enforced: self.enforced(direction),
            rules: self.rules(direction),
            revision: self.revision,
        }
    }
}

/// One line: `allowed by cnp/shop/web spec.ingress[0] (selector ...), row 20128 TCP/80`.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((key, _, reason)) = &self.row else {
            return write!(f, "denied: no rule of {} selecting rules matches", self.rules);
        };
        let verb = if self.decision == Decision::Allow { "allowed" } else { "denied" };
        match reason {
            Reason::NotEnforced => write!(f, "{verb}: policy is not enforced in this direction")?,
            Reason::NoDefaultDeny => write!(f, "{verb}: no selecting rule denies by default")?,
            Reason::Localhost => write!(f, "{verb}: the node reaches its own endpoints")?,
            Reason::Rules(matches) => {
                write!(f, "{verb} by ")?;
                for (index, found) in matches.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{} {}", found.rule.resource, found.rule.path)?;
                    match found.selector.is_empty() {
                        true => write!(f, " (any peer)")?,
                        false => write!(f, " (selector {})", found.selector)?,
                    }
                }
            }
        }
        match key.identity {
            0 => write!(f, "; row any {}", key.l4),
            identity => write!(f, "; row {identity} {}", key.l4),
        }
    }
}

/// `ANY`, `TCP`, `TCP/80`, `TCP/1024-2047`; protocols without a name by number.
impl fmt::Display for L4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bits, self.protocol) {
            (0, _) => return f.write_str("ANY"),
            (_, 1) => f.write_str("ICMP")?,
            (_, 6) => f.write_str("TCP")?,
            (_, 17) => f.write_str("UDP")?,
            (_, 58) => f.write_str("ICMPv6")?,
            (_, 132) => f.write_str("SCTP")?,
            (_, number) => write!(f, "{number}")?,
        }
        match self.bits {
            0..=8 => Ok(()),
            L4::EXACT => write!(f, "/{}", self.port),
            bits => write!(f, "/{}-{}", self.port, self.port | u16::MAX >> (bits - 8)),
        }
    }
}
