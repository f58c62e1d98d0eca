//! NetworkPolicies of Kubernetes as entries: what is selected, and which mistakes are reported where.

use policy_engine::{
    Action, Direction, Kind, Peers, Policy, Port, PortSpec, Ports, Refusal, Selector, Settings, Subject,
    parse,
};
use serde_json::{Value, json};

fn read(spec: Value) -> Result<Policy, Refusal> {
    let manifest = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "p", "namespace": "shop", "uid": "u"},
        "spec": spec,
    });
    parse(Kind::NetworkPolicy, &manifest, &Settings::default())
}

/// Returns the selectors of the peers of a rule with these peers, as texts.
fn peers(from: Value) -> Vec<String> {
    let policy = read(json!({"podSelector": {}, "ingress": [{"from": from}]})).unwrap();
    let Peers::Of(peers) = &policy.entries[0].peers else { panic!("{:?}", policy.entries) };
    peers.iter().map(Selector::key).collect()
}

/// Returns the ports of a rule with these ports.
fn ports(ports: Value) -> Ports {
    read(json!({"podSelector": {}, "egress": [{"ports": ports}]})).unwrap().entries.pop().unwrap().ports
}

/// Returns the paths of the problems of a policy.
fn paths(spec: Value) -> Vec<String> {
    read(spec).unwrap_err().problems.into_iter().map(|problem| problem.path).collect()
}

#[test]
fn a_direction_without_rules_is_denied_if_the_policy_has_it() {
    let rule = json!([{}]);
    let (ingress, egress) = ((Direction::Ingress, true), (Direction::Egress, true));
    for (spec, entries) in [
        (json!({}), vec![ingress]),
        (json!({"policyTypes": []}), vec![ingress]),
        (json!({"policyTypes": ["Ingress"]}), vec![ingress]),
        (json!({"policyTypes": ["Egress"]}), vec![egress]),
        (json!({"policyTypes": ["Ingress", "Egress"]}), vec![ingress, egress]),
        (json!({"ingress": []}), vec![ingress]),
        (json!({"ingress": rule}), vec![(Direction::Ingress, false)]),
        (json!({"egress": rule}), vec![ingress, (Direction::Egress, false)]),
        // Rules apply even if their direction is not listed, as in Cilium.
        (json!({"ingress": rule, "policyTypes": ["Egress"]}), vec![(Direction::Ingress, false), egress]),
    ] {
        let policy = read(spec.clone()).unwrap();
        let found: Vec<_> =
            policy.entries.iter().map(|entry| (entry.direction, entry.peers == Peers::Nothing)).collect();
        assert_eq!(found, entries, "{spec}");
        assert!(policy.entries.iter().all(|entry| entry.default_deny && entry.action == Action::Allow));
    }
}

#[test]
fn an_entry_names_its_place_and_its_object() {
    let policy = read(json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{}, {}]})).unwrap();
    let entry = &policy.entries[1];
    assert_eq!((&*entry.path, policy.resource.to_string()), ("spec.ingress[1]", "knp/shop/p".to_owned()));
    assert_eq!((&entry.peers, &entry.ports), (&Peers::All, &Ports::All), "`{{}}` is everything");
    let Subject::Endpoints(subject) = &entry.subject else { panic!("{:?}", entry.subject) };
    let labels = "k8s:app: web,k8s:io.kubernetes.pod.namespace: shop,";
    assert!(subject.key().contains(labels), "{}", subject.key());
    let origin = ["derived-from=NetworkPolicy", "name=p", "namespace=shop", "uid=u"];
    let origin: Vec<String> = origin.iter().map(|text| format!("k8s:io.cilium.k8s.policy.{text}")).collect();
    assert_eq!(entry.labels.to_vec(), origin);
}

