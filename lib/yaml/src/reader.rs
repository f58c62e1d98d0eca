//! YAML documents as JSON values, with a bound on the expansion of aliases.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::{Map, Number, Value};

use super::{Fault, MAX_DEPTH, Read, Reads};
use crate::problem::Problem;

/// Parses the documents of a part: usually one, several if they are ended by `...`. `aliases` is the number of nodes
/// and bytes that aliases may still add; it is reduced by those that they add.
pub(super) fn read<'t>(text: &'t str, aliases: &mut usize) -> Result<Reads<'t>, Fault> {
    let mut reader = Reader::new(text, *aliases, false);
    let mut reads = Vec::new();
    loop {
        let document = reader.document();
        *aliases = reader.aliases;
        match document {
            Ok(Some((line, value))) if !value.is_null() => {
                reads.push(Ok(Read { line, value, text, text_line: 1 }))
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(reads),
            Err(fault) if reads.is_empty() => return Err(fault),
            Err(fault) => {
                reads.push(Err(fault));
                return Ok(reads);
            }
        }
    }
}

/// Returns the line of every field of the first document, by path, as far as the text can be parsed. Aliases are not
/// limited: the limit was checked when the content was parsed.
pub(super) fn lines(text: &str) -> HashMap<String, usize> {
    let mut reader = Reader::new(text, usize::MAX, true);
    _ = reader.document();
    reader.lines
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    /// Values by anchor, with their weights.
    anchors: HashMap<usize, (Value, usize)>,
    /// Nodes and bytes that aliases may still add.
    aliases: usize,
    /// The current path, for faults.
    path: String,
    keep_lines: bool,
    lines: HashMap<String, usize>,
}

/// A value and its weight: the number of nodes and bytes of strings.
type Weighed = (Value, usize);

impl<'t> Reader<'t> {
    fn new(text: &'t str, aliases: usize, keep_lines: bool) -> Self {
        Reader {
            parser: Parser::new_from_str(text),
            anchors: HashMap::new(),
            aliases,
            path: String::new(),
            keep_lines,
            lines: HashMap::new(),
        }
    }

    /// Parses the next document; returns it with its line.
    fn document(&mut self) -> Result<Option<(usize, Value)>, Fault> {
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

    fn next(&mut self) -> Result<(Event<'t>, Span), Fault> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(scan_fault(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn fault(&self, span: Span, reason: impl std::fmt::Display) -> Fault {
        Fault { line: span.start.line().max(1), problem: Problem::new(self.path.clone(), reason) }
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
            crate::problem::push_member(&mut self.path, &key);
            if members.contains_key(&key) {
                return Err(self.fault(span, "is given twice; remove one"));
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
                let value = resolve(&text);
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
        let Some(value) = resolve(text) else {
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
    Fault { line: error.marker().line().max(1), problem: Problem::new("", reason) }
}

/// Returns the value of a plain scalar, by YAML 1.1 as `kubectl` reads it; none for infinite and undefined numbers.
fn resolve(text: &str) -> Option<Value> {
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => true.into(),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => false.into(),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" | ".nan"
        | ".NaN" | ".NAN" => return None,
        _ if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) => text.into(),
        _ => match number(&text.replace('_', "")) {
            Some(number) => Value::Number(number?),
            None => text.into(),
        },
    })
}

/// Parses a number; the inner option is none if it is out of range.
fn number(text: &str) -> Option<Option<Number>> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let prefixed = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2), ("0", 8)];
    let radix = prefixed.iter().find(|(prefix, _)| digits.len() > prefix.len() && digits.starts_with(prefix));
    let (digits, radix) = match radix {
        Some(&(prefix, radix)) => (&digits[prefix.len()..], radix),
        None => (digits, 10),
    };
    if digits.bytes().all(|c| c.is_ascii_alphanumeric())
        && let Ok(value) = u64::from_str_radix(digits, radix)
    {
        return match negative {
            false => Some(Some(value.into())),
            true => match 0i64.checked_sub_unsigned(value) {
                Some(value) => Some(Some(value.into())),
                None => Some(Number::from_f64(-(value as f64))),
            },
        };
    }
    float(text).map(Number::from_f64)
}

/// Parses `[-+]?[0-9]*\.?[0-9]+([eE][-+][0-9]+)?` and similar forms.
fn float(text: &str) -> Option<f64> {
    let shape = text.bytes().all(|c| c.is_ascii_digit() || matches!(c, b'+' | b'-' | b'.' | b'e' | b'E'));
    let digit = text.bytes().any(|c| c.is_ascii_digit());
    if shape && digit { text.parse().ok() } else { None }
}

/// Whether a string may be written without quotes: no parser reads it as another type, including older ones, to which
/// `1:30` is a number and `2026-1-2` a time.
pub(crate) fn plain_string(text: &str) -> bool {
    matches!(resolve(text), Some(Value::String(_))) && text != "<<" && !base_sixty(text) && !timestamp(text)
}

/// Whether a text is a sexagesimal number: `[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?`.
fn base_sixty(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = whole.strip_prefix(['-', '+']).unwrap_or(whole).split(':');
    let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit() || c == b'_');
    let first = parts.next().unwrap_or_default();
    let sixties: Vec<&str> = parts.collect();
    digits(fraction)
        && digits(first)
        && first.starts_with(|c: char| c.is_ascii_digit())
        && !sixties.is_empty()
        && sixties.iter().all(|part| matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']))
}

/// Whether a text is a date, or a date with a time.
fn timestamp(text: &str) -> bool {
    let number = |text: &str, from: u32, to: u32| {
        (1..=2).contains(&text.len())
            && text.bytes().all(|c| c.is_ascii_digit())
            && text.parse().is_ok_and(|number| (from..=to).contains(&number))
    };
    let date = |text: &str| match text.split('-').collect::<Vec<_>>()[..] {
        [year, month, day] => {
            year.len() == 4
                && year.bytes().all(|c| c.is_ascii_digit())
                && number(month, 1, 12)
                && number(day, 1, 31)
        }
        _ => false,
    };
    let clock = |text: &str| match text.split(':').collect::<Vec<_>>()[..] {
        [hour, minute, second] => {
            let (second, fraction) = second.split_once('.').unwrap_or((second, "0"));
            number(hour, 0, 23)
                && number(minute, 0, 59)
                && number(second, 0, 59)
                && !fraction.is_empty()
                && fraction.bytes().all(|c| c.is_ascii_digit())
        }
        _ => false,
    };
    let zone = |text: &str| match text.split_once(':') {
        Some((hours, minutes)) => [hours, minutes].iter().all(|part| part.len() == 2 && number(part, 0, 59)),
        None => false,
    };
    match text.split_once(['T', 't']) {
        Some((day, time)) => {
            date(day)
                && match time.split_once(['Z', '+', '-']) {
                    Some((time, "")) => text.ends_with('Z') && clock(time),
                    Some((time, offset)) => clock(time) && zone(offset),
                    None => false,
                }
        }
        None => match text.split_once(' ') {
            Some((day, time)) => date(day) && clock(time),
            None => date(text),
        },
    }
}
