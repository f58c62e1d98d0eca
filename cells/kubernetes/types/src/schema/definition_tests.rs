use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::definition::{column_type, field};
use super::*;

/// A check of definitions for problems that a server would report.
#[derive(Default)]
struct Structural(Vec<String>);

impl Structural {
    fn expect(&mut self, holds: bool, path: &str, rule: &str) {
        if !holds {
            self.0.push(format!("{path}: {rule}"));
        }
    }

    /// Checks the rules of structural schemas (apiextensions-apiserver, `pkg/apiserver/schema`) for the keywords that
    /// the generator uses; any other keyword is a problem.
    fn node(&mut self, path: &str, node: &Value) {
        let Some(members) = node.as_object() else { return self.expect(false, path, "is no object") };
        let only = |members: &Map<String, Value>, allowed: &[&str]| {
            members.keys().all(|name| allowed.contains(&name.as_str()))
        };
        if node["x-kubernetes-int-or-string"] == true {
            return self.expect(members.len() == 1, path, "int-or-string stands alone");
        }
        const SHARED: [&str; 3] = ["type", "enum", "default"];
        let with = |words: &[&'static str]| [&SHARED[..], words].concat();
        match node["type"].as_str().unwrap_or_default() {
            "object" => {
                let allowed = [
                    "type",
                    "properties",
                    "required",
                    "additionalProperties",
                    "x-kubernetes-preserve-unknown-fields",
                ];
                self.expect(only(members, &allowed), path, "has other words than an object may");
                let forms = ["properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"];
                let count = forms.iter().filter(|form| members.contains_key(**form)).count();
                self.expect(count <= 1, path, "properties and additionalProperties exclude each other");
                let properties = node["properties"].as_object();
                for name in node["required"].as_array().into_iter().flatten() {
                    let known = properties.is_some_and(|p| p.contains_key(name.as_str().unwrap_or_default()));
                    self.expect(known, path, "requires a property that it does not have");
                }
                for (name, property) in properties.into_iter().flatten() {
                    self.node(&format!("{path}.{name}"), property);
                }
                if let Some(value) = members.get("additionalProperties") {
                    self.node(&format!("{path}.<key>"), value);
                }
            }
            "array" => {
                let allowed = ["type", "items", "minItems", "maxItems"];
                self.expect(only(members, &allowed), path, "has other words than an array may");
                self.bounds(path, &node["minItems"], &node["maxItems"]);
                self.node(&format!("{path}[]"), &node["items"]);
            }
            "string" => {
                let allowed = with(&["minLength", "maxLength", "pattern", "format"]);
                self.expect(only(members, &allowed), path, "has other words than a string may");
                self.bounds(path, &node["minLength"], &node["maxLength"]);
                if let Some(pattern) = node["pattern"].as_str() {
                    self.expect(regex::Regex::new(pattern).is_ok(), path, "has no regular expression");
                }
                let default = &node["default"];
                let words = node["enum"].as_array();
                self.expect(default.is_null() || default.is_string(), path, "has a default of another type");
                let known = words.is_none_or(|words| default.is_null() || words.contains(default));
                self.expect(known, path, "has a default that is none of its words");
                let unique = words.into_iter().flatten().map(Value::to_string).collect::<BTreeSet<_>>().len();
                self.expect(unique == words.map_or(0, Vec::len), path, "has a word twice");
            }
            "integer" => {
                let allowed = with(&["minimum", "maximum", "format"]);
                self.expect(only(members, &allowed), path, "has other words than an integer may");
                self.bounds(path, &node["minimum"], &node["maximum"]);
                let default = &node["default"];
                self.expect(default.is_null() || default.is_i64(), path, "has a default of another type");
                self.bounds(path, &node["minimum"], default);
                self.bounds(path, default, &node["maximum"]);
            }
            "boolean" => {
                self.expect(only(members, &["type", "default"]), path, "has other words than a boolean may");
            }
            _ => self.expect(false, path, "has no type"),
        }
    }

    fn bounds(&mut self, path: &str, min: &Value, max: &Value) {
        let ordered = match (min.as_i64(), max.as_i64()) {
            (Some(min), Some(max)) => min <= max,
            _ => true,
        };
        self.expect(ordered, path, "has bounds or a default out of order");
    }
}

#[test]
fn definitions_are_structural() {
    let mut found = Structural::default();
    for definition in custom_resource_definitions() {
        let spec = &definition["spec"];
        let name = definition["metadata"]["name"].as_str().unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let expected = format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"]));
        found.expect(name == expected, name, "is not named after plural and group");
        let versions = spec["versions"].as_array().unwrap();
        let stored = versions.iter().filter(|version| version["storage"] == true).count();
        found.expect(stored == 1, name, "is stored in one version");
        let served = versions.iter().any(|version| version["served"] == true);
        found.expect(served, name, "is served in no version");
        for version in versions {
            let path = format!("{name}/{}", text(&version["name"]));
            let schema = &version["schema"]["openAPIV3Schema"];
            found.expect(schema["type"] == "object", &path, "the root is no object");
            found.expect(
                schema["properties"]["metadata"] == json!({"type": "object"}),
                &path,
                "restricts metadata",
            );
            found.node(&path, schema);
            for column in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
                let known = ["string", "integer", "boolean", "date"].contains(&&*text(&column["type"]));
                let column = format!("{path} column {}", text(&column["name"]));
                found.expect(known, &column, "has no type of columns");
            }
        }
    }
    assert_eq!(found.0, Vec::<String>::new());
}

