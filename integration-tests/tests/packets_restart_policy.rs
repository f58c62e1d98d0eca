//! Policy and a service in the path: no packet is lost, none gets through that may not, and nothing is forgotten when the agent stops,
//! is killed, and starts again, or when an identity changes under traffic.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_tests::{Node, Pod, pod_manifest};
use serde_json::{Value, json};
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

/// Addresses of the service in front of the server.
const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
/// Ports of the service: flows of one end, and those of all. The server listens 8000 above.
const SHORT: u16 = 80;
const LONG: u16 = 81;

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
        let services = node.sandbox().dir().join("services.json");
        node.config.insert("lb-state-file".into(), services.to_str().unwrap().to_owned());
        node.config.insert("lb-state-file-interval".into(), "20ms".into());
        node.start();
        let mut pod = |name: &str, app: &str| node.add_pod_with("default", name, &[("app", app)]);
        let (server, client, other) =
            (pod("server", "server"), pod("client", "client"), pod("other", "other"));
        for pod in [&server, &client, &other] {
            eventually(|| identity(&node, pod) > 255);
        }
        fs::write(&services, service(&server).to_string()).unwrap();
        // TCP and UDP over both families, two ports each.
        eventually(|| node.get("/v1/service").as_array().unwrap().len() == 8);
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

    /// UDP and TCP that may pass, over both families; to the server, through its service, to the world.
    fn allowed(&self, port: u16) -> (Vec<UdpFlow>, Vec<TcpFlow>) {
        let (from, to) = (&self.client.ns, &self.server.ns);
        let udp = self.server.addresses().map(|ip| UdpFlow::start(from, to, ip).unwrap());
        let world = [Node::WORLD_IPV4, Node::WORLD_IPV6]
            .map(|ip| UdpFlow::start(from, self.node.world(), ip.parse().unwrap()).unwrap());
        let tcp = self.server.addresses().map(|ip| TcpFlow::start(from, to, ip).unwrap());
        let behind = self.server.addresses().into_iter().map(|backend| {
            let service = SERVICE.iter().map(|ip| ip.parse::<IpAddr>().unwrap());
            let service = service.into_iter().find(|ip| ip.is_ipv4() == backend.is_ipv4()).unwrap();
            (SocketAddr::new(backend, port + 8000), Some(SocketAddr::new(service, port)))
        });
        let (udp_behind, tcp_behind): (Vec<_>, Vec<_>) = behind
            .map(|(backend, service)| {
                let udp = UdpFlow::through(from, to, backend, service).unwrap();
                (udp, TcpFlow::through(from, to, backend, service).unwrap())
            })
            .unzip();
        let udp = udp.into_iter().chain(world).chain(udp_behind).collect();
        (udp, tcp.into_iter().chain(tcp_behind).collect())
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

    /// Connections of the flows over all ends, as the kernel's tables have them: without counters and times.
    fn connections(&self) -> BTreeSet<String> {
        let list = self.node.apiary(&["bpf", "ct", "list", "global"]);
        let port = format!(":{}", LONG + 8000);
        let of_long = list.lines().filter(|line| line.contains(&port));
        of_long.map(|line| line.split(" expires=").next().unwrap().to_owned()).collect()
    }

    /// Numbers of prefixes, as the REST API has them.
    fn prefixes(&self) -> Vec<Value> {
        let all = self.node.get("/v1/identity");
        let local = |row: &&Value| row["id"].as_u64() >= Some(1 << 24);
        all.as_array().unwrap().iter().filter(local).cloned().collect()
    }
}

