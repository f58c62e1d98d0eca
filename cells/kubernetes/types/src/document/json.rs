//! Concatenated JSON documents. A duplicate name in an object is a fault.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{Fault, Read, Reads};
use crate::problem::Problem;

/// Parses the documents up to the first fault; an error if that is in the first one.
pub(super) fn read(text: &str) -> Result<Reads<'_>, Fault> {
    let mut reads: Reads<'_> = Vec::new();
    let mut rest = text;
    let mut line = 1;
    loop {
        let blank = rest.len() - rest.trim_start().len();
        line += newlines(&rest[..blank]);
        rest = &rest[blank..];
        if rest.is_empty() {
            return Ok(reads);
        }
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Node>();
        let next = stream.next();
        let end = stream.byte_offset();
        match next {
            None => return Ok(reads),
            Some(Ok(Node(value))) => {
                reads.push(Ok(Read { line, value, text: &rest[..end], text_line: line }));
                line += newlines(&rest[..end]);
                rest = &rest[end..];
            }
            Some(Err(error)) => {
                let at = line + error.line().max(1) - 1;
                let fault =
                    Fault { line: at, problem: Problem::new("", format_args!("is no JSON: {error}")) };
                if reads.is_empty() {
                    return Err(fault);
                }
                reads.push(Err(fault));
                return Ok(reads);
            }
        }
    }
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b'\n').count()
}

/// A value without duplicate names.
pub(super) struct Node(pub(super) Value);

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor).map(Node)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Node(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if all.contains_key(&name) {
                return Err(A::Error::custom(format_args!("{name:?} is given twice; remove one")));
            }
            let Node(value) = members.next_value()?;
            all.insert(name, value);
        }
        Ok(Value::Object(all))
    }
}
