//! `-o jsonpath=`: templates of literal text and `{...}` paths, as kubectl's users write them.

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
    /// Negative ones count from the end.
    Index(isize),
    All,
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
                let end = name.find(['.', '[']).unwrap_or(name.len());
                match &name[..end] {
                    "" if steps.is_empty() && end == name.len() => {}
                    "" => return Err("a name is missing after '.'".to_owned()),
                    "*" => steps.push(Step::All),
                    name if name.contains([' ', '?', '(', ')']) => {
                        return Err(format!("{name:?} is not supported, paths and indexes are"));
                    }
                    name => steps.push(Step::Key(name.to_owned())),
                }
                &name[end..]
            }
        };
    }
    Ok(Part::Path(steps))
}

fn parse_index(index: &str) -> Result<Step, String> {
    if index == "*" {
        return Ok(Step::All);
    }
    let quoted = index.strip_prefix('\'').and_then(|name| name.strip_suffix('\''));
    match quoted {
        Some(name) => Ok(Step::Key(name.to_owned())),
        None => index.parse().map(Step::Index).map_err(|_| format!("{index:?} is no index")),
    }
}

impl JsonPath {
    /// The template's text for `data`. A path that leads nowhere is an error.
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
    fn what_leads_nowhere_is_an_error() {
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
