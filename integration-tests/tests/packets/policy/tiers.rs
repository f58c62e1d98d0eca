//! ClusterNetworkPolicies of Kubernetes beside NetworkPolicies with real packets: a table of policies and of the peers
//! that they let through.

use serde_json::{Value, json};
use test_kit::require_root;

use super::Setup;
use super::model::{Flow, L4, Party};
use super::probe::passes;

const WEB: Party = Party::Pod(0);
const API: Party = Party::Pod(1);
const DB: Party = Party::Pod(2);
const BANK_WEB: Party = Party::Pod(3);
const VAULT: Party = Party::Pod(4);
/// 198.51.100.10, 198.51.100.200 and 203.0.113.5, and their addresses of the other family.
const OUTSIDE: [Party; 3] = [Party::Outside(0), Party::Outside(1), Party::Outside(2)];

/// Policies of the pods of namespace `shop`, and the flows to or from the pod `shop-web` that they allow; all others of
/// [`candidates`] are denied.
struct Case {
    policies: Vec<Value>,
    allowed: Vec<(Party, Party, L4)>,
}

/// Returns the flows that are tried for each policy.
fn candidates() -> Vec<(Party, Party, L4)> {
    let peers = [API, DB, BANK_WEB, VAULT, OUTSIDE[0], OUTSIDE[1], OUTSIDE[2]];
    let l4 = [L4::Tcp(80), L4::Tcp(8080), L4::Udp(53)];
    let both = peers.into_iter().flat_map(|peer| [(peer, WEB), (WEB, peer)]);
    both.flat_map(|(from, to)| l4.map(|l4| (from, to, l4))).collect()
}

/// Returns the candidates that `is` is true for.
fn those(is: impl Fn(Party, Party, L4) -> bool) -> Vec<(Party, Party, L4)> {
    candidates().into_iter().filter(|(from, to, l4)| is(*from, *to, *l4)).collect()
}

fn network_policy(mut spec: Value) -> Value {
    spec["podSelector"] = json!({"matchLabels": {"app": "web"}});
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "table", "namespace": "shop"},
        "spec": spec,
    })
}

/// Returns a ClusterNetworkPolicy of a tier with these rules for ingress.
fn cluster_network_policy(tier: &str, rules: Value) -> Value {
    let namespaces = json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["blue"]}]});
    let web = json!({"matchLabels": {"app": "web"}});
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": tier.to_lowercase()},
        "spec": {
            "tier": tier,
            "priority": 10,
            "subject": {"pods": {"namespaceSelector": namespaces, "podSelector": web}},
            "ingress": rules,
        },
    })
}

fn cases() -> Vec<Case> {
    let out = |from: Party| from == WEB;
    let is_pod = |from: Party| matches!(from, Party::Pod(_));
    let is_blue = |from: Party| [BANK_WEB, VAULT].contains(&from);
    let (all, blue) =
        (json!([{"namespaces": {}}]), json!([{"namespaces": {"matchLabels": {"team": "blue"}}}]));
    let tcp80 = json!([{"tcp": {"destinationPort": {"number": 80}}}]);
    let udp53 = json!([{"udp": {"destinationPort": {"number": 53}}}]);
    let admin_deny = json!([{"action": "Deny", "from": all, "protocols": tcp80}]);
    let pass = json!([{"action": "Pass", "from": blue}, {"action": "Deny", "from": all}]);
    let accept = json!([{"action": "Accept", "from": all, "protocols": udp53}]);
    vec![
        Case {
            policies: vec![
                cluster_network_policy("Admin", admin_deny),
                network_policy(from(json!([{"namespaceSelector": {}}]))),
            ],
            allowed: those(|from, _, l4| out(from) || is_pod(from) && l4 != L4::Tcp(80)),
        },
        Case {
            policies: vec![
                cluster_network_policy("Admin", pass),
                network_policy(json!({"ingress": [{"ports": [{"port": 80}]}]})),
            ],
            allowed: those(|from, _, l4| out(from) || (is_blue(from) || !is_pod(from)) && l4 == L4::Tcp(80)),
        },
        Case {
            policies: vec![
                cluster_network_policy("Admin", accept),
                cluster_network_policy("Baseline", json!([{"action": "Deny", "from": all}])),
            ],
            allowed: those(|from, _, l4| out(from) || !is_pod(from) || l4 == L4::Udp(53)),
        },
    ]
}

/// Returns a policy with one ingress rule.
fn from(peers: Value) -> Value {
    json!({"ingress": [{"from": peers}]})
}

#[test]
fn tiers_have_the_verdicts_of_their_table() {
    require_root!();
    let setup = Setup::new(super::world());
    let mut wrong = Vec::new();
    for (number, Case { mut policies, allowed }) in cases().into_iter().enumerate() {
        let mut names = Vec::new();
        for policy in &mut policies {
            let name = format!("{}-{number}", policy["metadata"]["name"].as_str().unwrap());
            policy["metadata"]["name"] = name.as_str().into();
            names.push(name);
        }
        let manifest = policies.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n");
        setup.node.apply("policies.yaml", &manifest);
        setup.node.wait_policies(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let flow = |(from, to, l4)| Flow { from, to, ipv6: false, l4 };
        let flows: Vec<Flow> = candidates().into_iter().map(flow).collect();
        let passed = passes(&flows, |party| setup.place(party));
        for (flow, passed) in flows.iter().zip(passed) {
            let right = allowed.contains(&(flow.from, flow.to, flow.l4));
            // A packet that is late on a busy machine looks like a drop, so those are tried again.
            let passed = passed || (right && passes(&[*flow], |party| setup.place(party))[0]);
            if passed != right {
                wrong.push(format!("{flow:?}: allowed {right}, passed {passed}\n{manifest}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), setup.node.log());

    // Without a policy everything passes again.
    setup.node.apply("policies.yaml", "");
    setup.node.wait_policies(&[""; 0]);
    let flow = Flow { from: API, to: WEB, ipv6: true, l4: L4::Tcp(80) };
    assert!(passes(&[flow], |party| setup.place(party))[0]);
}
