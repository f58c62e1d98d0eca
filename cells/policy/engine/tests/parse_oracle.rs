//! Selectors and refusals against recorded answers of Cilium.

use std::io::Write as _;

use labels::{Label, LabelArray};
use policy_engine::{Kind, Peers, Policy, Refusal, Selector, Settings, Subject, parse};
use serde_json::{Value, json};

mod oracle;

/// Evaluates to the folder with the recordings; without one, ends the test as skipped.
macro_rules! oracle_or_skip {
    () => {
        match oracle::folder() {
            Some(folder) => folder,
            None => test_kit::skip!("needs the recorded answers in shared/oracle/policy"),
        }
    };
}

/// Prints the number of compared cases.
fn print_summary(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Fields of rules that are known and not implemented, as named by the refusal.
const UNBUILT: [&str; 2] = ["fromGroups", "toGroups"];

fn settings(case: &Value) -> Settings {
    let flag = |name: &str| case["config"][name].as_bool().unwrap();
    Settings {
        cluster: case["config"]["cluster"].as_str().unwrap().into(),
        ipv4: flag("ipv4"),
        ipv6: flag("ipv6"),
        host_firewall: flag("hostFirewall"),
        default_local_cluster: flag("policyDefaultLocalCluster"),
        node_selector_labels: flag("nodeSelectorLabels"),
        non_default_deny: flag("nonDefaultDenyPolicies"),
        extended_protocols: flag("extendedIPProtocols"),
        l7_proxy: flag("l7Proxy"),
        ..Settings::default()
    }
}

fn kind(manifest: &Value) -> Option<Kind> {
    match manifest["kind"].as_str() {
        Some("CiliumNetworkPolicy") => Some(Kind::CiliumNetworkPolicy),
        Some("CiliumClusterwideNetworkPolicy") => Some(Kind::CiliumClusterwideNetworkPolicy),
        Some("NetworkPolicy") => Some(Kind::NetworkPolicy),
        Some("ClusterNetworkPolicy") => Some(Kind::ClusterNetworkPolicy),
        _ => None,
    }
}

fn cluster_wide(spec: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": spec})
}

/// Returns the selector of a case, from a field in which a policy stores it unchanged.
fn selector(case: &Value) -> Result<Selector, Refusal> {
    let written = case["selector"].clone();
    let spec = match case["kind"].as_str().unwrap() {
        "labels" => json!({"nodeSelector": written, "ingress": [{}]}),
        "cidr" => json!({"endpointSelector": {}, "ingress": [{"fromCIDR": [written]}]}),
        "cidrRule" => json!({"endpointSelector": {}, "ingress": [{"fromCIDRSet": [written]}]}),
        other => panic!("unknown kind {other}"),
    };
    let kind = Kind::CiliumClusterwideNetworkPolicy;
    let policy = parse(kind, &cluster_wide(spec), &Settings::default())?;
    let entry = policy.entries.into_iter().next().unwrap();
    Ok(match (entry.subject, entry.peers) {
        (Subject::Node(selector), _) => selector,
        (Subject::Endpoints(_), Peers::Of(mut selectors)) => selectors.remove(0),
        other => panic!("{other:?}"),
    })
}

#[test]
fn selectors_match_and_are_named_as_recorded() {
    let folder = oracle_or_skip!();
    let mut compared = 0;
    for case in oracle::cases(&folder, "selectors.jsonl") {
        let id = &case["id"];
        let labels = case["labels"].as_array().unwrap().iter();
        let labels: LabelArray = labels.map(|label| Label::parse(label.as_str().unwrap())).collect();
        compared += 1;
        match selector(&case) {
            Err(refusal) => assert_eq!(case["valid"], false, "{id}: {refusal}"),
            Ok(selector) => {
                assert_eq!(case["valid"], true, "{id}: {selector:?}");
                assert_eq!(case["match"], selector.matches(&labels), "{id}: {selector:?} {labels:?}");
                assert_eq!(case["key"], selector.key(), "{id}");
            }
        }
    }
    print_summary(&format!("{compared} selectors compared"));
    assert!(compared >= 1999);
}

/// Collects names of fields in a rule that are not implemented.
fn unbuilt(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|value| unbuilt(value, found)),
        Value::Object(map) => {
            for (name, value) in map {
                let asks = !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
                if UNBUILT.contains(&name.as_str()) && asks && *value != json!({}) {
                    found.push(name.clone());
                } else if name != "matchLabels" {
                    unbuilt(value, found);
                }
            }
        }
        _ => {}
    }
}

