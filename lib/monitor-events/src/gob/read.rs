//! The reader of a stream.

use std::collections::BTreeMap;

use super::{GobError, MAX_DEPTH, MAX_MESSAGE, MAX_TYPES, Struct, Value};

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, len: u64) -> Result<&'a [u8], GobError> {
        let len = usize::try_from(len).map_err(|_| GobError::Short)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(GobError::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn uint(&mut self) -> Result<u64, GobError> {
        let first = self.bytes(1)?[0];
        if first < 128 {
            return Ok(u64::from(first));
        }
        let len = 256 - u64::from(first);
        if len > 8 {
            return Err(GobError::Number);
        }
        Ok(self.bytes(len)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn int(&mut self) -> Result<i64, GobError> {
        let value = self.uint()?;
        let magnitude = (value >> 1) as i64;
        Ok(if value & 1 == 1 { !magnitude } else { magnitude })
    }

    fn text(&mut self) -> Result<String, GobError> {
        let len = self.uint()?;
        Ok(String::from_utf8_lossy(self.bytes(len)?).into_owned())
    }

    /// Returns the next field's number, from 1 on; `None` at the end of the struct.
    fn field(&mut self, last: u64) -> Result<Option<u64>, GobError> {
        match self.uint()? {
            0 => Ok(None),
            delta => last.checked_add(delta).map(Some).ok_or(GobError::Field),
        }
    }
}

/// A type of a stream, with the ids of the types that it consists of.
#[derive(Clone, Debug)]
enum Definition {
    /// The names and types of fields.
    Struct(Vec<(String, i64)>),
    /// The type of elements.
    List(i64),
    /// The types of keys and values.
    Map(i64, i64),
    /// A type that writes itself as bytes.
    Bytes,
}

/// Reads a stream of structs.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
    /// The part of `buffer` that was read.
    read: usize,
    types: Types,
}

impl Reader {
    /// Adds bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.read);
        self.read = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next value; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The stream is invalid; it cannot be continued.
    pub fn next_value(&mut self) -> Result<Option<Struct>, GobError> {
        loop {
            let rest = &self.buffer[self.read..];
            let mut cursor = Cursor(rest);
            let len = match cursor.uint() {
                Ok(len) if len > MAX_MESSAGE as u64 => return Err(GobError::Large(len)),
                Ok(len) => len,
                Err(GobError::Short) => return Ok(None),
                Err(error) => return Err(error),
            };
            let Ok(body) = cursor.bytes(len) else { return Ok(None) };
            self.read += rest.len() - cursor.0.len();
            let mut body = Cursor(body);
            match body.int()? {
                id if id < 0 => {
                    if self.types.len() >= MAX_TYPES {
                        return Err(GobError::Types);
                    }
                    let definition = definition(&mut body)?;
                    self.types.insert(id.checked_neg().ok_or(GobError::Definition)?, definition);
                }
                id => {
                    let Some(Definition::Struct(fields)) = self.types.get(&id) else {
                        return Err(GobError::Type(id));
                    };
                    return structure(&mut body, fields, &self.types, 0).map(Some);
                }
            }
        }
    }
}

/// Reads a definition: its kind is the number of the one field that the description of a type has.
fn definition(body: &mut Cursor<'_>) -> Result<Definition, GobError> {
    const ARRAY: u64 = 1;
    const SLICE: u64 = 2;
    const STRUCT: u64 = 3;
    const MAP: u64 = 4;
    let kind = body.field(0)?.ok_or(GobError::Definition)?;
    let (mut fields, mut ids, mut last) = (Vec::new(), [0; 2], 0);
    while let Some(number) = body.field(last)? {
        last = number;
        match (kind, number) {
            (_, 1) => drop(name_and_id(body)?),
            (STRUCT, 2) => {
                let count = body.uint()?;
                // Each has a byte at least, so that the count cannot be larger than the message.
                for _ in 0..count {
                    fields.push(name_and_id(body)?);
                }
            }
            (ARRAY | SLICE | MAP, 2) => ids[0] = body.int()?,
            // For an array its length, which values have as well.
            (ARRAY | MAP, 3) => ids[1] = body.int()?,
            _ => return Err(GobError::Definition),
        }
    }
    Ok(match kind {
        STRUCT => Definition::Struct(fields),
        ARRAY | SLICE => Definition::List(ids[0]),
        MAP => Definition::Map(ids[0], ids[1]),
        _ => Definition::Bytes,
    })
}

fn name_and_id(body: &mut Cursor<'_>) -> Result<(String, i64), GobError> {
    let (mut name, mut id, mut last) = (String::new(), 0, 0);
    while let Some(number) = body.field(last)? {
        last = number;
        match number {
            1 => name = body.text()?,
            2 => id = body.int()?,
            _ => return Err(GobError::Definition),
        }
    }
    Ok((name, id))
}

type Types = BTreeMap<i64, Definition>;

fn structure(
    body: &mut Cursor<'_>,
    definition: &[(String, i64)],
    types: &Types,
    depth: usize,
) -> Result<Struct, GobError> {
    let (mut fields, mut last) = (Struct::new(), 0);
    while let Some(number) = body.field(last)? {
        last = number;
        let index = usize::try_from(number - 1).map_err(|_| GobError::Field)?;
        let (name, id) = definition.get(index).ok_or(GobError::Field)?;
        fields.insert(name.clone(), value(body, *id, types, depth + 1)?);
    }
    Ok(fields)
}

/// Reads a value of a type. Each value has a byte at least, which bounds the counts of elements.
fn value(body: &mut Cursor<'_>, id: i64, types: &Types, depth: usize) -> Result<Value, GobError> {
    if depth > MAX_DEPTH {
        return Err(GobError::Depth);
    }
    let bytes = |body: &mut Cursor<'_>| {
        let len = body.uint()?;
        Ok(Value::Bytes(body.bytes(len)?.to_vec()))
    };
    match id {
        1 | 3 => return Ok(Value::Uint(body.uint()?)),
        2 => return Ok(Value::Int(body.int()?)),
        5 => return bytes(body),
        6 => return Ok(Value::Text(body.text()?)),
        _ => {}
    }
    Ok(match types.get(&id).ok_or(GobError::Type(id))? {
        Definition::Struct(fields) => Value::Struct(structure(body, fields, types, depth)?),
        Definition::List(element) => {
            let mut list = Vec::new();
            for _ in 0..body.uint()? {
                list.push(value(body, *element, types, depth + 1)?);
            }
            Value::List(list)
        }
        Definition::Map(key, element) => {
            let mut map = Vec::new();
            for _ in 0..body.uint()? {
                map.push((value(body, *key, types, depth + 1)?, value(body, *element, types, depth + 1)?));
            }
            Value::Map(map)
        }
        Definition::Bytes => bytes(body)?,
    })
}
