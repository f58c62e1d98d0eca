//! The definitions and checks of `k8s-types` against a real API server: it takes the definitions, and about objects made of
//! them, good ones and each way to spoil one, both say the same.

use std::collections::{BTreeMap, BTreeSet};

use cluster_stage::Stage;
use k8s_types::Kind;
use k8s_types::schema::{Strictness, check, custom_resource_definitions};
use serde_json::{Value, json};
use test_kit::require_root;

use crate::stage_with_definitions;

/// Maximum limit of string lengths that is tested.
const LONGEST: i64 = 40_000;

/// Returns a valid value by a schema: with all fields, or only with required ones.
fn good(schema: &Value, all: bool) -> Value {
    if schema["x-kubernetes-int-or-string"] == true {
        return json!(80);
    }
    match schema["type"].as_str().unwrap() {
        "object" if schema["properties"].is_object() => {
            let wanted = |name: &str| all || required(schema).any(|required| required == name);
            let fields = schema["properties"].as_object().unwrap().iter().filter(|(name, _)| wanted(name));
            fields.map(|(name, field)| (name.clone(), good(field, all))).collect()
        }
        "object" if schema["additionalProperties"].is_object() => {
            json!({"key": good(&schema["additionalProperties"], all)})
        }
        "object" => json!({"anything": {"at": ["all"]}}),
        "array" => {
            let (least, most) = (schema["minItems"].as_i64(), schema["maxItems"].as_i64());
            let count = least.unwrap_or(0).max(i64::from(all)).min(most.unwrap_or(i64::MAX));
            (0..count).map(|_| good(&schema["items"], all)).collect()
        }
        "string" => good_string(schema).into(),
        "integer" => {
            let (min, max) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
            max.or(min).unwrap_or(7).into()
        }
        "boolean" => json!(true),
        other => panic!("no example of {other}"),
    }
}

fn good_string(schema: &Value) -> String {
    if let Some(words) = schema["enum"].as_array() {
        return words.last().unwrap().as_str().unwrap().to_owned();
    }
    let example = match (schema["format"].as_str(), schema["pattern"].as_str()) {
        (Some("cidr"), _) => "10.0.0.0/8",
        (Some("ipv4"), _) => "10.1.2.3",
        (Some("ipv6"), _) => "fd00::1",
        (Some("date-time"), _) => "2026-01-02T03:04:05Z",
        (None | Some("idn-hostname"), None) => "word",
        (None, Some(pattern)) if pattern.contains("a-z") || pattern.contains(r"\PC") => "a",
        (None, Some(_)) => "1",
        (Some(format), _) => panic!("no example of {format}"),
    };
    example.repeat(usize::try_from(schema["minLength"].as_u64().unwrap_or(1).max(1)).unwrap())
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap())
}

