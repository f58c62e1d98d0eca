//! Policies of the engine as messages: golden bytes, made from Cilium's definitions by hand, and cases.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use envoy_api::Message as _;
use envoy_api::cilium::port_network_policy_rule::{L7, Verdict};
use envoy_api::cilium::{NetworkPolicy, PortNetworkPolicy, TlsContext};
use labels::{LabelArray, Labels};
use policy::{EndpointPolicy, RealizationState, RowCounts, Subject};
use policy_engine::{Engine, Kind, NamedPorts, Redirect, SecretRef, SelectorText, Settings, parse};
use serde_json::{Value, json};

use super::{Peers, network_policy};
use crate::secrets::{Found, Secret};

const WEB: u32 = 1000;
const CLIENT: u32 = 1001;
const OTHER: u32 = 1002;
const ADDRESSES: [&str; 2] = ["fd00::7", "10.0.0.7"];

fn labels(app: &str) -> LabelArray {
    let namespace = "k8s:io.kubernetes.pod.namespace=shop";
    let cluster = "k8s:io.cilium.k8s.policy.cluster=default";
    LabelArray::from(&Labels::parse([&format!("k8s:app={app}"), namespace, cluster]))
}

/// The engine as the source of selections; identities with a port `web`, the port of all listeners, and the items of all
/// secrets with their resource of SDS.
struct World {
    engine: Engine,
    named: BTreeMap<u16, BTreeSet<u32>>,
    listener: Option<u16>,
    items: Option<Vec<(&'static str, &'static str)>>,
    sds: Option<&'static str>,
    full_tls_context: bool,
    refused: RefCell<Vec<String>>,
}

impl Peers for World {
    fn selected(&self, selector: &SelectorText) -> Option<Vec<u32>> {
        let mut all = self.engine.selectors().into_iter();
        all.find(|row| row.selector == *selector).map(|row| row.identities.to_vec())
    }

    fn named(&self, name: &str, protocol: u8) -> BTreeMap<u16, BTreeSet<u32>> {
        if (name, protocol) == ("web", 6) { self.named.clone() } else { BTreeMap::new() }
    }

    fn secret(&self, reference: &SecretRef) -> Option<Found> {
        assert_eq!((reference.namespace.as_str(), reference.name.as_str()), ("n", "s"));
        let items = self.items.as_ref()?.iter().map(|(key, value)| (*key, value.as_bytes()));
        Some(Found { secret: Arc::new(items.collect::<Secret>()), sds: self.sds.map(str::to_owned) })
    }

    fn refuse(&self, _reference: &SecretRef, reason: String) {
        self.refused.borrow_mut().push(reason);
    }

    fn full_tls_context(&self) -> bool {
        self.full_tls_context
    }

    fn listener_port(&self, _redirect: &Redirect) -> Option<u16> {
        self.listener
    }
}

impl World {
    fn new(specs: &[Value]) -> World {
        let settings = Settings::default();
        let mut engine = Engine::new(settings.clone());
        for (id, app) in [(WEB, "web"), (CLIENT, "client"), (OTHER, "other")] {
            engine.add_identity(id, labels(app), NamedPorts::default());
        }
        for (number, spec) in specs.iter().enumerate() {
            let mut spec = spec.clone();
            spec["endpointSelector"] = json!({"matchLabels": {"app": "web"}});
            let manifest =
                json!({"metadata": {"name": format!("p{number}"), "namespace": "shop"}, "spec": spec});
            engine.set(parse(Kind::CiliumNetworkPolicy, &manifest, &settings).unwrap());
        }
        World {
            engine,
            named: BTreeMap::new(),
            listener: None,
            items: None,
            sds: None,
            full_tls_context: false,
            refused: RefCell::default(),
        }
    }

