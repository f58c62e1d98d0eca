//! Framing: a packet as a row of messages.

use netlink_packet_core::{DecodeError, NLMSG_ALIGNTO, NetlinkBuffer, NetlinkHeader};

use crate::{Error, Malformed};

/// Bytes of `struct nlmsghdr`.
pub(crate) const HEADER_LEN: usize = 16;

/// A message of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// `struct nlmsghdr`.
    pub header: NetlinkHeader,
    /// All that follows the header.
    pub body: &'a [u8],
}

impl Message<'_> {
    /// Returns the error for a body that cannot be decoded.
    #[must_use]
    pub fn undecodable(&self, source: DecodeError) -> Error {
        Error::Decode { kind: self.header.message_type, source }
    }

    /// Returns the first four bytes of the body: the error code of an acknowledgement.
    pub(crate) fn code(&self) -> Result<i32, Malformed> {
        let code = self.body.first_chunk().copied().map(i32::from_ne_bytes);
        let (kind, found) = (self.header.message_type, self.body.len());
        code.ok_or(Malformed::Body { kind, found, expected: 4 })
    }
}

/// The messages of a packet in their order. Ends after the first malformed one.
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

/// Returns the messages of a packet.
#[must_use]
pub fn messages(packet: &[u8]) -> Messages<'_> {
    Messages { rest: packet }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            return None;
        }
        let length = rest.first_chunk().copied().map_or(rest.len(), |raw| u32::from_ne_bytes(raw) as usize);
        if !(HEADER_LEN..=rest.len()).contains(&length) {
            return Some(Err(Malformed::MessageLength { length, available: rest.len() }));
        }
        let (message, _) = rest.split_at(length);
        // The last message may come without its padding.
        self.rest = rest.get(length.next_multiple_of(usize::from(NLMSG_ALIGNTO))..).unwrap_or_default();
        let fields = NetlinkBuffer::new(message);
        let mut header = NetlinkHeader::default();
        header.length = fields.length();
        header.message_type = fields.message_type();
        header.flags = fields.flags();
        header.sequence_number = fields.sequence_number();
        header.port_number = fields.port_number();
        Some(Ok(Message { header, body: &message[HEADER_LEN..] }))
    }
}
