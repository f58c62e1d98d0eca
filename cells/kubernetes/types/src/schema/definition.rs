//! CustomResourceDefinitions, generated from the schemas.

use serde_json::{Map, Value, json};

use super::notation::Column;
use super::{Definition, Node, SCHEMAS, Schemas, Shape};
use crate::{Kind, yaml};

/// The label with the schema's version, by which Cilium's operator detects definitions older than its own.
const VERSION_LABEL: &str = "io.cilium.k8s.crd.schema.version";

/// The command that writes [`custom_resource_definition_files`].
const GENERATOR: &str = "cargo run -p k8s-types --example custom-resource-definitions";

/// Returns the definitions of all kinds of `cilium.io` as an API server takes them (`apiextensions.k8s.io/v1`), with all
/// their versions.
pub fn custom_resource_definitions() -> Vec<Value> {
    custom_kinds().map(custom_resource_definition).collect()
}

/// Returns the definitions as files for `kubectl apply`: name and content of each.
pub fn custom_resource_definition_files() -> Vec<(String, String)> {
    let file = |kind: Kind| {
        let manifest = yaml::print(&custom_resource_definition(kind));
        (format!("{}.yaml", kind.plural()), format!("# Generated, do not edit: {GENERATOR}\n{manifest}"))
    };
    custom_kinds().map(file).collect()
}

fn custom_kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.iter().copied().filter(|kind| kind.group() == "cilium.io")
}

/// Returns the definition of a kind of `cilium.io`. A server has no definitions of Kubernetes' own kinds.
pub fn custom_resource_definition(kind: Kind) -> Value {
    let versions = SCHEMAS.definitions(kind.name());
    let group = kind.group();
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
                "categories": versions.first().map(|version| &*version.facts.categories).unwrap_or_default(),
            },
            "versions": versions.iter().map(version).collect::<Vec<_>>(),
        },
    })
}

fn version(definition: &Definition) -> Value {
    let facts = &definition.facts;
    let mut root = schema(&SCHEMAS, SCHEMAS.node(definition.root));
    // The server validates these three itself; a schema may only declare them.
    root["properties"]["apiVersion"] = json!({"type": "string"});
    root["properties"]["kind"] = json!({"type": "string"});
    root["properties"]["metadata"] = json!({"type": "object"});
    let mut version = json!({
        "name": definition.version.rsplit('/').next(),
        "served": facts.is_served,
        "storage": facts.is_stored,
        "schema": {"openAPIV3Schema": root},
    });
    if facts.is_deprecated {
        version["deprecated"] = true.into();
    }
    if facts.has_status {
        version["subresources"] = json!({"status": {}});
    }
    if !facts.columns.is_empty() {
        let columns = facts.columns.iter().map(|column| printer_column(definition, column));
        version["additionalPrinterColumns"] = columns.collect();
    }
    version
}

fn printer_column(definition: &Definition, column: &Column) -> Value {
    let mut json = json!({
        "name": column.name,
        "type": column_type(definition, column.path),
        "jsonPath": column.path,
    });
    if column.is_wide {
        json["priority"] = 1.into();
    }
    json
}

/// Returns the type of the field at a path. The schemas do not contain `metadata`; its columns are strings except the
/// age.
pub(super) fn column_type(definition: &Definition, path: &str) -> &'static str {
    if path == ".metadata.creationTimestamp" {
        return "date";
    }
    match field(definition, path).map(|node| &node.shape) {
        Some(Shape::Integer) => "integer",
        Some(Shape::Boolean) => "boolean",
        _ => "string",
    }
}

/// Returns the node at a path of a column, `.a.list[0].b` or `.a.list[?(@.type=="x.y/Z")].b`.
pub(super) fn field(definition: &Definition, path: &str) -> Option<&'static Node> {
    let mut depth = 0;
    let is_separator = |c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == '.' && depth == 0
    };
    let mut node = SCHEMAS.node(definition.root);
    for step in path.strip_prefix('.')?.split(is_separator) {
        let name = step.split('[').next()?;
        let Shape::Object { fields, .. } = &node.shape else { return None };
        node = SCHEMAS.node(fields.iter().find(|field| field.name == name)?.node);
        if let (true, Shape::List(item)) = (step.ends_with(']'), &node.shape) {
            node = SCHEMAS.node(*item);
        }
    }
    Some(node)
}

/// Returns a node's structural schema.
fn schema(schemas: &Schemas, node: &Node) -> Value {
    let mut members = Map::new();
    let (kind, min, max) = match &node.shape {
        Shape::Object { fields, .. } => {
            let member = |node| schema(schemas, schemas.node(node));
            let properties = fields.iter().map(|field| (field.name.to_owned(), member(field.node)));
            members.insert("properties".into(), Value::Object(properties.collect()));
            let required: Vec<&str> =
                fields.iter().filter(|field| field.required).map(|field| field.name).collect();
            if !required.is_empty() {
                members.insert("required".into(), required.into());
            }
            ("object", "", "")
        }
        Shape::Map { value, .. } => {
            members.insert("additionalProperties".into(), schema(schemas, schemas.node(*value)));
            ("object", "", "")
        }
        Shape::List(item) => {
            members.insert("items".into(), schema(schemas, schemas.node(*item)));
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
    members.insert("type".into(), kind.into());
    let bounds = [(min, node.min), (max, node.max)];
    members.extend(bounds.into_iter().filter_map(|(name, bound)| Some((name.to_owned(), bound?.into()))));
    if let Some(format) = node.format.standard() {
        members.insert("format".into(), format.into());
    }
    if !node.words.is_empty() {
        members.insert("enum".into(), node.words.clone().into());
    }
    if let Some(pattern) = &node.pattern {
        members.insert("pattern".into(), pattern.text.into());
    }
    if let Some(default) = node.default {
        let value = match node.shape {
            Shape::Boolean => Value::Bool(default == "True"),
            Shape::Integer => default.parse::<i64>().unwrap_or_default().into(),
            _ => default.into(),
        };
        members.insert("default".into(), value);
    }
    Value::Object(members)
}
