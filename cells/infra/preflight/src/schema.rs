//! The chart's `values.schema.json`: as much of JSON schema (draft 7) as the file uses, which helm evaluates in full.

use regex::Regex;
use serde_json::{Map, Value};

/// A fault of a value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fault {
    /// The path of the value: `ipam.mode`, `extraEnv[0].name`.
    pub(crate) path: String,
    pub(crate) kind: FaultKind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FaultKind {
    /// The chart has no value of this name; the names that it has there.
    Unknown(Vec<String>),
    /// The value violates a constraint, which the text names.
    Invalid(String),
}

/// Returns the path of a member.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns all faults of a value, in order of paths.
pub(crate) fn faults(schema: &Value, value: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    check(schema, value, "", &mut faults);
    faults
}

fn check(schema: &Value, value: &Value, path: &str, faults: &mut Vec<Fault>) {
    let Some(schema) = schema.as_object() else { return };
    if let Some(reason) = scalar_fault(schema, value) {
        faults.push(Fault { path: path.to_owned(), kind: FaultKind::Invalid(reason) });
        return;
    }
    match value {
        Value::Object(members) => check_members(schema, members, path, faults),
        Value::Array(items) => {
            if let Some(of_item) = schema.get("items") {
                for (at, item) in items.iter().enumerate() {
                    check(of_item, item, &format!("{path}[{at}]"), faults);
                }
            }
        }
        _ => {}
    }
}

fn check_members(
    schema: &Map<String, Value>,
    members: &Map<String, Value>,
    path: &str,
    faults: &mut Vec<Fault>,
) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, member) in members {
        let path = join(path, name);
        match (properties.and_then(|properties| properties.get(name)), schema.get("additionalProperties")) {
            (Some(of_member), _) => check(of_member, member, &path, faults),
            (None, Some(Value::Bool(false))) => {
                let known = properties.into_iter().flat_map(Map::keys).cloned().collect();
                faults.push(Fault { path, kind: FaultKind::Unknown(known) });
            }
            (None, Some(of_others)) => check(of_others, member, &path, faults),
            (None, None) => {}
        }
    }
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if let Some(name) = name.as_str().filter(|name| !members.contains_key(*name)) {
            let reason = "is missing: give it".to_owned();
            faults.push(Fault { path: join(path, name), kind: FaultKind::Invalid(reason) });
        }
    }
}

/// Returns the violated constraint of the value itself. A list or map is judged by its type and its count.
fn scalar_fault(schema: &Map<String, Value>, value: &Value) -> Option<String> {
    let types: Vec<&str> = match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    if !types.is_empty() && !types.iter().any(|name| is_of(name, value)) {
        return Some(format!("is not of type {}: give one", types.join(" or ")));
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.iter().any(|one| is_same(one, value))
    {
        let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        return Some(format!("is not among the values that are built: give one of {}", allowed.join(", ")));
    }
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let size = match value {
        Value::Number(number) => {
            let number = number.as_f64()?;
            let low = bound("minimum").filter(|least| number < *least);
            let low = low.or(bound("exclusiveMinimum").filter(|least| number <= *least));
            let high = bound("maximum").filter(|most| number > *most);
            return match (low, high) {
                (Some(least), _) => Some(format!("is too small: the limit is {least}")),
                (_, Some(most)) => Some(format!("is too large: the limit is {most}")),
                _ => None,
            };
        }
        Value::String(text) => {
            if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
                && Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(text))
            {
                return Some(format!("does not match {pattern}: give a value of that form"));
            }
            ("Length", text.chars().count())
        }
        Value::Array(items) => ("Items", items.len()),
        Value::Object(members) => ("Properties", members.len()),
        _ => return None,
    };
    let (name, count) = (size.0, size.1 as f64);
    if let Some(least) = bound(&format!("min{name}")).filter(|least| count < *least) {
        return Some(format!("is too short: it needs at least {least}"));
    }
    let most = bound(&format!("max{name}")).filter(|most| count > *most)?;
    Some(format!("is too long: it has at most {most}"))
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        // As in JSON schema, 1.0 is an integer.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}

fn is_same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn invalid(schema: Value, value: Value) -> Option<String> {
        match faults(&schema, &value).into_iter().next()?.kind {
            FaultKind::Invalid(reason) => Some(reason),
            FaultKind::Unknown(known) => Some(format!("unknown beside {}", known.join(","))),
        }
    }

    #[test]
    fn each_constraint_is_checked() {
        let closed = json!({"additionalProperties": false, "properties": {"a": {}}});
        for (schema, good, wrong, reason) in [
            (json!({"type": ["string", "null"]}), json!(null), json!(1), "is not of type string or null"),
            (json!({"type": "integer"}), json!(2.0), json!(2.5), "is not of type integer"),
            (json!({"enum": [255, "x"]}), json!(255.0), json!("y"), "give one of 255, \"x\""),
            (json!({"minimum": 1, "maximum": 9}), json!(1), json!(0), "is too small: the limit is 1"),
            (json!({"minimum": 1, "maximum": 9}), json!(9), json!(10), "is too large: the limit is 9"),
            (json!({"exclusiveMinimum": 0}), json!(0.1), json!(0), "is too small: the limit is 0"),
            (json!({"pattern": "^a+$"}), json!("aa"), json!("b"), "does not match ^a+$"),
            (json!({"minLength": 1, "maxLength": 2}), json!("ab"), json!(""), "is too short"),
            (json!({"maxLength": 2}), json!("ab"), json!("abc"), "is too long: it has at most 2"),
            (json!({"minItems": 1}), json!([1]), json!([]), "is too short"),
            (json!({"minProperties": 1}), json!({"a": 1}), json!({}), "is too short"),
            (json!({"items": {"type": "string"}}), json!(["a"]), json!([1]), "is not of type string"),
            (json!({"required": ["a"]}), json!({"a": 1}), json!({}), "is missing"),
            (closed, json!({"a": 1}), json!({"b": 1}), "unknown beside a"),
            (
                json!({"additionalProperties": {"type": "string"}}),
                json!({"a": ""}),
                json!({"a": 1}),
                "is not of",
            ),
        ] {
            assert_eq!(invalid(schema.clone(), good), None, "{schema}");
            let found = invalid(schema.clone(), wrong).unwrap_or_default();
            assert!(found.contains(reason), "{schema}: {found}");
        }
        let nested = json!({"properties": {"a": {"items": {"properties": {"b": {"type": "null"}}}}}});
        assert_eq!(faults(&nested, &json!({"a": [{}, {"b": 1}]}))[0].path, "a[1].b");
    }

    /// A keyword that this file does not evaluate would accept every value.
    #[test]
    fn the_schema_of_the_chart_uses_no_other_keyword() {
        const KNOWN: [&str; 19] = [
            "$schema",
            "title",
            "description",
            "type",
            "enum",
            "properties",
            "additionalProperties",
            "items",
            "required",
            "pattern",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
        ];
        fn visit(schema: &Value, path: &str) {
            let Some(schema) = schema.as_object() else { return };
            for (keyword, inner) in schema {
                assert!(KNOWN.contains(&keyword.as_str()), "{path}: {keyword}");
                match keyword.as_str() {
                    "properties" => {
                        for (name, of_member) in inner.as_object().unwrap() {
                            visit(of_member, &join(path, name));
                        }
                    }
                    "items" | "additionalProperties" => visit(inner, path),
                    "pattern" => _ = Regex::new(inner.as_str().unwrap()).unwrap(),
                    _ => {}
                }
            }
        }
        visit(&serde_json::from_str(crate::values::SCHEMA).unwrap(), "");
    }
}
