//! Duration of the computation in a cluster of 10,000 identities: one row a line, `name measured unit goal met peer`
//! separated by tabs.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use labels::{Label, LabelArray};
use policy_engine::{Engine, Kind, NamedPorts, Policy, Settings, parse};
use serde_json::{Value, json};

const IDENTITIES: u32 = 10_000;
const FIRST: u32 = 1_000;
/// The first local identity, as for prefixes.
const LOCAL: u32 = 1 << 24;
const RULES: u16 = 500;
const LIMIT: usize = 16_384;

fn main() {
    let none = NamedPorts::default();
    let mut engine = cluster();
    let subject = FIRST;

    // Any peer, 500 ports.
    let ports = policy("ports", |_| Value::Null);
    time("policy: 500 rules set", 20.0, || {
        engine.remove(&ports.resource);
        engine.set(ports.clone());
    });
    time("policy: 500 rules for any peer resolved", 3.0, || {
        black_box(engine.resolve(subject, &none, LIMIT).unwrap());
    });
    assert_eq!(engine.resolve(subject, &none, LIMIT).unwrap().rows.len(), 500 + 2);

    // 20 peers, 500 ports.
    engine.set(policy("ports", |_| json!([{"matchLabels": {"app": "app-1"}}])));
    time("policy: 500 rules for 20 peers resolved", 3.0, || {
        black_box(engine.resolve(subject, &none, LIMIT).unwrap());
    });
    let mut resolved = engine.resolve(subject, &none, LIMIT).unwrap();
    assert_eq!(resolved.rows.len(), 500 * 20 + 2);

    let (peer, peer_labels) = (FIRST + IDENTITIES, labels(1));
    let mut there = false;
    time("policy: identity added or removed, its rows of 500 rules", 0.5, || {
        there = !there;
        let change = match there {
            true => engine.add_identity(peer, peer_labels.clone(), NamedPorts::default()),
            false => engine.remove_identity(peer),
        };
        assert!(change.subjects.len() <= 1 && change.refresh.contains(&subject));
        let rows = engine.refresh(&mut resolved, &change.peers, LIMIT).unwrap();
        assert_eq!(rows.len(), 500);
    });

    // A separate selector for each rule, all of them new.
    engine.remove(&ports.resource);
    let many = policy("many", |rule| json!([{"matchLabels": {"app": format!("app-{rule}")}}]));
    time("policy: 500 rules of as many selectors set", 40.0, || {
        engine.remove(&many.resource);
        engine.set(many.clone());
    });
    let (peer, peer_labels) = (FIRST + IDENTITIES + 1, labels(7));
    time("policy: identity added and removed among 500 selectors", 0.5, || {
        engine.add_identity(peer, peer_labels.clone(), NamedPorts::default());
        engine.remove_identity(peer);
    });
    // Prefixes: a policy names them, then each gets its identity.
    let prefix = |rule: u16| json!([format!("10.{}.{}.0/24", rule / 256, rule % 256)]);
    let prefixes = with_prefixes("prefixes", prefix);
    time("policy: 500 prefixes named, their identities added; removed", 20.0, || {
        engine.set(prefixes.clone());
        add_prefixes(&mut engine);
        engine.remove(&prefixes.resource);
        (0..500).for_each(|number| drop(engine.remove_identity(LOCAL + number)));
    });
    engine.set(prefixes.clone());
    add_prefixes(&mut engine);
    time("policy: 500 prefixes named, their identities known", 20.0, || {
        engine.remove(&prefixes.resource);
        engine.set(prefixes.clone());
    });
    time("policy: 1,000 rules, half of them with prefixes, resolved", 6.0, || {
        black_box(engine.resolve(subject, &none, LIMIT).unwrap());
    });
}

fn add_prefixes(engine: &mut Engine) {
    for (number, prefix) in engine.prefixes().into_iter().enumerate() {
        let labels = [format!("cidr:{prefix}"), "reserved:world-ipv4".to_owned()];
        let labels = labels.iter().map(|label| Label::parse(label)).collect();
        engine.add_identity(LOCAL + number as u32, labels, NamedPorts::default());
    }
}

/// Returns 500 applications in 20 namespaces: 20 identities each, in different namespaces.
fn cluster() -> Engine {
    let mut engine = Engine::new(Settings::default());
    for number in 0..IDENTITIES {
        engine.add_identity(FIRST + number, labels(number), NamedPorts::default());
    }
    engine
}

fn labels(number: u32) -> LabelArray {
    let texts = [
        format!("k8s:app=app-{}", number % 500),
        format!("k8s:io.kubernetes.pod.namespace=ns-{}", number / 500),
        format!("k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=ns-{}", number / 500),
        "k8s:io.cilium.k8s.policy.cluster=default".to_owned(),
        "k8s:io.cilium.k8s.policy.serviceaccount=default".to_owned(),
    ];
    texts.iter().map(|text| Label::parse(text)).collect()
}

fn policy(name: &str, peers: impl Fn(u16) -> Value) -> Policy {
    read(name, |rule| json!({"fromEndpoints": peers(rule), "toPorts": ports(rule)}))
}

fn with_prefixes(name: &str, prefixes: impl Fn(u16) -> Value) -> Policy {
    read(name, |rule| json!({"fromCIDR": prefixes(rule), "toPorts": ports(rule)}))
}

fn ports(rule: u16) -> Value {
    json!([{"ports": [{"port": (1000 + rule).to_string(), "protocol": "TCP"}]}])
}

/// Returns 500 rules for the first application, each with a port of its own.
fn read(name: &str, rule: impl Fn(u16) -> Value) -> Policy {
    let rules: Vec<Value> = (0..RULES).map(rule).collect();
    let manifest = json!({
        "metadata": {"name": name},
        "spec": {"endpointSelector": {"matchLabels": {"app": "app-0"}}, "ingress": rules},
    });
    parse(Kind::CiliumClusterwideNetworkPolicy, &manifest, &Settings::default()).unwrap()
}

/// Prints the median duration of a call, in milliseconds, over half a second.
fn time(name: &str, goal: f64, mut call: impl FnMut()) {
    let mut samples = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) || samples.len() < 4 {
        let start = Instant::now();
        call();
        samples.push(start.elapsed().as_secs_f64() * 1e3);
    }
    samples.sort_by(f64::total_cmp);
    let measured = samples[samples.len() / 2];
    let met = if measured <= goal { "yes" } else { "no" };
    println!("{name}\t{measured:.3}\tms\t{goal}\t{met}\t-");
}
