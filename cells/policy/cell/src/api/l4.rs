//! The rules that apply to an endpoint, in `GET /endpoint/{id}`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use api_models::{L4Policy, List, PolicyRule};
use policy_engine::{Filter, FilterPeer, Filters, Port};
use serde::Serialize;

use crate::api::proxy::{Mode, Proxy};
use crate::api::rest::{protocol_name, verdict};

/// The text of a filter, with fields in Cilium's order.
#[derive(Serialize)]
struct Text<'a> {
    tier: u8,
    port: u16,
    #[serde(rename = "endPort", skip_serializing_if = "Option::is_none")]
    end_port: Option<u16>,
    protocol: String,
    #[serde(rename = "port-name", skip_serializing_if = "Option::is_none")]
    port_name: Option<&'a str>,
    #[serde(rename = "l7-rules")]
    peers: Vec<BTreeMap<Cow<'a, str>, Option<PeerPolicy<'a>>>>,
}

/// The policy of the peers of a selector; absent if their traffic passes as it is by the first priority.
#[derive(Serialize)]
struct PeerPolicy<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    priority: u32,
    #[serde(skip_serializing_if = "is_zero")]
    verdict: u32,
    #[serde(flatten)]
    proxy: Proxy<'a>,
    #[serde(rename = "auth", skip_serializing_if = "Option::is_none")]
    authentication: Option<Mode>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde demands")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Returns the field `l4` of an endpoint's policy.
pub fn l4_policy(filters: &Filters) -> L4Policy {
    let list = |filters: &[Filter], rule: fn(&Filter) -> PolicyRule| {
        List(Some(filters.iter().map(rule).collect::<Vec<_>>()))
    };
    // Cilium lists the rules of each selector for ingress only.
    let ingress = |filter: &Filter| PolicyRule { rules_by_selector: by_selector(filter), ..rule(filter) };
    L4Policy { egress: list(&filters.egress, rule), ingress: list(&filters.ingress, ingress) }
}

fn rule(filter: &Filter) -> PolicyRule {
    let mut rules: Vec<&Arc<[String]>> =
        filter.peers.iter().flat_map(|peer| peer.effect.rules.iter()).collect();
    rules.sort_unstable();
    rules.dedup();
    let derived_from_rules = rules.into_iter().map(|labels| labels.to_vec()).collect();
    PolicyRule {
        derived_from_rules: List(Some(derived_from_rules)),
        rule: text(filter),
        ..PolicyRule::default()
    }
}

fn by_selector(filter: &Filter) -> BTreeMap<String, Vec<Vec<String>>> {
    let rules = |peer: &FilterPeer| peer.effect.rules.iter().map(|labels| labels.to_vec()).collect();
    filter.peers.iter().map(|peer| (peer.selector.to_string(), rules(peer))).collect()
}

fn peer_policy(peer: &FilterPeer) -> Option<PeerPolicy<'_>> {
    let peer = &peer.effect;
    let (priority, verdict) = (peer.priority, verdict(peer.action).into());
    let is_plain = priority == 0 && verdict == 0 && peer.proxy.is_none() && peer.authentication.is_none();
    (!is_plain).then(|| PeerPolicy {
        priority,
        verdict,
        proxy: peer.proxy.as_deref().map(Proxy::new).unwrap_or_default(),
        authentication: peer.authentication.map(Mode::new),
    })
}