    fn policy(&self) -> NetworkPolicy {
        let ports = NamedPorts::default();
        let resolved = self.engine.resolve(WEB, &ports, 16_384).unwrap();
        let subject = Subject { endpoint: 7, identity: WEB, labels: labels("web"), named_ports: ports };
        let filters = Arc::new(self.engine.filters(WEB));
        let row = EndpointPolicy {
            subject,
            transition: None,
            announced: 1,
            generation: 1,
            revision: 1,
            realized: 1,
            ingress_enforced: resolved.ingress_enforced,
            egress_enforced: resolved.egress_enforced,
            ingress: RowCounts::default(),
            egress: RowCounts::default(),
            filters: filters.clone(),
            realized_filters: filters,
            decisions: Default::default(),
            missing_redirects: 0,
            state: RealizationState::Realized,
            error: None,
        };
        let addresses = ADDRESSES.into_iter().map(|text| text.parse::<IpAddr>().unwrap());
        network_policy(&row, addresses, self)
    }

    fn egress(&self) -> Vec<PortNetworkPolicy> {
        self.policy().egress_per_port_policies
    }

    /// Returns the first message that a rule with secrets has, or the reasons why they cannot be used: there is no rule
    /// then, which would allow the traffic.
    fn with_secret(
        &mut self,
        items: &[(&'static str, &'static str)],
        sds: Option<&'static str>,
    ) -> Result<PortNetworkPolicy, Vec<String>> {
        (self.items, self.sds) = (Some(items.to_vec()), sds);
        self.refused.take();
        let policies = self.egress();
        policies.into_iter().next().ok_or_else(|| self.refused.take())
    }
}

fn peers(apps: &[&str]) -> Value {
    apps.iter().map(|app| json!({"matchLabels": {"app": app}})).collect()
}

fn ports(port: &str, rules: Value) -> Value {
    let mut ports = json!({"ports": [{"port": port, "protocol": "TCP"}]});
    for (key, value) in rules.as_object().unwrap() {
        ports[key] = value.clone();
    }
    json!([ports])
}

fn http(port: &str, rules: Value) -> Value {
    ports(port, json!({"rules": {"http": rules}}))
}

