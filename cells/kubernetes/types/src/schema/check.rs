//! Validation of an object against its schema.

use std::fmt::{self, Write};

use serde_json::{Map, Value};

use super::format::Format;
use super::notation::Field;
use super::{Definition, MAX_PROBLEMS, Node, Schemas, Shape, Strictness, rules};
use crate::{Kind, Problem, push_member};

/// The path of a value, as a linked list from the leaf to the root.
#[derive(Clone, Copy)]
pub(super) enum Path<'p> {
    Root,
    Member(&'p Path<'p>, &'p str),
    Item(&'p Path<'p>, usize),
}

impl Path<'_> {
    fn write(&self, out: &mut String) {
        match self {
            Path::Root => {}
            Path::Member(parent, name) => {
                parent.write(out);
                push_member(out, name);
            }
            Path::Item(parent, at) => {
                parent.write(out);
                _ = write!(out, "[{at}]");
            }
        }
    }
}

/// The problems so far.
pub(super) struct Faults {
    reported: Vec<Problem>,
    more: usize,
}

impl Faults {
    pub(super) fn add(&mut self, path: &Path<'_>, reason: impl fmt::Display) {
        if self.reported.len() == MAX_PROBLEMS {
            self.more += 1;
            return;
        }
        let mut text = String::new();
        path.write(&mut text);
        self.reported.push(Problem::new(text, reason));
    }

    fn unexpected(&mut self, path: &Path<'_>, expected: impl fmt::Display, found: &Value) {
        self.add(path, format_args!("expected {expected}, found {}", shown(found)));
    }
}

struct Check<'s> {
    schemas: &'s Schemas,
    strictness: Strictness,
    faults: Faults,
}

pub(super) fn check(
    schemas: &Schemas,
    definition: &Definition,
    kind: Kind,
    object: &Value,
    strictness: Strictness,
) -> Vec<Problem> {
    let mut check = Check { schemas, strictness, faults: Faults { reported: Vec::new(), more: 0 } };
    check.root(definition, kind, object);
    rules::check(kind, object, &mut check.faults);
    let Faults { mut reported, more } = check.faults;
    if more > 0 {
        reported.push(Problem::new("", format_args!("and {more} faults more")));
    }
    reported
}

