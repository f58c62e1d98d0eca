//! The entity `kube-apiserver`: the endpoints of the service `default/kubernetes`.

use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use integration_tests::Node;
use serde_json::json;
use test_kit::{NetNs, require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(20);

fn ping(from: &NetNs, to: IpAddr) -> bool {
    let mut ping = from.command("ping");
    ping.args(["-c1", "-W1", "-q", &to.to_string()]).stdout(Stdio::null()).status().unwrap().success()
}

#[test]
fn a_pod_reaches_the_api_server_outside_of_the_cluster_by_its_entity() {
    require_root!();
    let mut node = Node::started();
    let pod = node.add_pod("a");
    let [server, other] = [Node::WORLD_IPV4, Node::WORLD_IPV6].map(|text| text.parse::<IpAddr>().unwrap());
    assert!(ping(&pod.ns, server) && ping(&pod.ns, other), "without a policy\n{}", node.log());
    let policy = json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "api", "namespace": "default"},
        "spec": {"endpointSelector": {"matchLabels": {"name": "a"}}, "egress": [{"toEntities": ["kube-apiserver"]}]},
    });
    node.apply("policy.yaml", &policy.to_string());
    node.wait_policies(&["api"]);
    assert!(!ping(&pod.ns, server), "no service names it");
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [server.to_string()]}],
        "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
    });
    node.apply("slice.yaml", &slice.to_string());
    wait_until("the API server is reached", LIMIT, || ping(&pod.ns, server));
    assert!(!ping(&pod.ns, other), "only its address");
    node.kill();
    node.start();
    assert!(ping(&pod.ns, server), "a restart denies nothing\n{}", node.log());
    node.withdraw("slice.yaml");
    wait_until("the address is another one's", LIMIT, || !ping(&pod.ns, server));
    node.stop();
}
