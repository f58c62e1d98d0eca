//! Encoded messages: fields are read when an expression accesses them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use prost::encoding::{WireType, decode_key, decode_varint};

use crate::error::EvalError;
use crate::schema::{Definition, Field, Scalar, Schema, Shape};
use crate::value::Value;

/// The limits of times: the years 1 to 9999.
const TIMES: std::ops::Range<i128> = -62_135_596_800_000_000_000..253_402_300_800_000_000_000;
pub(crate) const NANOS: i128 = 1_000_000_000;

/// An encoded message with its definition.
#[derive(Clone, Debug)]
pub(crate) struct Message<'a> {
    schema: &'a Schema,
    pub(crate) definition: usize,
    bytes: Encoding<'a>,
}

/// The bytes of a message: of the input, or made by the expression.
#[derive(Clone, Debug)]
enum Encoding<'a> {
    Input(&'a [u8]),
    Made(Rc<[u8]>),
}

impl Encoding<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Input(bytes) => bytes,
            Self::Made(bytes) => bytes,
        }
    }
}

/// A value on the wire.
enum Raw<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Message<'a> {
    pub(crate) fn new(schema: &'a Schema, definition: usize, bytes: &'a [u8]) -> Self {
        Self { schema, definition, bytes: Encoding::Input(bytes) }
    }

    /// Returns the encoding.
    pub(crate) fn encoded(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// Returns the length of the encoding, which an access goes through.
    pub(crate) fn len(&self) -> usize {
        self.encoded().len()
    }

    pub(crate) fn type_name(&self) -> &'a str {
        &self.definition().name
    }

    fn definition(&self) -> &'a Definition {
        self.schema.message(self.definition)
    }

    /// Whether both are of one type and have equal fields, in whatever order they are encoded. A field without a
    /// definition makes messages of different encodings unequal.
    pub(crate) fn is_equal(&self, other: &Self) -> bool {
        let (bytes, others) = (self.encoded(), other.encoded());
        self.definition == other.definition
            && (bytes == others || self.has_equal_fields(bytes, others).unwrap_or_default())
    }

    fn has_equal_fields(&self, bytes: &[u8], others: &[u8]) -> Result<bool, EvalError> {
        let (fields, other_fields) = (by_number(bytes)?, by_number(others)?);
        if !fields.keys().eq(other_fields.keys()) {
            return Ok(false);
        }
        for ((number, found), other) in fields.into_iter().zip(other_fields.into_values()) {
            let definition = self.definition().fields.iter().find(|field| field.number == number);
            let Some(definition) = definition else { return Ok(false) };
            let (one, other) =
                (value(self.schema, definition, found)?, value(self.schema, definition, other)?);
            if !one.is_equal(&other) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a field is set: a message, a value of an optional field, or one that is not the default.
    pub(crate) fn has(&self, field: &Field) -> Result<bool, EvalError> {
        let mut values = Fields(self.encoded())
            .filter(|found| found.as_ref().map_or(true, |(number, _)| *number == field.number));
        values.next().transpose().map(|found| found.is_some())
    }

    /// Returns the value of a field, the default if it is not set.
    pub(crate) fn get(&self, field: &Field) -> Result<Value<'a>, EvalError> {
        match &self.bytes {
            Encoding::Input(bytes) => read(self.schema, bytes, field),
            Encoding::Made(bytes) => Ok(read(self.schema, bytes, field)?.into_made(self.schema)),
        }
    }

    /// Returns the message with bytes of its own.
    pub(crate) fn into_made(self, schema: &Schema) -> Message<'_> {
        let bytes = match self.bytes {
            Encoding::Input(bytes) => bytes.into(),
            Encoding::Made(bytes) => bytes,
        };
        Message { schema, definition: self.definition, bytes: Encoding::Made(bytes) }
    }
}

/// Returns the value of a form with this encoding.
pub(crate) fn made<'a>(schema: &'a Schema, form: Scalar, bytes: &[u8]) -> Result<Value<'a>, EvalError> {
    Ok(scalar(schema, form, &Raw::Bytes(bytes))?.into_made(schema))
}

