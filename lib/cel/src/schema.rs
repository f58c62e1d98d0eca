//! Messages and enums by their descriptors.

use std::collections::HashMap;
use std::fmt;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type as Kind};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::types::Type;

/// The messages and enums that expressions know.
pub struct Schema {
    messages: Vec<Definition>,
    by_name: HashMap<String, usize>,
    /// Values of enums by their full names.
    enums: HashMap<String, i32>,
}

/// A message.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) fields: Vec<Field>,
    /// Whether it is the form of an entry of a map.
    is_entry: bool,
}

/// A field of a message.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) scalar: Scalar,
    pub(crate) shape: Shape,
    /// Whether a default value differs from none: the field is optional, or one of several.
    pub(crate) has_presence: bool,
}

/// The number of values of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    One,
    List,
    Map,
}

/// The form of a single value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Bool,
    /// Two's complement, also enums.
    Int {
        bits: u8,
    },
    /// With the sign in the lowest bit.
    Sint {
        bits: u8,
    },
    Uint {
        bits: u8,
    },
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    Float,
    Double,
    String,
    Bytes,
    /// A message by its place.
    Message(usize),
    Timestamp,
    Duration,
    /// A message with a single field that is the value, or null: its form by the place of the message.
    Wrapper(usize),
    /// A form that expressions cannot read: groups, `Any`, messages without a definition.
    Unknown,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({} messages)", self.messages.len())
    }
}

impl Schema {
    /// Reads an encoded `google.protobuf.FileDescriptorSet`.
    ///
    /// # Errors
    /// It is malformed.
    pub fn from_descriptors(bytes: &[u8]) -> Result<Self, prost::DecodeError> {
        let files = FileDescriptorSet::decode(bytes)?;
        let (mut messages, mut enums) = (Vec::new(), HashMap::new());
        for file in &files.file {
            let package = file.package().to_owned();
            file.enum_type.iter().for_each(|of| add_enum(&package, of, &mut enums));
            for message in &file.message_type {
                add_message(&package, message, &mut messages, &mut enums);
            }
        }
        let by_name: HashMap<String, usize> =
            messages.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
        let entries: Vec<bool> = messages
            .iter()
            .map(|(_, message)| message.options.as_ref().is_some_and(|options| options.map_entry()))
            .collect();
        let definition = |(name, message): &(String, &DescriptorProto)| Definition {
            name: name.clone(),
            fields: message.field.iter().map(|of| field(of, &by_name, &entries)).collect(),
            is_entry: message.options.as_ref().is_some_and(|options| options.map_entry()),
        };
        let messages = messages.iter().map(definition).collect();
        Ok(Self { messages, by_name, enums })
    }

    pub(crate) fn message(&self, at: usize) -> &Definition {
        &self.messages[at]
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied().filter(|at| !self.messages[*at].is_entry)
    }

    /// Returns the form of a message by its place.
    pub(crate) fn form(&self, at: usize) -> Scalar {
        message_form(&self.messages[at].name, Some(at))
    }

    /// Returns the value of an enum by its full name.
    pub(crate) fn constant(&self, name: &str) -> Option<i32> {
        self.enums.get(name).copied()
    }

    /// Returns the key and the value of the entries of a map.
    pub(crate) fn entry(&self, field: &Field) -> Option<(&Field, &Field)> {
        let Scalar::Message(at) = field.scalar else { return None };
        let fields = &self.messages[at].fields;
        let by_number = |number| fields.iter().find(|field| field.number == number);
        Some((by_number(1)?, by_number(2)?))
    }

    /// Returns the type of a field; `None` if expressions cannot read it.
    pub(crate) fn type_of(&self, field: &Field) -> Option<Type> {
        match field.shape {
            Shape::One => self.scalar_type(field.scalar),
            Shape::List => self.scalar_type(field.scalar).map(Type::list),
            Shape::Map => {
                let (key, value) = self.entry(field)?;
                let types = (self.scalar_type(key.scalar)?, self.scalar_type(value.scalar)?);
                Some(Type::Map(Box::new(types.0), Box::new(types.1)))
            }
        }
    }