/// A field of a message: a varint, or bytes.
fn varint(number: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for mut value in [number << 3, value] {
        while value > 0x7f {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }
    out
}

fn bytes(number: u64, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut out = varint(number, content.len() as u64);
    out[0] |= 2;
    out.extend(content);
    out
}

#[test]
fn the_bytes_are_those_of_the_contract() {
    let rules = json!([{"path": "/a", "method": "GET", "headers": ["X-Key: 1", "X-Other"]}]);
    let world = World::new(&[json!({
        "ingress": [{"fromEndpoints": peers(&["client"]), "toPorts": http("80", rules)}],
    })]);
    let regex = |name: &str, regex: &str| {
        let matcher = bytes(13, &[&bytes(5, &[&bytes(2, &[regex.as_bytes()])])]);
        bytes(1, &[&bytes(1, &[name.as_bytes()]), &matcher])
    };
    let exact = bytes(1, &[&bytes(1, &[b"X-Key"]), &bytes(13, &[&bytes(1, &[b"1"])])]);
    let present = bytes(1, &[&bytes(1, &[b"X-Other"]), &varint(7, 1)]);
    let rule = bytes(1, &[&regex(":path", "/a"), &regex(":method", "GET"), &exact, &present]);
    // Tag 100 has two bytes.
    let http_rules = [&[0xa2, 0x06, rule.len() as u8], &rule[..]].concat();
    // One priority, and a redirect of HTTP in it (101).
    let rule = bytes(3, &[&bytes(7, &[&[0xe9, 0x07]]), &varint(10, 0xffff_ff9a), &http_rules]);
    let expected = [
        bytes(1, &[b"fd00::7"]),
        bytes(1, &[b"10.0.0.7"]),
        varint(2, 7),
        // All ports, from the node: of the lowest tier, which begins ten priorities later.
        bytes(3, &[&bytes(3, &[&bytes(7, &[&[1]]), &varint(10, 0xffff_f501)])]),
        bytes(3, &[&varint(1, 80), &rule]),
        // Egress is not enforced: all ports, TCP, no rules.
        bytes(4, &[]),
    ];
    assert_eq!(world.policy().encode_to_vec(), expected.concat());
}

#[test]
fn a_direction_that_is_denied_wholly_has_no_entry() {
    let world =
        World::new(&[json!({"ingress": [{"fromEntities": ["all"]}], "egress": [{"toEndpoints": []}]})]);
    let policy = world.policy();
    assert_eq!(policy.egress_per_port_policies, []);
    let [all] = &policy.ingress_per_port_policies[..] else { panic!("{policy:?}") };
    assert_eq!(
        (all.port, all.rules.len(), all.rules[0].remote_policies.len()),
        (0, 1, 0),
        "any peer, any port"
    );
    let nobody = World::new(&[json!({
        "egress": [{"toEndpoints": peers(&["absent"]), "toPorts": ports("80", json!({}))}],
    })]);
    assert_eq!(nobody.egress(), [], "an entry without rules would allow everything");
}

#[test]
fn rules_are_in_the_order_of_precedence_and_shadowed_ones_are_left_out() {
    let world = World::new(&[json!({
        "egress": [
            {"toEndpoints": peers(&["client"]), "toPorts": http("80", json!([{"path": "/a"}]))},
            {"toPorts": ports("80", json!({}))},
            {"toEndpoints": peers(&["other"]), "toPorts": ports("80", json!({}))},
        ],
        "egressDeny": [{"toEndpoints": peers(&["other"]), "toPorts": ports("80", json!({}))}],
    })]);
    let egress = world.egress();
    let [port] = &egress[..] else { panic!("{egress:?}") };
    let summary: Vec<_> = port
        .rules
        .iter()
        .map(|rule| (rule.verdict, rule.remote_policies.clone(), rule.l7.is_some()))
        .collect();
    let expected =
        [(Some(Verdict::Deny(true)), vec![OTHER], false), (None, vec![CLIENT], true), (None, vec![], false)];
    assert_eq!(summary, expected);
    assert!(port.rules.is_sorted_by_key(|rule| std::cmp::Reverse(rule.precedence)));
}

#[test]
fn only_what_envoy_enforces_is_there() {
    let udp =
        json!([{"ports": [{"port": "53", "protocol": "ANY"}], "rules": {"dns": [{"matchName": "a.io"}]}}]);
    let world = World::new(&[json!({"egress": [{"toEndpoints": peers(&["client"]), "toPorts": udp}]})]);
    let egress = world.egress();
    let [port] = &egress[..] else { panic!("{egress:?}") };
    assert_eq!((port.port, &port.rules[0].l7), (53, &None), "of DNS only the ports, of ANY only TCP");
}

#[test]
fn ranges_and_named_ports_have_numbers() {
    let range = json!([{"ports": [{"port": "80", "endPort": 90, "protocol": "TCP"}]}]);
    let mut world = World::new(&[
        json!({"egress": [{"toEndpoints": peers(&["client"]), "toPorts": range}]}),
        json!({"egress": [{"toEndpoints": peers(&["client", "other"]), "toPorts": http("web", json!([{}]))}]}),
    ]);
    world.named = BTreeMap::from([(8080, BTreeSet::from([CLIENT])), (8081, BTreeSet::from([OTHER, 9]))]);
    let found: Vec<_> = world
        .egress()
        .iter()
        .map(|port| (port.port, port.end_port, port.rules[0].remote_policies.clone()))
        .collect();
    assert_eq!(found, [(80, 90, vec![CLIENT]), (8080, 0, vec![CLIENT]), (8081, 0, vec![OTHER])]);
}

#[test]
fn header_matches_have_their_action() {
    let header = |mismatch: &str| json!({"mismatch": mismatch, "name": mismatch, "value": "v"});
    let matches: Vec<Value> = ["LOG", "ADD", "DELETE", "REPLACE"].map(header).into();
    let required = json!({"name": "X-Required", "value": "v"});
    let rules = json!([{"headerMatches": [required, matches[0], matches[1], matches[2], matches[3]]}]);
    let world = World::new(&[json!({"egress": [{"toPorts": http("80", rules)}]})]);
    let egress = world.egress();
    let Some(L7::HttpRules(rules)) = &egress[0].rules[0].l7 else { panic!("{egress:?}") };
    let rule = &rules.http_rules[0];
    assert_eq!((rule.headers.len(), rule.headers[0].name.as_str()), (1, "X-Required"));
    let actions: Vec<_> =
        rule.header_matches.iter().map(|header| (header.name.as_str(), header.mismatch_action)).collect();
    assert_eq!(actions, [("LOG", 1), ("ADD", 2), ("DELETE", 3), ("REPLACE", 4)]);
}

#[test]
fn headers_are_compared_with_the_only_item_of_a_secret() {
    let secret = json!({"namespace": "n", "name": "s"});
    let rules =
        |mismatch: &str| json!([{"headerMatches": [{"name": "a", "mismatch": mismatch, "secret": secret}]}]);
    let rule = |mismatch, items: &[_], sds| {
        let mut world = World::new(&[json!({"egress": [{"toPorts": http("80", rules(mismatch))}]})]);
        let policy = world.with_secret(items, sds)?;
        let Some(L7::HttpRules(rules)) = policy.rules[0].l7.clone() else { panic!("{policy:?}") };
        Ok::<_, Vec<String>>(rules.http_rules[0].clone())
    };
    let item = [("token", "v")];
    let inline = rule("REPLACE", &item, None).unwrap();
    let found = &inline.header_matches[0];
    assert_eq!((&*found.value, &*found.value_sds_secret, found.mismatch_action), ("v", "", 4));
    let by_name = rule("LOG", &item, Some("secrets/n-s")).unwrap();
    let found = &by_name.header_matches[0];
    assert_eq!((&*found.value, &*found.value_sds_secret, found.mismatch_action), ("", "secrets/n-s", 1));
    // Without an action, a mismatch denies the request.
    let inline = rule("", &item, None).unwrap();
    assert_eq!((inline.headers.len(), &*inline.header_matches), (1, &[][..]));
    let by_name = rule("", &item, Some("secrets/n-s")).unwrap();
    assert_eq!((by_name.headers.len(), by_name.header_matches[0].mismatch_action), (0, 0));
    for items in [&[][..], &[("a", "1"), ("b", "2")]] {
        assert_eq!(rule("LOG", items, None).unwrap_err(), ["has not exactly one item"]);
    }
    // An empty value would be a test for presence.
    for value in ["", "a\r\nb: c"] {
        let refused = rule("", &[("token", value)], None).unwrap_err();
        assert_eq!(refused, ["is not the value of a header"]);
    }
    let world = World::new(&[json!({"egress": [{"toPorts": http("80", rules("LOG"))}]})]);
    assert_eq!(world.egress(), [], "there is no secret");
}

const CERTIFICATES: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";

/// Returns the contexts of a rule, terminating and originating, for the items of its secret.
fn contexts(
    context: Value,
    items: &[(&'static str, &'static str)],
    sds: Option<&'static str>,
) -> Result<[Option<TlsContext>; 2], Vec<String>> {
    let mut world = World::new(&[json!({"egress": [{"toPorts": ports("443", context)}]})]);
    let rule = world.with_secret(items, sds)?.rules[0].clone();
    Ok([rule.downstream_tls_context, rule.upstream_tls_context])
}

#[test]
fn certificates_are_inline_or_resources() {
    let secret = json!({"namespace": "n", "name": "s"});
    let terminating = json!({"terminatingTLS": {"secret": secret}});
    let originating = json!({"originatingTLS": {"secret": secret}});
    let (name, pair) = (Some("secrets/n-s"), [("tls.crt", CERTIFICATES), ("tls.key", KEY)]);
    let inline = TlsContext {
        certificate_chain: CERTIFICATES.to_owned(),
        private_key: KEY.to_owned(),
        ..TlsContext::default()
    };
    assert_eq!(contexts(terminating.clone(), &pair, None).unwrap(), [Some(inline.clone()), None]);
    let resource = TlsContext { tls_sds_secret: "secrets/n-s".to_owned(), ..TlsContext::default() };
    assert_eq!(contexts(terminating.clone(), &pair, name).unwrap(), [Some(resource), None]);
    // The resource of such a secret is not the pair.
    let named = json!({"terminatingTLS": {"secret": secret, "certificate": "c", "privateKey": "k"}});
    let found = contexts(named.clone(), &[("c", CERTIFICATES), ("k", KEY)], name).unwrap();
    assert_eq!(found, [Some(inline.clone()), None]);

    let authorities = [("ca.crt", CERTIFICATES)];
    let resource =
        TlsContext { validation_context_sds_secret: "secrets/n-s".to_owned(), ..TlsContext::default() };
    assert_eq!(contexts(originating.clone(), &authorities, name).unwrap(), [None, Some(resource)]);
    // With a pair in it, the resource is that.
    let all = [authorities[0], pair[0], pair[1]];
    let both = TlsContext { trusted_ca: CERTIFICATES.to_owned(), ..inline };
    assert_eq!(contexts(originating.clone(), &all, name).unwrap(), [None, Some(both.clone())]);
    // With `use-full-tls-context` the proxy asks clients for certificates, too.
    let mut world = World::new(&[json!({"egress": [{"toPorts": ports("443", terminating.clone())}]})]);
    let mut terminates = |is_full, items: &[_]| {
        world.full_tls_context = is_full;
        world.with_secret(items, None).map(|policy| policy.rules[0].downstream_tls_context.clone().unwrap())
    };
    assert_eq!(terminates(true, &all).unwrap(), both);
    assert_eq!(terminates(false, &all).unwrap().trusted_ca, "");
    assert_eq!(terminates(true, &pair).unwrap().trusted_ca, "", "the secret has none");

    for (context, items, reason) in [
        (&terminating, &[][..], "has no items tls.crt and tls.key: add them"),
        (&terminating, &pair[..1], "has item tls.crt without its private key: add it"),
        (&terminating, &pair[1..], "has item tls.key without its certificate: add it"),
        (&terminating, &[("tls.crt", "text"), pair[1]], "has no certificates in item tls.crt: replace it"),
        (
            &terminating,
            &[pair[0], ("tls.key", CERTIFICATES)],
            "has no private key in item tls.key: replace it",
        ),
        (&named, &pair, "has no item c: add it"),
        (&originating, &pair, "has no item ca.crt: add it"),
        (&originating, &[("ca.crt", KEY)], "has no certificates in item ca.crt: replace it"),
    ] {
        assert_eq!(contexts(context.clone(), items, name).unwrap_err(), [reason]);
    }
}

#[test]
fn names_of_servers_are_in_the_form_of_envoy() {
    let names = json!({"serverNames": ["a.io.", "**.b.io", "*.c.io", "x**y.io"]});
    let world = World::new(&[json!({"egress": [{"toPorts": ports("443", names)}]})]);
    let egress = world.egress();
    assert_eq!(egress[0].rules[0].server_names, ["**.b.io", "*.c.io", "a.io", "x*y.io"]);
}

#[test]
fn a_rule_with_a_listener_is_for_that_listener_only() {
    let listener = json!({"listener": {"envoyConfig": {"name": "c"}, "name": "l"}});
    let mut world = World::new(&[json!({"egress": [{"toPorts": ports("80", listener)}]})]);
    assert_eq!(world.egress(), [], "it does not exist");
    world.listener = Some(10_007);
    assert_eq!(world.egress()[0].rules[0].proxy_id, 10_007);
}

#[test]
fn a_pass_continues_below_its_tier() {
    let mut world = World::new(&[json!({"egress": [{"toPorts": ports("80", json!({}))}]})]);
    let manifest = json!({
        "metadata": {"name": "admin"},
        "spec": {
            "tier": "Admin",
            "priority": 10,
            "subject": {"namespaces": {}},
            "egress": [
                {"name": "pass", "action": "Pass", "to": [{"namespaces": {}}]},
                {"name": "deny", "action": "Deny", "to": [{"namespaces": {}}]},
            ],
        },
    });
    let settings = Settings::default();
    world.engine.set(parse(Kind::ClusterNetworkPolicy, &manifest, &settings).unwrap());
    let egress = world.egress();
    let rules: Vec<_> =
        egress.iter().flat_map(|port| port.rules.iter().map(|rule| (port.port, rule))).collect();
    let pass = rules.iter().find_map(|(_, rule)| match rule.verdict {
        Some(Verdict::PassPrecedence(precedence)) => Some((rule.precedence, precedence)),
        _ => None,
    });
    let (of_rule, next) = pass.unwrap();
    let normal = rules.iter().find(|(port, _)| *port == 80).unwrap().1.precedence;
    assert!(of_rule > next && next > normal, "{of_rule:x} {next:x} {normal:x}");
}
