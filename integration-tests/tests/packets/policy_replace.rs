//! A policy is replaced a thousand times under 10,000 packets per second, without a wrong allow or deny.

use std::time::{Duration, Instant};

use integration_tests::Node;
use serde_json::{Value, json};
use test_kit::{UdpFlow, require_root, wait_until};

/// How often the policy of a namespace is replaced, all namespaces counted.
const REPLACEMENTS: usize = 1000;
const NAMESPACES: [&str; 5] = ["ns0", "ns1", "ns2", "ns3", "ns4"];
/// Longest time for all of it; no promise, the benchmarks measure that.
const LIMIT: Duration = Duration::from_secs(240);

/// Returns versions of a policy with the same verdicts for the flows of the test and different ones for others. The
/// allowed client is
/// `app: friend`, the denied one `app: foe`, both reach for UDP ports from 32768 on.
fn policy(namespace: &str, version: usize) -> Value {
    let friend = json!([{"matchLabels": {"app": "friend"}}]);
    let port = |port: &str, end: Option<u16>, protocol: &str| {
        let mut out = json!({"port": port, "protocol": protocol});
        if let Some(end) = end {
            out["endPort"] = json!(end);
        }
        json!([{"ports": [out]}])
    };
    let allowed_by = match version % 8 {
        0 => json!({"ingress": [{"fromEndpoints": friend}]}),
        1 => json!({"ingress": [{"fromEndpoints": friend, "toPorts": port("1024", Some(65_535), "UDP")}]}),
        2 => json!({"ingress": [{"fromEndpoints": friend, "toPorts": port("0", None, "ANY")}]}),
        3 => json!({
            "ingress": [{"toPorts": port("1024", Some(65_535), "UDP")}],
            "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "foe"}}]}],
        }),
        4 => json!({
            "ingress": [{"fromEndpoints": [{}], "toPorts": port("32768", Some(65_535), "ANY")}],
            "ingressDeny": [{
                "fromEndpoints": [{"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["friend"]}]}],
                "toPorts": port("0", None, "UDP"),
            }],
        }),
        5 => json!({
            "ingress": [{"fromEntities": ["all"]}],
            "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "foe"}}]}],
        }),
        6 => json!({
            "ingress": [
                {"fromEndpoints": friend, "toPorts": port("16384", Some(49_151), "UDP")},
                {"fromEndpoints": friend, "toPorts": port("49152", Some(65_535), "ANY")},
            ],
        }),
        _ => json!({
            "ingress": [{"fromEndpoints": friend}, {"fromCIDR": ["10.0.0.0/8", "fd00::/8"]}],
            "ingressDeny": [{"fromEntities": ["world"], "toPorts": port("1", Some(1023), "TCP")}],
        }),
    };
    let mut spec = allowed_by;
    spec["endpointSelector"] = json!({"matchLabels": {"app": "server"}});
    // The object stays the same, a label of its rules distinguishes its versions.
    spec["labels"] = json!([{"key": "version", "value": version.to_string()}]);
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "server", "namespace": namespace},
        "spec": spec,
    })
}

#[test]
fn a_thousand_replacements_are_never_open_and_never_closed() {
    require_root!();
    let mut node = Node::started();
    for (index, namespace) in NAMESPACES.iter().enumerate() {
        node.apply(&format!("policy-{namespace}.yaml"), &policy(namespace, index).to_string());
    }
    let mut versions: Vec<usize> = (0..NAMESPACES.len()).collect();
    let mut flows = Vec::new();
    for (index, namespace) in NAMESPACES.iter().enumerate() {
        let mut pod =
            |app: &str| node.add_pod_with(namespace, &format!("{app}-{namespace}"), &[("app", app)]);
        let (server, friend, foe) = (pod("server"), pod("friend"), pod("foe"));
        // One flow of each family in turn: ten flows of 1,000 packets a second.
        let address = server.addresses()[index % 2];
        flows.push((friend, foe, server, address));
    }
    let wait = |node: &Node, versions: &[usize]| {
        node.wait_rules("version", &versions.iter().map(usize::to_string).collect::<Vec<_>>());
    };
    wait(&node, &versions);
    let start = |from: &integration_tests::Pod, server: &integration_tests::Pod, address| {
        UdpFlow::start(&from.ns, &server.ns, address).unwrap()
    };
    let running: Vec<(UdpFlow, UdpFlow)> = flows
        .iter()
        .map(|(friend, foe, server, address)| (start(friend, server, *address), start(foe, server, *address)))
        .collect();

    let begin = Instant::now();
    for replacement in 0..REPLACEMENTS {
        let at = replacement % NAMESPACES.len();
        versions[at] = NAMESPACES.len() + replacement;
        let namespace = NAMESPACES[at];
        node.apply(&format!("policy-{namespace}.yaml"), &policy(namespace, versions[at]).to_string());
        // Each one is in the kernel before the next is written: none may be skipped.
        wait(&node, &versions);
        assert!(begin.elapsed() < LIMIT, "{replacement} replacements took {:?}", begin.elapsed());
    }
    let took = begin.elapsed();
    let mut packets = 0;
    let mut denied_flows = Vec::new();
    for ((allowed, denied), namespace) in running.into_iter().zip(NAMESPACES) {
        let allowed = allowed.stop();
        packets += allowed.sent + denied.sent();
        assert!(allowed.is_perfect(), "{namespace}: a wrongful deny: {allowed:?}\n{}", node.log());
        assert_eq!(denied.received(), 0, "{namespace}: open\n{}", node.log());
        denied_flows.push(denied);
    }
    let rate = packets as f64 / took.as_secs_f64();
    assert!(rate > 9_000.0, "{packets} packets in {took:?}: the senders were too slow to see anything");

    // The control: without policies the same packets arrive.
    for namespace in NAMESPACES {
        node.withdraw(&format!("policy-{namespace}.yaml"));
    }
    wait_until("the denied flows pass without policies", Duration::from_secs(10), || {
        denied_flows.iter().all(|flow| flow.received() > 0)
    });
    for flow in denied_flows {
        assert!(flow.stop().sent > 0);
    }
}
