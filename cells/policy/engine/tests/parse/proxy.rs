//! Rules for proxies, DNS names, authentication and texts for the log.

use std::sync::Arc;

use policy_engine::{
    Authentication, Direction, Engine, Key, L4, L7Rules, NamedPorts, Parser, Policy, Ports, ProxyPorts,
    ProxyRules, Redirect, Refusal, ResolveError, Row, SecretRef, Settings, parse,
};
use serde_json::{Value, json};

use super::{Kind, ccnp, cnp, peer, problems};

fn ports(mut element: Value) -> Value {
    if element.get("ports").is_none() {
        element["ports"] = json!([{"port": "80", "protocol": "TCP"}]);
    }
    json!([element])
}

fn egress(element: Value) -> Result<Policy, Refusal> {
    cnp(json!({"endpointSelector": {}, "egress": [{"toPorts": ports(element)}]}))
}

fn rules(policy: &Policy) -> &ProxyRules {
    &policy.entries[0].redirects[0].rules
}

#[test]
fn rules_of_proxies_are_read_in_full() {
    let policy = egress(json!({
        "rules": {"http": [
            {"method": "GET|HEAD", "path": "/v[12]/.*", "host": "*.shop", "headers": ["X-Token", "b c d"]},
            {"headerMatches": [{"name": "a", "mismatch": "ADD", "secret": {"name": "s", "namespace": "n"}}]},
        ]},
        "terminatingTLS": {"secret": {"name": "tls"}, "certificate": "crt", "privateKey": "key"},
        "originatingTLS": {"secret": {"name": "ca"}, "trustedCA": "ca"},
        "serverNames": ["*.a.io", "b.io"],
    }))
    .unwrap();
    assert_eq!(policy.entries[0].ports, Ports::Of(Vec::new()), "nothing passes beside the proxy");
    let found = rules(&policy);
    assert_eq!((found.parser(), found.priority(), found.server_names.len()), (Some(Parser::Http), 101, 2));
    let L7Rules::Http(http) = &found.l7 else { panic!("{found:?}") };
    assert_eq!(http.iter().map(|rule| rule.path.as_str()).collect::<Vec<_>>(), ["", "/v[12]/.*"]);
    let json = serde_json::to_value(http.first()).unwrap();
    let secret = json!({"name": "s", "namespace": "n"});
    assert_eq!(json, json!({"headerMatches": [{"mismatch": "ADD", "name": "a", "secret": secret}]}));
    let of_policy = SecretRef { namespace: "shop".to_owned(), name: "tls".to_owned() };
    assert_eq!(found.terminating_tls.as_ref().map(|tls| &tls.secret), Some(&of_policy));

    let dns = json!({"ports": [{"port": "53"}], "rules": {"dns": [{"matchPattern": "*.a.io"}, {}]}});
    let policy = egress(dns).unwrap();
    assert_eq!(policy.entries[0].redirects.len(), 3, "TCP, UDP, SCTP");
    assert_eq!((rules(&policy).parser(), rules(&policy).priority()), (Some(Parser::Dns), 121));
    let names = egress(json!({"serverNames": ["a.io"]})).unwrap();
    assert_eq!((rules(&names).parser(), rules(&names).priority()), (Some(Parser::Tls), 116));
    for element in [json!({"rules": {}}), json!({"rules": {"http": []}}), json!({"serverNames": []})] {
        let policy = egress(element).unwrap();
        assert!(policy.entries[0].redirects.is_empty());
        assert!(matches!(&policy.entries[0].ports, Ports::Of(specs) if specs.len() == 1));
    }
}

#[test]
fn listeners_are_named_by_their_configuration() {
    let listener = |config: Value| json!({"listener": {"name": "l", "priority": 7, "envoyConfig": config}});
    let of = |policy: Policy| {
        (rules(&policy).listener.as_ref().unwrap().name.to_string(), rules(&policy).priority())
    };
    let clusterwide = json!({"kind": "CiliumClusterwideEnvoyConfig", "name": "e"});
    for (config, name) in [
        (json!({"name": "e"}), "shop/e/l"),
        (json!({"kind": "CiliumEnvoyConfig", "name": "e"}), "shop/e/l"),
        (clusterwide.clone(), "/e/l"),
    ] {
        assert_eq!(of(egress(listener(config)).unwrap()), (name.to_owned(), 7));
    }
    let wide =
        |config| ccnp(json!({"endpointSelector": {}, "egress": [{"toPorts": ports(listener(config))}]}));
    assert_eq!(of(wide(json!({"name": "e"})).unwrap()).0, "/e/l");
    let found = problems(wide(json!({"kind": "CiliumEnvoyConfig", "name": "e"})));
    assert!(found[0].starts_with("spec.egress[0].toPorts[0].listener.envoyConfig.kind: "), "{found:?}");
}

