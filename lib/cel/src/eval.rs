//! The evaluator of checked expressions, within a limit of work.

use std::borrow::Cow;

use jiff::tz::TimeZone;

use crate::check::{Constant, Macro, Node};
use crate::error::EvalError;
use crate::function::{Function, Part};
use crate::message::NANOS;
use crate::schema::Schema;
use crate::value::{Value, entry, to_int, to_uint};
use crate::zone::offset;
use crate::{encode, message};

/// Bytes of texts and lists that cost as much as an expression.
const BYTES_PER_STEP: usize = 16;

/// An evaluation.
pub(crate) struct Evaluation<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) variables: Vec<Value<'a>>,
    /// Work that is left.
    pub(crate) steps: usize,
}

type Result<'a> = std::result::Result<Value<'a>, EvalError>;

impl<'a> Evaluation<'a> {
    fn spend(&mut self, steps: usize) -> std::result::Result<(), EvalError> {
        self.steps = self.steps.checked_sub(steps).ok_or(EvalError::TooExpensive)?;
        Ok(())
    }

    /// Charges for a value that is gone through.
    fn charge(&mut self, value: &Value<'_>) -> std::result::Result<(), EvalError> {
        self.spend(weight(value))
    }

    /// Evaluates an expression.
    pub(crate) fn value(&mut self, node: &'a Node) -> Result<'a> {
        self.spend(1)?;
        match node {
            Node::Constant(constant) => Ok(match constant {
                Constant::Null => Value::Null,
                Constant::Bool(value) => Value::Bool(*value),
                Constant::Int(value) => Value::Int(*value),
                Constant::Uint(value) => Value::Uint(*value),
                Constant::Double(value) => Value::Double(*value),
                Constant::String(text) => Value::String(Cow::Borrowed(text)),
                Constant::Bytes(bytes) => Value::Bytes(Cow::Borrowed(bytes)),
                Constant::Type(name) => Value::Type(name.clone()),
            }),
            Node::Variable(at) => Ok(self.variables[*at].clone()),
            Node::Field(operand, field) => match self.value(operand)? {
                Value::Message(message) => {
                    self.spend(message.len() / BYTES_PER_STEP)?;
                    let value = message.get(field)?;
                    // A message within is only cut out.
                    if !matches!(value, Value::Message(_)) {
                        self.charge(&value)?;
                    }
                    Ok(value)
                }
                _ => Err(EvalError::NoOverload),
            },
            Node::Has(operand, field) => match self.value(operand)? {
                Value::Message(message) => {
                    self.spend(message.len() / BYTES_PER_STEP)?;
                    message.has(field).map(Value::Bool)
                }
                _ => Err(EvalError::NoOverload),
            },
            Node::Key(operand, key) => match self.value(operand)? {
                Value::Map(entries) => {
                    self.spend(entries.len())?;
                    entry(&entries, &Value::String(Cow::Borrowed(key))).cloned().ok_or(EvalError::NoSuchKey)
                }
                _ => Err(EvalError::NoOverload),
            },
            Node::HasKey(operand, key) => match self.value(operand)? {
                Value::Map(entries) => {
                    self.spend(entries.len())?;
                    Ok(Value::Bool(entry(&entries, &Value::String(Cow::Borrowed(key))).is_some()))
                }
                _ => Err(EvalError::NoOverload),
            },
            Node::And(pair) => self.either(pair, false),
            Node::Or(pair) => self.either(pair, true),
            Node::Conditional(parts) => {
                let [condition, then, other] = &**parts;
                let chosen = if self.boolean(condition)? { then } else { other };
                self.value(chosen)
            }
            Node::Call(function, nodes) => {
                let values: std::result::Result<Vec<_>, _> =
                    nodes.iter().map(|node| self.value(node)).collect();
                let values = values?;
                values.iter().try_for_each(|value| self.charge(value))?;
                call(*function, &values)
            }
            Node::Matches(text, pattern) => match self.value(text)? {
                Value::String(text) => {
                    self.spend(text.len())?;
                    Ok(Value::Bool(pattern.is_match(&text)))
                }
                _ => Err(EvalError::NoOverload),
            },
            Node::List(nodes) => {
                let list: std::result::Result<Vec<_>, _> =
                    nodes.iter().map(|node| self.value(node)).collect();
                Ok(Value::List(list?.into()))
            }
            Node::Map(nodes) => {
                let mut entries: Vec<(Value<'a>, Value<'a>)> = Vec::new();
                for (key, value) in nodes {
                    let (key, value) = (self.value(key)?, self.value(value)?);
                    self.spend(entries.len())?;
                    if entry(&entries, &key).is_some() {
                        return Err(EvalError::NoSuchKey);
                    }
                    entries.push((key, value));
                }
                Ok(Value::Map(entries.into()))
            }
            Node::Message(form, fields) => {
                let mut bytes = Vec::new();
                for (field, node) in fields {
                    let value = self.value(node)?;
                    self.charge(&value)?;
                    encode::field(self.schema, field, &value, &mut bytes)?;
                }
                self.spend(bytes.len() / BYTES_PER_STEP)?;
                message::made(self.schema, *form, &bytes)
            }
            Node::Zoned(part, time, zone) => match self.value(time)? {
                time @ Value::Timestamp(_) => part_of(*part, &time, zone),
                _ => Err(EvalError::NoOverload),
            },
            Node::Macro(of, range, parts) => self.comprehension(*of, range, parts),
        }
    }

    /// Evaluates a condition.
    pub(crate) fn boolean(&mut self, node: &'a Node) -> std::result::Result<bool, EvalError> {
        match self.value(node)? {
            Value::Bool(value) => Ok(value),
            _ => Err(EvalError::NoOverload),
        }
    }

    /// Evaluates `&&` or `||`: a side that decides does so whatever the other one is, an error too.
    fn either(&mut self, [one, other]: &'a [Node; 2], decides: bool) -> Result<'a> {
        let first = self.boolean(one);
        if first == Ok(decides) {
            return Ok(Value::Bool(decides));
        }
        match (first, self.boolean(other)) {
            (_, Ok(second)) if second == decides => Ok(Value::Bool(decides)),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(_), Ok(_)) => Ok(Value::Bool(!decides)),
        }
    }

    fn comprehension(&mut self, of: Macro, range: &'a Node, parts: &'a [Node]) -> Result<'a> {
        let elements: Vec<Value<'a>> = match self.value(range)? {
            Value::List(list) => list.to_vec(),
            Value::Map(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
            _ => return Err(EvalError::NoOverload),
        };
        self.spend(elements.len())?;
        let (mut kept, mut count, mut failure) = (Vec::new(), 0_usize, None);
        for element in elements {
            self.variables.push(element.clone());
            let result = self.element(of, parts);
            self.variables.pop();
            match (of, result) {
                // As of `&&` and `||`: an element that decides does so in spite of errors of others.
                (Macro::All, Ok(Value::Bool(false))) => return Ok(Value::Bool(false)),
                (Macro::Exists, Ok(Value::Bool(true))) => return Ok(Value::Bool(true)),
                (_, Err(EvalError::TooExpensive)) => return Err(EvalError::TooExpensive),
                (Macro::All | Macro::Exists, Err(error)) => failure = Some(error),
                (_, Err(error)) => return Err(error),
                (Macro::ExistsOne, Ok(Value::Bool(true))) => count += 1,
                (Macro::Filter, Ok(Value::Bool(true))) => kept.push(element),
                (Macro::Map, Ok(Value::List(value))) => kept.extend(value.iter().cloned()),
                _ => {}
            }
        }
        match (of, failure) {
            (_, Some(error)) => Err(error),
            (Macro::All, None) => Ok(Value::Bool(true)),
            (Macro::Exists, None) => Ok(Value::Bool(false)),
            (Macro::ExistsOne, None) => Ok(Value::Bool(count == 1)),
            (Macro::Filter | Macro::Map, None) => Ok(Value::List(kept.into())),
        }
    }

