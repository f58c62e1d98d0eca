//! A policy that changes, up to the rows of an endpoint's policy map.

use std::hint::black_box;

use labels::{Label, LabelArray};
use policy_engine::{Engine, Kind, NamedPorts, Policy, Settings, parse};
use serde_json::{Value, json};

use crate::count;

const IDENTITIES: u32 = 200;
const FIRST: u32 = 1000;
const LIMIT: usize = 16_384;

/// Of 20 applications in 10 namespaces.
fn labels(number: u32) -> LabelArray {
    let texts = [
        format!("k8s:app=app-{}", number % 20),
        format!("k8s:io.kubernetes.pod.namespace=ns-{}", number / 20),
        "k8s:io.cilium.k8s.policy.cluster=default".to_owned(),
    ];
    texts.iter().map(|text| Label::parse(text)).collect()
}

/// 20 rules about the first application, each with a peer and a port of its own.
fn policy(version: u64) -> Policy {
    let rule = |rule: u64| {
        json!({
            "fromEndpoints": [{"matchLabels": {"app": format!("app-{rule}")}}],
            "toPorts": [{"ports": [{"port": (1000 + version % 2 + rule).to_string(), "protocol": "TCP"}]}],
        })
    };
    let rules: Vec<Value> = (0..20).map(rule).collect();
    let manifest = json!({
        "metadata": {"name": "changing"},
        "spec": {"endpointSelector": {"matchLabels": {"app": "app-0"}}, "ingress": rules},
    });
    parse(Kind::CiliumClusterwideNetworkPolicy, &manifest, &Settings::default()).unwrap()
}

#[test]
fn a_policy_changes() {
    count::check("policy change", "policy::a_policy_changes", |rounds| {
        let mut engine = Engine::new(Settings::default());
        for number in 0..IDENTITIES {
            engine.add_identity(FIRST + number, labels(number), NamedPorts::default());
        }
        for round in 0..rounds {
            let change = engine.set(policy(round));
            assert_eq!(change.subjects.len(), 10);
            let resolved = engine.resolve(FIRST, &NamedPorts::default(), LIMIT).unwrap();
            assert!(black_box(resolved).rows.len() >= 200);
        }
    });
}
