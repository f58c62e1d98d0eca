//! Policy in the path: no packet is lost, none gets through that may not, and nothing is forgotten when the agent stops,
//! is killed, and starts again, or when an identity changes under traffic.

use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_tests::{Node, Pod, pod_manifest};
use serde_json::Value;
use test_kit::{TcpFlow, UdpFlow, require_root};

const RUNS: usize = 5;

/// Clients may reach the server, nobody else; and clients may reach nothing but it.
const POLICY: &str = r#"
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: server, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: server}}
  ingress:
    - fromEndpoints:
        - matchExpressions: [{key: app, operator: In, values: [client, caller]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: client, namespace: default}
spec:
  endpointSelector: {matchExpressions: [{key: app, operator: In, values: [client, caller]}]}
  egress:
    - toEndpoints: [{matchLabels: {app: server}}]
    - toCIDR: [192.0.2.2/32, "2001:db8::2/128"]
"#;

/// How the agent ends before its next start.
#[derive(Clone, Copy, Debug)]
enum End {
    Terminate,
    Kill,
}

/// A server, a client that may reach it, and another pod that differs in one label.
struct Cast {
    node: Node,
    server: Pod,
    client: Pod,
    other: Pod,
}

impl Cast {
    fn new() -> Cast {
        let mut node = Node::new();
        node.apply("policy.yaml", POLICY);
        node.start();
        let mut pod = |name: &str, app: &str| node.add_pod_with("default", name, &[("app", app)]);
        let (server, client, other) =
            (pod("server", "server"), pod("client", "client"), pod("other", "other"));
        for pod in [&server, &client, &other] {
            eventually(|| identity(&node, pod) > 255);
        }
        // The node's link-local address has to be unique before neighbours are asked for.
        for ip in [Node::WORLD_IPV4, Node::WORLD_IPV6] {
            eventually(|| {
                let mut ping = client.ns.command("ping");
                ping.args(["-c1", "-W1", "-q", ip]).stdout(std::process::Stdio::null());
                ping.status().unwrap().success()
            });
        }
        Cast { node, server, client, other }
    }

    /// UDP and TCP that may pass, over both families.
    fn allowed(&self) -> (Vec<UdpFlow>, Vec<TcpFlow>) {
        let (from, to) = (&self.client.ns, &self.server.ns);
        let udp = self.server.addresses().map(|ip| UdpFlow::start(from, to, ip).unwrap());
        let world = [Node::WORLD_IPV4, Node::WORLD_IPV6]
            .map(|ip| UdpFlow::start(from, self.node.world(), ip.parse().unwrap()).unwrap());
        let tcp = self.server.addresses().map(|ip| TcpFlow::start(from, to, ip).unwrap());
        (udp.into_iter().chain(world).collect(), tcp.into())
    }

    /// UDP that may not.
    fn denied(&self) -> Vec<UdpFlow> {
        let ingress = |ip| UdpFlow::start(&self.other.ns, &self.server.ns, ip).unwrap();
        let egress = |ip| UdpFlow::start(&self.client.ns, &self.other.ns, ip).unwrap();
        self.server.addresses().map(ingress).into_iter().chain(self.other.addresses().map(egress)).collect()
    }

    fn identities(&self) -> Vec<u64> {
        [&self.server, &self.client, &self.other].map(|pod| identity(&self.node, pod)).into()
    }

    /// Numbers of prefixes, as the REST API has them.
    fn prefixes(&self) -> Vec<Value> {
        let all = self.node.get("/v1/identity");
        let local = |row: &&Value| row["id"].as_u64() >= Some(1 << 24);
        all.as_array().unwrap().iter().filter(local).cloned().collect()
    }
}

fn eventually(what: impl Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < Duration::from_secs(10), "it does not come to that");
        sleep(Duration::from_millis(5));
    }
}

fn identity(node: &Node, pod: &Pod) -> u64 {
    let path = format!("/v1/endpoint/cni-attachment-id:{}:eth0", pod.container());
    node.get(&path)["status"]["identity"]["id"].as_u64().unwrap()
}

