//! Files of manifests as documents: multi-document YAML, JSON, lists.

mod items;
mod json;
mod yaml;

pub use items::{JsonItem, json_items};

use std::collections::HashMap;

use serde_json::Value;
use yaml_values::MAX_ALIASED;

use crate::Problem;

/// The maximum size of a file in bytes.
pub const MAX_FILE: u64 = 16 << 20;

/// A document of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its position in the file, from 1; empty documents are not counted.
    pub number: usize,
    /// Its first line, from 1.
    pub line: usize,
    /// The content. Numbers have a fraction only if they were written with one.
    pub value: Value,
    text: Box<str>,
    /// The first line of the text in the file.
    text_line: usize,
    /// The last line of the file.
    last_line: usize,
}

/// The lines of the fields of a document.
#[derive(Debug, Clone)]
pub struct Lines {
    by_path: HashMap<String, usize>,
    start: usize,
    text_line: usize,
    last: usize,
}

impl Lines {
    /// Returns the line of the field at this path, or of the nearest enclosing one.
    pub fn of(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            if let Some(line) = self.by_path.get(path) {
                return (self.text_line + line - 1).min(self.last);
            }
            match path.rfind(['.', '[']) {
                Some(at) => path = &path[..at],
                None => return self.start,
            }
        }
    }
}

/// A document that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("document {number}, line {line}: {problem}")]
pub struct Broken {
    /// Its position in the file, from 1.
    pub number: usize,
    /// The line of the fault, from 1.
    pub line: usize,
    /// The fault.
    pub problem: Problem,
}

/// One object of a document: the document itself, or an item of a list.
#[derive(Debug, Clone, Copy)]
pub struct Manifest<'d> {
    /// The path of the item, as `items[2]`; empty for a document that is no list.
    pub path: ItemPath,
    /// The kind, from the object or its list; empty if both have none.
    pub kind: &'d str,
    /// The object.
    pub value: &'d Value,
}

/// The path of a manifest in its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemPath(pub Option<usize>);

impl ItemPath {
    /// Returns the path of a field of this manifest, relative to the document.
    pub fn join(self, path: &str) -> String {
        match self.0 {
            None => path.to_owned(),
            Some(at) if path.is_empty() => format!("items[{at}]"),
            Some(at) if path.starts_with('[') => format!("items[{at}]{path}"),
            Some(at) => format!("items[{at}].{path}"),
        }
    }
}

impl Document {
    /// Returns the lines of its fields; parses the text again.
    pub fn lines(&self) -> Lines {
        let (start, text_line, last) = (self.line, self.text_line, self.last_line);
        Lines { by_path: yaml::lines(&self.text), start, text_line, last }
    }

    /// Returns the line of the field at this path, or of the nearest enclosing one. For many paths use
    /// [`lines`](Self::lines).
    pub fn line_of(&self, path: &str) -> usize {
        self.lines().of(path)
    }

    /// Returns the objects of this document: itself, or the items if it is a list (`List`, `PodList`, ...).
    pub fn manifests(&self) -> Vec<Manifest<'_>> {
        let kind = kind(&self.value);
        let items = self.value.get("items").and_then(Value::as_array);
        match (kind.strip_suffix("List"), items) {
            (Some(of), Some(items)) => {
                let item = |(at, value)| {
                    let own = self::kind(value);
                    Manifest { path: ItemPath(Some(at)), kind: if own.is_empty() { of } else { own }, value }
                };
                items.iter().enumerate().map(item).collect()
            }
            _ => vec![Manifest { path: ItemPath(None), kind, value: &self.value }],
        }
    }
}

fn kind(value: &Value) -> &str {
    value.get("kind").and_then(Value::as_str).unwrap_or_default()
}

/// Parses the documents of a file's text, in order, independently: a broken one does not affect the others.
///
/// YAML is parsed as by `kubectl` (1.1: `on` and `yes` are true, `010` is eight), except that duplicate keys, keys
/// that are not strings, and unknown tags are faults. Aliases and merge keys are supported; their expansion and the
/// nesting depth are bounded.
///
/// ```
/// let text = "kind: A\n---\nkind: [\n---\n{\"kind\": \"C\"}\n";
/// let documents = k8s_types::documents(text);
/// assert_eq!(documents[0].as_ref().unwrap().value["kind"], "A");
/// assert_eq!(documents[1].as_ref().unwrap_err().number, 2);
/// assert_eq!(documents[2].as_ref().unwrap().line, 5);
/// ```
pub fn documents(text: &str) -> Vec<Result<Document, Broken>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut all = Vec::new();
    // Clamps line numbers to the last line: a parser reports an unexpected end behind it, or counts other characters as
    // line ends.
    let last = text.matches('\n').count() + 1;
    let mut aliases = MAX_ALIASED.max(text.len());
    for (line, part) in parts(text) {
        if part.lines().all(is_blank_or_comment) {
            continue;
        }
        let (line, part) = behind_mark(line, part);
        let before = all.len();
        let found = match part.trim_start().starts_with('{') {
            true => json::read(part).or_else(|json| yaml::read(part, &mut aliases).map_err(|_| json)),
            false => yaml::read(part, &mut aliases),
        };
        let read = match found {
            Ok(read) => read,
            Err(fault) => vec![Err(fault)],
        };
        all.extend(read.into_iter().enumerate().map(|(at, document)| {
            let number = before + at + 1;
            match document {
                Ok(Read { line: own, value, text, text_line }) => Ok(Document {
                    number,
                    line: (line + own - 1).min(last),
                    value,
                    text: text.into(),
                    text_line: line + text_line - 1,
                    last_line: last,
                }),
                Err(Fault { line: own, problem }) => {
                    Err(Broken { number, line: (line + own - 1).min(last), problem })
                }
            }
        }));
    }
    all
}

/// Parses the documents of a file's content; invalid UTF-8 is a fault.
pub fn documents_of_bytes(content: &[u8]) -> Vec<Result<Document, Broken>> {
    match std::str::from_utf8(content) {
        Ok(text) => documents(text),
        Err(error) => {
            let line = content[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
            let problem = Problem::new("", "is not UTF-8; write the file in that encoding");
            vec![Err(Broken { number: 1, line, problem })]
        }
    }
}

/// A parsed document of either language; the line is relative to its part.
struct Read<'t> {
    line: usize,
    value: Value,
    text: &'t str,
    text_line: usize,
}

/// A parser's error; the line is relative to its part.
#[derive(Debug)]
struct Fault {
    line: usize,
    problem: Problem,
}

/// The result of parsing a part: an error ends it.
type Reads<'t> = Vec<Result<Read<'t>, Fault>>;

/// Splits a text before each document marker `---`; returns each part with its line.
fn parts(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut start_line, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let marks = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if marks && at > start {
            parts.push((start_line, &text[start..at]));
            (start, start_line) = (at, number + 1);
        }
        at += line.len();
    }
    parts.push((start_line, &text[start..]));
    parts
}

/// Removes the first line of a part if it is only the marker.
fn behind_mark(line: usize, part: &str) -> (usize, &str) {
    match part.split_once('\n') {
        Some((first, rest)) if first.starts_with("---") && is_blank_or_comment(first) => (line + 1, rest),
        _ => (line, part),
    }
}

/// Whether a line is empty, a comment, a directive or a marker.
fn is_blank_or_comment(line: &str) -> bool {
    let rest = line.strip_prefix("---").unwrap_or(line).trim();
    rest.is_empty() || rest.starts_with('#') || line.starts_with('%') || rest == "..."
}

#[cfg(test)]
mod tests;