/// Returns the values of the fields of an encoded message, by their numbers.
fn by_number(bytes: &[u8]) -> Result<BTreeMap<u32, Vec<Raw<'_>>>, EvalError> {
    let mut fields = BTreeMap::<u32, Vec<Raw<'_>>>::new();
    for field in Fields(bytes) {
        let (number, raw) = field?;
        fields.entry(number).or_default().push(raw);
    }
    Ok(fields)
}

/// Returns the value of a field of an encoded message, the default if it is not set.
fn read<'a>(schema: &'a Schema, bytes: &'a [u8], field: &Field) -> Result<Value<'a>, EvalError> {
    let mut found = Vec::new();
    for value in Fields(bytes) {
        let (number, value) = value?;
        if number == field.number {
            found.push(value);
        }
    }
    value(schema, field, found)
}

/// Returns the value of a field from those on the wire.
fn value<'a>(schema: &'a Schema, field: &Field, mut found: Vec<Raw<'a>>) -> Result<Value<'a>, EvalError> {
    match field.shape {
        Shape::One => match found.pop() {
            Some(raw) => scalar(schema, field.scalar, &raw),
            None => Ok(default_of(schema, field.scalar)),
        },
        Shape::List => {
            let mut list = Vec::new();
            for raw in found {
                match raw {
                    Raw::Bytes(packed) if is_number(field.scalar) => {
                        let mut rest = packed;
                        while !rest.is_empty() {
                            let number = Raw::Number(next_number(field.scalar, &mut rest)?);
                            list.push(scalar(schema, field.scalar, &number)?);
                        }
                    }
                    raw => list.push(scalar(schema, field.scalar, &raw)?),
                }
            }
            Ok(Value::List(list.into()))
        }
        Shape::Map => {
            let (key, value) = schema.entry(field).ok_or(EvalError::Malformed)?;
            let entry = |raw| match raw {
                Raw::Bytes(bytes) => Ok((read(schema, bytes, key)?, read(schema, bytes, value)?)),
                Raw::Number(_) => Err(EvalError::Malformed),
            };
            let entries: Result<Vec<_>, EvalError> = found.into_iter().map(entry).collect();
            Ok(Value::Map(entries?.into()))
        }
    }
}