/// Each value that the schema does not take, and differs from the good one in one respect, at any depth: where, and how. A
/// structure that several fields have is spoiled in one of them.
fn spoiled(schema: &Value, value: &Value, at: &str, seen: &mut BTreeSet<String>) -> Vec<(String, Value)> {
    let here = |how: &str, value: Value| (format!("{at}: {how}"), value);
    if schema["x-kubernetes-int-or-string"] == true {
        return vec![here("type", json!(true)), here("type", json!([80]))];
    }
    let kind = schema["type"].as_str().unwrap();
    let other = if kind == "string" { json!(7) } else { json!("word") };
    let mut list = vec![here("type", other)];
    if ["object", "array"].contains(&kind) && !seen.insert(schema.to_string()) {
        return list;
    }
    let long = |length: i64| "a".repeat(usize::try_from(length).unwrap());
    match kind {
        "object" => {
            for (name, field) in value.as_object().unwrap() {
                let schema = match (&schema["properties"][name], &schema["additionalProperties"]) {
                    (Value::Null, Value::Null) => continue,
                    (Value::Null, each) => each,
                    (field, _) => field,
                };
                for (how, wrong) in spoiled(schema, field, &format!("{at}.{name}"), seen) {
                    let mut object = value.clone();
                    object[name] = wrong;
                    list.push((how, object));
                }
            }
            for name in required(schema) {
                let mut object = value.clone();
                object.as_object_mut().unwrap().remove(name).unwrap();
                list.push(here(&format!("without {name}"), object));
            }
        }
        "array" => {
            let items = value.as_array().unwrap();
            // Some lists have to be empty.
            let item = good(&schema["items"], true);
            if let Some((_, rest)) = items.split_first() {
                for (how, wrong) in spoiled(&schema["items"], &item, &format!("{at}[0]"), seen) {
                    list.push((how, std::iter::once(wrong).chain(rest.iter().cloned()).collect()));
                }
            }
            if schema["minItems"].as_u64().is_some_and(|least| least > 0) {
                list.push(here("too few", json!([])));
            }
            if let Some(most) = schema["maxItems"].as_u64() {
                list.push(here("too many", (0..=most).map(|_| item.clone()).collect()));
            }
        }
        "string" => {
            if let Some(most) = schema["maxLength"].as_i64().filter(|most| *most <= LONGEST) {
                list.push(here("too long", long(most + 1).into()));
            }
            if schema["minLength"].as_i64().is_some_and(|least| least > 0) {
                list.push(here("too short", json!("")));
            }
            if !schema["pattern"].is_null() {
                list.push(here("pattern", json!("\u{7}!")));
            }
            if !schema["enum"].is_null() {
                list.push(here("no such word", json!("Word!")));
            }
            if schema["format"].as_str().is_some_and(|format| format != "idn-hostname") {
                list.push(here("format", json!("1.2.3")));
            }
        }
        "integer" => {
            if let Some(least) = schema["minimum"].as_i64() {
                list.push(here("too small", (least - 1).into()));
            }
            if let Some(most) = schema["maximum"].as_i64() {
                list.push(here("too large", (most + 1).into()));
            }
            list.push(here("fraction", json!(1.5)));
        }
        _ => {}
    }
    list
}

/// An object of a kind that is tried: what about it is wrong (nothing: good), and itself.
struct Trial {
    kind: Kind,
    how: Option<String>,
    object: Value,
}

/// The schema of the version that the agent reads, without what the server ignores when an object is created.
fn schema(definition: &Value, kind: Kind) -> Value {
    let versions = definition["spec"]["versions"].as_array().unwrap();
    let version = versions.iter().find(|version| version["name"] == kind.version()).unwrap();
    let mut schema = version["schema"]["openAPIV3Schema"].clone();
    let fields = schema["properties"].as_object_mut().unwrap();
    let status = if version["subresources"]["status"].is_object() { "status" } else { "" };
    fields.retain(|name, _| !["apiVersion", "kind", "metadata", status].contains(&name.as_str()));
    schema
}

fn trials(definitions: &[Value]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for definition in definitions {
        let name = definition["spec"]["names"]["kind"].as_str().unwrap();
        let kind = *Kind::ALL.iter().find(|kind| kind.name() == name && kind.group() == "cilium.io").unwrap();
        let schema = schema(definition, kind);
        let full = good(&schema, true);
        let mut add = |how: Option<String>, mut object: Value, meta: Value| {
            object["apiVersion"] = kind.api_version().into();
            object["kind"] = kind.name().into();
            object["metadata"] = meta;
            object["metadata"]["name"] = format!("trial-{}", trials.len()).into();
            trials.push(Trial { kind, how, object });
        };
        add(None, good(&schema, false), json!({}));
        add(None, full.clone(), json!({"labels": {"a.b/c": "d"}, "annotations": {"e": "f g"}}));
        for (how, object) in spoiled(&schema, &full, "", &mut BTreeSet::new())
            .into_iter()
            .filter(|(_, object)| object.is_object())
        {
            add(Some(how), object, json!({}));
        }
        add(Some("metadata.labels".into()), full.clone(), json!({"labels": {"a": "b c"}}));
        add(Some("metadata.labels: key".into()), full.clone(), json!({"labels": {"a b": "c"}}));
        add(Some("metadata.annotations: key".into()), full.clone(), json!({"annotations": {"a b": "c"}}));
    }
    trials
}