    /// Returns the type of a form; `None` if expressions cannot read it.
    pub(crate) fn scalar_type(&self, scalar: Scalar) -> Option<Type> {
        Some(match scalar {
            Scalar::Bool => Type::Bool,
            Scalar::Int { .. } | Scalar::Sint { .. } | Scalar::Sfixed32 | Scalar::Sfixed64 => Type::Int,
            Scalar::Uint { .. } | Scalar::Fixed32 | Scalar::Fixed64 => Type::Uint,
            Scalar::Float | Scalar::Double => Type::Double,
            Scalar::String => Type::String,
            Scalar::Bytes => Type::Bytes,
            Scalar::Timestamp => Type::Timestamp,
            Scalar::Duration => Type::Duration,
            Scalar::Message(at) => Type::Message(at, self.messages[at].name.clone()),
            Scalar::Wrapper(at) => {
                Type::Nullable(Box::new(self.scalar_type(self.messages[at].fields.first()?.scalar)?))
            }
            Scalar::Unknown => return None,
        })
    }
}

fn joined(package: &str, name: &str) -> String {
    if package.is_empty() { name.to_owned() } else { format!("{package}.{name}") }
}

fn add_enum(package: &str, of: &EnumDescriptorProto, enums: &mut HashMap<String, i32>) {
    let name = joined(package, of.name());
    enums.extend(of.value.iter().map(|value| (joined(&name, value.name()), value.number())));
}

fn add_message<'a>(
    package: &str,
    message: &'a DescriptorProto,
    messages: &mut Vec<(String, &'a DescriptorProto)>,
    enums: &mut HashMap<String, i32>,
) {
    let name = joined(package, message.name());
    messages.push((name.clone(), message));
    message.enum_type.iter().for_each(|of| add_enum(&name, of, enums));
    message.nested_type.iter().for_each(|nested| add_message(&name, nested, messages, enums));
}

/// Returns the form of a message, by its full name and its place.
fn message_form(name: &str, at: Option<usize>) -> Scalar {
    const WRAPPERS: [&str; 9] = [
        "BoolValue",
        "BytesValue",
        "DoubleValue",
        "FloatValue",
        "Int32Value",
        "Int64Value",
        "StringValue",
        "UInt32Value",
        "UInt64Value",
    ];
    match (name.strip_prefix("google.protobuf."), at) {
        (Some("Timestamp"), _) => Scalar::Timestamp,
        (Some("Duration"), _) => Scalar::Duration,
        (Some(wrapper), Some(at)) if WRAPPERS.contains(&wrapper) => Scalar::Wrapper(at),
        (None, Some(at)) => Scalar::Message(at),
        _ => Scalar::Unknown,
    }
}

fn field(of: &FieldDescriptorProto, by_name: &HashMap<String, usize>, entries: &[bool]) -> Field {
    let name = of.type_name().trim_start_matches('.');
    let scalar = match of.r#type() {
        Kind::Bool => Scalar::Bool,
        Kind::Int32 | Kind::Enum => Scalar::Int { bits: 32 },
        Kind::Int64 => Scalar::Int { bits: 64 },
        Kind::Sint32 => Scalar::Sint { bits: 32 },
        Kind::Sint64 => Scalar::Sint { bits: 64 },
        Kind::Uint32 => Scalar::Uint { bits: 32 },
        Kind::Uint64 => Scalar::Uint { bits: 64 },
        Kind::Fixed32 => Scalar::Fixed32,
        Kind::Fixed64 => Scalar::Fixed64,
        Kind::Sfixed32 => Scalar::Sfixed32,
        Kind::Sfixed64 => Scalar::Sfixed64,
        Kind::Float => Scalar::Float,
        Kind::Double => Scalar::Double,
        Kind::String => Scalar::String,
        Kind::Bytes => Scalar::Bytes,
        Kind::Message => message_form(name, by_name.get(name).copied()),
        Kind::Group => Scalar::Unknown,
    };
    let is_map = matches!(scalar, Scalar::Message(at) if entries[at]);
    let shape = match of.label() {
        Label::Repeated if is_map => Shape::Map,
        Label::Repeated => Shape::List,
        Label::Optional | Label::Required => Shape::One,
    };
    Field {
        name: of.name().to_owned(),
        number: of.number().unsigned_abs(),
        scalar,
        shape,
        has_presence: of.oneof_index.is_some(),
    }
}