/// Whether the pod's identity is another one, everywhere.
fn has_moved(node: &Node, pod: &Pod, before: u64) -> bool {
    let path = format!("/v1/endpoint/cni-attachment-id:{}:eth0", pod.container());
    let status = &node.get(&path)["status"];
    status["identity"]["id"] != before && status["state"] == "ready"
}

fn assert_perfect(flows: (Vec<UdpFlow>, Vec<TcpFlow>), what: &str, node: &Node) {
    for flow in flows.0 {
        let report = flow.stop();
        assert!(report.is_perfect(), "{what}: {report:?}\n{}", node.log());
    }
    for flow in flows.1 {
        let report = flow.stop();
        assert!(report.is_perfect(), "{what}: {report:?}\n{}", node.log());
    }
}

fn assert_nothing(flows: Vec<UdpFlow>, what: &str, node: &Node) {
    for flow in flows {
        let report = flow.stop();
        assert!(report.sent > 0 && report.received == 0, "{what}: {report:?}\n{}", node.log());
    }
}

#[test]
fn restarts_with_policy_lose_nothing_and_open_nothing() {
    require_root!();
    let mut cast = Cast::new();
    let (identities, prefixes) = (cast.identities(), cast.prefixes());
    assert_eq!(prefixes.len(), 2, "{prefixes:?}");
    let long = cast.allowed();
    let never = cast.denied();
    for end in [End::Terminate, End::Kill] {
        for _ in 0..RUNS {
            let (allowed, denied) = (cast.allowed(), cast.denied());
            sleep(Duration::from_millis(100));
            match end {
                End::Terminate => cast.node.stop(),
                End::Kill => {
                    cast.node.kill();
                }
            }
            sleep(Duration::from_millis(50));
            cast.node.start();
            sleep(Duration::from_millis(150));
            let what = format!("{end:?}");
            assert_perfect(allowed, &what, &cast.node);
            assert_nothing(denied, &what, &cast.node);
            assert_eq!(cast.identities(), identities, "{end:?}: identities stay");
            assert_eq!(cast.prefixes(), prefixes, "{end:?}: identities of prefixes stay");
        }
    }
    // Flows over all ends and starts: their connections have stayed.
    assert_perfect(long, "all runs", &cast.node);
    assert_nothing(never, "all runs", &cast.node);
    // The control: with the label of a client the other pod passes.
    cast.node.apply("pod-other.yaml", &pod_manifest("default", "other", &[("app", "caller")]));
    eventually(|| has_moved(&cast.node, &cast.other, identities[2]));
    let flows =
        cast.server.addresses().map(|ip| UdpFlow::start(&cast.other.ns, &cast.server.ns, ip).unwrap());
    sleep(Duration::from_millis(200));
    assert!(flows.into_iter().all(|flow| flow.stop().received > 0));
}

/// Between two sets of labels that policy treats alike no packet falls; a third one, which may not, ends it.
#[test]
fn a_change_of_identity_under_traffic_loses_nothing() {
    require_root!();
    let cast = Cast::new();
    let relabel = |app: &str| {
        let before = identity(&cast.node, &cast.client);
        cast.node.apply("pod-client.yaml", &pod_manifest("default", "client", &[("app", app)]));
        eventually(|| has_moved(&cast.node, &cast.client, before));
    };
    let long = cast.allowed();
    for _ in 0..10 {
        for app in ["caller", "client"] {
            let short = cast.allowed();
            sleep(Duration::from_millis(20));
            relabel(app);
            sleep(Duration::from_millis(50));
            assert_perfect(short, app, &cast.node);
        }
    }
    assert_perfect(long, "all changes", &cast.node);
    relabel("stranger");
    sleep(Duration::from_millis(50));
    let after =
        cast.server.addresses().map(|ip| UdpFlow::start(&cast.client.ns, &cast.server.ns, ip).unwrap());
    sleep(Duration::from_millis(100));
    assert_nothing(after.into(), "a stranger", &cast.node);
}
