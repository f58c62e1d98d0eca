//! nfnetlink: messages of netfilter's subsystems and their transactions (`linux/netfilter/nfnetlink.h`).

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};

use crate::{Body, Request};

/// `AF_UNSPEC`, the family of a transaction's borders.
const UNSPECIFIED: u8 = libc::AF_UNSPEC as u8;

/// Returns a body that begins with `struct nfgenmsg` of this family (`NFPROTO_*`).
#[must_use]
pub fn body(family: u8) -> Body {
    header(family, 0)
}

/// Returns the type of a subsystem's message: `NFNL_SUBSYS_*` in the upper byte, the subsystem's message in the lower.
#[must_use]
pub const fn kind(subsystem: u8, message: u8) -> u16 {
    (subsystem as u16) << 8 | message as u16
}

/// `struct nfgenmsg`: the family, version 0, a resource in network byte order.
fn header(family: u8, resource: u16) -> Body {
    let [high, low] = resource.to_be_bytes();
    Body::new(&[family, 0, high, low])
}

/// Messages of a subsystem that take effect together or not at all ([`Connection::commit`]).
///
/// [`Connection::commit`]: crate::Connection::commit
#[derive(Clone, Debug)]
pub struct Batch {
    subsystem: u8,
    messages: Vec<(Request<Body>, u16)>,
}

impl Batch {
    /// Creates an empty transaction of a subsystem (`NFNL_SUBSYS_*`).
    #[must_use]
    pub fn new(subsystem: u8) -> Batch {
        Batch { subsystem, messages: Vec::new() }
    }

    /// Appends a message of the subsystem. `flags` are `NLM_F_*` besides `REQUEST` and `ACK`.
    pub fn push(&mut self, message: u8, flags: u16, body: Body) -> &mut Batch {
        self.messages.push((Request { kind: kind(self.subsystem, message), body }, flags));
        self
    }

    /// Whether it has no messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Calls `append` for the beginning, each message and the end, with their flags; the last message requests an
    /// acknowledgement.
    pub(crate) fn write(&self, mut append: impl FnMut(&Request<Body>, u16)) {
        let border = |kind: i32| {
            let body = header(UNSPECIFIED, self.subsystem.into());
            Request { kind: kind as u16, body }
        };
        append(&border(libc::NFNL_MSG_BATCH_BEGIN), NLM_F_REQUEST);
        for (index, (message, flags)) in self.messages.iter().enumerate() {
            let is_last = index + 1 == self.messages.len();
            append(message, NLM_F_REQUEST | flags | if is_last { NLM_F_ACK } else { 0 });
        }
        append(&border(libc::NFNL_MSG_BATCH_END), NLM_F_REQUEST);
    }
}
