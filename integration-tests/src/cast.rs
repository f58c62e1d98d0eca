//! A node with policy and a service in the path, and flows over all of it: what restarts must not disturb.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_kit::{TcpFlow, UdpFlow};

use crate::{Node, Pod};

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
pub const SHORT: u16 = 80;
/// See [`SHORT`].
pub const LONG: u16 = 81;

/// A server, a client that may reach it, and another pod that differs in one label.
#[derive(Debug)]
pub struct Cast {
    /// The node.
    pub node: Node,
    /// The server.
    pub server: Pod,
    /// The client that may reach it.
    pub client: Pod,
    /// The pod that may not.
    pub other: Pod,
}

impl Default for Cast {
    fn default() -> Self {
        Self::new()
    }
}

impl Cast {
    /// The pods on a new node, with a started agent.
    #[must_use]
    pub fn new() -> Cast {
        Cast::on(Node::new())
    }

    /// The pods on a node whose agent has not been started.
    ///
    /// # Panics
    /// When they do not come up.
    #[must_use]
    pub fn on(mut node: Node) -> Cast {
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
    ///
    /// # Panics
    /// When a flow cannot be started.
    #[must_use]
    pub fn allowed(&self, port: u16) -> (Vec<UdpFlow>, Vec<TcpFlow>) {
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
    ///
    /// # Panics
    /// When a flow cannot be started.
    #[must_use]
    pub fn denied(&self) -> Vec<UdpFlow> {
        let ingress = |ip| UdpFlow::start(&self.other.ns, &self.server.ns, ip).unwrap();
        let egress = |ip| UdpFlow::start(&self.client.ns, &self.other.ns, ip).unwrap();
        self.server.addresses().map(ingress).into_iter().chain(self.other.addresses().map(egress)).collect()
    }

    /// Identities of the three pods.
    #[must_use]
    pub fn identities(&self) -> Vec<u64> {
        [&self.server, &self.client, &self.other].map(|pod| identity(&self.node, pod)).into()
    }

    /// Connections of the flows over all ends, as the kernel's tables have them: without counters and times.
    ///
    /// # Panics
    /// When the agent does not answer.
    #[must_use]
    pub fn connections(&self) -> BTreeSet<String> {
        let list = self.node.apiary(&["bpf", "ct", "list", "global"]);
        let port = format!(":{}", LONG + 8000);
        let of_long = list.lines().filter(|line| line.contains(&port));
        of_long.map(|line| line.split(" expires=").next().unwrap().to_owned()).collect()
    }

    /// Numbers of prefixes, as the REST API has them.
    ///
    /// # Panics
    /// When the agent does not answer.
    #[must_use]
    pub fn prefixes(&self) -> Vec<Value> {
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

/// Waits for something, for ten seconds.
///
/// # Panics
/// When it does not come to that.
pub fn eventually(what: impl Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < Duration::from_secs(10), "it does not come to that");
        sleep(Duration::from_millis(5));
    }
}

/// A pod's identity, as the agent knows it.
///
/// # Panics
/// When the agent does not know it.
#[must_use]
pub fn identity(node: &Node, pod: &Pod) -> u64 {
    let path = format!("/v1/endpoint/cni-attachment-id:{}:eth0", pod.container());
    node.get(&path)["status"]["identity"]["id"].as_u64().unwrap()
}

/// Ends flows that must not have lost anything.
///
/// # Panics
/// When one has.
pub fn assert_perfect(flows: (Vec<UdpFlow>, Vec<TcpFlow>), what: &str, node: &Node) {
    for flow in flows.0 {
        let report = flow.stop();
        assert!(report.is_perfect(), "{what}: {report:?}\n{}", node.log());
    }
    for flow in flows.1 {
        let report = flow.stop();
        assert!(report.is_perfect(), "{what}: {report:?}\n{}", node.log());
    }
}

/// Ends flows of which nothing may have got through.
///
/// # Panics
/// When something has.
pub fn assert_nothing(flows: Vec<UdpFlow>, what: &str, node: &Node) {
    for flow in flows {
        let report = flow.stop();
        assert!(report.sent > 0 && report.received == 0, "{what}: {report:?}\n{}", node.log());
    }
}
