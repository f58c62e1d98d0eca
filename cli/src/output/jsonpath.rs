//! `-o jsonpath=`: templates of literal text and `{...}` paths, in kubectl's syntax.

use serde_json::Value;
use std::str::FromStr;

/// A parsed template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonPath(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(Vec<Step>),
    /// Parts that are evaluated for each result of the path: `{range PATH}...{end}`.
    Range(Vec<Step>, Vec<Part>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    /// An index; a negative one counts from the end.
    Index(isize),
    All,
    /// The items from the first index to before the second one.
    Slice(Option<isize>, Option<isize>),
    /// The value and all that it contains, at any depth.
    Descendants,
    /// The items of which the comparison is true, with the value at the path from each item.
    Where(Vec<Step>, Comparison),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Comparison {
    Exists,
    Equal(Value),
    NotEqual(Value),
    Ordered { less: bool, or_equal: bool, bound: Value },
}

impl Comparison {
    fn holds(&self, found: Option<&Value>) -> bool {
        match (self, found) {
            (Self::Exists, found) => found.is_some(),
            (Self::Equal(value), Some(found)) => found == value,
            (Self::NotEqual(value), Some(found)) => found != value,
            (Self::Ordered { less, or_equal, bound }, Some(found)) => {
                let order = match (found.as_f64(), bound.as_f64()) {
                    (Some(found), Some(bound)) => found.partial_cmp(&bound),
                    _ => found.as_str().zip(bound.as_str()).map(|(found, bound)| found.cmp(bound)),
                };
                order.is_some_and(
                    |order| if *less { order.is_lt() } else { order.is_gt() } || *or_equal && order.is_eq(),
                )
            }
            (_, None) => false,
        }
    }
}

impl FromStr for JsonPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = |why: String| format!("jsonpath {text:?}: {why}");
        let mut parts = Vec::new();
        // The ranges that are open, with the parts before each.
        let mut open: Vec<(Vec<Step>, Vec<Part>)> = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let (path, after) = split_at_brace(after).ok_or_else(|| error("'{' without '}'".to_owned()))?;
            match path.trim() {
                "end" => {
                    let (steps, outer) = open.pop().ok_or_else(|| error("end without range".to_owned()))?;
                    let inner = std::mem::replace(&mut parts, outer);
                    parts.push(Part::Range(steps, inner));
                }
                path => match path.strip_prefix("range ") {
                    Some(path) => {
                        open.push((parse_path(path.trim()).map_err(error)?, std::mem::take(&mut parts)));
                    }
                    None => parts.push(parse_part(path).map_err(error)?),
                },
            }
            rest = after;
        }
        if !open.is_empty() {
            return Err(error("range without end".to_owned()));
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }
}

/// Splits at the brace that closes a part, which is not one between quotes.
fn split_at_brace(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (None, '}') => return Some((&text[..at], &text[at + 1..])),
            (None, '"' | '\'') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            _ => {}
        }
    }
    None
}

fn parse_part(path: &str) -> Result<Part, String> {
    if let Some(text) = unquoted(path) {
        return Ok(Part::Text(text.replace("\\n", "\n").replace("\\t", "\t")));
    }
    parse_path(path).map(Part::Path)
}

fn parse_path(path: &str) -> Result<Vec<Step>, String> {
    let mut rest = path.strip_prefix(['$', '@']).unwrap_or(path);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("..") {
            steps.push(Step::Descendants);
            rest = after;
        }
        rest = match rest.strip_prefix('[') {
            Some(inner) => {
                let (index, after) = split_at_bracket(inner).ok_or("'[' without ']'")?;
                steps.push(parse_index(index.trim())?);
                after
            }
            None => {
                let name = rest.strip_prefix('.').unwrap_or(rest);
                let end = end_of_name(name);
                match &name[..end] {
                    "" if steps.is_empty() && end == name.len() => {}
                    "" => return Err("a name is missing after '.'".to_owned()),
                    "*" => steps.push(Step::All),
                    name if name.contains([' ', '?', '(', ')']) => {
                        return Err(format!("{name:?} is not supported, paths and indexes are"));
                    }
                    name => steps.push(Step::Key(name.replace("\\.", "."))),
                }
                &name[end..]
            }
        };
    }
    Ok(steps)
}

/// Splits at the bracket that closes an index, which is neither between quotes nor that of an inner index.
fn split_at_bracket(text: &str) -> Option<(&str, &str)> {
    let (mut quote, mut depth) = (None, 0_usize);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (None, ']') if depth == 0 => return Some((&text[..at], &text[at + 1..])),
            (None, ']') => depth -= 1,
            (None, '[') => depth += 1,
            (None, '"' | '\'') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            _ => {}
        }
    }
    None
}