#[test]
fn the_structural_check_finds_faults() {
    for (schema, rule) in [
        (json!({"properties": {}}), "has no type"),
        (json!({"type": "object", "properties": {"a": {}}}), "has no type"),
        (json!({"type": "array"}), "is no object"),
        (
            json!({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}),
            "exclude each other",
        ),
        (json!({"type": "object", "properties": {}, "required": ["a"]}), "does not have"),
        (json!({"type": "string", "enum": ["a"], "default": "b"}), "none of its words"),
        (json!({"type": "string", "pattern": "("}), "no regular expression"),
        (json!({"type": "integer", "maximum": 3, "default": 4}), "out of order"),
        (json!({"type": "integer", "nullable": true}), "other words"),
    ] {
        let mut found = Structural::default();
        found.node("x", &schema);
        assert!(found.0.iter().any(|fault| fault.contains(rule)), "{schema}: {:?}", found.0);
    }
}

#[test]
fn definitions_have_names_versions_subresources_and_columns() {
    let definitions = custom_resource_definitions();
    assert_eq!(definitions.len(), 22);
    let of = |kind: &str| definitions.iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
    let node = of("CiliumNode");
    assert_eq!(node["metadata"]["labels"]["io.cilium.k8s.crd.schema.version"], "1.33.9");
    assert_eq!(node["spec"]["scope"], "Cluster");
    assert_eq!(
        node["spec"]["names"],
        json!({
            "kind": "CiliumNode", "listKind": "CiliumNodeList", "plural": "ciliumnodes", "singular": "ciliumnode",
            "shortNames": ["cn", "ciliumn"], "categories": ["cilium"],
        })
    );
    let version = &node["spec"]["versions"][0];
    assert_eq!((&version["name"], &version["subresources"]), (&json!("v2"), &json!({"status": {}})));
    assert_eq!(
        version["additionalPrinterColumns"][1]["jsonPath"],
        ".spec.addresses[?(@.type==\"InternalIP\")].ip"
    );
    let schema = &version["schema"]["openAPIV3Schema"];
    assert_eq!(schema["required"], json!(["spec"]));
    let pools = &schema["properties"]["spec"]["properties"]["ipam"]["properties"]["pools"]["properties"];
    assert_eq!(pools["requested"]["items"]["properties"]["pool"], json!({"type": "string", "minLength": 1}));
    let versions = of("CiliumBGPAdvertisement")["spec"]["versions"].as_array().unwrap();
    assert_eq!((versions.len(), &versions[1]["deprecated"]), (2, &json!(true)));
}

#[test]
fn columns_have_the_types_of_their_fields() {
    for &kind in Kind::ALL {
        for definition in SCHEMAS.definitions(kind.name()) {
            for column in &definition.facts.columns {
                let path = column.path;
                assert!(
                    path.starts_with(".metadata.") || field(definition, path).is_some(),
                    "{kind}: {path}"
                );
            }
        }
    }
    let column = |kind, path| column_type(SCHEMAS.definition(kind).unwrap(), path);
    assert_eq!(column(Kind::CiliumEndpoint, ".status.identity.id"), "integer");
    assert_eq!(column(Kind::CiliumEndpoint, ".status.networking.addressing[0].ipv4"), "string");
    assert_eq!(column(Kind::CiliumLoadBalancerIPPool, ".spec.disabled"), "boolean");
    assert_eq!(column(Kind::CiliumIdentity, ".metadata.creationTimestamp"), "date");
}

#[test]
fn committed_definitions_are_the_generated_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../config/crds");
    let generated = custom_resource_definition_files();
    let names: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, generated.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>());
    for (name, content) in generated {
        let committed = std::fs::read_to_string(folder.join(&name)).unwrap();
        let differs = committed.lines().zip(content.lines()).position(|(left, right)| left != right);
        assert!(committed == content, "{name} differs from line {differs:?} on; run the command of its head");
    }
}
