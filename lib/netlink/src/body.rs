//! The writer of message bodies.

use netlink_packet_core::{Emitable, NLA_ALIGNTO, NLA_F_NESTED, NLA_HEADER_SIZE};

/// A message's body: a fixed header, then attributes (`struct nlattr` of `linux/netlink.h`).
///
/// ```
/// let mut body = netlink::Body::new(&[2, 0, 0, 0]);
/// body.string(1, "lo").nested(4, |inner| {
///     inner.u32_be(2, 0x0102_0304);
/// });
/// assert_eq!(body.as_bytes().len(), 4 + 8 + 4 + 8);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body(Vec<u8>);

impl Body {
    /// Creates a body with this header; the length of a header is a multiple of four in all families.
    ///
    /// # Panics
    /// If the header's length is no multiple of four: attributes would be misaligned.
    #[must_use]
    pub fn new(header: &[u8]) -> Body {
        assert!(header.len().is_multiple_of(NLA_ALIGNTO), "misaligned header of {} bytes", header.len());
        Body(header.to_vec())
    }

    /// Appends an attribute and its padding. Integers are in the byte order of the family: `to_ne_bytes` for rtnetlink,
    /// `to_be_bytes` for netfilter.
    ///
    /// # Panics
    /// When the value is longer than an attribute can be, 65531 bytes.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Body {
        self.nested_of(kind, |body| body.0.extend(value))
    }

    /// Appends a text with the zero byte that ends it.
    pub fn string(&mut self, kind: u16, text: &str) -> &mut Body {
        self.nested_of(kind, |body| {
            body.0.extend(text.as_bytes());
            body.0.push(0);
        })
    }

    /// Appends an integer in network byte order.
    pub fn u32_be(&mut self, kind: u16, value: u32) -> &mut Body {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// Appends an attribute that consists of attributes, with the flag `NLA_F_NESTED`.
    ///
    /// # Panics
    /// When the inner attributes are longer than an attribute can be, 65531 bytes.
    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Body)) -> &mut Body {
        self.nested_of(kind | NLA_F_NESTED, fill)
    }

    /// Returns the bytes so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Writes in place: the length is filled in after the value.
    fn nested_of(&mut self, kind: u16, fill: impl FnOnce(&mut Body)) -> &mut Body {
        let start = self.0.len();
        self.0.extend([0; NLA_HEADER_SIZE]);
        fill(self);
        let length = self.0.len() - start;
        let Ok(length) = u16::try_from(length) else { panic!("attribute {kind} of {length} bytes") };
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0[start + 2..start + NLA_HEADER_SIZE].copy_from_slice(&kind.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(NLA_ALIGNTO), 0);
        self
    }
}

impl Emitable for Body {
    fn buffer_len(&self) -> usize {
        self.0.len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.0);
    }
}
