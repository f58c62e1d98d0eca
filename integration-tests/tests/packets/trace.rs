//! `apiary trace`: the packets of its probes are real, and end as it says.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use integration_tests::{Node, Pod, ServiceFixture};
use serde_json::{Value, json};
use test_kit::{require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(20);
const VIP: &str = "10.96.0.1";
/// Ports of backends are 8000 above the service's.
const PORT: u16 = 8080;

/// Runs the command with probes of the client, those to the service by its other name; returns its exit code and its
/// report.
fn trace(node: &Node, client: &Pod, words: &[&str]) -> (i32, Value) {
    let namespace = client.ns.path().to_str().unwrap();
    let name: &[&str] = if words.contains(&VIP) { &["policy", "trace"] } else { &["trace"] };
    let options = ["-o", "json", "--netns", namespace];
    let words = [name, &["default/client"], words, &options].concat();
    let output = node.apiary_command(&words).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{words:?}: {error}"));
    (output.status.code().unwrap(), report)
}

/// Returns the points of the probe's way, without those of the reply.
fn points(report: &Value) -> Vec<&str> {
    let steps = report["steps"].as_array().unwrap().iter().filter(|step| step["is_reply"] == false);
    steps.filter_map(|step| step["event"]["point"].as_str()).collect()
}

fn policy(port: u16) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "server", "namespace": "default"},
        "spec": {
            "endpointSelector": {"matchLabels": {"name": "server"}},
            "ingress": [{
                "fromEndpoints": [{"matchLabels": {"name": "client"}}],
                "toPorts": [{"ports": [{"port": port.to_string(), "protocol": "TCP"}]}],
            }],
        },
    })
}

#[test]
fn a_probe_is_followed_to_its_receiver_its_drop_and_through_a_service() {
    require_root!();
    let mut node = Node::new();
    node.follow_services("lb.json");
    node.start();
    let (client, server) = (node.add_pod("client"), node.add_pod("server"));
    node.apply("policy.yaml", &policy(PORT).to_string());
    node.wait_policies(&["server"]);
    let listener = server.ns.run(|| TcpListener::bind((server.ipv4, PORT))).unwrap();
    let address = server.ipv4.to_string();
    is_allowed(&node, &client, &server);
    assert_eq!(listener.accept().unwrap().1.ip(), client.ipv4, "the probe is a real connection");

    // Another port, another protocol, and an echo request.
    for (target, protocol) in [("8081/tcp", "tcp"), ("8080/udp", "udp"), ("ICMP", "icmp")] {
        let (code, report) = trace(&node, &client, &[&address, target]);
        assert_eq!((code, &report["outcome"]), (2, &json!("dropped")), "{report:#}\n{}", node.log());
        assert_eq!(report["protocol"], protocol, "{report:#}");
        let next = report["next"].to_string();
        assert!(
            next.contains("apiary explain 133") && next.contains("apiary why default/client"),
            "{report:#}"
        );
        assert_eq!(report["verdict"], "DROPPED: Policy denied (133)", "{report:#}");
    }

    node.write_services(&integration_tests::state_file(&[ServiceFixture::new("web", &[VIP], &[&address])]));
    let by_service = || trace(&node, &client, &[VIP, "80/tcp"]);
    wait_until("the service is translated", LIMIT, || by_service().1["outcome"] == "answered");
    let (code, report) = by_service();
    assert_eq!((code, &report["service"]), (0, &json!("default/web")), "{report:#}");
    let backend = format!("{address}:{PORT}");
    let steps = report["steps"].as_array().unwrap();
    assert!(steps.iter().any(|step| step["destination"] == *backend), "{report:#}");

    leaves_the_node(&node, &client);
}

/// A probe that policy allows has the verdict with its rule, the delivery and the reply.
fn is_allowed(node: &Node, client: &Pod, server: &Pod) {
    let (code, report) = trace(node, client, &["default/server", &format!("{PORT}/tcp")]);
    assert_eq!((code, &report["outcome"]), (0, &json!("answered")), "{report:#}\n{}", node.log());
    assert!(points(&report).contains(&"to-endpoint"), "{report:#}");
    let steps = report["steps"].as_array().unwrap();
    let verdict =
        steps.iter().find(|step| step["event"]["type"] == "verdict" && step["event"]["is_ingress"] == true);
    let verdict = verdict.unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(verdict["event"]["action"], "allowed", "{report:#}");
    assert!(verdict["rules"].to_string().contains("spec.ingress[0]"), "{report:#}");
    assert!(verdict["text"].as_str().unwrap().ends_with("(default/server): allowed"), "{report:#}");
    assert!(steps.iter().any(|step| step["is_reply"] == true), "{report:#}");
    assert!(steps.iter().any(|step| step["destination"] == format!("{}:{PORT}", server.ipv4)), "{report:#}");
    let namespace = client.ns.path().to_str().unwrap();
    let words = ["trace", "default/client", "default/server", &format!("{PORT}/tcp"), "--netns", namespace];
    let text = node.apiary(&words);
    assert!(text.contains("REACHED: the destination has answered\n") && text.contains("rule: "), "{text}");
}

/// A datagram to the world without an answer was last seen where it leaves.
fn leaves_the_node(node: &Node, client: &Pod) {
    let _silent = node.world().run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 9))).unwrap();
    let (code, report) = trace(node, client, &[Node::WORLD_IPV4, "9/udp", "--timeout", "1"]);
    assert_eq!((code, &report["outcome"]), (3, &json!("left")), "{report:#}");
    assert!(points(&report).iter().any(|point| ["to-stack", "to-network"].contains(point)), "{report:#}");
    let unknown = node.apiary_command(&["trace", "default/none", VIP]).output().unwrap();
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("this node has no endpoint default/none"));
}
