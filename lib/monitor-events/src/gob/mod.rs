//! The stream of `monitor1_2.sock`: one Go gob encoder per connection, without other framing.
//!
//! A stream begins with [`PREAMBLE`], the definition of `Payload{Data []byte; CPU int; Lost uint64; Type int}`; then
//! follow values ([`sample`], [`lost`]). An encoded value is the same on all connections. Zero fields are not sent.

mod read;

use std::collections::BTreeMap;

pub use read::Reader;

/// `Payload.Type` of an event.
pub const SAMPLE: i64 = 9;
/// `Payload.Type` of a count of lost events.
pub const LOST: i64 = 2;

/// The largest message that [`Reader`] accepts: an event is 64 KiB at most, as the kernel's record has a length of 16
/// bits.
pub const MAX_MESSAGE: usize = 1 << 20;
/// The largest number of types that a stream may define.
const MAX_TYPES: usize = 256;
/// The deepest nesting of a value: the reader recurses for each level, and a type may contain itself.
const MAX_DEPTH: usize = 16;

/// The first message of a stream: the definition of `Payload` with id 64.
pub const PREAMBLE: &[u8] =
    b"\x37\x7f\x03\x01\x01\x07Payload\x01\xff\x80\x00\x01\x04\x01\x04Data\x01\x0a\x00\x01\x03CPU\
\x01\x04\x00\x01\x04Lost\x01\x06\x00\x01\x04Type\x01\x04\x00\x00\x00";

/// The definition of `AgentNotify{Type uint32; Text string}` with id 65.
const AGENT_NOTIFY: &[u8] =
    b"\x2b\xff\x81\x03\x01\x01\x0bAgentNotify\x01\xff\x82\x00\x01\x02\x01\x04Type\x01\x06\x00\
\x01\x04Text\x01\x0c\x00\x00\x00";

pub(crate) fn put_uint(out: &mut Vec<u8>, value: u64) {
    if value < 128 {
        out.push(value as u8);
        return;
    }
    let bytes = value.to_be_bytes();
    let len = 8 - value.leading_zeros() as usize / 8;
    out.push((256 - len) as u8);
    out.extend_from_slice(&bytes[8 - len..]);
}

pub(crate) fn put_int(out: &mut Vec<u8>, value: i64) {
    // The complement of a negative number is not negative.
    let (magnitude, sign) = if value < 0 { (!value, 1) } else { (value, 0) };
    put_uint(out, (magnitude as u64) << 1 | sign);
}

/// Returns a message: the length of the body, then the body.
pub(crate) fn framed(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 4);
    put_uint(&mut out, body.len() as u64);
    out.extend_from_slice(body);
    out
}

/// A struct whose fields are written in order; zero fields are left out by the caller.
struct Fields {
    body: Vec<u8>,
    last: u64,
}

impl Fields {
    fn of(type_id: i64, capacity: usize) -> Self {
        let mut body = Vec::with_capacity(capacity + 24);
        put_int(&mut body, type_id);
        Self { body, last: 0 }
    }

    /// Begins the field with this number, from 1 on.
    fn field(&mut self, number: u64) -> &mut Vec<u8> {
        put_uint(&mut self.body, number - self.last);
        self.last = number;
        &mut self.body
    }

    fn end(mut self) -> Vec<u8> {
        self.body.push(0);
        framed(&self.body)
    }
}

const PAYLOAD_ID: i64 = 64;
const AGENT_NOTIFY_ID: i64 = 65;

/// Returns the value of an event that the ring of `cpu` had, or of a notification of the agent (CPU 0). The event is in
/// up to two pieces.
#[must_use]
pub fn sample(cpu: u32, head: &[u8], tail: &[u8]) -> Vec<u8> {
    let len = head.len() + tail.len();
    let mut value = Fields::of(PAYLOAD_ID, len);
    if len > 0 {
        let out = value.field(1);
        put_uint(out, len as u64);
        out.extend_from_slice(head);
        out.extend_from_slice(tail);
    }
    if cpu != 0 {
        put_int(value.field(2), i64::from(cpu));
    }
    put_int(value.field(4), SAMPLE);
    value.end()
}

/// Returns the value of a loss of `count` events, of the ring of `cpu` or (CPU 0) of the client's queue.
#[must_use]
pub fn lost(cpu: u32, count: u64) -> Vec<u8> {
    let mut value = Fields::of(PAYLOAD_ID, 0);
    if cpu != 0 {
        put_int(value.field(2), i64::from(cpu));
    }
    if count != 0 {
        put_uint(value.field(3), count);
    }
    put_int(value.field(4), LOST);
    value.end()
}

/// Returns the event of an agent notification: its type byte, then a stream of its own.
#[must_use]
pub fn agent_notify(kind: u32, text: &str) -> Vec<u8> {
    let mut out = vec![crate::AGENT];
    out.extend_from_slice(AGENT_NOTIFY);
    let mut value = Fields::of(AGENT_NOTIFY_ID, text.len());
    if kind != 0 {
        put_uint(value.field(1), u64::from(kind));
    }
    if !text.is_empty() {
        let body = value.field(2);
        put_uint(body, text.len() as u64);
        body.extend_from_slice(text.as_bytes());
    }
    out.extend_from_slice(&value.end());
    out
}