fn text(filter: &Filter) -> String {
    let (port, end_port, port_name) = match filter.ports.as_ref().map(|spec| &spec.port) {
        None | Some(Port::All) => (0, None, None),
        Some(Port::Range(first, last)) => (*first, (last > first).then_some(*last), None),
        Some(Port::Named { name, end }) => (0, *end, Some(&**name)),
    };
    let text = Text {
        tier: filter.tier.number(),
        port,
        end_port,
        protocol: protocol_name(filter.ports.as_ref().map_or(0, |spec| spec.protocol)),
        port_name,
        peers: filter
            .peers
            .iter()
            .map(|of| BTreeMap::from([(of.selector.text(), peer_policy(of))]))
            .collect(),
    };
    // Go escapes these characters for HTML; in JSON they occur inside strings only.
    let json = serde_json::to_string(&text).unwrap_or_default();
    json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

#[cfg(test)]
mod tests {
    use labels::{Label, LabelArray};
    use policy_engine::{Engine, Kind, NamedPorts, Settings, parse};
    use serde_json::{Value, json};

    use super::*;

    const SAMPLE: &str = include_str!("../../tests/samples/endpoint_l4.json");

    fn shown(settings: Settings, spec: Value) -> String {
        let mut engine = Engine::new(settings);
        let texts = [
            "k8s:app=p2",
            "k8s:io.cilium.k8s.policy.cluster=default",
            "k8s:io.kubernetes.pod.namespace=default",
        ];
        let labels: LabelArray = texts.into_iter().map(Label::parse).collect();
        engine.add_identity(1000, labels, NamedPorts::default());
        let mut manifest = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
        manifest["spec"]["endpointSelector"] = json!({"matchLabels": {"app": "p2"}});
        let mut policy = parse(Kind::CiliumNetworkPolicy, &manifest, engine.settings()).unwrap();
        let labels: Arc<[String]> = [
            "directory:filename=a.yaml",
            "directory:io.cilium.k8s.policy.namespace=default",
            "directory:policy-derived-from=CiliumNetworkPolicy",
        ]
        .map(str::to_owned)
        .into();
        policy.entries.iter_mut().for_each(|entry| entry.labels = labels.clone());
        engine.set(policy);
        serde_json::to_string(&l4_policy(&engine.filters(1000))).unwrap()
    }

    fn rules(shown: &str, direction: &str) -> Vec<String> {
        let l4: Value = serde_json::from_str(shown).unwrap();
        let rules = l4[direction].as_array().unwrap().clone();
        rules.iter().map(|rule| rule["rule"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn rules_are_formatted_as_in_cilium() {
        let port = json!([{"ports": [{"port": "80", "protocol": "TCP"}]}]);
        let spec = json!({
            "ingress": [
                {"fromEndpoints": [{"matchLabels": {"app": "p1"}}]},
                {"fromCIDR": ["192.0.2.0/24"], "toPorts": port},
            ],
            "egress": [{"toEntities": ["world"]}],
        });
        let settings = Settings { allow_localhost: false, ..Settings::default() };
        assert_eq!(shown(settings, spec), SAMPLE.trim_end());
    }

    #[test]
    fn denials_ranges_names_and_additions_of_the_engine_are_listed() {
        let ports = |port: Value| json!([{"ports": [port]}]);
        let spec = json!({
            "ingress": [
                {"toPorts": ports(json!({"port": "8000", "endPort": 8010, "protocol": "UDP"}))},
                // An empty list of peers is not a filter.
                {"fromEndpoints": [], "toPorts": ports(json!({"port": "1", "protocol": "TCP"}))},
            ],
            "ingressDeny": [{"fromEntities": ["host"], "toPorts": ports(json!({"port": "web", "protocol": "TCP"}))}],
            "egress": [{"toEntities": ["host"]}],
            "enableDefaultDeny": {"egress": false},
        });
        let shown = shown(Settings { allow_localhost: true, ..Settings::default() }, spec);
        let all = r"\u0026LabelSelector{MatchLabels:map[string]string{},MatchExpressions:[]LabelSelectorRequirement{},}";
        let host = all.replace("string{}", "string{reserved:host: ,}");
        let expected = [
            format!(
                r#"{{"tier":200,"port":0,"protocol":"TCP","port-name":"web","l7-rules":[{{"{host}":{{"verdict":1}}}}]}}"#
            ),
            format!(
                r#"{{"tier":200,"port":8000,"endPort":8010,"protocol":"UDP","l7-rules":[{{"{all}":null}}]}}"#
            ),
            format!(
                r#"{{"tier":255,"port":0,"protocol":"ANY","l7-rules":[{{"{host}":{{"priority":10}}}}]}}"#
            ),
        ];
        assert_eq!(rules(&shown, "ingress"), expected);
        let expected = [
            format!(r#"{{"tier":200,"port":0,"protocol":"ANY","l7-rules":[{{"{host}":null}}]}}"#),
            format!(r#"{{"tier":255,"port":0,"protocol":"ANY","l7-rules":[{{"{all}":{{"priority":10}}}}]}}"#),
        ];
        assert_eq!(rules(&shown, "egress"), expected);
        for added in ["allow-localhost-ingress", "allow-any-egress"] {
            assert!(shown.contains(&format!("reserved:io.cilium.policy.derived-from={added}")), "{shown}");
        }
    }

    #[test]
    fn without_rules_both_lists_are_empty() {
        assert_eq!(
            serde_json::to_string(&l4_policy(&Filters::default())).unwrap(),
            r#"{"egress":[],"ingress":[]}"#
        );
    }
}
