//! Values of expressions.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use crate::message::Message;
use crate::schema::Schema;

/// A value; texts and messages may be those of the input.
#[derive(Clone, Debug)]
pub(crate) enum Value<'a> {
    /// `null`, also a wrapper that is not set.
    Null,
    /// A boolean.
    Bool(bool),
    /// A signed integer, also the number of an enum.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A text.
    String(Cow<'a, str>),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
    /// A time, in nanoseconds since 1970.
    Timestamp(i128),
    /// A duration in nanoseconds.
    Duration(i64),
    /// A list.
    List(Rc<[Value<'a>]>),
    /// A map, in the order of its entries.
    Map(Rc<[(Value<'a>, Value<'a>)]>),
    /// A message.
    Message(Message<'a>),
    /// A type, by its name.
    Type(Arc<str>),
}

/// The limit of exact integers in a floating-point number.
const INT_LIMIT: f64 = 9_223_372_036_854_775_808.0;
const UINT_LIMIT: f64 = 18_446_744_073_709_551_616.0;

impl Value<'_> {
    /// Returns the value with texts, bytes and messages of its own.
    pub(crate) fn into_made(self, schema: &Schema) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::Int(value) => Value::Int(value),
            Self::Uint(value) => Value::Uint(value),
            Self::Double(value) => Value::Double(value),
            Self::Timestamp(value) => Value::Timestamp(value),
            Self::Duration(value) => Value::Duration(value),
            Self::Type(name) => Value::Type(name),
            Self::String(text) => Value::String(Cow::Owned(text.into_owned())),
            Self::Bytes(bytes) => Value::Bytes(Cow::Owned(bytes.into_owned())),
            Self::Message(message) => Value::Message(message.into_made(schema)),
            Self::List(list) => {
                Value::List(list.iter().map(|value| value.clone().into_made(schema)).collect())
            }
            Self::Map(entries) => {
                let made = |value: &Value<'_>| value.clone().into_made(schema);
                Value::Map(entries.iter().map(|(key, value)| (made(key), made(value))).collect())
            }
        }
    }

    /// Compares as `==` does: numbers of different types by value, other values of different types are not equal.
    pub(crate) fn is_equal(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::String(a), Self::String(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::List(a), Self::List(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.is_equal(b))
            }
            (Self::Map(a), Self::Map(b)) => {
                a.len() == b.len()
                    && a.iter().all(|(key, value)| entry(b, key).is_some_and(|other| value.is_equal(other)))
            }
            (Self::Message(a), Self::Message(b)) => a.is_equal(b),
            _ => self.compare(other) == Some(Ordering::Equal),
        }
    }

    /// Compares as `<` does; `None` for values without an order.
    pub(crate) fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::String(a), Self::String(b)) => Some(a.cmp(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Some(a.cmp(b)),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Uint(a), Self::Uint(b)) => Some(a.cmp(b)),
            (Self::Double(a), Self::Double(b)) => a.partial_cmp(b),
            (Self::Int(a), Self::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Uint(a), Self::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Int(a), Self::Double(b)) => with_double((*a).into(), *b),
            (Self::Uint(a), Self::Double(b)) => with_double((*a).into(), *b),
            (Self::Double(a), Self::Int(b)) => with_double((*b).into(), *a).map(Ordering::reverse),
            (Self::Double(a), Self::Uint(b)) => with_double((*b).into(), *a).map(Ordering::reverse),
            _ => None,
        }
    }
}

/// Returns the value of a key of a map.
pub(crate) fn entry<'v, 'a>(entries: &'v [(Value<'a>, Value<'a>)], key: &Value<'_>) -> Option<&'v Value<'a>> {
    entries.iter().find(|(known, _)| known.is_equal(key)).map(|(_, value)| value)
}

/// Compares an integer with a floating-point number without rounding the former.
fn with_double(integer: i128, double: f64) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    if double >= UINT_LIMIT {
        return Some(Ordering::Less);
    }
    if double < -INT_LIMIT {
        return Some(Ordering::Greater);
    }
    #[expect(clippy::cast_possible_truncation, reason = "within the range, checked above")]
    let whole = double.trunc() as i128;
    Some(integer.cmp(&whole).then_with(|| 0.0_f64.partial_cmp(&double.fract()).unwrap_or(Ordering::Equal)))
}

/// Converts a floating-point number to an integer, toward zero; `None` out of its range.
pub(crate) fn to_int(double: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "within the range")]
    (double > -INT_LIMIT && double < INT_LIMIT).then_some(double as i64)
}

/// Converts a floating-point number to an unsigned integer, toward zero; `None` out of its range.
pub(crate) fn to_uint(double: f64) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the range")]
    (0.0..UINT_LIMIT).contains(&double).then_some(double as u64)
}
