//! NetworkPolicies and ClusterNetworkPolicies of Kubernetes as entries: what is selected, and which mistakes are
//! reported where.

use policy_engine::{
    Action, Direction, DnsRule, FqdnSelector, Kind, L7Rules, Peers, Policy, Port, PortSpec, Ports, Refusal,
    Requirement, Selector, Settings, Subject, Tier, parse,
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

fn read_cluster(spec: Value) -> Result<Policy, Refusal> {
    let manifest = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "p", "uid": "u"},
        "spec": spec,
    });
    parse(Kind::ClusterNetworkPolicy, &manifest, &Settings::default())
}

/// Returns the policy with a valid head and these rules for egress.
fn egress(rules: Value) -> Result<Policy, Refusal> {
    read_cluster(json!({"tier": "Admin", "priority": 7, "subject": {"namespaces": {}}, "egress": rules}))
}

#[test]
fn rules_of_the_cluster_have_tiers_priorities_and_actions() {
    let rule = |action: &str| json!({"name": "r", "action": action, "from": [{"namespaces": {}}]});
    let policy = read_cluster(json!({
        "tier": "Baseline",
        "priority": 30,
        "subject": {"pods": {
            "namespaceSelector": {"matchLabels": {"team": "red"}},
            "podSelector": {"matchLabels": {"app": "web"}},
        }},
        "ingress": [rule("Accept"), rule("Pass"), rule("Deny")],
        "egress": [{"action": "Deny", "to": [
            {"networks": ["10.0.0.0/8", "fd00::/8"]},
            {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "db"}}}},
        ]}],
    }))
    .unwrap();
    let found: Vec<_> =
        policy.entries.iter().map(|entry| (&*entry.path, entry.action, entry.tier, entry.priority)).collect();
    assert_eq!(
        found,
        [
            ("spec.ingress[0].from[0]", Action::Allow, Tier::Baseline, 3000),
            ("spec.ingress[1].from[0]", Action::Pass, Tier::Baseline, 3001),
            ("spec.ingress[2].from[0]", Action::Deny, Tier::Baseline, 3002),
            ("spec.egress[0].to[0]", Action::Deny, Tier::Baseline, 3000),
            ("spec.egress[0].to[1]", Action::Deny, Tier::Baseline, 3000),
        ]
    );
    assert!(policy.entries.iter().all(|entry| !entry.default_deny));
    assert_eq!(policy.resource.to_string(), "kcnp/p");
    // Only peers given as pods are restricted to this cluster, as in Cilium.
    let cluster = "io.cilium.k8s.policy.cluster";
    let Subject::Endpoints(subject) = &policy.entries[0].subject else { panic!() };
    assert!(subject.key().contains("k8s:io.cilium.k8s.namespace.labels.team: red,"), "{}", subject.key());
    let keys: Vec<String> = policy
        .entries
        .iter()
        .flat_map(|entry| match &entry.peers {
            Peers::Of(peers) => peers.iter().map(Selector::key).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(!subject.key().contains(cluster) && !keys[0].contains(cluster) && keys[5].contains(cluster));
    assert_eq!(keys[3..5], ["cidr:10.0.0.0/8", "cidr:fd00::/8"]);
}

#[test]
fn domain_names_allow_their_addresses_and_the_queries_for_them() {
    let to = json!([{"domainNames": ["a.io", "*.b.io"]}, {"networks": ["10.0.0.0/8"]}]);
    let ports = json!([{"tcp": {"destinationPort": {"number": 443}}}]);
    let policy = egress(json!([{"action": "Accept", "to": to, "protocols": ports}])).unwrap();
    let [queries, names, networks] = &policy.entries[..] else { panic!("{:#?}", policy.entries) };
    assert_eq!(
        queries.peers,
        Peers::Of(vec![Selector::Labels(vec![Requirement::equals("k8s", "k8s-app", "kube-dns")])])
    );
    assert_eq!(queries.ports, Ports::Of(Vec::new()), "nothing passes the proxy by");
    let rule = |name: &str, pattern: &str| DnsRule {
        match_name: name.to_owned(),
        match_pattern: pattern.to_owned(),
    };
    let rules = L7Rules::Dns([rule("a.io", ""), rule("", "**.b.io")].into());
    let redirects: Vec<_> =
        queries.redirects.iter().map(|to| (to.port.protocol, to.port.port.clone())).collect();
    let named = |name: &str| Port::Named { name: name.into(), end: None };
    assert_eq!(redirects, [(17, named("dns")), (6, named("dns-tcp"))]);
    assert!(queries.redirects.iter().all(|to| to.rules.l7 == rules));
    let fqdn = |name: &str, pattern: &str| {
        Selector::Fqdn(FqdnSelector { match_name: name.into(), match_pattern: pattern.into() })
    };
    assert_eq!(names.peers, Peers::Of(vec![fqdn("a.io", ""), fqdn("", "**.b.io")]));
    assert_eq!(names.ports, networks.ports);
    assert!(names.redirects.is_empty() && networks.redirects.is_empty());
    let places: Vec<_> =
        policy.entries.iter().map(|entry| (entry.priority, entry.action, &*entry.path)).collect();
    assert!(places.iter().all(|place| (place.0, place.1) == (places[0].0, Action::Allow)), "{places:?}");
    assert_eq!((places[0].2, places[1].2), ("spec.egress[0].to[0]", "spec.egress[0].to[0]"));
    for wrong in ["io", "a b", "-a.io", "*.", "a..io", "*a.io", "a.*.io"] {
        let refused = egress(json!([{"action": "Accept", "to": [{"domainNames": [wrong]}]}])).unwrap_err();
        assert_eq!(refused.problems[0].path, "spec.egress[0].to[0].domainNames[0]", "{wrong}");
    }
}

#[test]
fn protocols_of_the_cluster_are_numbers_ranges_or_names() {
    let ports = |protocols: Value| {
        let policy = egress(json!([{"action": "Accept", "protocols": protocols}])).unwrap();
        let [entry] = &policy.entries[..] else { panic!("{policy:?}") };
        assert_eq!(entry.peers, Peers::All, "a rule without peers is for all of them");
        entry.ports.clone()
    };
    let spec = |protocol, port| PortSpec { protocol, port };
    let range = json!({"range": {"start": 80, "end": 90}});
    assert_eq!(
        ports(json!([{"tcp": {"destinationPort": {"number": 443}}}, {"sctp": {"destinationPort": range}}])),
        Ports::Of(vec![spec(6, Port::Range(443, 443)), spec(132, Port::Range(80, 90))])
    );
    let name = Port::Named { name: "web".into(), end: None };
    let named = [6, 17, 132].map(|protocol| spec(protocol, name.clone()));
    assert_eq!(ports(json!([{"destinationNamedPort": "Web"}])), Ports::Of(named.into()));
}

/// The API demands it: an unknown kind of peer accepts nothing, and denies everything.
#[test]
fn peers_of_an_unknown_kind_fail_closed() {
    for (action, effect) in [("Accept", None), ("Deny", Some(Action::Deny)), ("Pass", Some(Action::Deny))] {
        for peer in [json!({}), json!({"serviceAccounts": {}})] {
            let policy = egress(json!([{"action": action, "to": [peer]}])).unwrap();
            let found = policy.entries.first().map(|entry| (entry.action, entry.peers.clone()));
            assert_eq!(found, effect.map(|action| (action, Peers::All)), "{action}");
            assert_eq!(policy.warnings[0].path, "spec.egress[0].to[0]");
        }
    }
}

#[test]
fn mistakes_in_policies_of_the_cluster_are_reported_by_path() {
    let paths = |result: Result<Policy, Refusal>| -> Vec<String> {
        result.unwrap_err().problems.into_iter().map(|problem| problem.path).collect()
    };
    let head = |field: &str, value: Value| {
        let mut spec = json!({"tier": "Admin", "priority": 0, "subject": {"namespaces": {}}});
        spec[field] = value;
        paths(read_cluster(spec))
    };
    assert_eq!(paths(read_cluster(json!({}))), ["spec.tier", "spec.priority", "spec.subject"]);
    for (field, value, path) in [
        ("tier", json!("admin"), "spec.tier"),
        ("priority", json!(1001), "spec.priority"),
        ("priority", json!(-1), "spec.priority"),
        ("priority", json!("1"), "spec.priority"),
        ("subject", json!({}), "spec.subject"),
        ("subject", json!({"namespaces": {}, "pods": {}}), "spec.subject"),
        ("subject", json!({"pods": {"podSelector": {}}}), "spec.subject.pods.namespaceSelector"),
        ("subject", json!({"pods": {"namespaceSelector": {}}}), "spec.subject.pods.podSelector"),
        ("subject", json!({"nodes": {}, "namespaces": {}}), "spec.subject.nodes"),
        ("ingress", json!({}), "spec.ingress"),
        ("ingress", json!(vec![json!({"action": "Deny"}); 26]), "spec.ingress"),
        (
            "ingress",
            json!([{"action": "Deny", "from": [{"networks": ["10.0.0.0/8"], "namespaces": {}}]}]),
            "spec.ingress[0].from[0].networks",
        ),
        ("podSelector", json!({}), "spec.podSelector"),
    ] {
        assert_eq!(head(field, value.clone())[0], path, "{value}");
    }
    let port = |port: Value| json!({"protocols": [{"tcp": {"destinationPort": port}}], "action": "Deny"});
    let peer = |peer: Value| json!({"to": [peer], "action": "Deny"});
    for (rule, path) in [
        (json!({}), "action"),
        (json!({"action": "Allow"}), "action"),
        (json!({"action": "Deny", "from": []}), "from"),
        (peer(json!({"networks": ["10.0.0.1"]})), "to[0].networks[0]"),
        (peer(json!({"networks": []})), "to[0].networks"),
        (peer(json!({"nodes": {"matchLabels": {"zone": "a"}}})), "to[0].nodes"),
        (peer(json!({"domainNames": ["a.io"]})), "to[0].domainNames"),
        (peer(json!({"namespaces": {}, "networks": ["::/0"]})), "to[0]"),
        (peer(json!({"namespaces": {}, "other": 1})), "to[0].other"),
        (peer(json!({"namespaces": {"matchLabels": {"a": "b c"}}})), "to[0].namespaces.matchLabels.a"),
        (json!({"action": "Deny", "protocols": [{}]}), "protocols[0]"),
        (json!({"action": "Deny", "protocols": [{"icmp": {}}]}), "protocols[0].icmp"),
        (json!({"action": "Deny", "protocols": [{"tcp": {}}]}), "protocols[0].tcp.destinationPort"),
        (
            json!({"action": "Deny", "protocols": [{"destinationNamedPort": "80"}]}),
            "protocols[0].destinationNamedPort",
        ),
        (port(json!({})), "protocols[0].tcp.destinationPort"),
        (port(json!({"number": 0})), "protocols[0].tcp.destinationPort.number"),
        (port(json!({"number": 65536})), "protocols[0].tcp.destinationPort.number"),
        (port(json!({"number": 1, "range": {}})), "protocols[0].tcp.destinationPort"),
        (port(json!({"range": {"start": 80}})), "protocols[0].tcp.destinationPort.range.end"),
        (port(json!({"range": {"start": 80, "end": 80}})), "protocols[0].tcp.destinationPort.range"),
    ] {
        assert_eq!(paths(egress(json!([rule]))), [format!("spec.egress[0].{path}")], "{rule}");
    }
}
