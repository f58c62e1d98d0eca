//! From events of the parser to values.

use std::collections::HashMap;
use std::fmt;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::{Map, Value};

use crate::scalar::resolve;
use crate::{Fault, MAX_ALIASED, MAX_DEPTH, Version, push_member};

/// Reads the documents of a text, one after the other.
pub struct Reader<'t> {
    version: Version,
    parser: Parser<'t, StrInput<'t>>,
    /// Values by anchor, with their weights.
    anchors: HashMap<usize, (Value, usize)>,
    /// Nodes and bytes that aliases may still add.
    aliases: usize,
    /// The current path, for faults.
    path: String,
    keep_lines: bool,
    lines: HashMap<String, usize>,
    /// Paths of keys that are given more than once, if these are no faults.
    repeated: Option<Vec<String>>,
}

/// A value and its weight: the number of nodes and bytes of strings.
type Weighed = (Value, usize);

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reader { version, path, .. } = self;
        f.debug_struct("Reader").field("version", version).field("path", path).finish_non_exhaustive()
    }
}

impl<'t> Reader<'t> {
    /// Returns a reader of a text.
    pub fn new(text: &'t str, version: Version) -> Self {
        Reader {
            version,
            parser: Parser::new_from_str(text),
            anchors: HashMap::new(),
            aliases: MAX_ALIASED.max(text.len()),
            path: String::new(),
            keep_lines: false,
            lines: HashMap::new(),
            repeated: None,
        }
    }

    /// Sets the number of nodes and bytes that aliases may add.
    #[must_use]
    pub fn with_aliases(self, aliases: usize) -> Self {
        Reader { aliases, ..self }
    }

    /// Keeps the line of every field, for [`into_lines`](Self::into_lines).
    #[must_use]
    pub fn with_lines(self) -> Self {
        Reader { keep_lines: true, ..self }
    }

    /// Collects keys that are given more than once, for [`take_repeated`](Self::take_repeated), instead of refusing them:
    /// the last value is kept.
    #[must_use]
    pub fn with_repeated(self) -> Self {
        Reader { repeated: Some(Vec::new()), ..self }
    }