#[test]
fn without_default_deny_rules_of_proxies_let_everything_else_pass() {
    let http = json!({"rules": {"http": [{"method": "GET"}]}});
    let policy = cnp(json!({
        "endpointSelector": {},
        "egress": [{"toPorts": ports(http)}],
        "enableDefaultDeny": {"egress": false},
    }));
    let L7Rules::Http(http) = rules(&policy.unwrap()).l7.clone() else { panic!() };
    assert_eq!((http.len(), http.first()), (2, Some(&Default::default())));
}

#[test]
fn mistakes_in_rules_of_proxies_are_reported_by_path() {
    let http = |rule: Value| json!({"rules": {"http": [rule]}});
    let listener = json!({"name": "l", "envoyConfig": {"name": "e"}});
    for (element, path) in [
        (http(json!({"path": "("})), "rules.http[0].path"),
        (http(json!({"method": "a**"})), "rules.http[0].method"),
        (http(json!({"host": "("})), "rules.http[0].host"),
        (http(json!({"port": 80})), "rules.http[0].port"),
        (http(json!({"headers": [1]})), "rules.http[0].headers[0]"),
        (http(json!({"headerMatches": [{"value": "a"}]})), "rules.http[0].headerMatches[0].name"),
        (
            http(json!({"headerMatches": [{"name": "a", "mismatch": "X"}]})),
            "rules.http[0].headerMatches[0].mismatch",
        ),
        (
            http(json!({"headerMatches": [{"name": "a", "secret": {}}]})),
            "rules.http[0].headerMatches[0].secret.name",
        ),
        (json!({"rules": {"http": {}}}), "rules.http"),
        // Gone from the API since 1.19, together with their proxies.
        (json!({"rules": {"kafka": [{}]}}), "rules.kafka"),
        (json!({"rules": {"l7proto": "r2d2"}}), "rules.l7proto"),
        (json!({"rules": {"http": [{}]}, "ports": [{"port": "80"}]}), "ports"),
        (json!({"rules": {"http": [{}]}, "ports": [{"port": "0", "protocol": "TCP"}]}), "ports"),
        (json!({"rules": {"http": [{}], "dns": [{}]}}), "rules"),
        (json!({"rules": {"dns": [{}]}, "ports": []}), "ports"),
        (json!({"rules": {"dns": [{}]}, "ports": [{"port": "53", "endPort": 54}]}), "ports"),
        (json!({"rules": {"dns": [{"matchName": "a b"}]}}), "rules.dns[0].matchName"),
        (json!({"rules": {"dns": [{"matchName": "*.a"}]}}), "rules.dns[0].matchName"),
        (json!({"rules": {"dns": [{"matchPattern": "a!"}]}}), "rules.dns[0].matchPattern"),
        (json!({"rules": {"dns": [{"matchPattern": "a".repeat(256)}]}}), "rules.dns[0].matchPattern"),
        (json!({"serverNames": [""]}), "serverNames[0]"),
        (json!({"serverNames": ["a.io"], "rules": {"http": [{}]}}), "serverNames"),
        (json!({"serverNames": ["a.io"], "ports": [{"port": "443", "protocol": "UDP"}]}), "ports"),
        (json!({"terminatingTLS": {}}), "terminatingTLS.secret"),
        (json!({"originatingTLS": {"secret": {"namespace": "a"}}}), "originatingTLS.secret.name"),
        (json!({"listener": {"name": "l"}}), "listener.envoyConfig"),
        (json!({"listener": {"envoyConfig": {"name": "e"}}}), "listener.name"),
        (json!({"listener": {"name": "l", "envoyConfig": {}}}), "listener.envoyConfig.name"),
        (
            json!({"listener": {"name": "l", "envoyConfig": {"name": "e", "kind": "X"}}}),
            "listener.envoyConfig.kind",
        ),
        (
            json!({"listener": {"name": "l", "envoyConfig": {"name": "e"}, "priority": 101}}),
            "listener.priority",
        ),
        (json!({"listener": listener, "rules": {"http": [{}]}}), "listener"),
    ] {
        let found = problems(egress(element.clone()));
        assert!(found[0].starts_with(&format!("spec.egress[0].toPorts[0].{path}: ")), "{element} {found:?}");
    }
    let dns = json!({"rules": {"dns": [{}]}});
    let l7 = json!({"rules": {"http": [{}]}});
    for (spec, path) in [
        (
            json!({"endpointSelector": {}, "ingress": [{"toPorts": ports(dns.clone())}]}),
            "ingress[0].toPorts[0].rules",
        ),
        (
            json!({"endpointSelector": {}, "ingress": [{"toPorts": ports(json!({"listener": listener}))}]}),
            "ingress[0].toPorts[0].listener",
        ),
        (
            json!({"nodeSelector": {}, "egress": [{"toPorts": ports(l7.clone())}]}),
            "egress[0].toPorts[0].rules",
        ),
        (
            json!({"nodeSelector": {}, "ingress": [{"toPorts": ports(l7.clone())}]}),
            "ingress[0].toPorts[0].rules",
        ),
    ] {
        let found = problems(ccnp(spec));
        assert!(found[0].starts_with(&format!("spec.{path}: ")), "{found:?}");
    }
    assert!(ccnp(json!({"nodeSelector": {}, "egress": [{"toPorts": ports(dns)}]})).is_ok());
    let manifest = json!({
        "metadata": {"name": "p"},
        "spec": {"endpointSelector": {}, "egress": [{"toPorts": ports(l7)}]},
    });
    let off = Settings { l7_proxy: false, ..Settings::default() };
    let found = problems(policy_engine::parse(Kind::CiliumNetworkPolicy, &manifest, &off));
    assert!(found[0].ends_with("(switch enable-l7-proxy on)"), "{found:?}");
}