/// Returns the end of a name: the next dot without a backslash before it, or a bracket.
fn end_of_name(text: &str) -> usize {
    let ends = |&(at, character): &(usize, char)| match character {
        '.' => !text[..at].ends_with('\\'),
        character => character == '[',
    };
    text.char_indices().find(ends).map_or(text.len(), |(at, _)| at)
}

fn parse_index(index: &str) -> Result<Step, String> {
    if index == "*" {
        return Ok(Step::All);
    }
    if let Some(condition) = index.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return parse_condition(condition.trim());
    }
    if let Some((from, to)) = index.split_once(':').filter(|_| unquoted(index).is_none()) {
        let bound = |text: &str| match text.trim() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| format!("{text:?} is no index")),
        };
        return Ok(Step::Slice(bound(from)?, bound(to)?));
    }
    match unquoted(index) {
        Some(name) => Ok(Step::Key(name.to_owned())),
        None => index.parse().map(Step::Index).map_err(|_| format!("{index:?} is no index")),
    }
}

/// Parses the inside of `?(...)`: a path from the item, alone or compared with a text or a number.
fn parse_condition(condition: &str) -> Result<Step, String> {
    let unsupported = || format!("{condition:?} is not supported, @.name==\"text\" is");
    let path = |path: &str| {
        let path = path.trim();
        if path.starts_with('@') { parse_path(path) } else { Err(unsupported()) }
    };
    for operator in ["==", "!=", "<=", ">=", "<", ">"] {
        let Some((left, right)) = condition.split_once(operator) else { continue };
        let right = right.trim();
        let value = match unquoted(right) {
            Some(text) => Value::from(text),
            None => serde_json::from_str(right).map_err(|_| unsupported())?,
        };
        let comparison = match operator {
            "==" => Comparison::Equal(value),
            "!=" => Comparison::NotEqual(value),
            _ => Comparison::Ordered {
                less: operator.starts_with('<'),
                or_equal: operator.ends_with('='),
                bound: value,
            },
        };
        return Ok(Step::Where(path(left)?, comparison));
    }
    Ok(Step::Where(path(condition)?, Comparison::Exists))
}

fn unquoted(text: &str) -> Option<&str> {
    let inside = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inside('\'').or_else(|| inside('"'))
}

/// A path without braces: `.spec.addresses[?(@.type=="InternalIP")].ip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path(Vec<Step>);

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_path(text).map(Self)
    }
}

impl Path {
    /// Returns the first result of the path as text; `None` if there is none.
    pub(crate) fn first(&self, data: &Value) -> Option<String> {
        let found = self.0.iter().try_fold(vec![data], |found, step| follow(&found, step)).ok()?;
        found.first().map(|value| show(value))
    }
}

impl JsonPath {
    /// Returns the template's text for `data`. A member that is not there has no text; an index out of bounds is an error.
    pub(crate) fn evaluate(&self, data: &Value) -> anyhow::Result<String> {
        let mut text = String::new();
        evaluate(&self.0, data, &mut text)?;
        Ok(text)
    }
}

fn evaluate(parts: &[Part], data: &Value, text: &mut String) -> anyhow::Result<()> {
    for part in parts {
        match part {
            Part::Text(literal) => *text += literal,
            Part::Path(steps) => {
                *text += &results(steps, data)?.into_iter().map(show).collect::<Vec<_>>().join(" ");
            }
            Part::Range(steps, inner) => {
                results(steps, data)?.into_iter().try_for_each(|item| evaluate(inner, item, text))?;
            }
        }
    }
    Ok(())
}

fn results<'a>(steps: &[Step], data: &'a Value) -> anyhow::Result<Vec<&'a Value>> {
    steps.iter().try_fold(vec![data], |found, step| follow(&found, step))
}