    /// Returns the paths of keys that have been given more than once since the last call.
    pub fn take_repeated(&mut self) -> Vec<String> {
        self.repeated.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the number of nodes and bytes that aliases may still add.
    pub fn aliases(&self) -> usize {
        self.aliases
    }

    /// Returns the lines of the fields of the documents read so far, by path.
    pub fn into_lines(self) -> HashMap<String, usize> {
        self.lines
    }

    /// Parses the next document; returns it with its line, `None` after the last one.
    ///
    /// # Errors
    /// A [`Fault`] if the text is no YAML, or exceeds a bound. Documents behind it are not read.
    pub fn document(&mut self) -> Result<Option<(usize, Value)>, Fault> {
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(None),
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
                event => {
                    self.anchors.clear();
                    self.path.clear();
                    let line = span.start.line();
                    let (value, _) = self.node(event, span, 0)?;
                    return Ok(Some((line, value)));
                }
            }
        }
    }

    /// Parses the only document; `null` if there is none.
    ///
    /// # Errors
    /// A [`Fault`] as of [`document`](Self::document), or if there is a second document.
    pub fn only(&mut self) -> Result<Value, Fault> {
        let Some((_, value)) = self.document()? else { return Ok(Value::Null) };
        match self.document()? {
            None => Ok(value),
            Some((line, _)) => {
                let reason = "is the begin of a second document; keep one".to_owned();
                Err(Fault { line, path: String::new(), reason })
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Fault> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(scan_fault(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn fault(&self, span: Span, reason: impl std::fmt::Display) -> Fault {
        Fault { line: span.start.line().max(1), path: self.path.clone(), reason: reason.to_string() }
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Weighed, Fault> {
        if depth > MAX_DEPTH {
            return Err(self.fault(span, format_args!("lies deeper than {MAX_DEPTH} levels")));
        }
        if self.keep_lines {
            self.lines.entry(self.path.clone()).or_insert(span.start.line());
        }
        let (anchor, weighed) = match event {
            Event::Alias(anchor) => {
                let Some((value, weight)) = self.anchors.get(&anchor) else {
                    return Err(
                        self.fault(span, "is an alias of something that it is a part of; write it out")
                    );
                };
                let Some(left) = self.aliases.checked_sub(*weight) else {
                    return Err(self.fault(span, "aliases make the file too big; write out what is meant"));
                };
                self.aliases = left;
                return Ok((value.clone(), *weight));
            }
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, self.scalar(&text, style, tag.as_deref(), span)?)
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), "seq", span)?;
                (anchor, self.sequence(depth)?)
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), "map", span)?;
                (anchor, self.mapping(depth)?)
            }
            _ => return Err(self.fault(span, "a value is missing")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, weighed.clone());
        }
        Ok(weighed)
    }

    fn sequence(&mut self, depth: usize) -> Result<Weighed, Fault> {
        let (mut items, mut weight) = (Vec::new(), 1);
        let here = self.path.len();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok((Value::Array(items), weight));
            }
            self.path.push_str(&format!("[{}]", items.len()));
            let (item, heavy) = self.node(event, span, depth + 1)?;
            self.path.truncate(here);
            items.push(item);
            weight += heavy;
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Weighed, Fault> {
        let (mut members, mut weight) = (Map::new(), 1);
        let mut merged = Vec::new();
        let here = self.path.len();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let plain = matches!(event, Event::Scalar(_, ScalarStyle::Plain, ..));
            let key = self.key(event, span)?;
            push_member(&mut self.path, &key);
            if members.contains_key(&key) {
                match &mut self.repeated {
                    Some(repeated) => repeated.push(self.path.clone()),
                    None => return Err(self.fault(span, "is given twice; remove one")),
                }
            }
            let (event, below) = self.next()?;
            if self.keep_lines {
                self.lines.insert(self.path.clone(), span.start.line());
            }
            let (value, heavy) = self.node(event, below, depth + 1)?;
            weight += heavy + key.len();
            match plain && key == "<<" {
                true => merged.push((value, span)),
                false => _ = members.insert(key, value),
            }
            self.path.truncate(here);
        }
        for (value, span) in merged {
            self.merge(&mut members, value, span)?;
        }
        Ok((Value::Object(members), weight))
    }

    /// Applies a merge key (`<<`): adds members of other mappings that the mapping does not have itself.
    fn merge(&self, members: &mut Map<String, Value>, from: Value, span: Span) -> Result<(), Fault> {
        let sources = match from {
            Value::Array(items) => items,
            one => vec![one],
        };
        for source in sources {
            let Value::Object(others) = source else {
                return Err(self.fault(span, "<< takes a mapping or a list of mappings"));
            };
            for (key, value) in others {
                members.entry(key).or_insert(value);
            }
        }
        Ok(())
    }

    /// Parses the key of a member, which must be a string; integers are accepted as written.
    fn key(&mut self, event: Event<'t>, span: Span) -> Result<String, Fault> {
        let value = match event {
            Event::Scalar(text, ScalarStyle::Plain, 0, None) => {
                let value = resolve(&text, self.version);
                match value {
                    Some(Value::Number(number)) if !number.is_f64() => Value::String(text.into_owned()),
                    Some(Value::String(_)) => Value::String(text.into_owned()),
                    _ => {
                        return Err(self.fault(
                            span,
                            format_args!("the key {text:?} is no string in YAML; put it in quotes"),
                        ));
                    }
                }
            }
            Event::Scalar(..) | Event::Alias(_) => self.node(event, span, 0)?.0,
            _ => return Err(self.fault(span, "has a key that is no string; write a string")),
        };
        match value {
            Value::String(text) => Ok(text),
            _ => Err(self.fault(span, "has a key that is no string; put it in quotes")),
        }
    }

    fn scalar(
        &self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        span: Span,
    ) -> Result<Weighed, Fault> {
        let string = || Ok((Value::String(text.to_owned()), 1 + text.len()));
        let expected = match tag {
            None if style != ScalarStyle::Plain => return string(),
            None => None,
            Some(tag) if tag.handle.is_empty() && tag.suffix == "!" => return string(),
            Some(tag) if !tag.is_yaml_core_schema() => return Err(self.tag_fault(tag, span)),
            Some(tag) if tag.suffix == "str" => return string(),
            Some(tag) => Some(tag),
        };
        let Some(value) = resolve(text, self.version) else {
            return Err(self
                .fault(span, format_args!("{text} is a number that JSON does not have; write another one")));
        };
        let fits = match (expected.map(|tag| tag.suffix.as_str()), &value) {
            (None, _) | (Some("null"), Value::Null) | (Some("bool"), Value::Bool(_)) => true,
            (Some("int"), Value::Number(number)) => !number.is_f64(),
            (Some("float"), Value::Number(_)) => true,
            _ => false,
        };
        match (fits, expected) {
            (false, Some(tag)) => Err(self.tag_fault(tag, span)),
            _ => Ok((value, 1 + text.len())),
        }
    }

    fn check_tag(&self, tag: Option<&Tag>, allowed: &str, span: Span) -> Result<(), Fault> {
        match tag {
            Some(tag) if !tag.is_yaml_core_schema() || tag.suffix != allowed => {
                Err(self.tag_fault(tag, span))
            }
            _ => Ok(()),
        }
    }

    fn tag_fault(&self, tag: &Tag, span: Span) -> Fault {
        let tag = format!("{}{}", tag.handle, tag.suffix);
        self.fault(span, format_args!("the tag {tag} has no meaning for this value; remove it"))
    }
}

fn scan_fault(error: &ScanError) -> Fault {
    let reason = format!("is no YAML: {}", error.info());
    Fault { line: error.marker().line().max(1), path: String::new(), reason }
}