/// The state file of the service in front of the server.
fn service(server: &Pod) -> Value {
    let each = |make: fn(String, &str, u16) -> Value| -> Vec<Value> {
        let ports = ["TCP", "UDP"].into_iter().flat_map(|protocol| [(protocol, SHORT), (protocol, LONG)]);
        ports
            .map(|(protocol, port)| make(format!("{protocol}-{port}").to_lowercase(), protocol, port))
            .collect()
    };
    let slice = |ip: IpAddr| {
        let kind = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        json!({
            "metadata": {"name": format!("server-{kind}").to_lowercase(), "labels": {"kubernetes.io/service-name": "server"}},
            "addressType": kind,
            "ports": each(|name, protocol, port| json!({"name": name, "protocol": protocol, "port": port + 8000})),
            "endpoints": [{"addresses": [ip]}],
        })
    };
    let ports = each(|name, protocol, port| json!({"name": name, "protocol": protocol, "port": port}));
    json!({
        "services": [{"metadata": {"name": "server"}, "spec": {"clusterIPs": SERVICE, "ports": ports}}],
        "endpoints": server.addresses().map(slice),
    })
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
    let long = cast.allowed(LONG);
    let never = cast.denied();
    sleep(Duration::from_millis(100));
    let connections = cast.connections();
    // Each of UDP and TCP, of both families: at the client's side and at the server's.
    assert!(connections.len() >= 8, "{connections:#?}");
    for end in [End::Terminate, End::Kill] {
        for run in 0..RUNS {
            let (allowed, denied) = (cast.allowed(SHORT), cast.denied());
            sleep(Duration::from_millis(100));
            match end {
                End::Terminate => cast.node.stop(),
                End::Kill => {
                    cast.node.kill();
                }
            }
            // The kernel and the endpoints' records know the numbers as well.
            for file in ["identities.json", "local_allocator_state.json"].iter().take(run) {
                fs::write(cast.node.endpoint_files().join(file), "{").unwrap();
            }
            sleep(Duration::from_millis(50));
            cast.node.start();
            sleep(Duration::from_millis(150));
            let what = format!("{end:?}");
            assert_perfect(allowed, &what, &cast.node);
            assert_nothing(denied, &what, &cast.node);
            assert_eq!(cast.identities(), identities, "{end:?}: identities stay");
            assert_eq!(cast.prefixes(), prefixes, "{end:?}: identities of prefixes stay");
            assert_eq!(cast.connections(), connections, "{end:?}: connections stay");
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

/// What the REST API says of identities and of an endpoint's policy.
#[test]
fn identities_and_policy_are_shown() {
    require_root!();
    let cast = Cast::new();
    let [server, client, other] = cast.identities()[..] else { panic!("three pods") };
    let policy = |pod: &Pod| {
        let path = format!("/v1/endpoint/cni-attachment-id:{}:eth0", pod.container());
        let status = cast.node.get(&path)["status"].clone();
        assert_eq!(status["health"]["policy"], "OK");
        status["policy"]["realized"].clone()
    };
    let of_server = policy(&cast.server);
    assert_eq!((&of_server["policy-enabled"], &of_server["id"]), (&json!("ingress"), &json!(server)));
    let allowed = of_server["allowed-ingress-identities"].as_array().unwrap();
    assert!(allowed.contains(&json!(client)) && !allowed.contains(&json!(other)), "{of_server}");
    assert_eq!(
        (&of_server["denied-ingress-identities"], &of_server["allowed-egress-identities"]),
        (&Value::Null, &json!([0]))
    );
    let of_client = policy(&cast.client);
    assert_eq!(of_client["policy-enabled"], "egress");
    let mut peers: Vec<Value> = cast.prefixes().iter().map(|row| row["id"].clone()).collect();
    peers.push(json!(server));
    let allowed = of_client["allowed-egress-identities"].as_array().unwrap();
    assert!(
        peers.iter().all(|peer| allowed.contains(peer)) && !allowed.contains(&json!(other)),
        "{of_client}"
    );
    assert_eq!(policy(&cast.other)["policy-enabled"], "none");

    let asked = |path: &str, labels: &[&str]| {
        let answer = cast.node.request("GET", path, Some(&json!(labels).to_string())).unwrap();
        (answer.status, if answer.status == 200 { answer.json() } else { Value::Null })
    };
    let (status, addresses) = asked("/v1/ip", &["k8s:app=server"]);
    let mut found: Vec<&str> =
        addresses.as_array().unwrap().iter().map(|row| row["cidr"].as_str().unwrap()).collect();
    found.sort_unstable();
    let mut expected = [format!("{}/32", cast.server.ipv4), format!("{}/128", cast.server.ipv6)];
    expected.sort_unstable();
    assert_eq!((status, found), (200, expected.iter().map(String::as_str).collect()));
    assert_eq!(asked("/v1/ip", &["k8s:app=nobody"]).0, 404);
    let whole = cast.node.get(&format!("/v1/identity/{server}"))["labels"].clone();
    let whole: Vec<&str> = whole.as_array().unwrap().iter().map(|label| label.as_str().unwrap()).collect();
    assert_eq!(asked("/v1/identity", &whole).1[0]["id"], server);
    assert_eq!(asked("/v1/identity", &["k8s:app=server"]).0, 404, "all labels or none");
    let counts = cast.node.get("/v1/identity/endpoints");
    let count = |id: u64| counts.as_array().unwrap().iter().find(|row| row["identity"]["id"] == id).cloned();
    assert_eq!(count(server).unwrap()["refCount"], 1);
    let prefix = &cast.prefixes()[0]["labels"];
    assert_eq!(prefix, &json!(["cidr:192.0.2.2/32", "reserved:world-ipv4"]));
}

/// Between two sets of labels that policy treats alike no packet falls; a third one, which may not, ends it.
#[test]
fn a_change_of_identity_under_traffic_loses_nothing() {
    require_root!();
    let mut cast = Cast::new();
    let relabel = |cast: &Cast, app: &str| {
        let before = identity(&cast.node, &cast.client);
        cast.node.apply("pod-client.yaml", &pod_manifest("default", "client", &[("app", app)]));
        eventually(|| has_moved(&cast.node, &cast.client, before));
    };
    let long = cast.allowed(LONG);
    for _ in 0..10 {
        for app in ["caller", "client"] {
            let short = cast.allowed(SHORT);
            sleep(Duration::from_millis(20));
            relabel(&cast, app);
            sleep(Duration::from_millis(50));
            assert_perfect(short, app, &cast.node);
        }
    }
    assert_perfect(long, "all changes", &cast.node);
    relabel(&cast, "stranger");
    sleep(Duration::from_millis(50));
    let after =
        cast.server.addresses().map(|ip| UdpFlow::start(&cast.client.ns, &cast.server.ns, ip).unwrap());
    sleep(Duration::from_millis(100));
    assert_nothing(after.into(), "a stranger", &cast.node);
    // Prefixes that no policy names after a start have had their time.
    assert_eq!(cast.prefixes().len(), 2);
    cast.node.stop();
    cast.node.withdraw("policy.yaml");
    cast.node.config.insert("identity-restore-grace-period".into(), "200ms".into());
    cast.node.start();
    eventually(|| cast.prefixes().is_empty());
    eventually(|| !cast.node.endpoint_files().join("local_allocator_state.json").exists());
}
