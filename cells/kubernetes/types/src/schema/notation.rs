//! The notation of schemas.
//!
//! ```text
//! Kind:  # group/version name=FORMAT plural=.. short=a,b scope=Cluster served=True storage=True subresources=status columns=Age=.path
//!   field!: string:FORMAT enum(a|b) pattern=REGEX minLength=1 maxLength=9 default=a
//!   list[]: integer:int32 minimum=0 maximum=9 list:minItems=1
//!   map: {<key:FORMAT>: string}
//!   object:
//!     inline: {a: boolean, b!: int|string}
//!     other: *Kind.map
//!     ...(known slips)
//! ```
//!
//! `!` makes a field required, `[]` a list of the type that follows, `<key>` a map, `*Path` refers to the structure at
//! that path, `...` allows further fields (those in parentheses may look like typos of known ones). A format with `?`
//! also accepts the empty string, as does an enumeration with an empty word. Columns `Name+` are those of `-o wide`.
//! Types are `string`, `integer`, `boolean`, `int|string` and `any-object`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use regex::Regex;

use super::format::Format;
use crate::Kind;

/// All schemas.
#[derive(Default)]
pub(crate) struct Schemas {
    nodes: Vec<Node>,
    kinds: BTreeMap<&'static str, Vec<Definition>>,
    /// The label of the definitions.
    pub(super) version: &'static str,
    /// Lines that could not be parsed.
    pub(super) faults: Vec<String>,
}

/// A version of a kind.
#[derive(Default)]
pub(crate) struct Definition {
    pub(super) version: &'static str,
    /// The format of names.
    pub(super) name: Format,
    pub(super) facts: Facts,
    pub(crate) root: usize,
}

/// The names and the serving of a version in a CustomResourceDefinition; none for Kubernetes' own kinds.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) plural: &'static str,
    pub(super) short_names: Vec<&'static str>,
    pub(super) categories: Vec<&'static str>,
    pub(super) is_namespaced: bool,
    pub(super) is_served: bool,
    pub(super) is_stored: bool,
    pub(super) is_deprecated: bool,
    /// Whether the status is a subresource.
    pub(super) has_status: bool,
    pub(super) columns: Vec<Column>,
}

/// A column of `kubectl get`.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    /// Whether it is printed only with `-o wide`.
    pub(super) is_wide: bool,
}

/// The schema of a value.
#[derive(Default)]
pub(crate) struct Node {
    pub(crate) shape: Shape,
    pub(crate) format: Format,
    /// Whether the empty string is valid in spite of the format.
    pub(crate) or_empty: bool,
    /// The enumeration; empty if all values are allowed.
    pub(crate) words: Vec<&'static str>,
    pub(crate) pattern: Option<Pattern>,
    /// The minimum of a number, or of the length of a string or list.
    pub(crate) min: Option<i64>,
    pub(crate) max: Option<i64>,
    pub(super) default: Option<&'static str>,
}

/// The structure of a value.
#[derive(Default)]
pub(crate) enum Shape {
    #[default]
    Undecided,
    Object {
        fields: Vec<Field>,
        /// Set if further fields are allowed, with those that may look like typos of known ones.
        more: Option<Vec<&'static str>>,
    },
    Map {
        key: Format,
        value: usize,
    },
    List(usize),
    String,
    Integer,
    Boolean,
    IntOrString,
    AnyObject,
}

/// A member of an object.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) required: bool,
    pub(crate) node: usize,
}

/// A regular expression, compiled at its first use.
pub(crate) struct Pattern {
    pub(crate) text: &'static str,
    regex: OnceLock<Option<Regex>>,
}

impl Pattern {
    pub(crate) fn matches(&self, text: &str) -> bool {
        // The only class that needs Unicode tables is expanded to its ranges: controls, formats, private use.
        const NO_OTHERS: &str = r"[^\x00-\x1F\x7F-\x9F\u{AD}\u{200B}-\u{200F}\u{202A}-\u{202E}\u{2060}-\u{206F}\u{FEFF}\u{E000}-\u{F8FF}]";
        let make = || Regex::new(&self.text.replace(r"\PC", NO_OTHERS)).ok();
        self.regex.get_or_init(make).as_ref().is_none_or(|regex| regex.is_match(text))
    }

    #[cfg(test)]
    pub(super) fn is_good(&self) -> bool {
        self.matches("");
        self.regex.get().is_some_and(Option::is_some)
    }
}

impl Schemas {
    pub(super) fn read(texts: &[&'static str]) -> Schemas {
        let mut schemas = Schemas::default();
        texts.iter().for_each(|text| schemas.file(text));
        schemas
    }

    pub(crate) fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }

    /// Returns the version of a kind that the agent uses.
    pub(crate) fn definition(&self, kind: Kind) -> Option<&Definition> {
        self.definitions(kind.name()).iter().find(|definition| definition.version == kind.api_version())
    }

    /// Returns all versions of a kind.
    pub(crate) fn definitions(&self, kind: &str) -> &[Definition] {
        self.kinds.get(kind).map_or(&[], Vec::as_slice)
    }

    #[cfg(test)]
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn file(&mut self, text: &'static str) {
        // The enclosing objects of the line, outermost first, with their columns.
        let mut around: Vec<(usize, usize)> = Vec::new();
        let mut kind = "";
        for line in text.lines() {
            let column = line.len() - line.trim_start().len();
            let content = line.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            if let Some(version) = line.strip_prefix("version ") {
                self.version = version;
            } else if column == 0 {
                let (name, facts) = content.split_once(":  # ").unwrap_or((content, ""));
                let root = self.add(Node::object());
                kind = name;
                match Definition::read(facts, root) {
                    Some(definition) => self.kinds.entry(name).or_default().push(definition),
                    None => self.faults.push(line.to_owned()),
                }
                around = vec![(0, root)];
            } else {
                while around.last().is_some_and(|&(begins, _)| begins >= column) {
                    around.pop();
                }
                let Some(&(_, parent)) = around.last() else { continue };
                match self.line(kind, parent, content) {
                    Some(Some(object)) => around.push((column, object)),
                    Some(None) => {}
                    None => self.faults.push(line.to_owned()),
                }
            }
        }
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Adds a line to its object; returns the object of nested lines, if there may be any.
    fn line(&mut self, kind: &str, parent: usize, content: &'static str) -> Option<Option<usize>> {
        if let Some(slips) = content.strip_prefix("...") {
            let slips = slips.trim_matches(['(', ')']).split_whitespace().collect();
            let Shape::Object { more, .. } = &mut self.nodes[parent].shape else { return None };
            *more = Some(slips);
            return Some(None);
        }
        if let Some(key) = content.strip_prefix("<key") {
            let (format, rest) = key.split_once('>')?;
            let value = self.add(Node::default());
            let key = Format::named(format.trim_start_matches(':'))?;
            self.nodes[parent].shape = Shape::Map { key, value };
            return self.value(kind, value, rest.strip_prefix(':')?.trim());
        }
        let end = content.find(['!', '[', ':'])?;
        let (name, rest) = content.split_at(end);
        let (required, rest) = rest.strip_prefix('!').map_or((false, rest), |rest| (true, rest));
        let (list, rest) = rest.strip_prefix("[]").map_or((false, rest), |rest| (true, rest));
        let mut node = self.add(Node::default());
        let field = Field { name, required, node };
        let Shape::Object { fields, .. } = &mut self.nodes[parent].shape else { return None };
        fields.push(field);
        let rest = rest.strip_prefix(':')?.trim();
        let (rest, bounds) = match rest.find("list:") {
            Some(at) => (rest[..at].trim(), &rest[at + "list:".len()..]),
            None => (rest, ""),
        };
        if list {
            let item = self.add(Node::default());
            self.nodes[node].shape = Shape::List(item);
            for word in bounds.split_whitespace() {
                self.nodes[node].constrain(word)?;
            }
            node = item;
        }
        self.value(kind, node, rest)
    }

    /// Parses the type of a node; returns the node if nested lines may belong to it.
    fn value(&mut self, kind: &str, node: usize, text: &'static str) -> Option<Option<usize>> {
        if text.is_empty() {
            self.nodes[node] = Node::object();
            return Some(Some(node));
        }
        if let Some(path) = text.strip_prefix('*') {
            let target = self.find(kind, path)?;
            let copy = self.nodes[target].same();
            self.nodes[node] = copy;
            return Some(None);
        }
        if let Some(inner) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            self.nodes[node] = Node::object();
            for part in parts(inner) {
                self.line(kind, node, part)?;
            }
            return Some(None);
        }
        let mut words = text.split(' ');
        let (name, format) = words.next().map(|word| word.split_once(':').unwrap_or((word, "")))?;
        let made = &mut self.nodes[node];
        made.shape = match name {
            "string" => Shape::String,
            "integer" => Shape::Integer,
            "boolean" => Shape::Boolean,
            "int|string" => Shape::IntOrString,
            "any-object" => Shape::AnyObject,
            _ => return None,
        };
        made.or_empty = format.ends_with('?');
        made.format = Format::named(format.trim_end_matches('?'))?;
        words.try_for_each(|word| made.constrain(word))?;
        Some(None)
    }