#[test]
fn names_select_by_their_label_as_written() {
    let fqdns = |list: Value| cnp(json!({"endpointSelector": {}, "egress": [{"toFQDNs": list}]}));
    let policy = fqdns(json!([{"matchName": "Api.a.io"}])).unwrap();
    assert_eq!(peer(&policy), "MatchName: Api.a.io, MatchPattern: ");
    assert_eq!(
        peer(&fqdns(json!([{"matchPattern": "**.a.io"}])).unwrap()),
        "MatchName: , MatchPattern: **.a.io"
    );
    let path = "spec.egress[0].toFQDNs[0]";
    for (element, path) in [
        (json!({"matchName": "a.io", "matchPattern": "*"}), path.to_owned()),
        (json!({"matchName": "*.a.io"}), format!("{path}.matchName")),
        (json!({"matchRegex": "a"}), format!("{path}.matchRegex")),
        (json!("a.io"), path.to_owned()),
    ] {
        let found = problems(fqdns(json!([element])));
        assert!(found[0].starts_with(&format!("{path}: ")), "{found:?}");
    }
    assert_eq!(fqdns(json!([{}])).unwrap().warnings[0].path, path);
    let both = json!({"toFQDNs": [{"matchName": "a.io"}], "toCIDR": ["10.0.0.0/8"]});
    let found = problems(cnp(json!({"endpointSelector": {}, "egress": [both]})));
    assert!(found[0].starts_with("spec.egress[0]: toCIDR and toFQDNs in one entry"), "{found:?}");
}

#[test]
fn authentication_and_texts_for_the_log_are_carried() {
    let read = |mode: Value, log: Value| {
        let ingress = json!([{"fromEndpoints": [{}], "authentication": mode}]);
        cnp(json!({"endpointSelector": {}, "ingress": ingress, "log": log}))
    };
    let policy = read(json!({"mode": "test-always-fail"}), json!({"value": "to the vault"})).unwrap();
    let entry = &policy.entries[0];
    assert_eq!((entry.authentication, &*entry.log), (Some(Authentication::AlwaysFail), "to the vault"));
    for (mode, log, path) in [
        (json!({"mode": "foo"}), json!({}), "spec.ingress[0].authentication.mode"),
        (json!({}), json!({}), "spec.ingress[0].authentication.mode"),
        (json!(null), json!({"value": "x".repeat(33)}), "spec.log.value"),
        (json!(null), json!({"value": "a\nb"}), "spec.log.value"),
        (json!(null), json!({"text": "a"}), "spec.log.text"),
    ] {
        let found = problems(read(mode, log));
        assert!(found[0].starts_with(&format!("{path}: ")), "{found:?}");
    }
}

