//! The encoding of new messages.

use prost::encoding::{WireType, encode_key, encode_varint};

use crate::error::EvalError;
use crate::message::{NANOS, is_number};
use crate::schema::{Field, Scalar, Schema, Shape};
use crate::value::Value;

type Encoded = Result<(), EvalError>;

/// Appends a field; nothing for a default value, unless the field has presence.
pub(crate) fn field(schema: &Schema, field: &Field, value: &Value<'_>, to: &mut Vec<u8>) -> Encoded {
    match (field.shape, value) {
        (Shape::One, Value::Null) => Ok(()),
        (Shape::One, value) if is_default(value) && !field.has_presence && !is_message(field.scalar) => {
            Ok(())
        }
        (Shape::One, value) => one(schema, field.number, field.scalar, value, to),
        (Shape::List, Value::List(list)) if is_number(field.scalar) => {
            let mut packed = Vec::new();
            list.iter().try_for_each(|value| content(schema, field.scalar, value, &mut packed).map(drop))?;
            if !packed.is_empty() {
                delimited(field.number, &packed, to);
            }
            Ok(())
        }
        (Shape::List, Value::List(list)) => {
            list.iter().try_for_each(|value| one(schema, field.number, field.scalar, value, to))
        }
        (Shape::Map, Value::Map(entries)) => {
            let (key_field, value_field) = schema.entry(field).ok_or(EvalError::Malformed)?;
            entries.iter().try_for_each(|(key, value)| {
                let mut entry = Vec::new();
                one(schema, key_field.number, key_field.scalar, key, &mut entry)?;
                one(schema, value_field.number, value_field.scalar, value, &mut entry)?;
                delimited(field.number, &entry, to);
                Ok(())
            })
        }
        _ => Err(EvalError::NoOverload),
    }
}

/// Whether a form is a message on the wire, of which an empty one differs from none.
fn is_message(form: Scalar) -> bool {
    matches!(form, Scalar::Message(_) | Scalar::Wrapper(_) | Scalar::Timestamp | Scalar::Duration)
}

fn is_default(value: &Value<'_>) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::Int(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => value.to_bits() == 0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        _ => false,
    }
}

fn delimited(number: u32, bytes: &[u8], to: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, to);
    encode_varint(bytes.len() as u64, to);
    to.extend_from_slice(bytes);
}

/// Appends a single value with its key.
fn one(schema: &Schema, number: u32, form: Scalar, value: &Value<'_>, to: &mut Vec<u8>) -> Encoded {
    let mut bytes = Vec::new();
    match content(schema, form, value, &mut bytes)? {
        WireType::LengthDelimited => delimited(number, &bytes, to),
        kind => {
            encode_key(number, kind, to);
            to.append(&mut bytes);
        }
    }
    Ok(())
}

/// Appends a value without key and length; returns its kind on the wire.
fn content(
    schema: &Schema,
    form: Scalar,
    value: &Value<'_>,
    to: &mut Vec<u8>,
) -> Result<WireType, EvalError> {
    match (form, value) {
        (Scalar::Bool, Value::Bool(value)) => encode_varint((*value).into(), to),
        (Scalar::Int { bits: 32 }, Value::Int(value)) => {
            let value = i32::try_from(*value).map_err(|_| EvalError::Overflow)?;
            encode_varint(i64::from(value).cast_unsigned(), to);
        }
        (Scalar::Int { .. }, Value::Int(value)) => encode_varint(value.cast_unsigned(), to),
        (Scalar::Sint { bits }, Value::Int(value)) => {
            if bits == 32 && i32::try_from(*value).is_err() {
                return Err(EvalError::Overflow);
            }
            encode_varint(((value << 1) ^ (value >> 63)).cast_unsigned(), to);
        }
        (Scalar::Uint { bits }, Value::Uint(value)) => {
            if bits == 32 && u32::try_from(*value).is_err() {
                return Err(EvalError::Overflow);
            }
            encode_varint(*value, to);
        }
        (Scalar::Fixed32, Value::Uint(value)) => {
            let value = u32::try_from(*value).map_err(|_| EvalError::Overflow)?;
            to.extend(value.to_le_bytes());
            return Ok(WireType::ThirtyTwoBit);
        }
        (Scalar::Sfixed32, Value::Int(value)) => {
            let value = i32::try_from(*value).map_err(|_| EvalError::Overflow)?;
            to.extend(value.to_le_bytes());
            return Ok(WireType::ThirtyTwoBit);
        }
        #[expect(clippy::cast_possible_truncation, reason = "the nearest number, as the language defines it")]
        (Scalar::Float, Value::Double(value)) => {
            to.extend((*value as f32).to_le_bytes());
            return Ok(WireType::ThirtyTwoBit);
        }
        (Scalar::Fixed64, Value::Uint(value)) => {
            to.extend(value.to_le_bytes());
            return Ok(WireType::SixtyFourBit);
        }
        (Scalar::Sfixed64, Value::Int(value)) => {
            to.extend(value.to_le_bytes());
            return Ok(WireType::SixtyFourBit);
        }
        (Scalar::Double, Value::Double(value)) => {
            to.extend(value.to_le_bytes());
            return Ok(WireType::SixtyFourBit);
        }
        _ => return delimited_content(schema, form, value, to),
    }
    Ok(WireType::Varint)
}

/// Appends a value that has a length on the wire.
fn delimited_content(
    schema: &Schema,
    form: Scalar,
    value: &Value<'_>,
    to: &mut Vec<u8>,
) -> Result<WireType, EvalError> {
    match (form, value) {
        (Scalar::String, Value::String(text)) => to.extend_from_slice(text.as_bytes()),
        (Scalar::Bytes, Value::Bytes(bytes)) => to.extend_from_slice(bytes),
        (Scalar::Message(definition), Value::Message(message)) if message.definition == definition => {
            to.extend_from_slice(message.encoded());
        }
        (Scalar::Wrapper(definition), value) => {
            let inner = schema.message(definition).fields.first().ok_or(EvalError::Malformed)?;
            field(schema, inner, value, to)?;
        }
        (Scalar::Timestamp, Value::Timestamp(time)) => {
            seconds(time.div_euclid(NANOS), time.rem_euclid(NANOS), to)?
        }
        (Scalar::Duration, Value::Duration(nanos)) => {
            seconds(i128::from(*nanos) / NANOS, i128::from(*nanos) % NANOS, to)?;
        }
        _ => return Err(EvalError::NoOverload),
    }
    Ok(WireType::LengthDelimited)
}

/// Appends the fields of a time or a duration.
fn seconds(seconds: i128, nanos: i128, to: &mut Vec<u8>) -> Encoded {
    for (number, value) in [(1, seconds), (2, nanos)] {
        let value = i64::try_from(value).map_err(|_| EvalError::Overflow)?;
        if value != 0 {
            encode_key(number, WireType::Varint, to);
            encode_varint(value.cast_unsigned(), to);
        }
    }
    Ok(())
}