/// Returns the names of the objects that the server accepts.
fn taken(stage: &Stage, trials: &[Trial]) -> (BTreeSet<String>, String) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": trials.iter().map(|t| &t.object).collect::<Vec<_>>()});
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), list.to_string()).unwrap();
    let arguments = [
        "create",
        "--dry-run=server",
        "--validate=ignore",
        "-o",
        "name",
        "-f",
        file.path().to_str().unwrap(),
    ];
    let output = stage.kubectl_command(&arguments).output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    let names = names.lines().filter_map(|line| Some(line.split_once('/')?.1.to_owned())).collect();
    (names, String::from_utf8(output.stderr).unwrap())
}

#[test]
fn the_server_takes_the_definitions_and_says_the_same_of_objects() {
    require_root!();
    let stage = stage_with_definitions();
    let definitions = custom_resource_definitions();
    for definition in stage.get(&["crd"]).unwrap()["items"].as_array().unwrap() {
        let conditions = definition["status"]["conditions"].as_array().unwrap();
        let bad: Vec<&Value> = conditions
            .iter()
            .filter(|c| c["type"] == "NonStructuralSchema" || c["status"] != "True")
            .collect();
        assert!(bad.is_empty(), "{}: {bad:?}", definition["metadata"]["name"]);
    }

    let trials = trials(&definitions);
    let (taken, reported) = taken(stage, &trials);
    let mut counts: BTreeMap<Kind, (usize, usize)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for trial in &trials {
        let name = trial.object["metadata"]["name"].as_str().unwrap();
        let (server, faults) = (taken.contains(name), check(trial.kind, &trial.object, Strictness::Server));
        let expected = trial.how.is_none();
        if server != expected || faults.is_empty() != expected {
            let reported = reported.lines().find(|line| line.contains(&format!("\"{name}\"")));
            let (kind, how) = (trial.kind.name(), trial.how.as_deref().unwrap_or("good"));
            wrong
                .push(format!("{kind} {how}: server takes it: {server} {reported:?}, check says {faults:?}"));
        }
        let count = counts.entry(trial.kind).or_default();
        if expected { count.0 += 1 } else { count.1 += 1 }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}\n{}",
        wrong.len(),
        trials.len(),
        wrong.join("\n"),
        reported.lines().next().unwrap_or_default()
    );
    assert_eq!(counts.len(), definitions.len());
    assert!(counts.values().all(|(good, bad)| *good == 2 && *bad >= 4), "each kind was tried: {counts:?}");
    assert!(trials.len() > 800, "{} objects", trials.len());
}

#[test]
fn objects_are_found_by_their_short_names_and_shown_in_columns() {
    require_root!();
    // Lists of all namespaces have the objects of this test alone.
    let stage = Stage::start().unwrap();
    stage
        .apply(
            &json!({"apiVersion": "v1", "kind": "List", "items": custom_resource_definitions()}).to_string(),
        )
        .unwrap();
    stage.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"]).unwrap();
    stage
        .apply(
            r#"{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "n1"},
                "spec": {"addresses": [{"type": "InternalIP", "ip": "192.0.2.1"}, {"type": "CiliumInternalIP", "ip": "10.0.0.1"}]}}"#,
        )
        .unwrap();
    let shown = stage.kubectl(&["get", "cn"]).unwrap();
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "CILIUMINTERNALIP", "INTERNALIP", "AGE"]);
    assert_eq!(rows[1][..3], ["n1", "10.0.0.1", "192.0.2.1"]);
    let policies = stage.kubectl(&["get", "ciliumpolicy", "-A"]).unwrap();
    assert_eq!(policies, "", "a category of several kinds");
    // The status of a node is not written with its spec, as its definition says.
    stage
        .apply(
            r#"{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "n2"}, "spec": {},
                "status": {"alibaba-cloud": {}, "ipam": {"operator-status": {"error": "none"}}}}"#,
        )
        .unwrap();
    assert_eq!(stage.get(&["cn", "n2"]).unwrap()["status"], Value::Null);
}