fn follow<'a>(found: &[&'a Value], step: &Step) -> anyhow::Result<Vec<&'a Value>> {
    let mut next = Vec::new();
    for value in found {
        match (step, value) {
            (Step::All, Value::Array(items)) => next.extend(items),
            (Step::All, Value::Object(fields)) => next.extend(fields.values()),
            (Step::Where(path, comparison), Value::Array(items)) => {
                for item in items {
                    let found = results(path, item).unwrap_or_default();
                    if comparison.holds(found.first().copied()) {
                        next.push(item);
                    }
                }
            }
            (Step::Slice(from, to), Value::Array(items)) => {
                let at = |index: isize| match index {
                    ..0 => items.len().saturating_sub(index.unsigned_abs()),
                    _ => items.len().min(index.unsigned_abs()),
                };
                let (from, to) = (from.map_or(0, at), to.map_or(items.len(), at));
                next.extend(items.get(from..to).unwrap_or_default());
            }
            (Step::Index(index), Value::Array(items)) => {
                let at = if *index < 0 {
                    items.len().checked_add_signed(*index)
                } else {
                    Some(index.unsigned_abs())
                };
                next.push(at.and_then(|at| items.get(at)).ok_or_else(|| {
                    anyhow::anyhow!("array index out of bounds: index {index}, length {}", items.len())
                })?);
            }
            (Step::Key(key), Value::Object(fields)) => next.extend(fields.get(key)),
            (Step::Descendants, value) => descendants(value, &mut next),
            (Step::Key(_) | Step::Where(..), _) => {}
            (step, _) => anyhow::bail!("{step:?} does not fit what is there"),
        }
    }
    Ok(next)
}

/// Adds the value and all that it contains.
fn descendants<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    found.push(value);
    match value {
        Value::Array(items) => items.iter().for_each(|item| descendants(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| descendants(field, found)),
        _ => {}
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn evaluate(template: &str) -> Result<String, String> {
        let data = json!({"revision": 7, "list": [{"a": "x"}, {"a": "y"}], "o": {"k.l": true}});
        template.parse::<JsonPath>()?.evaluate(&data).map_err(|error| error.to_string())
    }

    #[test]
    fn paths() {
        assert_eq!(evaluate("{.revision}").unwrap(), "7");
        assert_eq!(evaluate("{$.revision}").unwrap(), "7");
        assert_eq!(evaluate("{.list[*].a}").unwrap(), "x y");
        assert_eq!(evaluate("{.list[-1].a}").unwrap(), "y");
        assert_eq!(evaluate("{.o['k.l']}").unwrap(), "true");
        assert_eq!(evaluate("rev={.revision}{\"\\n\"}").unwrap(), "rev=7\n");
    }

    #[test]
    fn items_are_chosen_by_a_member_and_names_may_have_dots() {
        assert_eq!(evaluate("{.list[?(@.a==\"y\")].a}").unwrap(), "y");
        assert_eq!(evaluate("{.list[?(@.a=='z')].a}").unwrap(), "");
        assert_eq!(evaluate("{.o.k\\.l}").unwrap(), "true");
        let first =
            |path: &str| path.parse::<Path>().unwrap().first(&json!({"l": [{"a": 1}, {"a": 2}], "n": null}));
        assert_eq!(first(".l[*].a").as_deref(), Some("1"));
        assert_eq!(first(".l[?(@.a=='x')].a"), None);
        assert_eq!(first(".l.a"), None);
        assert!(evaluate("{.list[?(a>1)].a}").unwrap_err().contains("is not supported"));
    }

    #[test]
    fn ranges_slices_comparisons_and_descendants_are_those_of_kubectl() {
        assert_eq!(evaluate("{range .list[*]}{.a}={.b}{'\\n'}{end}").unwrap(), "x=\ny=\n");
        assert_eq!(evaluate("{range .list[?(@.a!='x')]}<{.a}>{end}").unwrap(), "<y>");
        assert_eq!(evaluate("{range .nothing[*]}{.a}{end}").unwrap(), "");
        assert_eq!(evaluate("{.list[0:1].a} {.list[-1:].a} {.list[5:].a}").unwrap(), "x y ");
        assert_eq!(evaluate("{..a}").unwrap(), "x y");
        assert_eq!(evaluate("{.list[?(@.b)].a}{.list[?(@.a>='y')].a}").unwrap(), "y");
        assert_eq!(evaluate(r#"{"}{"}{.revision}"#).unwrap(), "}{7");
        assert!(evaluate("{range .list}").unwrap_err().contains("range without end"));
        assert!(evaluate("{end}").unwrap_err().contains("end without range"));
    }

    #[test]
    fn a_member_that_is_not_there_has_no_text_and_an_index_out_of_bounds_is_an_error() {
        assert_eq!(evaluate("{.nothing}").unwrap(), "");
        assert_eq!(evaluate("{.list[5]}").unwrap_err(), "array index out of bounds: index 5, length 2");
        assert_eq!(evaluate("{.list").unwrap_err(), r#"jsonpath "{.list": '{' without '}'"#);
        assert_eq!(evaluate("{.list[x]}").unwrap_err(), r#"jsonpath "{.list[x]}": "x" is no index"#);
    }
}
