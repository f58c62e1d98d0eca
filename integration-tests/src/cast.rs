//! A node with policy and a service in the path, and flows over all of it: what restarts must not disturb.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use test_kit::{NetNs, TcpFlow, UdpFlow, try_wait_until};

use crate::{Node, Pod, ServiceFixture};

/// Only clients may reach the server, and clients may reach nothing else.
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
pub const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
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

    /// Creates the pods on a node without a started agent.
    ///
    /// # Panics
    /// When they do not come up.
    #[must_use]
    pub fn on(mut node: Node) -> Cast {
        node.apply("policy.yaml", POLICY);
        node.follow_services("services.json");
        node.start();
        let mut pod = |name: &str, app: &str| node.add_pod_with("default", name, &[("app", app)]);
        let (server, client, other) =
            (pod("server", "server"), pod("client", "client"), pod("other", "other"));
        for pod in [&server, &client, &other] {
            eventually(|| identity(&node, pod) > 255);
        }
        node.serve(&[service(server.addresses())]);
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
    pub fn allowed(&self, port: u16) -> Flows {
        let (from, to, backends) = (&self.client.ns, &self.server.ns, self.server.addresses());
        let (mut udp, mut tcp) = flows(from, to, &backends);
        let world = [Node::WORLD_IPV4, Node::WORLD_IPV6];
        udp.extend(world.map(|ip| UdpFlow::start(from, self.node.world(), ip.parse().unwrap()).unwrap()));
        let (udp_behind, tcp_behind) = flows_through_service(from, to, &backends, port);
        udp.extend(udp_behind);
        tcp.extend(tcp_behind);
        (udp, tcp)
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

    /// The [`connections`](Cast::connections) once each flow of [`allowed`](Cast::allowed) has its two, one an end.
    ///
    /// # Panics
    /// When they do not come.
    #[must_use]
    pub fn all_connections(&self) -> BTreeSet<String> {
        // UDP and TCP, IPv4 and IPv6.
        let complete = || match self.connections() {
            all if all.len() >= 8 => Ok(all),
            some => Err(format!("{some:#?}")),
        };
        try_wait_until(Duration::from_secs(120), complete)
            .unwrap_or_else(|some| panic!("connections are missing: {some}\n{}", self.node.log()))
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

/// UDP and TCP at once.
pub type Flows = (Vec<UdpFlow>, Vec<TcpFlow>);

/// Flows to addresses of a namespace.
///
/// # Panics
/// When one cannot be started.
#[must_use]
pub fn flows(from: &NetNs, to: &NetNs, ips: &[IpAddr]) -> Flows {
    let udp = ips.iter().map(|ip| UdpFlow::start(from, to, *ip).unwrap());
    let tcp = ips.iter().map(|ip| TcpFlow::start(from, to, *ip).unwrap());
    (udp.collect(), tcp.collect())
}

/// Flows through the service to these backends in a namespace.
///
/// # Panics
/// When one cannot be started.
#[must_use]
pub fn flows_through_service(from: &NetNs, to: &NetNs, backends: &[IpAddr], port: u16) -> Flows {
    let service = SERVICE.map(|ip| ip.parse::<IpAddr>().unwrap());
    let pair = |backend: &IpAddr| {
        let service = service.into_iter().find(|ip| ip.is_ipv4() == backend.is_ipv4()).unwrap();
        let backend = SocketAddr::new(*backend, port + 8000);
        let service = Some(SocketAddr::new(service, port));
        let udp = UdpFlow::through(from, to, backend, service).unwrap();
        (udp, TcpFlow::through(from, to, backend, service).unwrap())
    };
    backends.iter().map(pair).unzip()
}

/// The service in front of a server with these addresses.
#[must_use]
pub fn service(server: [IpAddr; 2]) -> ServiceFixture {
    let [v4, v6] = server.map(|ip| ip.to_string());
    ServiceFixture { ports: vec![SHORT, LONG], ..ServiceFixture::new("server", &SERVICE, &[&v4, &v6]) }
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
pub fn assert_perfect(flows: Flows, what: &str, node: &Node) {
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
