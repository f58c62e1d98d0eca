//! Accepted and refused rules, and the texts of refusals.

use policy_engine::{
    Action, Direction, Kind, Peers, Policy, Port, PortSpec, Ports, Refusal, Requirement, Selector, Settings,
    Subject, Test, parse,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

#[path = "parse/proxy.rs"]
mod proxy;
#[path = "parse/services.rs"]
mod services;

fn read(kind: Kind, spec: Value) -> Result<Policy, Refusal> {
    let manifest = json!({
        "apiVersion": "cilium.io/v2",
        "kind": kind.name(),
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
        "spec": spec,
    });
    parse(kind, &manifest, &Settings::default())
}

fn cnp(spec: Value) -> Result<Policy, Refusal> {
    read(Kind::CiliumNetworkPolicy, spec)
}

fn ccnp(spec: Value) -> Result<Policy, Refusal> {
    read(Kind::CiliumClusterwideNetworkPolicy, spec)
}

/// Returns the problems of a refused object, as texts.
fn problems(result: Result<Policy, Refusal>) -> Vec<String> {
    result.unwrap_err().problems.iter().map(ToString::to_string).collect()
}

/// Returns the first peer of the first entry, by its name in the selector cache.
fn peer(policy: &Policy) -> String {
    match &policy.entries[0].peers {
        Peers::Of(selectors) => selectors[0].key(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_whole_policy_is_translated() {
    let policy = cnp(json!({
        "description": "pages of the shop",
        "labels": [{"key": "team", "value": "red"}],
        "endpointSelector": {"matchLabels": {"app": "web"}},
        "ingress": [{
            "fromEndpoints": [{"matchLabels": {"app": "front"}}],
            "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}, {"port": "HTTP-alt", "endPort": 9000}]}],
        }],
        "egressDeny": [{"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}]}],
        "enableDefaultDeny": {"egress": false},
    }))
    .unwrap();
    assert_eq!(policy.resource.to_string(), "cnp/shop/web");
    assert_eq!(&*policy.uid, "u1");
    let [allow, deny] = &policy.entries[..] else { panic!("{policy:?}") };
    let Subject::Endpoints(subject) = &allow.subject else { panic!("{allow:?}") };
    assert_eq!(
        subject.key(),
        "&LabelSelector{MatchLabels:map[string]string{any:app: web,k8s:io.kubernetes.pod.namespace: shop,},\
         MatchExpressions:[]LabelSelectorRequirement{},}"
    );
    assert_eq!(
        (allow.direction, allow.action, allow.default_deny),
        (Direction::Ingress, Action::Allow, true)
    );
    assert_eq!(&*allow.path, "spec.ingress[0]");
    let named = Port::Named { name: "http-alt".into(), end: Some(9000) };
    let mut ports = vec![PortSpec { protocol: 6, port: Port::Range(80, 80) }];
    ports.extend([6, 17, 132].map(|protocol| PortSpec { protocol, port: named.clone() }));
    assert_eq!(allow.ports, Ports::Of(ports));
    assert_eq!(
        *allow.labels,
        [
            "k8s:io.cilium.k8s.policy.derived-from=CiliumNetworkPolicy",
            "k8s:io.cilium.k8s.policy.name=web",
            "k8s:io.cilium.k8s.policy.namespace=shop",
            "k8s:io.cilium.k8s.policy.uid=u1",
            "unspec:team=red"
        ]
    );
    assert_eq!((deny.direction, deny.action, deny.default_deny), (Direction::Egress, Action::Deny, false));
    assert_eq!((&*deny.path, &deny.ports), ("spec.egressDeny[0]", &Ports::All));
    let Peers::Of(peers) = &deny.peers else { panic!("{deny:?}") };
    assert_eq!(peers[0].key(), "cidr:10.0.0.0/8-[10.1.0.0/16]");
}

#[test]
fn peers_get_the_namespace_and_cluster_that_they_do_not_name() {
    let text = |labels: &str, expressions: &str| {
        format!(
            "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
        )
    };
    let namespace = "k8s:io.kubernetes.pod.namespace: shop,";
    let cluster = "k8s:io.cilium.k8s.policy.cluster: default,";
    let exists = "LabelSelectorRequirement{Key:k8s:io.kubernetes.pod.namespace,Operator:Exists,Values:[],},";
    let team = "k8s:io.cilium.k8s.namespace.labels.team: red,";
    let both = format!("{cluster}{namespace}");
    for (kind, subject, written, labels, expressions) in [
        ("cnp", "", json!({}), both.as_str(), ""),
        ("ccnp", "", json!({}), cluster, exists),
        ("ccnp", "reserved:init", json!({}), cluster, ""),
        ("cnp", "", json!({"matchLabels": {"reserved:host": ""}}), "reserved:host: ,", ""),
        (
            "cnp",
            "",
            json!({"matchLabels": {"io.kubernetes.pod.namespace": "other"}}),
            &format!("any:io.kubernetes.pod.namespace: other,{cluster}"),
            "",
        ),
        (
            "cnp",
            "",
            json!({"matchLabels": {"k8s:io.cilium.k8s.namespace.labels.team": "red"}}),
            &format!("{team}{cluster}"),
            "",
        ),
        (
            "ccnp",
            "",
            json!({"matchLabels": {"k8s:io.cilium.k8s.namespace.labels.team": "red"}}),
            &format!("{team}{cluster}"),
            exists,
        ),
        (
            "cnp",
            "",
            json!({"matchLabels": {"k8s:io.cilium.k8s.policy.cluster": "west"}}),
            &format!("k8s:io.cilium.k8s.policy.cluster: west,{namespace}"),
            "",
        ),
    ] {
        let subject = match subject {
            "" => json!({}),
            key => json!({"matchLabels": {key: ""}}),
        };
        let spec = json!({"endpointSelector": subject, "ingress": [{"fromEndpoints": [written]}]});
        let policy = if kind == "cnp" { cnp(spec) } else { ccnp(spec) }.unwrap();
        assert_eq!(peer(&policy), text(labels, expressions), "{kind} {written}");
    }
}

#[test]
fn absent_and_empty_lists_are_distinguished() {
    let entry = |entry: Value| {
        let policy = cnp(json!({"endpointSelector": {}, "ingress": [entry]})).unwrap();
        let entry = policy.entries.into_iter().next().unwrap();
        (entry.peers, entry.ports)
    };
    let wildcard = || Peers::Of(vec![Selector::Labels(Vec::new())]);
    assert_eq!(entry(json!({})), (Peers::Nothing, Ports::All));
    assert_eq!(entry(json!({"toPorts": []})), (Peers::Nothing, Ports::All));
    assert_eq!(entry(json!({"toPorts": [{"ports": []}]})), (Peers::All, Ports::Of(vec![])));
    assert_eq!(entry(json!({"fromEndpoints": []})), (Peers::Nothing, Ports::All));
    assert_eq!(entry(json!({"fromEndpoints": [{}], "fromCIDR": []})).0, Peers::Nothing);
    assert_eq!(entry(json!({"fromEndpoints": null, "fromEntities": ["all"]})), (wildcard(), Ports::All));
    assert_eq!(entry(json!({"fromEntities": ["world", "all"]})).0, wildcard());
    assert_eq!(entry(json!({"fromEntities": ["none"]})).0, Peers::Of(vec![Selector::None]));
    let Peers::Of(cluster) = entry(json!({"fromEntities": ["cluster", "host"]})).0 else { panic!() };
    assert_eq!(cluster.len(), 8);
    let all = |protocol| PortSpec { protocol, port: Port::All };
    assert_eq!(entry(json!({"icmps": [{"fields": [{"type": "EchoReply"}]}]})).1, Ports::Of(vec![all(1)]));
    let ports = json!({"toPorts": [{"ports": [{"port": "0", "endPort": 90, "protocol": "UDP"}]}]});
    assert_eq!(entry(ports), (Peers::All, Ports::Of(vec![all(17)])));
}

#[test]
fn a_rule_is_about_endpoints_or_about_nodes() {
    let policy = ccnp(json!({"nodeSelector": {"matchLabels": {"role": "db"}}, "ingress": [{}]})).unwrap();
    assert!(matches!(&policy.entries[0].subject, Subject::Node(Selector::Labels(r)) if r.len() == 1));
    let found = problems(cnp(json!({"nodeSelector": {}, "ingress": [{}]})));
    assert!(
        found[0].starts_with("spec.nodeSelector: a policy of a namespace cannot be about nodes"),
        "{found:?}"
    );
}

#[test]
fn misleading_fields_cause_warnings() {
    let policy = cnp(json!({
        "endpointSelector": {"matchLabels": {"k8s:io.kubernetes.pod.namespace": "other"}},
        "ingress": [
            {"icmps": [{"fields": [{"type": "EchoReply"}, {"type": 8}]}]},
            {"toPorts": [{"ports": [
                {"port": "80", "endPort": 79},
                {"port": "80", "endPort": 80},
                {"port": "0", "endPort": 90},
            ]}]},
        ],
    }))
    .unwrap();
    let found: Vec<String> = policy.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "spec.endpointSelector: names another namespace: the policy selects in shop only (write the policy in that \
             namespace)",
            "spec.ingress[0].icmps[0].fields[0].type: type 0 stands for all types of the family",
            "spec.ingress[1].toPorts[0].ports[0].endPort: 79 is below port 80: only port 80 counts (write the higher \
             port here)",
            "spec.ingress[1].toPorts[0].ports[2].endPort: not looked at: port 0 stands for all ports",
        ]
    );
    let policy = ccnp(json!({"endpointSelector": {}, "ingress": [{}]})).unwrap();
    assert_eq!(policy.warnings[0].path, "metadata.namespace");
}

#[test]
fn every_problem_is_reported_with_path_and_remedy() {
    let refusal = cnp(json!({
        "endpointSelector": {"matchLabels": {"a b": "c"}, "matchExpresions": []},
        "egres": [],
        "ingress": [
            {"toPorts": [{"ports": [{"port": "80"}]}, {"ports": [{"port": "70000", "protocol": "TPC"}, {"port": 80}]}]},
            {"fromEntities": ["planet"], "fromCIDR": ["10.0.0.0/08"]},
            {"fromCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}], "fromFQDNs": []},
        ],
    }))
    .unwrap_err();
    let found = refusal.to_string();
    let lines: Vec<String> = refusal.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "spec.egres: unknown field (check its name and where it belongs)",
            "spec.endpointSelector.matchExpresions: unknown field (check its name and where it belongs)",
            "spec.endpointSelector.matchLabels[\"a b\"]: \"a b\": not a label's key (at most 63 letters, digits, \
             dashes, dots after an optional domain and slash)",
            "spec.ingress[0].toPorts[1].ports[0].protocol: \"TPC\": not a protocol (TCP, UDP, SCTP or ANY)",
            "spec.ingress[0].toPorts[1].ports[0].port: \"70000\": not a port (0-65535) and not a port's name (names \
             have at most 15 letters, digits and single dashes, and a letter)",
            "spec.ingress[0].toPorts[1].ports[1].port: 80: must be a text (put it in quotes)",
            "spec.ingress[1]: fromEntities and fromCIDR in one entry (make each an entry of its own)",
            "spec.ingress[1].fromEntities[0]: \"planet\": not an entity (all, world, world-ipv4, world-ipv6, cluster, \
             host, remote-node, kube-apiserver, init, ingress, health, unmanaged or none)",
            "spec.ingress[1].fromCIDR[0]: \"10.0.0.0/08\": not an address or prefix (write it as 192.0.2.0/24 or \
             2001:db8::1)",
            "spec.ingress[2].fromFQDNs: unknown field (check its name and where it belongs)",
            "spec.ingress[2].fromCIDRSet[0].except[0]: 11.0.0.0/16 is not inside 10.0.0.0/8 (exceptions lie inside \
             the cidr of the same element)",
        ]
    );
    assert_eq!(found, format!("cnp/shop/web: {}", lines.join("; ")));
}

#[test]
fn unimplemented_fields_are_refused_by_name_and_never_ignored() {
    for (path, spec) in [
        ("egress[0].toGroups", json!({"egress": [{"toGroups": [{}]}]})),
        ("ingress[0].fromGroups", json!({"ingress": [{"fromGroups": [{}]}]})),
    ] {
        let mut spec = spec;
        spec["endpointSelector"] = json!({});
        let found = problems(cnp(spec));
        let wanted = format!("spec.{path}: ");
        assert!(
            found.iter().any(|line| line.starts_with(&wanted) && line.contains(": not supported yet")),
            "{path}: {found:?}"
        );
    }
    let requires =
        |list: Value| cnp(json!({"endpointSelector": {}, "ingressDeny": [{"fromRequires": list}]}));
    assert!(requires(json!([])).is_ok());
    let found = problems(requires(json!([{"matchLabels": {"app": "a"}}])));
    assert!(
        found[0].starts_with("spec.ingressDeny[0].fromRequires: not part of the API any more"),
        "{found:?}"
    );
}

#[test]
fn references_to_cidr_groups_are_requirements_on_their_labels() {
    let selectors = |rule: Value| -> Vec<String> {
        let spec = json!({"endpointSelector": {}, "egress": [{"toCIDRSet": [rule]}]});
        let policy = cnp(spec).unwrap();
        let Peers::Of(selectors) = &policy.entries[0].peers else { panic!("{policy:?}") };
        assert!(selectors.iter().all(Selector::is_of_cidr_groups), "{selectors:?}");
        let name = |r: &Requirement| format!("{}{}", if r.test == Test::Exists { "" } else { "!" }, r.name());
        let all = |selector: &Selector| match selector {
            Selector::Labels(all) => all.iter().map(name).collect::<Vec<_>>().join(" "),
            other => panic!("{other:?}"),
        };
        selectors.iter().map(all).collect()
    };
    let name = "cidrgroup:io.cilium.policy.cidrgroupname/offices";
    assert_eq!(selectors(json!({"cidrGroupRef": "offices"})), [name]);
    let except = json!({"cidrGroupRef": "offices", "except": ["10.0.0.0/8"]});
    assert_eq!(selectors(except), [format!("{name} !cidr:10.0.0.0/8")]);
    let labels = |labels: Value| json!({"cidrGroupSelector": labels});
    assert_eq!(selectors(labels(json!({"matchLabels": {"kind": "vpn"}}))), ["cidrgroup:kind+vpn"]);
    let test =
        |operator: &str, values: &[&str]| json!({"key": "site", "operator": operator, "values": values});
    let several = json!({"matchLabels": {"kind": "vpn"}, "matchExpressions": [test("In", &["a", "b"]), test("NotIn", &["c"])]});
    assert_eq!(
        selectors(labels(several)),
        [
            "cidrgroup:kind+vpn cidrgroup:site+a !cidrgroup:site+c",
            "cidrgroup:kind+vpn cidrgroup:site+b !cidrgroup:site+c",
        ]
    );
    let exists = json!({"matchExpressions": [test("Exists", &[]), {"key": "x", "operator": "DoesNotExist"}]});
    assert_eq!(selectors(labels(exists)), ["cidrgroup:site !cidrgroup:x"]);

    // Requirements of absence alone hold for pods, too.
    for wrong in [json!({}), json!({"matchExpressions": [test("NotIn", &["a"])]})] {
        let spec = json!({"endpointSelector": {}, "ingress": [{"fromCIDRSet": [labels(wrong)]}]});
        let found = problems(cnp(spec));
        assert!(found[0].starts_with("spec.ingress[0].fromCIDRSet[0].cidrGroupSelector: "), "{found:?}");
    }
    let values: Vec<String> = (0..9).map(|n| n.to_string()).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let many = json!({"matchExpressions": [test("In", &values), test("In", &values)]});
    let spec = json!({"endpointSelector": {}, "ingress": [{"fromCIDRSet": [labels(many)]}]});
    assert!(problems(cnp(spec))[0].contains("more than 64 alternatives"));
}

#[test]
fn fields_of_the_allowing_sections_do_not_belong_in_the_denying_ones() {
    for entry in [
        json!({"toFQDNs": [{"matchName": "a.io"}]}),
        json!({"authentication": {"mode": "disabled"}}),
        json!({"toPorts": [{"ports": [{"port": "80"}], "rules": {}}]}),
    ] {
        let found = problems(cnp(json!({"endpointSelector": {}, "egressDeny": [entry]})));
        assert!(found[0].contains("unknown field"), "{found:?}");
    }
}

#[test]
fn one_bad_rule_refuses_the_object() {
    let manifest = json!({
        "metadata": {"name": "p"},
        "specs": [{"endpointSelector": {}, "ingress": [{}]}, {"endpointSelector": {}, "egress": []}],
    });
    let kind = Kind::CiliumNetworkPolicy;
    let found = problems(parse(kind, &manifest, &Settings::default()));
    assert!(found.len() == 1 && found[0].starts_with("specs[1]: ingress, ingressDeny"), "{found:?}");
    let other = json!({"kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "p"}, "specs": []});
    assert!(problems(parse(kind, &other, &Settings::default()))[0].starts_with("kind: "));
}

#[test]
fn refusals_and_huge_objects_are_bounded() {
    let many = vec![json!({"fromEntities": ["x".repeat(10_000)]}); 1000];
    let refusal = cnp(json!({"endpointSelector": {}, "ingress": many})).unwrap_err();
    assert_eq!(refusal.problems.len(), 65);
    assert_eq!(refusal.problems[64].reason, "and 936 more problems");
    assert!(refusal.to_string().len() < 30_000);

    let huge = json!({"endpointSelector": {}, "ingress": vec![json!({"toPorts": [{}]}); 400_000]});
    assert!(problems(cnp(huge))[0].contains("more than 1000000 values"));

    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({"matchLabels": deep});
    }
    assert!(cnp(json!({"endpointSelector": deep, "ingress": [{}]})).is_err());
}

/// Generates texts with a meaning in some field of a policy, and others.
fn word() -> impl Strategy<Value = String> {
    let words = [
        "80",
        "0",
        "65536",
        "010",
        "http",
        "TCP",
        "gre",
        "10.0.0.0/8",
        "::/0",
        "fd00::1",
        "all",
        "cluster",
        "none",
        "In",
        "Exists",
        "app",
        "k8s:app",
        "reserved:init",
        "a:b:c",
        ":",
        ".",
        "/",
        "",
        "IPv6",
        "EchoReply",
        "\u{1f41d}",
        "name",
        "=",
        "any.",
        "cidr:10.0.0.0/8",
    ];
    prop_oneof![9 => proptest::sample::select(words.to_vec()).prop_map(str::to_owned), 1 => any::<String>()]
}

fn field() -> impl Strategy<Value = String> {
    let fields = [
        "spec",
        "specs",
        "metadata",
        "name",
        "namespace",
        "uid",
        "labels",
        "key",
        "value",
        "source",
        "description",
        "endpointSelector",
        "nodeSelector",
        "matchLabels",
        "matchExpressions",
        "operator",
        "values",
        "ingress",
        "ingressDeny",
        "egress",
        "egressDeny",
        "enableDefaultDeny",
        "fromEndpoints",
        "fromEntities",
        "fromCIDR",
        "fromCIDRSet",
        "toEndpoints",
        "toEntities",
        "toCIDR",
        "toCIDRSet",
        "cidr",
        "except",
        "cidrGroupRef",
        "toPorts",
        "ports",
        "port",
        "endPort",
        "protocol",
        "icmps",
        "fields",
        "family",
        "type",
        "rules",
        "http",
        "dns",
        "path",
        "headerMatches",
        "matchName",
        "matchPattern",
        "listener",
        "envoyConfig",
        "serverNames",
        "terminatingTLS",
        "secret",
        "toFQDNs",
        "toNodes",
        "toServices",
        "k8sService",
        "k8sServiceSelector",
        "selector",
        "authentication",
        "mode",
        "log",
    ];
    prop_oneof![19 => proptest::sample::select(fields.to_vec()).prop_map(str::to_owned), 1 => word()]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..70_000i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 128, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((field(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_value_makes_the_reader_panic(any in value(), spec in value(), entry in value(), extended: bool) {
        let settings = Settings { extended_protocols: extended, ..Settings::default() };
        for kind in [Kind::CiliumNetworkPolicy, Kind::CiliumClusterwideNetworkPolicy] {
            let spec = json!({"metadata": {"name": "p"}, "spec": spec});
            let rule = json!({"endpointSelector": any, "ingress": [entry], "egressDeny": entry});
            let entry = json!({"metadata": {"name": "p"}, "specs": [rule]});
            for manifest in [&any, &spec, &entry] {
                match parse(kind, manifest, &settings) {
                    Ok(policy) => policy.entries.iter().for_each(|entry| {
                        if let Peers::Of(selectors) = &entry.peers {
                            assert!(!selectors.is_empty());
                            selectors.iter().for_each(|selector| assert!(!selector.key().is_empty()));
                        }
                    }),
                    Err(refusal) => assert!(!refusal.problems.is_empty() && !refusal.to_string().is_empty()),
                }
            }
        }
    }
}