impl Check<'_> {
    fn root(&mut self, definition: &Definition, kind: Kind, object: &Value) {
        let Value::Object(members) = object else {
            return self.faults.unexpected(&Path::Root, "an object", object);
        };
        for (name, right) in [("apiVersion", kind.api_version()), ("kind", kind.name())] {
            let path = Path::Member(&Path::Root, name);
            match members.get(name) {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) if text == right => {}
                Some(Value::String(text)) => {
                    self.faults.add(&path, format_args!("{} is wrong; give one of {right}", quoted(text)));
                }
                Some(other) => self.string(&path, other),
            }
        }
        let node = self.schemas.node(definition.root);
        if let Shape::Object { fields, more } = &node.shape {
            self.unknown(&Path::Root, members, fields, more.as_deref(), &["apiVersion", "kind", "metadata"]);
            self.metadata(definition, kind, members.get("metadata"));
            self.fields(&Path::Root, members, fields);
        }
    }

    fn metadata(&mut self, definition: &Definition, kind: Kind, metadata: Option<&Value>) {
        let path = Path::Member(&Path::Root, "metadata");
        let empty = Map::new();
        let members = match metadata {
            Some(Value::Object(members)) => members,
            None | Some(Value::Null) => &empty,
            Some(other) => return self.faults.unexpected(&path, "an object", other),
        };
        let Some(schema) = self.schemas.definitions("ObjectMeta").first() else { return };
        let Shape::Object { fields, .. } = &self.schemas.node(schema.root).shape else { return };
        self.unknown(&path, members, fields, None, &[]);
        for field in fields {
            let at = Path::Member(&path, field.name);
            match (field.name, members.get(field.name)) {
                ("name", Some(Value::String(text))) => self.format(&at, definition.name, text),
                ("namespace", Some(Value::String(_))) if !kind.namespaced() => {}
                (_, value) => self.member(&at, field, value),
            }
        }
    }

    /// Reports unknown members.
    fn unknown(
        &mut self,
        path: &Path<'_>,
        members: &Map<String, Value>,
        fields: &[Field],
        more: Option<&[&str]>,
        others: &[&str],
    ) {
        if self.strictness == Strictness::Server {
            return;
        }
        for name in members.keys() {
            if fields.iter().any(|field| field.name == name) || others.contains(&name.as_str()) {
                continue;
            }
            let near = nearest(name, fields.iter().map(|field| field.name).chain(others.iter().copied()));
            let path = Path::Member(path, name);
            match (near, more) {
                (Some(_), Some(slips)) if slips.contains(&name.as_str()) => {}
                (Some(near), _) => {
                    self.faults.add(&path, format_args!("is no field; did you mean {near}?"));
                }
                (None, Some(_)) => {}
                (None, None) => self.faults.add(&path, "is no field; remove it"),
            }
        }
    }

    fn fields(&mut self, path: &Path<'_>, members: &Map<String, Value>, fields: &[Field]) {
        for field in fields {
            self.member(&Path::Member(path, field.name), field, members.get(field.name));
        }
    }

    /// Checks an optional member. `null` equals a missing one, as in Kubernetes.
    fn member(&mut self, path: &Path<'_>, field: &Field, value: Option<&Value>) {
        match value {
            None | Some(Value::Null) if field.required => self.faults.add(path, "is missing"),
            None | Some(Value::Null) => {}
            Some(value) => self.value(path, self.schemas.node(field.node), value),
        }
    }

    fn value(&mut self, path: &Path<'_>, node: &Node, value: &Value) {
        match (&node.shape, value) {
            (Shape::Undecided, _)
            | (Shape::AnyObject, Value::Object(_))
            | (Shape::Boolean, Value::Bool(_)) => {}
            (Shape::Object { fields, more }, Value::Object(members)) => {
                self.unknown(path, members, fields, more.as_deref(), &[]);
                self.fields(path, members, fields);
            }
            (Shape::Map { key, value }, Value::Object(members)) => {
                for (name, member) in members {
                    let path = Path::Member(path, name);
                    if let Err(right) = key.check(name) {
                        self.faults
                            .add(&path, format_args!("{} is wrong as a key; give {right}", quoted(name)));
                    }
                    // As by an API server, a key without a value means the empty value.
                    let value = self.schemas.node(*value);
                    if !member.is_null() || !matches!(value.shape, Shape::String) {
                        self.value(&path, value, member);
                    }
                }
            }
            (Shape::List(item), Value::Array(items)) => {
                self.size(path, node, items.len(), "items");
                for (at, value) in items.iter().enumerate() {
                    self.value(&Path::Item(path, at), self.schemas.node(*item), value);
                }
            }
            (Shape::String, Value::String(text)) => self.text(path, node, text),
            (Shape::Integer, Value::Number(_)) => self.integer(path, node, value),
            (Shape::IntOrString, Value::String(_)) => {}
            (Shape::IntOrString, Value::Number(number))
                if number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()) => {}
            (Shape::String, other) => self.string(path, other),
            (Shape::Integer, other) => self.integer(path, node, other),
            (Shape::IntOrString, other) => {
                self.faults.unexpected(path, "a whole number of 32 bits or a string", other);
            }
            (Shape::Boolean, other) => self.faults.unexpected(path, "true or false", other),
            (Shape::List(_), other) => self.faults.unexpected(path, "a list", other),
            (_, other) => self.faults.unexpected(path, "an object", other),
        }
    }

    /// Reports a value of another type where a string is expected.
    fn string(&mut self, path: &Path<'_>, found: &Value) {
        let quotes = matches!(found, Value::Bool(_) | Value::Number(_));
        let remedy = if quotes { "; put it in quotes" } else { "" };
        self.faults.add(path, format_args!("expected a string, found {}{remedy}", shown(found)));
    }

    fn integer(&mut self, path: &Path<'_>, node: &Node, value: &Value) {
        let (from, to) = node.format.range();
        let (from, to) = (node.min.unwrap_or(from), node.max.unwrap_or(to));
        if value.as_i64().is_none_or(|number| !(from..=to).contains(&number)) {
            match from == i64::MIN && to == i64::MAX {
                true => self.faults.unexpected(path, "a whole number", value),
                false => {
                    self.faults.unexpected(path, format_args!("a whole number from {from} to {to}"), value);
                }
            }
        }
    }

    fn size(&mut self, path: &Path<'_>, node: &Node, size: usize, of: &str) {
        let within = |bound: Option<i64>, wrong: fn(usize, usize) -> bool| {
            bound.and_then(|bound| usize::try_from(bound).ok()).filter(|&bound| wrong(size, bound))
        };
        if let Some(most) = within(node.max, |size, most| size > most) {
            self.faults.add(path, format_args!("has {size} {of}; give at most {most}"));
        }
        if let Some(least) = within(node.min, |size, least| size < least) {
            self.faults.add(path, format_args!("has {size} {of}; give at least {least}"));
        }
    }

    fn text(&mut self, path: &Path<'_>, node: &Node, text: &str) {
        if text.is_empty() && node.or_empty {
            return;
        }
        if !node.words.is_empty() && !node.words.contains(&text) {
            let words = node.words.join(", ");
            return self.faults.add(path, format_args!("{} is wrong; give one of {words}", quoted(text)));
        }
        if node.min.is_some() || node.max.is_some() {
            self.size(path, node, text.chars().count(), "characters");
        }
        self.format(path, node.format, text);
        if let Some(pattern) = node.pattern.as_ref().filter(|pattern| !pattern.matches(text)) {
            match pattern.text == LABEL_VALUE {
                true => self.format(path, Format::LabelValue, text),
                false => {
                    let reason =
                        format_args!("{} is wrong; give what matches {}", quoted(text), pattern.text);
                    self.faults.add(path, reason);
                }
            }
        }
    }

    fn format(&mut self, path: &Path<'_>, format: Format, text: &str) {
        if let Err(right) = format.check(text) {
            self.faults.add(path, format_args!("{} is wrong; give {right}", quoted(text)));
        }
    }
}

/// The pattern of label values in the definitions.
const LABEL_VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// Returns a short representation of a value for error messages.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Returns a text in quotes, truncated if it is long.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Returns a known name that differs only in case, or within two edits.
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let limit = if name.len() < 5 { 1 } else { 2 };
    let letters = |text: &str| text.chars().take(64).collect::<String>().to_ascii_lowercase();
    let name = letters(name);
    let distance = |other: &&str| strsim::osa_distance(&name, &letters(other));
    known.min_by_key(distance).filter(|other| distance(other) <= limit)
}
