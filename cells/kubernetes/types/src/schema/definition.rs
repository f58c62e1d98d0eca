//! CustomResourceDefinitions.

use serde_json::{Map, Value, json};

use super::{Definition, Node, SCHEMAS, Schemas, Shape};
use crate::Kind;

/// The label of a definition with the version of its schema.
const VERSION_LABEL: &str = "io.cilium.k8s.crd.schema.version";

/// The definitions of all kinds of `cilium.io`, as an API server takes them (`apiextensions.k8s.io/v1`), with all their
/// versions.
pub fn custom_resource_definitions() -> Vec<Value> {
    let kinds = Kind::ALL.iter().filter(|kind| kind.group() == "cilium.io");
    kinds.map(|&kind| custom_resource_definition(kind)).collect()
}

/// The definition of a kind. Of Kubernetes' own kinds a server knows without being told.
pub fn custom_resource_definition(kind: Kind) -> Value {
    let versions = SCHEMAS.definitions(kind.name());
    let group = kind.group();
    let categories: Vec<&str> = match versions.first() {
        Some(version) => version.fact("categories").split(',').filter(|name| !name.is_empty()).collect(),
        None => Vec::new(),
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{group}", kind.plural()), "labels": {VERSION_LABEL: SCHEMAS.version}},
        "spec": {
            "group": group,
            "scope": if kind.namespaced() { "Namespaced" } else { "Cluster" },
            "names": {
                "kind": kind.name(),
                "listKind": format!("{}List", kind.name()),
                "plural": kind.plural(),
                "singular": kind.name().to_lowercase(),
                "shortNames": kind.short_names(),
                "categories": categories,
            },
            "versions": versions.iter().map(version).collect::<Vec<_>>(),
        },
    })
}

fn version(definition: &Definition) -> Value {
    let is = |fact| definition.fact(fact) == "True";
    let name = definition.version.rsplit('/').next().unwrap_or_default();
    let mut root = schema(&SCHEMAS, SCHEMAS.node(definition.root));
    root["properties"]["apiVersion"] = json!({"type": "string"});
    root["properties"]["kind"] = json!({"type": "string"});
    root["properties"]["metadata"] = json!({"type": "object"});
    let mut version = json!({
        "name": name, "served": is("served"), "storage": is("storage"), "schema": {"openAPIV3Schema": root},
    });
    if is("deprecated") {
        version["deprecated"] = true.into();
    }
    if definition.fact("subresources").contains("status") {
        version["subresources"] = json!({"status": {}});
    }
    let columns: Vec<Value> = definition.fact("columns").split(',').filter_map(column).collect();
    if !columns.is_empty() {
        version["additionalPrinterColumns"] = columns.into();
    }
    version
}

/// A column of `kubectl get`, of `Name=.path`; `Name+=.path` is one of `-o wide` alone.
fn column(text: &str) -> Option<Value> {
    let (name, path) = text.split_once('=')?;
    let kind = match path {
        ".metadata.creationTimestamp" => "date",
        ".spec.disabled" => "boolean",
        ".status.identity.id" => "integer",
        _ => "string",
    };
    Some(match name.strip_suffix('+') {
        Some(name) => json!({"name": name, "type": kind, "jsonPath": path, "priority": 1}),
        None => json!({"name": name, "type": kind, "jsonPath": path}),
    })
}

/// A node as OpenAPI says it.
fn schema(schemas: &Schemas, node: &Node) -> Value {
    let mut made = Map::new();
    let (kind, min, max) = match &node.shape {
        Shape::Object { fields, .. } => {
            let member = |node| schema(schemas, schemas.node(node));
            let properties = fields.iter().map(|field| (field.name.to_owned(), member(field.node)));
            made.insert("properties".into(), Value::Object(properties.collect()));
            let required: Vec<&str> =
                fields.iter().filter(|field| field.required).map(|field| field.name).collect();
            if !required.is_empty() {
                made.insert("required".into(), required.into());
            }
            ("object", "", "")
        }
        Shape::Map { value, .. } => {
            made.insert("additionalProperties".into(), schema(schemas, schemas.node(*value)));
            ("object", "", "")
        }
        Shape::List(item) => {
            made.insert("items".into(), schema(schemas, schemas.node(*item)));
            ("array", "minItems", "maxItems")
        }
        Shape::String => ("string", "minLength", "maxLength"),
        Shape::Integer => ("integer", "minimum", "maximum"),
        Shape::Boolean => ("boolean", "", ""),
        Shape::IntOrString => return json!({"x-kubernetes-int-or-string": true}),
        Shape::AnyObject | Shape::Undecided => {
            return json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        }
    };
    made.insert("type".into(), kind.into());
    let bounds = [(min, node.min), (max, node.max)];
    made.extend(bounds.into_iter().filter_map(|(name, bound)| Some((name.to_owned(), bound?.into()))));
    if let Some(format) = node.format.standard() {
        made.insert("format".into(), format.into());
    }
    if !node.words.is_empty() {
        made.insert("enum".into(), node.words.clone().into());
    }
    if let Some(pattern) = &node.pattern {
        made.insert("pattern".into(), pattern.text.into());
    }
    if let Some(default) = node.default {
        let value = match node.shape {
            Shape::Boolean => Value::Bool(default == "True"),
            Shape::Integer => default.parse::<i64>().unwrap_or_default().into(),
            _ => default.into(),
        };
        made.insert("default".into(), value);
    }
    Value::Object(made)
}