    /// Evaluates the parts of a macro for an element: a condition, or a list of the new values.
    fn element(&mut self, of: Macro, parts: &'a [Node]) -> Result<'a> {
        match (of, parts) {
            (Macro::Map, [new]) => Ok(Value::List([self.value(new)?].into())),
            (Macro::Map, [condition, new]) => match self.boolean(condition)? {
                true => Ok(Value::List([self.value(new)?].into())),
                false => Ok(Value::List([].into())),
            },
            (_, [condition]) => self.boolean(condition).map(Value::Bool),
            _ => Err(EvalError::NoOverload),
        }
    }
}

/// Returns the cost of going through a value.
fn weight(value: &Value<'_>) -> usize {
    match value {
        Value::String(text) => text.len() / BYTES_PER_STEP,
        Value::Bytes(bytes) => bytes.len() / BYTES_PER_STEP,
        Value::Message(message) => message.len() / BYTES_PER_STEP,
        Value::List(list) => list.len() + list.iter().map(weight).sum::<usize>(),
        Value::Map(map) => {
            map.len() + map.iter().map(|(key, value)| weight(key) + weight(value)).sum::<usize>()
        }
        _ => 0,
    }
}

/// Calls a function.
fn call<'a>(function: Function, values: &[Value<'a>]) -> Result<'a> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    match (function, values) {
        (Function::Not, [Value::Bool(value)]) => Ok(Value::Bool(!value)),
        (Function::Negate, [Value::Int(value)]) => {
            value.checked_neg().map(Value::Int).ok_or(EvalError::Overflow)
        }
        (Function::Negate, [Value::Double(value)]) => Ok(Value::Double(-value)),
        (Function::Equal, [a, b]) => Ok(Value::Bool(a.is_equal(b))),
        (Function::NotEqual, [a, b]) => Ok(Value::Bool(!a.is_equal(b))),
        (Function::Less | Function::LessEqual | Function::Greater | Function::GreaterEqual, [a, b]) => {
            // A number that is none is not less, equal or greater.
            let is_nan = |value: &Value<'_>| matches!(value, Value::Double(value) if value.is_nan());
            let Some(order) = a.compare(b) else {
                return if is_nan(a) || is_nan(b) {
                    Ok(Value::Bool(false))
                } else {
                    Err(EvalError::NoOverload)
                };
            };
            let orders: &[_] = match function {
                Function::Less => &[Less],
                Function::LessEqual => &[Less, Equal],
                Function::Greater => &[Greater],
                _ => &[Greater, Equal],
            };
            Ok(Value::Bool(orders.contains(&order)))
        }
        (Function::In, [value, Value::List(list)]) => {
            Ok(Value::Bool(list.iter().any(|other| other.is_equal(value))))
        }
        (Function::In, [value, Value::Map(entries)]) => Ok(Value::Bool(entry(entries, value).is_some())),
        (Function::Index, [Value::Map(entries), key]) => {
            entry(entries, key).cloned().ok_or(EvalError::NoSuchKey)
        }
        (Function::Index, [Value::List(list), index]) => {
            let index = match index {
                Value::Int(index) => usize::try_from(*index).ok(),
                Value::Uint(index) => usize::try_from(*index).ok(),
                Value::Double(index) => {
                    to_uint(*index).filter(|_| index.fract() == 0.0).and_then(|index| index.try_into().ok())
                }
                _ => return Err(EvalError::NoOverload),
            };
            index.and_then(|index| list.get(index)).cloned().ok_or(EvalError::NoSuchKey)
        }
        (Function::Size, [value]) => {
            let size = match value {
                Value::String(text) => text.chars().count(),
                Value::Bytes(bytes) => bytes.len(),
                Value::List(list) => list.len(),
                Value::Map(map) => map.len(),
                _ => return Err(EvalError::NoOverload),
            };
            i64::try_from(size).map(Value::Int).map_err(|_| EvalError::Overflow)
        }
        (Function::Contains, [Value::String(text), Value::String(part)]) => {
            Ok(Value::Bool(text.contains(&**part)))
        }
        (Function::StartsWith, [Value::String(text), Value::String(part)]) => {
            Ok(Value::Bool(text.starts_with(&**part)))
        }
        (Function::EndsWith, [Value::String(text), Value::String(part)]) => {
            Ok(Value::Bool(text.ends_with(&**part)))
        }
        (Function::Part(part), [value]) => part_of(part, value, &TimeZone::UTC),
        (Function::Part(part), [value @ Value::Timestamp(_), Value::String(zone)]) => {
            part_of(part, value, &offset(zone).ok_or(EvalError::Conversion)?)
        }
        (Function::ToDyn, [value]) => Ok(value.clone()),
        (Function::TypeOf, [value]) => Ok(Value::Type(type_name(value).into())),
        (
            Function::Add | Function::Subtract | Function::Multiply | Function::Divide | Function::Remainder,
            [a, b],
        ) => arithmetic(function, a, b),
        (_, [value]) => convert(function, value),
        _ => Err(EvalError::NoOverload),
    }
}

