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
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    /// An index; a negative one counts from the end.
    Index(isize),
    All,
    /// The items with this text in the member of this name.
    Where(String, String),
}

impl FromStr for JsonPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let (path, after) =
                after.split_once('}').ok_or_else(|| format!("jsonpath {text:?}: '{{' without '}}'"))?;
            parts.push(parse_part(path.trim()).map_err(|why| format!("jsonpath {text:?}: {why}"))?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }
}

fn parse_part(path: &str) -> Result<Part, String> {
    if let Some(text) = path.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        return Ok(Part::Text(text.replace("\\n", "\n").replace("\\t", "\t")));
    }
    parse_path(path).map(Part::Path)
}

fn parse_path(path: &str) -> Result<Vec<Step>, String> {
    let mut rest = path.strip_prefix(['$', '@']).unwrap_or(path);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        rest = match rest.strip_prefix('[') {
            Some(inner) => {
                let (index, after) = inner.split_once(']').ok_or("'[' without ']'")?;
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
        let parts = condition.trim().strip_prefix("@.").and_then(|rest| rest.split_once("=="));
        let parts = parts.and_then(|(name, value)| Some((name.trim(), unquoted(value.trim())?)));
        let (name, value) =
            parts.ok_or_else(|| format!("{condition:?} is not supported, @.name==\"text\" is"))?;
        return Ok(Step::Where(name.to_owned(), value.to_owned()));
    }
    match unquoted(index) {
        Some(name) => Ok(Step::Key(name.to_owned())),
        None => index.parse().map(Step::Index).map_err(|_| format!("{index:?} is no index")),
    }
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
    /// Returns the template's text for `data`. A path without a result is an error.
    pub(crate) fn evaluate(&self, data: &Value) -> anyhow::Result<String> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(literal) => text += literal,
                Part::Path(steps) => {
                    let found = steps.iter().try_fold(vec![data], |found, step| follow(&found, step))?;
                    text += &found.into_iter().map(show).collect::<Vec<_>>().join(" ");
                }
            }
        }
        Ok(text)
    }
}

fn follow<'a>(found: &[&'a Value], step: &Step) -> anyhow::Result<Vec<&'a Value>> {
    let mut next = Vec::new();
    for value in found {
        match (step, value) {
            (Step::All, Value::Array(items)) => next.extend(items),
            (Step::All, Value::Object(fields)) => next.extend(fields.values()),
            (Step::Where(name, text), Value::Array(items)) => {
                next.extend(items.iter().filter(|item| item[name.as_str()] == text.as_str()));
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
            (Step::Key(key), Value::Object(fields)) => {
                next.push(fields.get(key).ok_or_else(|| anyhow::anyhow!("{key} is not found"))?);
            }
            (step, _) => anyhow::bail!("{step:?} does not fit what is there"),
        }
    }
    Ok(next)
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
        assert!(evaluate("{.list[?(@.a>1)].a}").unwrap_err().contains("is not supported"));
    }

    #[test]
    fn a_path_without_a_result_is_an_error() {
        assert_eq!(evaluate("{.nothing}").unwrap_err(), "nothing is not found");
        assert_eq!(evaluate("{.list[5]}").unwrap_err(), "array index out of bounds: index 5, length 2");
        assert_eq!(evaluate("{.list").unwrap_err(), r#"jsonpath "{.list": '{' without '}'"#);
        assert_eq!(
            evaluate("{range .list}").unwrap_err(),
            r#"jsonpath "{range .list}": "range " is not supported, paths and indexes are"#
        );
        assert_eq!(evaluate("{.list[x]}").unwrap_err(), r#"jsonpath "{.list[x]}": "x" is no index"#);
    }
}
