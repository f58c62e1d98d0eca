//! Requests as a type and a body.

use netlink_packet_core::{Emitable, NetlinkSerializable};

/// A request of a type, with any body.
#[derive(Clone, Copy, Debug)]
pub struct Request<M> {
    /// Its type: `RTM_*`, `SOCK_DIAG_*`, a subsystem of nfnetlink with its message.
    pub kind: u16,
    /// All that follows `struct nlmsghdr`.
    pub body: M,
}

impl<M: Emitable> NetlinkSerializable for Request<M> {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        self.body.emit(buffer);
    }
}