fn arithmetic<'a>(function: Function, a: &Value<'a>, b: &Value<'a>) -> Result<'a> {
    use Function::{Add, Divide, Multiply, Remainder, Subtract};
    let overflow = |value: Option<Value<'a>>| value.ok_or(EvalError::Overflow);
    let time = |time: i128| {
        const TIMES: std::ops::Range<i128> = -62_135_596_800 * NANOS..253_402_300_800 * NANOS;
        TIMES.contains(&time).then_some(Value::Timestamp(time)).ok_or(EvalError::Overflow)
    };
    match (function, a, b) {
        (Divide | Remainder, Value::Int(_), Value::Int(0))
        | (Divide | Remainder, Value::Uint(_), Value::Uint(0)) => Err(EvalError::DivisionByZero),
        (Add, Value::Int(a), Value::Int(b)) => overflow(a.checked_add(*b).map(Value::Int)),
        (Subtract, Value::Int(a), Value::Int(b)) => overflow(a.checked_sub(*b).map(Value::Int)),
        (Multiply, Value::Int(a), Value::Int(b)) => overflow(a.checked_mul(*b).map(Value::Int)),
        (Divide, Value::Int(a), Value::Int(b)) => overflow(a.checked_div(*b).map(Value::Int)),
        (Remainder, Value::Int(a), Value::Int(b)) => overflow(a.checked_rem(*b).map(Value::Int)),
        (Add, Value::Uint(a), Value::Uint(b)) => overflow(a.checked_add(*b).map(Value::Uint)),
        (Subtract, Value::Uint(a), Value::Uint(b)) => overflow(a.checked_sub(*b).map(Value::Uint)),
        (Multiply, Value::Uint(a), Value::Uint(b)) => overflow(a.checked_mul(*b).map(Value::Uint)),
        (Divide, Value::Uint(a), Value::Uint(b)) => overflow(a.checked_div(*b).map(Value::Uint)),
        (Remainder, Value::Uint(a), Value::Uint(b)) => overflow(a.checked_rem(*b).map(Value::Uint)),
        (Add, Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Subtract, Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        (Multiply, Value::Double(a), Value::Double(b)) => Ok(Value::Double(a * b)),
        (Divide, Value::Double(a), Value::Double(b)) => Ok(Value::Double(a / b)),
        (Add, Value::String(a), Value::String(b)) => Ok(Value::String(format!("{a}{b}").into())),
        (Add, Value::Bytes(a), Value::Bytes(b)) => Ok(Value::Bytes([&a[..], &b[..]].concat().into())),
        (Add, Value::List(a), Value::List(b)) => Ok(Value::List(a.iter().chain(b.iter()).cloned().collect())),
        (Add, Value::Duration(a), Value::Duration(b)) => overflow(a.checked_add(*b).map(Value::Duration)),
        (Subtract, Value::Duration(a), Value::Duration(b)) => {
            overflow(a.checked_sub(*b).map(Value::Duration))
        }
        (Add, Value::Timestamp(a), Value::Duration(b)) | (Add, Value::Duration(b), Value::Timestamp(a)) => {
            time(a + i128::from(*b))
        }
        (Subtract, Value::Timestamp(a), Value::Duration(b)) => time(a - i128::from(*b)),
        (Subtract, Value::Timestamp(a), Value::Timestamp(b)) => {
            overflow((a - b).try_into().ok().map(Value::Duration))
        }
        _ => Err(EvalError::NoOverload),
    }
}

/// Returns a part of a time in a zone, or of a duration, which is cut towards zero.
fn part_of<'a>(part: Part, value: &Value<'a>, zone: &TimeZone) -> Result<'a> {
    let number = match value {
        Value::Timestamp(time) => {
            let time = jiff::Timestamp::from_nanosecond(*time).map_err(|_| EvalError::Overflow)?;
            let date = zone.to_datetime(time);
            match part {
                Part::FullYear => i64::from(date.year()),
                Part::Month => i64::from(date.month()) - 1,
                Part::DayOfYear => i64::from(date.day_of_year()) - 1,
                Part::DayOfMonth => i64::from(date.day()) - 1,
                Part::Date => i64::from(date.day()),
                Part::DayOfWeek => i64::from(date.weekday().to_sunday_zero_offset()),
                Part::Hours => i64::from(date.hour()),
                Part::Minutes => i64::from(date.minute()),
                Part::Seconds => i64::from(date.second()),
                Part::Milliseconds => i64::from(date.millisecond()),
            }
        }
        Value::Duration(nanos) => match part {
            Part::Hours => nanos / 3_600_000_000_000,
            Part::Minutes => nanos / 60_000_000_000,
            Part::Seconds => nanos / 1_000_000_000,
            // All of them, as in Go's implementation.
            Part::Milliseconds => nanos / 1_000_000,
            _ => return Err(EvalError::NoOverload),
        },
        _ => return Err(EvalError::NoOverload),
    };
    Ok(Value::Int(number))
}

