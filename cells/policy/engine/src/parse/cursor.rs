//! A cursor on a manifest: it tracks the path of each value and collects all problems.

use serde_json::{Map, Value};

use crate::refusal::Problem;

/// The maximum number of listed problems of an object; further ones are only counted.
const MAX_PROBLEMS: usize = 64;
/// The maximum length of a quotation from the manifest in a problem, in characters.
const MAX_QUOTE: usize = 80;

/// Problems found so far.
#[derive(Default)]
pub(super) struct Problems {
    list: Vec<Problem>,
    more: usize,
    warnings: Vec<Problem>,
}

impl Problems {
    /// Adds a problem, or only counts it when the list is full: a hostile manifest must not fill the agent's memory.
    pub(super) fn add(&mut self, path: &str, reason: impl Into<String>, remedy: &'static str) {
        if self.list.len() == MAX_PROBLEMS {
            self.more += 1;
            return;
        }
        self.list.push(Problem { path: path.to_owned(), reason: reason.into(), remedy });
    }

    /// Adds a warning: the field is accepted, but its effect differs from what its name or value suggests.
    pub(super) fn warn(&mut self, path: &str, reason: impl Into<String>, remedy: &'static str) {
        if self.warnings.len() < MAX_PROBLEMS {
            self.warnings.push(Problem { path: path.to_owned(), reason: reason.into(), remedy });
        }
    }

    /// Returns the warnings.
    pub(super) fn into_warnings(self) -> Vec<Problem> {
        self.warnings
    }

    /// Returns the number of problems.
    pub(super) fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// Returns all problems; the last one counts those that are not listed.
    pub(super) fn into_list(mut self) -> Vec<Problem> {
        if self.more > 0 {
            let reason = format!("and {} more problems", self.more);
            self.list.push(Problem { path: "(object)".to_owned(), reason, remedy: "" });
        }
        self.list
    }
}

/// A value with its path.
pub(super) struct Field<'a> {
    pub(super) value: &'a Value,
    pub(super) path: String,
}

/// An object, read field by field.
pub(super) struct Object<'a> {
    map: &'a Map<String, Value>,
    pub(super) path: String,
}

impl<'a> Field<'a> {
    /// Reports that the value is of another type.
    fn wrong_type(&self, problems: &mut Problems, wanted: &str, remedy: &'static str) {
        problems.add(&self.path, format!("{}: must be {wanted}", quoted(self.value)), remedy);
    }

    /// Returns the value as an object.
    pub(super) fn object(&self, problems: &mut Problems) -> Option<Object<'a>> {
        let object = self.value.as_object().map(|map| Object { map, path: self.path.clone() });
        if object.is_none() {
            self.wrong_type(problems, "an object", "");
        }
        object
    }

    /// Returns the elements of a list.
    pub(super) fn list(&self, problems: &mut Problems) -> Option<Vec<Field<'a>>> {
        let Some(list) = self.value.as_array() else {
            self.wrong_type(problems, "a list", "");
            return None;
        };
        let element = |(index, value)| Field { value, path: format!("{}[{index}]", self.path) };
        Some(list.iter().enumerate().map(element).collect())
    }

    /// Returns the value as a text.
    pub(super) fn text(&self, problems: &mut Problems) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            let remedy =
                if self.value.is_object() || self.value.is_array() { "" } else { "put it in quotes" };
            self.wrong_type(problems, "a text", remedy);
        }
        text
    }

    /// Returns the value as a boolean.
    pub(super) fn boolean(&self, problems: &mut Problems) -> Option<bool> {
        let boolean = self.value.as_bool();
        if boolean.is_none() {
            self.wrong_type(problems, "true or false", "");
        }
        boolean
    }
}

impl<'a> Object<'a> {
    /// Returns a field that exists and is not null.
    pub(super) fn field(&self, name: &str) -> Option<Field<'a>> {
        let value = self.map.get(name).filter(|value| !value.is_null())?;
        Some(Field { value, path: self.path_of(name) })
    }

    /// Returns the path of a field of this object.
    pub(super) fn path_of(&self, name: &str) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        match (self.path.is_empty(), name.chars().all(plain) && !name.is_empty()) {
            (true, true) => name.to_owned(),
            (_, true) => format!("{}.{name}", self.path),
            (_, false) => format!("{}[{}]", self.path, quoted(&Value::from(name))),
        }
    }

    /// Iterates over all fields, in the order of their names.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> + '_ {
        self.map.iter().map(|(name, value)| (name.as_str(), Field { value, path: self.path_of(name) }))
    }

    /// Reports fields that are neither in `known` nor null fields of `unbuilt`, the list of `(name, description)` of
    /// fields that Cilium has and this parser does not implement.
    pub(super) fn check_names(
        &self,
        problems: &mut Problems,
        known: &[&str],
        unbuilt: &[(&str, &'static str)],
    ) {
        for (name, field) in self.fields() {
            if known.contains(&name) {
                continue;
            }
            match unbuilt.iter().find(|(unbuilt, _)| *unbuilt == name) {
                Some(_) if field.value.is_null() => {}
                Some((_, what)) => {
                    problems.add(&field.path, format!("{what}: not supported yet"), "remove it");
                }
                None => problems.add(&field.path, "unknown field", "check its name and where it belongs"),
            }
        }
    }

    /// Returns the elements of a list field; an absent one is empty, as is one of another type, which is reported.
    pub(super) fn elements(&self, name: &str, problems: &mut Problems) -> Vec<Field<'a>> {
        self.field(name).and_then(|field| field.list(problems)).unwrap_or_default()
    }

    /// Returns the text of a field; an absent one is empty, as is one of another type, which is reported.
    pub(super) fn text(&self, name: &str, problems: &mut Problems) -> &'a str {
        self.field(name).and_then(|field| field.text(problems)).unwrap_or_default()
    }
}

/// Returns a value as problems quote it: scalars as JSON, cut to a bounded length; objects and lists by their type
/// only.
pub(super) fn quoted(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(text) => {
            let short: String = text.chars().take(MAX_QUOTE).collect();
            let cut = short.len() < text.len();
            format!("{short:?}{}", if cut { "..." } else { "" })
        }
        scalar => scalar.to_string(),
    }
}