/// Asserts that a problem names every field of the object that is not implemented.
fn assert_names_unbuilt(id: &Value, manifest: &Value, result: &Result<Policy, Refusal>) -> bool {
    let mut names = Vec::new();
    unbuilt(manifest, &mut names);
    for name in &names {
        let refusal = result.as_ref().expect_err("a policy with parts that are not built is refused");
        let named = refusal.problems.iter().any(|problem| {
            problem.path.ends_with(name.as_str()) && problem.reason.ends_with("not supported yet")
        });
        assert!(named, "{id}: {name} is not named by {refusal}");
    }
    !names.is_empty()
}

/// Objects that Cilium's agent accepts although its CRD schema refuses them, with the field. A folder has no API server
/// in front of it, and the agent would store another number than the written one.
const REFUSED_BY_SCHEMA: [(&str, &str); 16] = [
    ("invalid-0071", "spec.egressDeny[0].toPorts[0].ports[0].port"), // port 80 of `gre`
    ("invalid-0075", "spec.egress[0].toPorts[0].rules.dns[0].matchName"), // 256 characters
    ("invalid-0087", "spec.ingress[0].ports[0].port"),               // 70000, in a NetworkPolicy
    ("invalid-0115", "spec.egressDeny[0].icmps[0].fields[0].type"),  // -1
    ("invalid-0119", "spec.ingress[0].ports[0].port"),               // -1
    ("invalid-0137", "spec.ingress[0].toPorts[0].ports[0].endPort"), // -1
    ("invalid-0144", "spec.ingressDeny[0].icmps[0].fields[0].type"), // 256
    ("invalid-0148", "spec.ingress[0].authentication.mode"),         // empty
    ("invalid-0151", "spec.ingress[0].from[0].ipBlock.cidr"),        // 10.0.0.1
    ("invalid-0167", "spec.ingressDeny[0].toPorts[0].ports[0].endPort"), // 65536
    ("invalid-0186", "spec.ingressDeny[0].toPorts[0].ports[0].endPort"), // -1
    ("invalid-0190", "spec.ingress[0].icmps[0].fields[0].type"),     // 70000
    ("invalid-0191", "spec.ingress[0].authentication.mode"),         // foo
    ("invalid-0226", "spec.egress[0].toPorts[0].ports[0].endPort"),  // 65536
    ("invalid-0238", "spec.ingress[0].from[0].ipBlock.except[0]"),   // outside of the block
    ("invalid-0271", "spec.ingress[0].ports[0].port"),               // `no such name`
];

#[test]
fn objects_are_refused_as_recorded() {
    let folder = oracle_or_skip!();
    let (mut compared, mut not_built, mut other_kinds, mut by_schema) = (0, 0, 0, 0);
    for case in oracle::cases(&folder, "policy-invalid.jsonl") {
        let (id, manifest) = (&case["id"], &case["manifest"]);
        let Some(kind) = kind(manifest) else {
            other_kinds += 1;
            continue;
        };
        let result = parse(kind, manifest, &settings(&case));
        if let Err(refusal) = &result {
            assert!(!refusal.problems.is_empty(), "{id}");
            assert!(refusal.problems.iter().all(|p| !p.path.is_empty() && !p.reason.is_empty()), "{refusal}");
        }
        if assert_names_unbuilt(id, manifest, &result) {
            not_built += 1;
            continue;
        }
        compared += 1;
        if let Some((_, path)) = REFUSED_BY_SCHEMA.iter().find(|(listed, _)| id == listed) {
            let paths: Vec<_> = result.unwrap_err().problems.into_iter().map(|p| p.path).collect();
            assert_eq!(paths, [*path], "{id}");
            by_schema += 1;
            continue;
        }
        assert_eq!(case["accepted"], result.is_ok(), "{id} {}: {manifest} {result:?}", case["reason"]);
    }
    print_summary(&format!(
        "{compared} objects compared ({by_schema} refused by schema), {not_built} with unbuilt parts, {other_kinds} of \
         other kinds"
    ));
    assert_eq!(by_schema, REFUSED_BY_SCHEMA.len());
    assert!(compared >= 230 && not_built + compared + other_kinds == 300);
}

#[test]
fn every_recorded_policy_is_taken_or_refused_by_the_name_of_what_is_not_built() {
    let folder = oracle_or_skip!();
    test_kit::require_command!("gzip");
    let (mut taken, mut refused) = (0, 0);
    for file in ["policy-basic.jsonl.gz", "policy-mixed.jsonl.gz"] {
        for case in oracle::cases(&folder, file) {
            for manifest in case["policies"].as_array().unwrap() {
                let Some(kind) = kind(manifest) else { continue };
                let result = parse(kind, manifest, &settings(&case));
                if assert_names_unbuilt(&case["id"], manifest, &result) {
                    refused += 1;
                } else {
                    result.unwrap_or_else(|refusal| panic!("{}: {refusal}", case["id"]));
                    taken += 1;
                }
            }
        }
    }
    print_summary(&format!("{taken} policies taken, {refused} refused by name"));
    assert!(taken >= 8000 && refused == 0);
}