fn convert<'a>(function: Function, value: &Value<'a>) -> Result<'a> {
    let overflow = |value: Option<Value<'a>>| value.ok_or(EvalError::Overflow);
    match (function, value) {
        (Function::ToInt, Value::Int(_))
        | (Function::ToUint, Value::Uint(_))
        | (Function::ToDouble, Value::Double(_))
        | (Function::ToString, Value::String(_))
        | (Function::ToBytes, Value::Bytes(_))
        | (Function::ToDuration, Value::Duration(_))
        | (Function::ToTimestamp, Value::Timestamp(_)) => Ok(value.clone()),
        (Function::ToInt, Value::Uint(value)) => overflow(i64::try_from(*value).ok().map(Value::Int)),
        (Function::ToInt, Value::Double(value)) => overflow(to_int(*value).map(Value::Int)),
        (Function::ToInt, Value::String(text)) => {
            text.parse().map(Value::Int).map_err(|_| EvalError::Conversion)
        }
        (Function::ToInt, Value::Timestamp(time)) => {
            overflow(i64::try_from(time.div_euclid(NANOS)).ok().map(Value::Int))
        }
        (Function::ToUint, Value::Int(value)) => overflow(u64::try_from(*value).ok().map(Value::Uint)),
        (Function::ToUint, Value::Double(value)) => overflow(to_uint(*value).map(Value::Uint)),
        (Function::ToUint, Value::String(text)) => {
            text.parse().map(Value::Uint).map_err(|_| EvalError::Conversion)
        }
        #[expect(clippy::cast_precision_loss, reason = "as the language defines it: the nearest number")]
        (Function::ToDouble, Value::Int(value)) => Ok(Value::Double(*value as f64)),
        #[expect(clippy::cast_precision_loss, reason = "as the language defines it: the nearest number")]
        (Function::ToDouble, Value::Uint(value)) => Ok(Value::Double(*value as f64)),
        (Function::ToDouble, Value::String(text)) => {
            text.parse().map(Value::Double).map_err(|_| EvalError::Conversion)
        }
        (Function::ToString, Value::Bool(value)) => Ok(Value::String(value.to_string().into())),
        (Function::ToString, Value::Int(value)) => Ok(Value::String(value.to_string().into())),
        (Function::ToString, Value::Uint(value)) => Ok(Value::String(value.to_string().into())),
        (Function::ToString, Value::Double(value)) => Ok(Value::String(value.to_string().into())),
        (Function::ToString, Value::Bytes(bytes)) => {
            let text = std::str::from_utf8(bytes).map_err(|_| EvalError::Conversion)?;
            Ok(Value::String(text.to_owned().into()))
        }
        (Function::ToBytes, Value::String(text)) => Ok(Value::Bytes(text.as_bytes().to_vec().into())),
        (Function::ToDuration, Value::String(text)) => {
            duration(text).map(Value::Duration).ok_or(EvalError::Conversion)
        }
        (Function::ToString, Value::Timestamp(time)) => {
            let time = jiff::Timestamp::from_nanosecond(*time).map_err(|_| EvalError::Overflow)?;
            Ok(Value::String(time.to_string().into()))
        }
        #[expect(clippy::cast_precision_loss, reason = "as Go writes it: the nearest number of seconds")]
        (Function::ToString, Value::Duration(nanos)) => {
            Ok(Value::String(format!("{}s", *nanos as f64 / 1e9).into()))
        }
        (Function::ToTimestamp, Value::String(text)) => {
            let time: jiff::Timestamp = text.parse().map_err(|_| EvalError::Conversion)?;
            Ok(Value::Timestamp(time.as_nanosecond()))
        }
        (Function::ToTimestamp, Value::Int(seconds)) => {
            arithmetic(Function::Add, &Value::Timestamp(i128::from(*seconds) * NANOS), &Value::Duration(0))
        }
        _ => Err(EvalError::NoOverload),
    }
}

/// Parses a duration as Go writes it: `1h30m`, `-1.5s`.
fn duration(text: &str) -> Option<i64> {
    const UNITS: [(&str, f64); 7] =
        [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut sum = 0_i64;
    loop {
        let length = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(length);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == &tail[..end])?;
        sum = sum.checked_add(to_int((number.parse::<f64>().ok()? * unit).round())?)?;
        rest = &tail[end..];
        if rest.is_empty() {
            return Some(sign * sum);
        }
    }
}

fn type_name(value: &Value<'_>) -> String {
    let name = match value {
        Value::Null => "null_type",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Uint(_) => "uint",
        Value::Double(_) => "double",
        Value::String(_) => "string",
        Value::Bytes(_) => "bytes",
        Value::Timestamp(_) => "google.protobuf.Timestamp",
        Value::Duration(_) => "google.protobuf.Duration",
        Value::List(_) => "list",
        Value::Map(_) => "map",
        Value::Message(message) => message.type_name(),
        Value::Type(_) => "type",
    };
    name.to_owned()
}
