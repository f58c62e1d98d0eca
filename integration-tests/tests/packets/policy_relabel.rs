//! Pods that change their identities together, as by a label of their namespace: packets between them get the previous
//! or the new verdict, both of which allow them here.

use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{UdpFlow, require_root, wait_until};

const PODS: usize = 4;
const CHANGES: usize = 10;
const LIMIT: Duration = Duration::from_secs(120);

fn namespace(team: &str) -> String {
    format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {{team: {team}}}}}}}\n")
}

/// Pods of a team's namespaces may reach each other and nothing else.
fn policy(team: &str) -> Value {
    let of_team = json!({"matchLabels": {"k8s:io.cilium.k8s.namespace.labels.team": team}});
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy",
        "metadata": {"name": format!("team-{team}")},
        "spec": {
            "endpointSelector": of_team,
            "ingress": [{"fromEndpoints": [of_team]}],
            "egress": [{"toEndpoints": [of_team]}],
        },
    })
}

/// The team that the identity of a pod is of.
fn is_of(node: &Node, pod: &Pod, team: &str) -> bool {
    let endpoint = node.get(&format!("/v1/endpoint/pod-name:shop%2F{}", pod.name));
    let label = format!("k8s:io.cilium.k8s.namespace.labels.team={team}");
    endpoint["status"]["identity"]["labels"].to_string().contains(&label)
        && endpoint["status"]["state"] == "ready"
}

#[test]
fn a_relabelled_namespace_denies_no_pair_that_may_talk_before_and_after() {
    require_root!();
    let mut node = Node::started();
    for team in ["a", "b"] {
        node.apply(&format!("policy-{team}.yaml"), &policy(team).to_string());
    }
    node.apply("namespace.yaml", &namespace("a"));
    let pods: Vec<Pod> =
        (0..PODS).map(|n| node.add_pod_with("shop", &format!("p{n}"), &[("app", "p")])).collect();
    let stranger = node.add_pod_with("default", "stranger", &[("app", "p")]);
    node.wait_policies(&["team-a", "team-b"]);
    let flow = |from: &Pod, to: &Pod, family: usize| {
        UdpFlow::start(&from.ns, &to.ns, to.addresses()[family]).unwrap()
    };
    let denied = flow(&stranger, &pods[0], 0);
    let flows: Vec<UdpFlow> =
        (0..PODS).flat_map(|n| [0, 1].map(|family| flow(&pods[n], &pods[(n + 1) % PODS], family))).collect();
    for change in 1..=CHANGES {
        let team = ["a", "b"][change % 2];
        node.apply("namespace.yaml", &namespace(team));
        wait_until("all pods are of the other team", LIMIT, || {
            pods.iter().all(|pod| is_of(&node, pod, team))
        });
    }
    for (n, flow) in flows.into_iter().enumerate() {
        let report = flow.stop();
        assert!(report.is_perfect(), "flow {n}: {report:?}\n{}", node.log());
    }
    assert!(denied.sent() > 0);
    assert_eq!(denied.stop().received, 0, "the control: rules are in force");
}