fn scalar<'a>(schema: &'a Schema, form: Scalar, raw: &Raw<'a>) -> Result<Value<'a>, EvalError> {
    Ok(match (form, raw) {
        (Scalar::Bool, Raw::Number(number)) => Value::Bool(*number != 0),
        (Scalar::Int { .. } | Scalar::Sfixed64, Raw::Number(number)) => Value::Int(number.cast_signed()),
        (Scalar::Sfixed32, Raw::Number(number)) => Value::Int(low(*number).cast_signed().into()),
        (Scalar::Sint { .. }, Raw::Number(number)) => {
            Value::Int((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
        }
        (Scalar::Uint { .. } | Scalar::Fixed32 | Scalar::Fixed64, Raw::Number(number)) => {
            Value::Uint(*number)
        }
        (Scalar::Float, Raw::Number(number)) => Value::Double(f32::from_bits(low(*number)).into()),
        (Scalar::Double, Raw::Number(number)) => Value::Double(f64::from_bits(*number)),
        (Scalar::String, Raw::Bytes(bytes)) => {
            Value::String(Cow::Borrowed(std::str::from_utf8(bytes).map_err(|_| EvalError::Malformed)?))
        }
        (Scalar::Bytes, Raw::Bytes(bytes)) => Value::Bytes(Cow::Borrowed(bytes)),
        (Scalar::Message(definition), Raw::Bytes(bytes)) => {
            Value::Message(Message::new(schema, definition, bytes))
        }
        (Scalar::Wrapper(definition), Raw::Bytes(bytes)) => {
            read(schema, bytes, schema.message(definition).fields.first().ok_or(EvalError::Malformed)?)?
        }
        (Scalar::Timestamp, Raw::Bytes(bytes)) => {
            let (seconds, nanos) = seconds(bytes)?;
            let time = i128::from(seconds) * NANOS + i128::from(nanos);
            Value::Timestamp(Some(time).filter(|time| TIMES.contains(time)).ok_or(EvalError::Overflow)?)
        }
        (Scalar::Duration, Raw::Bytes(bytes)) => {
            let (seconds, nanos) = seconds(bytes)?;
            let duration = i128::from(seconds) * NANOS + i128::from(nanos);
            Value::Duration(duration.try_into().map_err(|_| EvalError::Overflow)?)
        }
        _ => return Err(EvalError::Malformed),
    })
}

fn default_of(schema: &Schema, form: Scalar) -> Value<'_> {
    match form {
        Scalar::Bool => Value::Bool(false),
        Scalar::Int { .. } | Scalar::Sint { .. } | Scalar::Sfixed32 | Scalar::Sfixed64 => Value::Int(0),
        Scalar::Uint { .. } | Scalar::Fixed32 | Scalar::Fixed64 => Value::Uint(0),
        Scalar::Float | Scalar::Double => Value::Double(0.0),
        Scalar::String => Value::String(Cow::Borrowed("")),
        Scalar::Bytes => Value::Bytes(Cow::Borrowed(&[])),
        Scalar::Timestamp => Value::Timestamp(0),
        Scalar::Duration => Value::Duration(0),
        Scalar::Message(definition) => Value::Message(Message::new(schema, definition, &[])),
        Scalar::Wrapper(_) | Scalar::Unknown => Value::Null,
    }
}

/// Whether values of a form may be packed into one field.
pub(crate) fn is_number(scalar: Scalar) -> bool {
    !matches!(
        scalar,
        Scalar::String
            | Scalar::Bytes
            | Scalar::Message(_)
            | Scalar::Timestamp
            | Scalar::Duration
            | Scalar::Wrapper(_)
    )
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn low(number: u64) -> u32 {
    number as u32
}

/// Reads the fields of a time or a duration.
fn seconds(bytes: &[u8]) -> Result<(i64, i32), EvalError> {
    let (mut seconds, mut nanos) = (0, 0);
    for field in Fields(bytes) {
        match field? {
            (1, Raw::Number(number)) => seconds = number.cast_signed(),
            (2, Raw::Number(number)) => nanos = low(number).cast_signed(),
            _ => {}
        }
    }
    Ok((seconds, nanos))
}

fn next_number(scalar: Scalar, rest: &mut &[u8]) -> Result<u64, EvalError> {
    match scalar {
        Scalar::Fixed32 | Scalar::Sfixed32 | Scalar::Float => fixed32(rest),
        Scalar::Fixed64 | Scalar::Sfixed64 | Scalar::Double => fixed64(rest),
        _ => decode_varint(rest).map_err(|_| EvalError::Malformed),
    }
}

fn fixed32(rest: &mut &[u8]) -> Result<u64, EvalError> {
    let (number, tail) = rest.split_first_chunk().ok_or(EvalError::Malformed)?;
    *rest = tail;
    Ok(u32::from_le_bytes(*number).into())
}

fn fixed64(rest: &mut &[u8]) -> Result<u64, EvalError> {
    let (number, tail) = rest.split_first_chunk().ok_or(EvalError::Malformed)?;
    *rest = tail;
    Ok(u64::from_le_bytes(*number))
}

/// The fields of an encoded message, with their numbers.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Raw<'a>), EvalError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let found = self.field();
        if found.is_err() {
            self.0 = &[];
        }
        Some(found)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<(u32, Raw<'a>), EvalError> {
        let (number, kind) = decode_key(&mut self.0).map_err(|_| EvalError::Malformed)?;
        let raw = match kind {
            WireType::Varint => Raw::Number(decode_varint(&mut self.0).map_err(|_| EvalError::Malformed)?),
            WireType::SixtyFourBit => Raw::Number(fixed64(&mut self.0)?),
            WireType::ThirtyTwoBit => Raw::Number(fixed32(&mut self.0)?),
            WireType::LengthDelimited => {
                let length = decode_varint(&mut self.0).map_err(|_| EvalError::Malformed)?;
                let length = usize::try_from(length).map_err(|_| EvalError::Malformed)?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or(EvalError::Malformed)?;
                self.0 = rest;
                Raw::Bytes(bytes)
            }
            WireType::StartGroup | WireType::EndGroup => return Err(EvalError::Malformed),
        };
        Ok((number, raw))
    }
}
