//! The rules behind the rows of a policy map.

use std::sync::Arc;

use policy_engine::{Direction, Explanation, Resolved};

/// The rows of a policy map with their rules; nothing unless [`Policies::keep_decisions`](crate::Policies::keep_decisions)
/// was called. Equal if they are the same object.
#[derive(Debug, Clone, Default)]
pub struct Decisions(Option<Arc<Resolved>>);

impl Decisions {
    pub(crate) fn new(resolved: Option<Arc<Resolved>>) -> Decisions {
        Decisions(resolved)
    }

    /// Returns the decision on a packet by the datapath's lookup; `None` if the rules are not known. `peer` is the
    /// identity of the other end, `port` the destination port, for ICMP the type.
    pub fn explain(&self, direction: Direction, peer: u32, protocol: u8, port: u16) -> Option<Explanation> {
        Some(self.0.as_ref()?.explain(direction, peer, protocol, port))
    }
}

impl PartialEq for Decisions {
    fn eq(&self, other: &Decisions) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for Decisions {}