#[test]
fn contradicting_rules_are_named_and_others_merged() {
    let http = |rule: Value| json!({"rules": {"http": [rule]}});
    let with = |elements: Vec<Value>| {
        let mut engine = Engine::new(Settings::default());
        let labels = ["k8s:io.kubernetes.pod.namespace=shop"].map(labels::Label::parse);
        engine.add_identity(1000, labels.into_iter().collect(), NamedPorts::default());
        let egress: Vec<Value> =
            elements.into_iter().map(|element| json!({"toPorts": ports(element)})).collect();
        engine.set(cnp(json!({"endpointSelector": {}, "egress": egress})).unwrap());
        let resolved = engine
            .resolve(1000, &NamedPorts::default(), usize::MAX)
            .map(|found| found.missing_redirects().clone());
        (resolved, engine.filters(1000))
    };
    let conflict = |elements: Vec<Value>| match with(elements).0 {
        Err(ResolveError::Conflict(conflict)) => conflict.to_string(),
        other => panic!("{other:?}"),
    };
    let dns = json!({"rules": {"dns": [{}]}});
    let listener = |name: &str, priority: u8| json!({"listener": {"name": name, "priority": priority, "envoyConfig": {"name": "e"}}});
    let tls = |name: &str| json!({"terminatingTLS": {"secret": {"name": name}}});
    assert_eq!(
        conflict(vec![http(json!({})), dns.clone()]),
        "cnp/shop/web spec.egress[0] and cnp/shop/web spec.egress[1]: rules of DNS and of HTTP for the same peers and \
         ports"
    );
    assert!(
        conflict(vec![dns, json!({"serverNames": ["a.io"]})]).contains("rules of DNS and of another proxy")
    );
    assert!(
        conflict(vec![http(json!({})), listener("l", 1)]).contains("a listener and rules of another proxy")
    );
    assert!(
        conflict(vec![listener("a", 1), listener("b", 1)]).contains("different listeners of one priority")
    );
    assert!(conflict(vec![tls("a"), tls("b")]).contains("different TLS contexts"));
    assert!(
        conflict(vec![http(json!({})), json!({"serverNames": ["a.io"]})]).contains("names of TLS servers")
    );

    let merged = |elements| {
        let (missing, filters) = with(elements);
        let [filter] = &filters.egress[..] else { panic!("{filters:?}") };
        let missing: Vec<String> = missing.unwrap().iter().map(Redirect::to_string).collect();
        (missing, filter.peers[0].effect.proxy.as_deref().cloned())
    };
    let (missing, rules) =
        merged(vec![http(json!({"method": "GET"})), json!({}), http(json!({"method": "PUT"}))]);
    assert_eq!(missing, ["egress:TCP:80:"]);
    let L7Rules::Http(all) = rules.unwrap().l7 else { panic!() };
    assert_eq!(all.iter().map(|rule| rule.method.as_str()).collect::<Vec<_>>(), ["", "GET", "PUT"]);
    let named = json!([{"port": "web", "protocol": "TCP"}]);
    let (missing, _) = merged(vec![json!({"ports": named, "rules": {"http": [{}]}})]);
    assert_eq!(missing, ["egress:TCP:0:"], "the port is that of each peer");
    let (missing, rules) = merged(vec![listener("a", 2), json!({}), listener("b", 1)]);
    assert_eq!(missing, ["egress:TCP:80:shop/e/b"]);
    assert_eq!(rules.unwrap().priority(), 1);
    let (_, rules) = merged(vec![tls("a"), http(json!({})), json!({"serverNames": ["a.io"]})]);
    assert_eq!(rules.unwrap().parser(), Some(Parser::Http));
}

/// Proxies with one port for all redirects.
#[derive(Debug)]
struct OnePort;

impl ProxyPorts for OnePort {
    fn port(&self, _: &Redirect) -> Option<u16> {
        Some(12_000)
    }
}

