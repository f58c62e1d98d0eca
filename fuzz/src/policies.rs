//! Policies from the text to verdicts: a refused one changes nothing, the order of changes has no effect, and the
//! explanation names the row that decides.

use std::collections::BTreeMap;

use k8s_tables::{PolicyKind, PolicyObject};
use labels::{Label, LabelArray};
use policy_engine::{Decision, Direction, Engine, Key, Kind, NamedPorts, Resolved, Row, Settings, parse};
use serde_json::Value;

/// The capacity of a policy map.
const LIMIT: usize = 16384;

/// A file of policies.
pub(crate) fn run(data: &[u8]) {
    let settings = Settings::default();
    let mut forward = engine(&settings);
    let mut policies = Vec::new();
    for document in k8s_tables::documents_of_bytes(data).into_iter().flatten() {
        for manifest in document.manifests() {
            if let Some(policy) = read(manifest.value, &settings) {
                forward.set(policy.clone());
                // Of two policies of one name the later takes effect.
                policies.retain(|known: &policy_engine::Policy| known.resource != policy.resource);
                policies.push(policy);
            }
        }
    }
    // The policies in reverse order, the identities last: the rows are the same.
    let mut backward = Engine::new(settings);
    for policy in policies.iter().rev() {
        backward.set(policy.clone());
    }
    for (id, labels) in identities().into_iter().rev() {
        backward.add_identity(id, labels, ports());
    }
    assert_eq!(forward.prefixes(), backward.prefixes());
    for (id, _) in identities() {
        let (one, two) = (rows(&forward, id), rows(&backward, id));
        match (&one, &two) {
            (Ok(one), Ok(two)) => {
                assert_eq!(effects(one), effects(two), "identity {id}");
                explained(one);
            }
            (Err(one), Err(two)) => assert_eq!(one, two),
            _ => panic!("identity {id}: {one:?} and {two:?}"),
        }
    }
    // All removed: as at the beginning.
    for policy in &policies {
        forward.remove(&policy.resource);
    }
    assert!(forward.policies().next().is_none() && forward.prefixes().is_empty());
    assert!(forward.selectors().is_empty() && forward.subject_selectors().is_empty());
}

/// Parses an object as the folder's reader does, then with the engine.
fn read(manifest: &Value, settings: &Settings) -> Option<policy_engine::Policy> {
    let kinds = [
        (PolicyKind::CiliumNetworkPolicy, Kind::CiliumNetworkPolicy),
        (PolicyKind::CiliumClusterwideNetworkPolicy, Kind::CiliumClusterwideNetworkPolicy),
        (PolicyKind::NetworkPolicy, Kind::NetworkPolicy),
        (PolicyKind::ClusterNetworkPolicy, Kind::ClusterNetworkPolicy),
    ];
    let said = manifest.get("kind").and_then(Value::as_str).unwrap_or_default();
    let (object, kind) = kinds.into_iter().find(|(kind, _)| kind.name() == said).unwrap_or(kinds[0]);
    let parsed = parse(kind, manifest, settings);
    if let Err(refusal) = &parsed {
        assert!(!refusal.problems.is_empty() && !refusal.to_string().is_empty());
    }
    PolicyObject::decode(object, manifest).ok().and(parsed.ok())
}

fn engine(settings: &Settings) -> Engine {
    let mut engine = Engine::new(settings.clone());
    for (id, labels) in identities() {
        engine.add_identity(id, labels, ports());
    }
    engine
}

fn ports() -> NamedPorts {
    let mut ports = NamedPorts::default();
    ports.add("http", 6, 80);
    ports.add("dns", 17, 53);
    ports
}

/// Returns identities of pods, the node, the world and two prefixes.
fn identities() -> Vec<(u32, LabelArray)> {
    let labels = |texts: &[&str]| texts.iter().map(|text| Label::parse(text)).collect::<LabelArray>();
    let pod = |app: &str, namespace: &str| {
        let namespace = format!("k8s:io.kubernetes.pod.namespace={namespace}");
        labels(&[&format!("k8s:app={app}"), &namespace, "k8s:io.cilium.k8s.policy.cluster=default"])
    };
    vec![
        (1, labels(&["reserved:host"])),
        (2, labels(&["reserved:world"])),
        (5, labels(&["reserved:init"])),
        (1000, pod("web", "default")),
        (1001, pod("client", "default")),
        (1002, pod("web", "shop")),
        (0x0100_0001, labels(&["cidr:10.0.0.0/8", "reserved:world"])),
        (0x0100_0002, labels(&["cidr:192.0.2.0/24", "reserved:world"])),
    ]
}

fn rows(engine: &Engine, identity: u32) -> Result<Resolved, policy_engine::ResolveError> {
    engine.resolve(identity, &ports(), LIMIT)
}

/// Returns the effect of rows, without the ids of their reasons.
fn effects(resolved: &Resolved) -> BTreeMap<Key, (bool, u32)> {
    resolved.rows.iter().map(|(key, row): (&Key, &Row)| (*key, (row.deny, row.precedence))).collect()
}

/// Checks that verdict and explanation refer to the same row.
fn explained(resolved: &Resolved) {
    for direction in [Direction::Ingress, Direction::Egress] {
        for peer in [1, 2, 1001, 1002, 0x0100_0001] {
            for (protocol, port) in [(6, 80), (6, 65535), (17, 53), (1, 8), (132, 1)] {
                let verdict = resolved.lookup(direction, peer, protocol, port);
                let why = resolved.explain(direction, peer, protocol, port);
                assert_eq!(verdict.row.map(|(key, _)| key), why.row.as_ref().map(|(key, ..)| *key));
                assert_eq!(verdict.decision == Decision::NoMatch, verdict.row.is_none());
                assert!(!why.to_string().is_empty());
            }
        }
    }
}
