//! Services as peers: selectors of services, and their translation.

use std::collections::BTreeSet;

use labels::Label;
use policy_engine::{Peers, Policy, ServicePeers, Settings};
use serde_json::{Value, json};

use super::{ccnp, cnp, problems};

fn service(name: &str, labels: &[&str], selector: &[(&str, &str)], backends: &[&str]) -> ServicePeers {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    ServicePeers {
        namespace: "shop".into(),
        name: name.into(),
        labels: labels.iter().map(|label| Label::parse(label)).collect(),
        selector: selector.iter().map(owned).collect(),
        backends: backends.iter().map(|ip| ip.parse().unwrap()).collect(),
    }
}

fn policy(list: Value) -> Policy {
    cnp(json!({"endpointSelector": {}, "egress": [{"toServices": list}]})).unwrap()
}

/// Returns the texts of the peers after translation with these services.
fn translated(list: Value, services: &[ServicePeers]) -> BTreeSet<String> {
    let policy = policy(list).with_services(services.iter(), &Settings::default());
    match &policy.entries[0].peers {
        Peers::Of(selectors) => selectors.iter().map(policy_engine::Selector::key).collect(),
        Peers::Nothing => BTreeSet::new(),
        Peers::All => panic!("all peers"),
    }
}

/// An entry for services must not become one for all peers.
#[test]
fn missing_services_and_empty_lists_beside_them_select_nothing() {
    let pods = service("web", &[], &[("app", "web")], &["10.0.0.1"]);
    let entry = |name: &str, list: &str| {
        let mut entry = json!({
            "toServices": [{"k8sService": {"serviceName": name}}],
            "toPorts": [{"ports": [{"port": "80"}]}],
        });
        entry[list] = json!([]);
        let policy = cnp(json!({"endpointSelector": {}, "egress": [entry]})).unwrap();
        policy.with_services([&pods].into_iter(), &Settings::default()).entries[0].peers.clone()
    };
    assert!(matches!(entry("web", "toFQDNs"), Peers::Of(_)), "an empty list of names counts as absent");
    assert_eq!(entry("missing", "toFQDNs"), Peers::Nothing);
    for list in ["toEndpoints", "toEntities", "toCIDR", "toCIDRSet", "toNodes"] {
        assert_eq!(entry("web", list), Peers::Nothing, "{list}");
    }
}

#[test]
fn services_are_translated_into_their_pods_or_the_addresses_of_their_backends() {
    let pods = service("web", &["k8s:tier=front"], &[("app", "web")], &["10.0.0.1"]);
    let addresses = service("db", &["k8s:tier=back"], &[], &["192.0.2.1", "2001:db8::1"]);
    let none = service("none", &["k8s:tier=back"], &[], &[]);
    let all = [pods, addresses, none];
    let by_name = |name: &str, namespace: &str| {
        translated(json!([{"k8sService": {"serviceName": name, "namespace": namespace}}]), &all)
    };
    let web = "&LabelSelector{MatchLabels:map[string]string{k8s:app: web,k8s:io.cilium.k8s.policy.cluster: default,\
               k8s:io.kubernetes.pod.namespace: shop,},MatchExpressions:[]LabelSelectorRequirement{},}";
    assert_eq!(by_name("web", "shop"), BTreeSet::from([web.to_owned()]));
    assert_eq!(by_name("web", ""), by_name("web", "shop"), "of every namespace");
    assert!(by_name("web", "other").is_empty() && by_name("none", "shop").is_empty());
    let db = ["cidr:192.0.2.1/32", "cidr:2001:db8::1/128"].map(str::to_owned);
    assert_eq!(by_name("db", "shop"), BTreeSet::from(db.clone()));
    let by_labels = |selector: Value| {
        let both = json!({
            "k8sService": {"serviceName": "web"},
            "k8sServiceSelector": {"selector": selector, "namespace": "shop"},
        });
        translated(json!([both]), &all)
    };
    assert_eq!(by_labels(json!({"matchLabels": {"tier": "back"}})), BTreeSet::from(db));
    assert_eq!(by_labels(json!({"matchLabels": {"any:tier": "front"}})), by_name("web", "shop"));
    assert_eq!(by_labels(json!({})).len(), 3);
    assert!(translated(json!([{}]), &all).is_empty(), "selects none");
    assert_eq!(policy(json!([{}])).warnings[0].path, "spec.egress[0].toServices[0]");
}

#[test]
fn wrong_selectors_of_services_are_refused_by_path() {
    for (element, path) in [
        (json!({"k8sService": {"name": "a"}}), "k8sService.name"),
        (json!({"k8sService": {"serviceName": 1}}), "k8sService.serviceName"),
        (json!({"k8sServiceSelector": {"namespace": "a"}}), "k8sServiceSelector.selector"),
        (
            json!({"k8sServiceSelector": {"selector": {"matchLabels": {"a b": ""}}}}),
            "k8sServiceSelector.selector.matchLabels[\"a b\"]",
        ),
        (json!({"service": {}}), "service"),
    ] {
        for section in ["egress", "egressDeny"] {
            let spec = json!({"endpointSelector": {}, section: [{"toServices": [element]}]});
            let found = problems(ccnp(spec));
            assert!(found[0].starts_with(&format!("spec.{section}[0].toServices[0].{path}: ")), "{found:?}");
        }
    }
    let both = json!({"toServices": [{}], "toEntities": ["world"]});
    let found = problems(cnp(json!({"endpointSelector": {}, "egress": [both]})));
    assert!(found[0].contains("toEntities and toServices in one entry"), "{found:?}");
    let found = problems(cnp(json!({"endpointSelector": {}, "ingress": [{"toServices": [{}]}]})));
    assert!(found[0].starts_with("spec.ingress[0].toServices: unknown field"), "{found:?}");
}
