//! XDP in a whole agent, in generic mode on veth pairs: what clients get is what they get without it.

use std::net::SocketAddr;
use std::time::Duration;

use integration_tests::Node;
use serde_json::{Value, json};
use test_kit::{require_root, wait_until};

use crate::services::{ask, connect, serve_at, tcp, udp};

const LIMIT: Duration = Duration::from_secs(30);
const BACKEND_PORT: u16 = 8080;
/// Node ports of a service with a pod as its backend, and of one with a machine behind another device.
const LOCAL: u16 = 30_080;
const REMOTE: u16 = 30_081;
const FAR: [&str; 2] = ["10.77.0.2", "fd77::2"];

fn service(name: &str, node_port: u16, backends: [String; 2]) -> String {
    let port = |protocol: &str, fields: Value| {
        let mut port = json!({"name": protocol.to_lowercase(), "protocol": protocol});
        port.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        port
    };
    let front =
        |protocol| port(protocol, json!({"port": 80, "nodePort": node_port, "targetPort": BACKEND_PORT}));
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": name},
        "spec": {
            "type": "NodePort", "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
            "ports": [front("TCP"), front("UDP")],
        },
    });
    let slice = |kind: &str, ip: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": format!("{name}-{}", kind.to_lowercase()),
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": kind,
            "ports": [port("TCP", json!({"port": BACKEND_PORT})), port("UDP", json!({"port": BACKEND_PORT}))],
            "endpoints": [{"addresses": [ip], "conditions": {"ready": true}}],
        })
    };
    let [v4, v6] = backends;
    [service, slice("IPv4", &v4), slice("IPv6", &v6)].map(|object| object.to_string()).join("\n---\n")
}

/// Packets that XDP has sent by a device or dropped by its list, of the rows of `apiary bpf metrics list`.
pub(crate) fn by_xdp(rows: &Value, reason: &str) -> u64 {
    let rows = rows.as_array().unwrap().iter();
    let wanted = rows.filter(|row| row["file"] == "bpf_xdp.c" && row["reason"] == reason);
    wanted.map(|row| row["packets"].as_u64().unwrap()).sum()
}

fn metrics(node: &Node) -> Value {
    serde_json::from_str(&node.apiary(&["bpf", "metrics", "list", "-o", "json"])).unwrap()
}

#[test]
fn clients_are_served_by_xdp_and_listed_ones_are_dropped() {
    require_root!();
    let mut node = Node::with_cgroup();
    let far = node.sandbox().netns("far").unwrap();
    node.host().veth("far0", &far, "eth0").unwrap();
    node.host().ip_batch("addr add 10.77.0.1/24 dev far0\naddr add fd77::1/64 dev far0 nodad\n").unwrap();
    far.ip_batch("addr add 10.77.0.2/24 dev eth0\naddr add fd77::2/64 dev eth0 nodad\n").unwrap();
    for ns in [node.world(), &far] {
        ns.disable_checksum_offload("eth0").unwrap();
    }
    let options = [
        ("kube-proxy-replacement", "true"),
        ("bpf-lb-acceleration", "testing-only"),
        ("enable-xdp-prefilter", "true"),
        ("devices", "eth0,far0"),
        ("direct-routing-device", "far0"),
    ];
    node.config.extend(options.map(|(option, value)| (option.to_owned(), value.to_owned())));
    node.start();
    let pod = node.add_pod("server");
    serve_at(&pod.ns, &pod.addresses(), "pod");
    serve_at(&far, &FAR.map(|ip| ip.parse().unwrap()), "far");
    let manifests = [
        service("near", LOCAL, pod.addresses().map(|ip| ip.to_string())),
        service("far", REMOTE, FAR.map(str::to_owned)),
    ];
    node.apply("services.yaml", &manifests.join("\n---\n"));

    let frontends = |port: u16| [Node::IPV4, Node::IPV6].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
    for (port, name) in [(LOCAL, "pod"), (REMOTE, "far")] {
        for to in frontends(port) {
            let answer = Some(name.to_owned());
            wait_until(&format!("{to} is served"), LIMIT, || {
                (udp(node.world(), to), tcp(node.world(), to)) == (answer.clone(), answer.clone())
            });
        }
    }
    // By now the neighbours are resolved: each packet to the machine and back is sent by XDP, and by the other device.
    for to in frontends(REMOTE) {
        let before = by_xdp(&metrics(&node), "Success");
        let mut stream = connect(node.world(), to).unwrap();
        assert_eq!(ask(&mut stream).as_deref(), Some("far"));
        drop(stream);
        assert!(
            by_xdp(&metrics(&node), "Success") >= before + 8,
            "{}",
            node.apiary(&["bpf", "metrics", "list"])
        );
    }
    // Restarts change nothing for a connection.
    let mut streams = frontends(REMOTE).map(|to| connect(node.world(), to).unwrap());
    node.stop();
    assert_eq!(streams.each_mut().map(ask), [Some("far".to_owned()), Some("far".to_owned())]);
    node.start();
    assert_eq!(streams.each_mut().map(ask), [Some("far".to_owned()), Some("far".to_owned())]);

    let [v4, v6] = frontends(LOCAL);
    let change = |verb: &str| {
        let revision = node.apiary(&["prefilter", "list", "-o", "jsonpath={.spec.revision}"]);
        let _ = node.apiary(&["prefilter", verb, "--revision", revision.trim(), "--cidr", "192.0.2.2/32"]);
    };
    change("update");
    wait_until("the listed client is dropped", LIMIT, || udp(node.world(), v4).is_none());
    assert_eq!(udp(node.world(), v6).as_deref(), Some("pod"), "only the listed address");
    assert!(by_xdp(&metrics(&node), "Policy denied") > 0, "{}", node.apiary(&["bpf", "metrics", "list"]));
    change("delete");
    wait_until("the client is served again", LIMIT, || udp(node.world(), v4).is_some());
}