#[test]
fn selectors_of_a_peer_hold_together_and_peers_alternatively() {
    let app = json!({"matchLabels": {"app": "a"}});
    let team =
        json!({"matchLabels": {"team": "blue"}, "matchExpressions": [{"key": "env", "operator": "Exists"}]});
    let text = |equal: &[&str], expressions: &[&str]| {
        format!(
            "&LabelSelector{{MatchLabels:map[string]string{{{}}},MatchExpressions:[]LabelSelectorRequirement{{{}}},}}",
            equal.iter().map(|text| format!("{text},")).collect::<String>(),
            expressions
                .iter()
                .map(|text| format!("LabelSelectorRequirement{{{text},Values:[],}},"))
                .collect::<String>(),
        )
    };
    let cluster = "k8s:io.cilium.k8s.policy.cluster: default";
    let own = "k8s:io.kubernetes.pod.namespace: shop";
    let blue = "k8s:io.cilium.k8s.namespace.labels.team: blue";
    let env = "Key:k8s:io.cilium.k8s.namespace.labels.env,Operator:Exists";
    let any = "Key:k8s:io.kubernetes.pod.namespace,Operator:Exists";
    assert_eq!(peers(json!([{"podSelector": {}}])), [text(&[cluster, own], &[])]);
    assert_eq!(peers(json!([{"podSelector": app}])), [text(&["k8s:app: a", cluster, own], &[])]);
    assert_eq!(peers(json!([{"namespaceSelector": {}}])), [text(&[cluster], &[any])]);
    assert_eq!(peers(json!([{"namespaceSelector": team}])), [text(&[blue, cluster], &[env])]);
    let both = json!([{"namespaceSelector": team, "podSelector": app}]);
    assert_eq!(peers(both), [text(&["k8s:app: a", blue, cluster], &[env])]);
    let either = json!([{"namespaceSelector": team}, {"podSelector": app}]);
    assert_eq!(peers(either).len(), 2);
    let block = json!([{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]);
    assert_eq!(peers(block), ["cidr:10.0.0.0/8-[10.1.0.0/16]"]);
}

/// A pod's label must not lead out of the namespace that a peer without `namespaceSelector` is restricted to.
#[test]
fn a_peer_cannot_name_another_namespace_by_a_pods_label() {
    let label = json!({"matchLabels": {"io.kubernetes.pod.namespace": "bank"}});
    let [peer] = &peers(json!([{"podSelector": label}]))[..] else { panic!() };
    assert!(peer.contains("k8s:io.kubernetes.pod.namespace: shop,") && !peer.contains("bank"), "{peer}");
    let [subject] = &read(json!({"podSelector": label})).unwrap().entries[..] else { panic!() };
    let Subject::Endpoints(subject) = &subject.subject else { panic!() };
    assert!(!subject.key().contains("bank"), "{}", subject.key());
}

#[test]
fn ports_are_numbers_names_or_ranges() {
    let spec = |protocol, port| PortSpec { protocol, port };
    for (written, wanted) in [
        (json!([]), Ports::All),
        (json!([{}]), Ports::Of(vec![spec(6, Port::All)])),
        (json!([{"protocol": "UDP"}]), Ports::Of(vec![spec(17, Port::All)])),
        (json!([{"port": 80}]), Ports::Of(vec![spec(6, Port::Range(80, 80))])),
        (
            json!([{"port": 80, "endPort": 90, "protocol": "SCTP"}]),
            Ports::Of(vec![spec(132, Port::Range(80, 90))]),
        ),
        (json!([{"port": "HTTP"}]), Ports::Of(vec![spec(6, Port::Named { name: "http".into(), end: None })])),
        (
            json!([{"port": 80}, {"port": 53, "protocol": "UDP"}]),
            Ports::Of(vec![spec(6, Port::Range(80, 80)), spec(17, Port::Range(53, 53))]),
        ),
    ] {
        assert_eq!(ports(written.clone()), wanted, "{written}");
    }
}

#[test]
fn mistakes_are_reported_by_their_paths() {
    let peer = |peer: Value| json!({"podSelector": {}, "ingress": [{"from": [peer]}]});
    let port = |port: Value| json!({"podSelector": {}, "egress": [{"ports": [port]}]});
    for (spec, path) in [
        (
            json!({"podSelector": {"matchLabels": {"k8s:app": "a"}}}),
            "spec.podSelector.matchLabels[\"k8s:app\"]",
        ),
        (json!({"podSelector": {}, "specs": []}), "spec.specs"),
        (json!({"podSelector": {}, "policyTypes": ["Both"]}), "spec.policyTypes[0]"),
        (json!({"podSelector": {}, "ingress": [{"to": []}]}), "spec.ingress[0].to"),
        (peer(json!({})), "spec.ingress[0].from[0]"),
        (
            peer(json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}})),
            "spec.ingress[0].from[0].ipBlock",
        ),
        (peer(json!({"ipBlock": {}})), "spec.ingress[0].from[0].ipBlock.cidr"),
        (
            peer(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/8"]}})),
            "spec.ingress[0].from[0].ipBlock.except[0]",
        ),
        (port(json!({"protocol": "GRE"})), "spec.egress[0].ports[0].protocol"),
        (port(json!({"port": 65536})), "spec.egress[0].ports[0].port"),
        (port(json!({"port": {"number": 80}})), "spec.egress[0].ports[0].port"),
        (port(json!({"port": 80, "endPort": "90"})), "spec.egress[0].ports[0].endPort"),
    ] {
        assert_eq!(paths(spec.clone()), [path], "{spec}");
    }
    let without = json!({"metadata": {"name": "p"}});
    let refusal = parse(Kind::NetworkPolicy, &without, &Settings::default()).unwrap_err();
    assert_eq!(refusal.problems[0].path, "spec");
}

/// One invalid peer refuses the policy: the others alone could allow or deny something else.
#[test]
fn nothing_of_a_policy_with_a_mistake_is_taken() {
    let from = json!([{"podSelector": {}}, {"ipBlock": {"cidr": "x"}}]);
    assert!(read(json!({"podSelector": {}, "ingress": [{"from": from}]})).is_err());
    let subject = json!({"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]});
    assert!(read(json!({"podSelector": subject})).is_err());
}