#[test]
fn accepts_of_an_earlier_tier_bypass_the_proxy_but_not_authentication() {
    const POD: u32 = 1000;
    // Returns precedence, proxy port and authentication of the pod's row for itself and its port 80.
    let row = |tier: &str, action: &str| {
        let mut engine = Engine::new(Settings::default());
        engine.set_proxy_ports(Arc::new(OnePort));
        let labels = ["k8s:io.kubernetes.pod.namespace=shop", "k8s:io.cilium.k8s.policy.cluster=default"];
        engine.add_identity(
            POD,
            labels.into_iter().map(labels::Label::parse).collect(),
            NamedPorts::default(),
        );
        let own = json!({
            "toEndpoints": [{}],
            "toPorts": ports(json!({"rules": {"http": [{}]}})),
            "authentication": {"mode": "required"},
        });
        engine.set(cnp(json!({"endpointSelector": {}, "egress": [own]})).unwrap());
        let rule = json!({"action": action, "to": [{"networks": ["0.0.0.0/0"]}, {"pods": {
            "namespaceSelector": {}, "podSelector": {}
        }}]});
        let subject = json!({"namespaces": {}});
        let manifest = json!({
            "metadata": {"name": "all"},
            "spec": {"tier": tier, "priority": 7, "subject": subject, "egress": [rule]},
        });
        engine.set(parse(Kind::ClusterNetworkPolicy, &manifest, engine.settings()).unwrap());
        let resolved = engine.resolve(POD, &NamedPorts::default(), usize::MAX).unwrap();
        let l4 = L4::port(6, 80);
        let key = Key { direction: Direction::Egress, identity: POD, l4 };
        resolved.rows.get(&key).map(|row| (row.precedence, row.proxy_port, row.auth))
    };
    let required = Row::EXPLICIT_AUTH | Authentication::Required.auth_type();
    assert_eq!(row("Admin", "Accept"), Some((0xffff_ff01, 0, required)));
    assert_eq!(row("Admin", "Deny"), None);
    // A Pass leaves the decision to the rule: right after the Pass's own number.
    assert_eq!(row("Admin", "Pass"), Some((0xffff_fe9a, 12_000, required)));
    assert_eq!(row("Baseline", "Accept"), Some((0xffff_ff9a, 12_000, required)));
    assert_eq!(row("Baseline", "Deny"), Some((0xffff_ff9a, 12_000, required)));
}

#[test]
fn nodes_as_peers_are_other_nodes_of_the_cluster() {
    let read = |on: bool, selector: Value| {
        let manifest = json!({
            "metadata": {"name": "p"},
            "spec": {"endpointSelector": {}, "ingressDeny": [{"fromNodes": [selector]}]},
        });
        let settings = Settings { node_selector_labels: on, ..Settings::default() };
        policy_engine::parse(Kind::CiliumNetworkPolicy, &manifest, &settings)
    };
    let policy = read(true, json!({"matchLabels": {"node:role": "infra"}})).unwrap();
    assert_eq!(
        peer(&policy),
        "&LabelSelector{MatchLabels:map[string]string{k8s:io.cilium.k8s.policy.cluster: default,node:role: infra,},\
         MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:reserved:remote-node,Operator:Exists,\
         Values:[],},},}"
    );
    let found = problems(read(false, json!({})));
    assert!(found[0].ends_with("(they need enable-node-selector-labels)"), "{found:?}");
    // The same peers in a ClusterNetworkPolicy.
    let read = |on: bool| {
        let to = json!([{"nodes": {"matchLabels": {"role": "infra"}}}]);
        let manifest = json!({
            "metadata": {"name": "p"},
            "spec": {
                "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
                "egress": [{"action": "Deny", "to": to}],
            },
        });
        let settings = Settings { node_selector_labels: on, ..Settings::default() };
        policy_engine::parse(Kind::ClusterNetworkPolicy, &manifest, &settings)
    };
    let found = problems(read(false));
    assert!(
        found[0].starts_with("spec.egress[0].to[0].nodes: peers by labels of nodes are off"),
        "{found:?}"
    );
    let policy = read(true).unwrap();
    let policy_engine::Peers::Of(selectors) = &policy.entries[0].peers else { panic!("{policy:?}") };
    for (label, expected) in [("node:role=infra", true), ("node:role=other", false)] {
        let labels = ["reserved:remote-node", "k8s:io.cilium.k8s.policy.cluster=default", label];
        let labels = labels.into_iter().map(labels::Label::parse).collect();
        assert_eq!(selectors[0].matches(&labels), expected, "{label}");
    }
}
