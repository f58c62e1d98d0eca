//! The reader of attributes.

use netlink_packet_core::{NLA_ALIGNTO, NLA_HEADER_SIZE, NLA_TYPE_MASK};

use crate::Malformed;

/// One attribute of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Its type, without the flags for nesting and byte order.
    pub kind: u16,
    /// Its value, without padding.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Returns the attributes that the value consists of.
    #[must_use]
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }

    /// Returns the text up to its zero byte, which the kernel does not always send.
    #[must_use]
    pub fn text(&self) -> &'a [u8] {
        self.value.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Returns an integer in the byte order of the machine.
    ///
    /// # Errors
    /// If the value is not four bytes long.
    pub fn u32(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Returns an integer in network byte order.
    ///
    /// # Errors
    /// If the value is not four bytes long.
    pub fn u32_be(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        let (kind, found) = (self.kind, self.value.len());
        self.value.try_into().map_err(|_| Malformed::AttributeValue { kind, found, expected: N })
    }
}

/// The attributes of a message, or those inside of another attribute, in their order. Ends after the first malformed
/// one.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Reads from the first attribute, behind the fixed header of a message.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Attributes<'a> {
        Attributes { rest: bytes }
    }

    /// Returns the first attribute of a type.
    ///
    /// # Errors
    /// If an attribute before it is malformed.
    pub fn first(mut self, kind: u16) -> Result<Option<Attribute<'a>>, Malformed> {
        self.find(|attribute| attribute.is_err() || attribute.is_ok_and(|a| a.kind == kind)).transpose()
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            return None;
        }
        let (length, kind) = match rest {
            [l0, l1, k0, k1, ..] => (u16::from_ne_bytes([*l0, *l1]), u16::from_ne_bytes([*k0, *k1])),
            _ => return Some(Err(Malformed::AttributeLength { length: rest.len(), available: rest.len() })),
        };
        let length = usize::from(length);
        let Some(value) = rest.get(NLA_HEADER_SIZE..length) else {
            return Some(Err(Malformed::AttributeLength { length, available: rest.len() }));
        };
        // The last attribute may come without its padding.
        self.rest = rest.get(length.next_multiple_of(NLA_ALIGNTO)..).unwrap_or_default();
        Some(Ok(Attribute { kind: kind & NLA_TYPE_MASK, value }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Body;

    #[test]
    fn values_are_read_as_they_were_written() {
        let mut body = Body::new(&[]);
        body.attribute(1, &7_u32.to_ne_bytes()).string(2, "lxc1").nested(3, |inner| {
            inner.u32_be(4, 0x0102_0304).attribute(5, &[]);
        });
        let all: Vec<Attribute<'_>> = Attributes::new(body.as_bytes()).map(Result::unwrap).collect();
        assert_eq!(all.iter().map(|attribute| attribute.kind).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((all[0].u32(), all[1].text()), (Ok(7), &b"lxc1"[..]));
        // struct nlattr: length, type, value; big-endian, as in netfilter.
        assert_eq!(all[2].value[4..8], [1, 2, 3, 4]);
        let inner = all[2].nested().first(4).unwrap().unwrap();
        assert_eq!(inner.u32_be(), Ok(0x0102_0304));
        assert_eq!(all[2].nested().first(6), Ok(None));
        let wrong = Malformed::AttributeValue { kind: 2, found: 5, expected: 4 };
        assert_eq!(all[1].u32(), Err(wrong));
    }

    #[test]
    fn lengths_beyond_the_buffer_are_errors() {
        let of = |length: u16| [&length.to_ne_bytes()[..], &[1, 0, 9, 9, 9, 9]].concat();
        for length in [0, 3, 9, u16::MAX] {
            let error = Malformed::AttributeLength { length: length.into(), available: 8 };
            assert_eq!(Attributes::new(&of(length)).collect::<Vec<_>>(), [Err(error)]);
            assert_eq!(Attributes::new(&of(length)).first(1), Err(error));
        }
        assert_eq!(Attributes::new(&of(8)).count(), 1);
        assert!(Attributes::new(&of(8)[..3]).next().unwrap().is_err());
        // Padding that is missing at the end.
        assert_eq!(
            Attributes::new(&of(5)[..5]).collect::<Vec<_>>(),
            [Ok(Attribute { kind: 1, value: &[9] })]
        );
    }

    proptest! {
        #[test]
        fn any_values_come_back(values in prop::collection::vec((0_u16..0x4000, prop::collection::vec(any::<u8>(), 0..40)), 0..20)) {
            let mut body = Body::new(&[0; 4]);
            body.nested(9, |inner| values.iter().for_each(|(kind, value)| { inner.attribute(*kind, value); }));
            let outer = Attributes::new(&body.as_bytes()[4..]).first(9).unwrap().unwrap();
            let read: Vec<_> = outer.nested().map(|a| a.map(|a| (a.kind, a.value.to_vec()))).collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(read, values);
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let read = Attributes::new(&bytes).filter_map(Result::ok).map(|a| 4 + a.value.len()).sum::<usize>();
            prop_assert!(read <= bytes.len());
        }
    }
}
