//! Texts of rules for the log of verdicts, behind rows.

use std::collections::BTreeMap;

use labels::{Label, LabelArray};
use policy_engine::{Direction, Engine, Key, Kind, L4, NamedPorts, Resolved, Row, Settings, parse};
use serde_json::{Value, json};

const TCP: u8 = 6;

fn pod(labels: &[&str]) -> LabelArray {
    let common = ["k8s:io.kubernetes.pod.namespace=shop", "k8s:io.cilium.k8s.policy.cluster=default"];
    labels.iter().copied().chain(common).map(Label::parse).collect()
}

fn set(engine: &mut Engine, name: &str, log: &str, peer: &Value) {
    let ports = json!([{"ports": [{"port": "80", "protocol": "TCP"}]}]);
    let mut spec = json!({
        "endpointSelector": {"matchLabels": {"app": "web"}},
        "ingress": [{"fromEndpoints": [{"matchLabels": peer}], "toPorts": ports}],
    });
    if !log.is_empty() {
        spec["log"] = json!({"value": log});
    }
    let manifest = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec});
    engine.set(parse(Kind::CiliumNetworkPolicy, &manifest, engine.settings()).unwrap());
}

fn key(peer: u32) -> Key {
    Key { direction: Direction::Ingress, identity: peer, l4: L4::port(TCP, 80) }
}

fn logs(resolved: &Resolved, peer: u32) -> Vec<String> {
    let texts = resolved.rows.get(&key(peer)).map(|row| resolved.logs(*row)).unwrap_or_default();
    texts.iter().map(ToString::to_string).collect()
}

#[test]
fn rows_have_the_texts_of_their_rules_each_once() {
    let mut engine = Engine::new(Settings::default());
    engine.add_identity(1000, pod(&["k8s:app=web"]), NamedPorts::default());
    engine.add_identity(1001, pod(&["k8s:app=client", "k8s:tier=front"]), NamedPorts::default());
    engine.add_identity(1002, pod(&["k8s:app=client"]), NamedPorts::default());
    let resolve = |engine: &Engine| engine.resolve(1000, &NamedPorts::default(), 100).unwrap();
    set(&mut engine, "a", "", &json!({"app": "client"}));
    assert!(!resolve(&engine).has_logs() && logs(&resolve(&engine), 1001).is_empty());

    set(&mut engine, "b", "second", &json!({"app": "client"}));
    set(&mut engine, "c", "first", &json!({"tier": "front"}));
    set(&mut engine, "d", "second", &json!({"tier": "front"}));
    let resolved = resolve(&engine);
    assert!(resolved.has_logs());
    assert_eq!(logs(&resolved, 1001), ["second", "first"], "in the order of the rules");
    assert_eq!(logs(&resolved, 1002), ["second"]);
    // Rows that the engine adds without a rule have no text.
    let of_host: Vec<&Row> =
        resolved.rows.iter().filter(|(key, _)| key.identity == 1).map(|(_, row)| row).collect();
    assert!(of_host.iter().all(|row| resolved.logs(**row).is_empty()) && !of_host.is_empty());
}

/// A peer that another rule selects, too, has the same verdict by another row: the map entry names other texts.
#[test]
fn a_refresh_returns_rows_that_differ_only_in_their_texts() {
    let mut engine = Engine::new(Settings::default());
    engine.add_identity(1000, pod(&["k8s:app=web"]), NamedPorts::default());
    engine.add_identity(1001, pod(&["k8s:app=client"]), NamedPorts::default());
    set(&mut engine, "a", "first", &json!({"app": "client"}));
    set(&mut engine, "b", "second", &json!({"tier": "front"}));
    set(&mut engine, "c", "first", &json!({"zone": "a"}));
    let mut resolved = engine.resolve(1000, &NamedPorts::default(), 100).unwrap();
    let mut refresh = |engine: &mut Engine, labels: &[&str]| {
        let change = engine.add_identity(1001, pod(labels), NamedPorts::default());
        assert!(change.refresh.contains(&1000) && !change.subjects.contains(&1000), "{change:?}");
        let changes = engine.refresh(&mut resolved, &change.peers, 100).unwrap();
        let fresh = engine.resolve(1000, &NamedPorts::default(), 100).unwrap();
        assert_eq!(logs(&resolved, 1001), logs(&fresh, 1001));
        let changed: BTreeMap<Key, bool> = changes.iter().map(|(key, row)| (*key, row.is_some())).collect();
        (logs(&resolved, 1001), changed)
    };
    let changed = BTreeMap::from([(key(1001), true)]);
    let both = vec!["first".to_owned(), "second".to_owned()];
    let front = ["k8s:app=client", "k8s:tier=front"];
    assert_eq!(refresh(&mut engine, &front), (both, changed.clone()));
    assert_eq!(refresh(&mut engine, &["k8s:app=client"]), (vec!["first".to_owned()], changed));
    // Another rule with the same text changes no map entry.
    let zone = ["k8s:app=client", "k8s:zone=a"];
    assert_eq!(refresh(&mut engine, &zone), (vec!["first".to_owned()], BTreeMap::new()));
}
