//! Files of manifests as documents: YAML of many documents, JSON, lists.

mod items;
mod json;
mod yaml;

pub use items::{JsonItem, json_items};
pub(crate) use yaml::plain_string;

use std::collections::HashMap;

use serde_json::Value;

use crate::Problem;

/// How deep lists and objects may be in each other.
pub const MAX_DEPTH: usize = 64;

/// Nodes and bytes that aliases may add to a file; a longer file may become twice as large by them. A node takes up to a
/// kilobyte while it is parsed, and the size of a file is bounded by the available memory.
const MAX_ALIASED: usize = 64 << 10;

/// Bytes that a file may have.
pub const MAX_FILE: u64 = 16 << 20;

/// A document of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its place in the file, from 1; empty documents do not count.
    pub number: usize,
    /// The line it begins at, from 1.
    pub line: usize,
    /// The content. A number has no fraction unless it was written with one.
    pub value: Value,
    text: Box<str>,
    /// The line of the file that the text begins at.
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
    /// The line of the field at this path, or of the nearest one around it.
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
    /// Its place in the file, from 1.
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
    /// The kind, by the object or by its list; empty if neither has one.
    pub kind: &'d str,
    /// The object.
    pub value: &'d Value,
}

/// Where a manifest is in its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemPath(pub Option<usize>);

impl ItemPath {
    /// The path of a field of this manifest, as seen from the document.
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
    /// The lines of its fields: reads the text once more.
    pub fn lines(&self) -> Lines {
        let (start, text_line, last) = (self.line, self.text_line, self.last_line);
        Lines { by_path: yaml::lines(&self.text), start, text_line, last }
    }

    /// The line of the field at this path, or of the nearest one around it. For many paths take [`lines`](Self::lines).
    pub fn line_of(&self, path: &str) -> usize {
        self.lines().of(path)
    }

    /// The objects of this document: itself, or the items if it is a list (`List`, `PodList` and so on).
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

/// Parses the documents of a file's text, in order, each for itself: a broken one leaves the others readable.
///
/// YAML is read as `kubectl` does (1.1: `on` and `yes` are true, `010` is eight), except that a duplicate key, a key
/// that reads as no string, and a tag without meaning are faults. Aliases and merge keys work; what they expand to,
/// and how deep a document nests, is bounded.
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
    // A problem behind the end is reported for the last line; a parser that takes other characters for line ends
    // counts more of them.
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

/// The documents of a file's content, which should be UTF-8.
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

/// A document as the parsers of both languages return it; the line counts from the beginning of its part.
struct Read<'t> {
    line: usize,
    value: Value,
    text: &'t str,
    text_line: usize,
}

/// A parser's error; the line counts from the beginning of its part.
#[derive(Debug)]
struct Fault {
    line: usize,
    problem: Problem,
}

/// The result of parsing a part: an error ends it.
type Reads<'t> = Vec<Result<Read<'t>, Fault>>;

/// Cuts a text before each line `---`, as the beginning of a document is marked; with the line of each part.
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

/// A part without its first line if that is nothing but the mark.
fn behind_mark(line: usize, part: &str) -> (usize, &str) {
    match part.split_once('\n') {
        Some((first, rest)) if first.starts_with("---") && is_blank_or_comment(first) => (line + 1, rest),
        _ => (line, part),
    }
}

/// Empty lines, comments, directives and marks.
fn is_blank_or_comment(line: &str) -> bool {
    let rest = line.strip_prefix("---").unwrap_or(line).trim();
    rest.is_empty() || rest.starts_with('#') || line.starts_with('%') || rest == "..."
}

#[cfg(test)]
mod tests;