    /// Returns the node at a path such as `Kind.spec.list`; a list stands for its items.
    fn find(&self, kind: &str, path: &str) -> Option<usize> {
        let mut names = path.split('.');
        if names.next() != Some(kind) {
            return None;
        }
        let mut at = self.kinds.get(kind)?.last()?.root;
        for name in names {
            let Shape::Object { fields, .. } = &self.nodes[at].shape else { return None };
            at = fields.iter().find(|field| field.name == name)?.node;
            if let Shape::List(item) = self.nodes[at].shape {
                at = item;
            }
        }
        Some(at)
    }
}

impl Node {
    fn object() -> Node {
        Node { shape: Shape::Object { fields: Vec::new(), more: None }, ..Node::default() }
    }

    /// Returns a node that shares the children of this one.
    fn same(&self) -> Node {
        let shape = match &self.shape {
            Shape::Object { fields, more } => Shape::Object {
                fields: fields.iter().map(|field| Field { ..*field }).collect(),
                more: more.clone(),
            },
            Shape::Map { key, value } => Shape::Map { key: *key, value: *value },
            Shape::List(item) => Shape::List(*item),
            Shape::String => Shape::String,
            Shape::Integer => Shape::Integer,
            Shape::Boolean => Shape::Boolean,
            Shape::IntOrString => Shape::IntOrString,
            Shape::AnyObject => Shape::AnyObject,
            Shape::Undecided => Shape::Undecided,
        };
        let pattern =
            self.pattern.as_ref().map(|pattern| Pattern { text: pattern.text, regex: OnceLock::new() });
        Node {
            shape,
            pattern,
            words: self.words.clone(),
            format: self.format,
            or_empty: self.or_empty,
            min: self.min,
            max: self.max,
            default: self.default,
        }
    }

    fn constrain(&mut self, word: &'static str) -> Option<()> {
        if let Some(words) = word.strip_prefix("enum(").and_then(|rest| rest.strip_suffix(')')) {
            self.words = words.split('|').collect();
            self.or_empty |= self.words.contains(&"");
            self.words.retain(|word| !word.is_empty());
            return Some(());
        }
        let (name, value) = word.split_once('=')?;
        match name {
            "pattern" => self.pattern = Some(Pattern { text: value, regex: OnceLock::new() }),
            "minimum" | "minLength" | "minItems" => self.min = Some(value.parse().ok()?),
            "maximum" | "maxLength" | "maxItems" => self.max = Some(value.parse().ok()?),
            "default" => self.default = Some(value),
            _ => return None,
        }
        Some(())
    }
}

impl Definition {
    /// Parses the line of a kind behind its name; none if it contains an unknown key.
    fn read(text: &'static str, root: usize) -> Option<Definition> {
        // Columns come last, since their names may contain blanks.
        let (words, columns) = text.split_once(" columns=").unwrap_or((text, ""));
        let mut words = words.split(' ');
        let version = words.next().unwrap_or_default();
        let mut definition =
            Definition { version, name: Format::DnsSubdomain, facts: Facts::default(), root };
        let facts = &mut definition.facts;
        for word in words {
            let (fact, value) = word.split_once('=').unwrap_or((word, "True"));
            match fact {
                "name" => definition.name = Format::named(value)?,
                "plural" => facts.plural = value,
                "short" => facts.short_names = list(value),
                "categories" => facts.categories = list(value),
                "scope" => facts.is_namespaced = either(value, "Namespaced", "Cluster")?,
                "served" => facts.is_served = either(value, "True", "False")?,
                "storage" => facts.is_stored = either(value, "True", "False")?,
                "deprecated" => facts.is_deprecated = either(value, "True", "False")?,
                "subresources" => facts.has_status = either(value, "status", "")?,
                _ => return None,
            }
        }
        facts.columns = list(columns).into_iter().map(Column::read).collect::<Option<_>>()?;
        Some(definition)
    }
}

impl Column {
    /// Parses `Name=.path`, or `Name+=.path` for a wide column.
    fn read(text: &'static str) -> Option<Column> {
        let (name, path) = text.split_once('=')?;
        let (name, is_wide) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
        Some(Column { name, path, is_wide })
    }
}

fn list(text: &'static str) -> Vec<&'static str> {
    text.split(',').filter(|item| !item.is_empty()).collect()
}

fn either(word: &str, yes: &str, no: &str) -> Option<bool> {
    (word == yes || word == no).then_some(word == yes)
}

/// Splits at commas outside of brackets.
fn parts(text: &'static str) -> Vec<&'static str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 && text[at..].starts_with(", ") => {
                parts.push(&text[start..at]);
                start = at + 2;
            }
            _ => {}
        }
    }
    if start < text.len() {
        parts.push(&text[start..]);
    }
    parts
}