/// Errors of a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GobError {
    /// A value ends within an item.
    #[error("a message ends within a value")]
    Short,
    /// A number has more than eight bytes.
    #[error("a number of more than 64 bits")]
    Number,
    /// A message is larger than any event.
    #[error("a message of {0} bytes")]
    Large(u64),
    /// A value of a type that the stream has not defined, or that no struct of the monitor has.
    #[error("a value of the unknown type {0}")]
    Type(i64),
    /// A field beyond those of its type.
    #[error("a field that its type does not have")]
    Field,
    /// Too many types.
    #[error("more than {MAX_TYPES} types")]
    Types,
    /// Values within values, beyond the limit.
    #[error("values that are nested more than {MAX_DEPTH} deep")]
    Depth,
    /// A definition that is not one.
    #[error("an invalid definition of a type")]
    Definition,
}

/// A field's value, of a type that the structs of the monitor have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A signed number.
    Int(i64),
    /// An unsigned number, or a bool.
    Uint(u64),
    /// Bytes; also those of a type that encodes itself.
    Bytes(Vec<u8>),
    /// Text.
    Text(String),
    /// A struct in a field.
    Struct(Struct),
    /// The elements of a slice or array.
    List(Vec<Value>),
    /// The keys and values of a map, in the order of the stream.
    Map(Vec<(Value, Value)>),
}

/// The fields of a struct that were sent, by name. Absent fields are zero.
pub type Struct = BTreeMap<String, Value>;

/// A value of the monitor's stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// The event.
    pub data: Vec<u8>,
    /// The ring's CPU.
    pub cpu: i64,
    /// The number of lost events.
    pub lost: u64,
    /// [`SAMPLE`] or [`LOST`].
    pub kind: i64,
}

impl From<Struct> for Payload {
    fn from(mut fields: Struct) -> Self {
        let mut payload = Self::default();
        if let Some(Value::Bytes(data)) = fields.remove("Data") {
            payload.data = data;
        }
        if let Some(&Value::Int(cpu)) = fields.get("CPU") {
            payload.cpu = cpu;
        }
        if let Some(&Value::Uint(lost)) = fields.get("Lost") {
            payload.lost = lost;
        }
        if let Some(&Value::Int(kind)) = fields.get("Type") {
            payload.kind = kind;
        }
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_go_encoder() {
        assert_eq!(PREAMBLE.len(), 56);
        assert_eq!(sample(1, &[1, 2, 3], &[]), b"\x0c\xff\x80\x01\x03\x01\x02\x03\x01\x02\x02\x12\x00");
        assert_eq!(sample(0, &[1], &[2, 3]), b"\x0a\xff\x80\x01\x03\x01\x02\x03\x03\x12\x00");
        assert_eq!(lost(3, 300), b"\x0b\xff\x80\x02\x06\x01\xfe\x01\x2c\x01\x04\x00");
        let notify = agent_notify(2, "{}");
        assert_eq!(notify[0], 130);
        assert_eq!(&notify[1 + AGENT_NOTIFY.len()..], b"\x09\xff\x82\x01\x02\x01\x02{}\x00");
        let mut number = Vec::new();
        put_uint(&mut number, 200);
        put_int(&mut number, -1);
        assert_eq!(number, [0xff, 0xc8, 1]);
    }

    #[test]
    fn a_stream_in_pieces_is_read_to_the_same_values() {
        let big = vec![7; 70_000];
        let stream = [PREAMBLE, &sample(5, &big, &[]), &lost(300, u64::MAX), &sample(0, b"x", b"y")].concat();
        for size in [1, 2, 7, 4096, stream.len()] {
            let (mut reader, mut values) = (Reader::default(), Vec::new());
            for piece in stream.chunks(size) {
                reader.push(piece);
                while let Some(value) = reader.next_value().unwrap() {
                    values.push(Payload::from(value));
                }
            }
            let expected = [
                Payload { data: big.clone(), cpu: 5, lost: 0, kind: SAMPLE },
                Payload { data: Vec::new(), cpu: 300, lost: u64::MAX, kind: LOST },
                Payload { data: b"xy".to_vec(), cpu: 0, lost: 0, kind: SAMPLE },
            ];
            assert_eq!(values, expected, "pieces of {size}");
        }
    }

    #[test]
    fn invalid_streams_are_errors() {
        let read = |stream: &[u8]| {
            let mut reader = Reader::default();
            reader.push(stream);
            reader.next_value()
        };
        assert_eq!(read(b"\x0a\xff\x80\x01\x03\x01\x02\x03\x03\x12\x00"), Err(GobError::Type(64)));
        assert_eq!(read(b"\xf0"), Err(GobError::Number));
        assert_eq!(read(b"\xfc\xff\xff\xff\xff"), Err(GobError::Large(0xffff_ffff)));
        let field_nine = [PREAMBLE, b"\x05\xff\x80\x09\x01\x00"].concat();
        assert_eq!(read(&field_nine), Err(GobError::Field));
        // A slice of slices of its own type, in the one field of a struct.
        let slice = b"\x08\xff\x81\x02\x02\xff\x82\x00\x00";
        let holder = b"\x0e\xff\x83\x03\x02\x01\x01\x01x\x01\xff\x82\x00\x00\x00";
        let nested = [&slice[..], holder, b"\x17\xff\x84\x01", &[1; 19], &[0]].concat();
        assert_eq!(read(&nested), Err(GobError::Depth));
        let huge_count = b"\x08\x7f\x03\x02\xfc\xff\xff\xff\xff";
        assert_eq!(read(huge_count), Err(GobError::Short));
    }
}
