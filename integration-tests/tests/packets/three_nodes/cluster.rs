//! Nodes on one switch with one folder of manifests: the objects of a cluster, and connections between its nodes and pods.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use integration_tests::cast::{Flows, flows, identity};
use integration_tests::{Node, Pod, binary};
use serde_json::{Value, json};
use test_kit::{NetNs, try_wait_until};

pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// How long a packet that must not arrive is waited for.
const SILENCE: Duration = Duration::from_millis(100);
/// How long a packet may take that should arrive; another one follows.
const PATIENCE: Duration = Duration::from_secs(1);
/// The switch as a host on the network of the nodes.
pub(super) const SWITCH: [&str; 2] = ["198.51.100.254", "2001:db8:5::254"];

/// How pods of other nodes are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routing {
    Tunnel,
    Native,
    /// By a router that has the routes, the switch; nodes have none to each other's pods.
    Routed,
    /// Without a tunnel between the first two nodes.
    Hybrid,
}

/// A CiliumNode, with a byte that addresses and one that pod ranges are derived from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) host: u8,
    pub(super) range: u8,
}

impl Member {
    pub(super) fn addresses(&self) -> [IpAddr; 2] {
        [format!("198.51.100.{}", self.host), format!("2001:db8:5::{:x}", self.host)]
            .map(|text| text.parse().unwrap())
    }

    pub(super) fn ranges(&self) -> [String; 2] {
        [format!("10.{}.0.0/24", self.range), format!("fd00:10:{}::/112", self.range)]
    }

    /// Returns the object; `routers` are addresses of type CiliumInternalIP.
    pub(super) fn object(&self, routers: &[IpAddr]) -> Value {
        let typed = |kind: &str, ip: &IpAddr| json!({"type": kind, "ip": ip.to_string()});
        let own = self.addresses();
        let addresses = own.iter().map(|ip| typed("InternalIP", ip));
        let addresses = addresses.chain(routers.iter().map(|ip| typed("CiliumInternalIP", ip)));
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": self.name},
            "spec": {"addresses": addresses.collect::<Vec<_>>(), "ipam": {"podCIDRs": self.ranges()}},
        })
    }
}

/// The nodes that have an agent.
pub(super) const MEMBERS: [Member; 3] = [
    Member { name: "n1", host: 1, range: 241 },
    Member { name: "n2", host: 2, range: 242 },
    Member { name: "n3", host: 3, range: 243 },
];

/// A client and a server on each node.
pub(super) struct Pods {
    pub(super) client: Pod,
    pub(super) server: Pod,
}

/// Nodes on a switch.
pub(super) struct Cluster {
    pub(super) pods: Vec<Pods>,
    pub(super) nodes: Vec<Node>,
    pub(super) switch: NetNs,
    folder: PathBuf,
    routing: Routing,
}

impl Cluster {
    /// All members with their agents and pods, known to each other.
    pub(super) fn new(routing: Routing) -> Self {
        Self::with_first(routing, Node::new())
    }

    /// The same with this node as the first member.
    pub(super) fn with_first(routing: Routing, first: Node) -> Self {
        let cluster = Self::unknown(routing, first);
        (0..MEMBERS.len()).for_each(|index| cluster.announce(index));
        cluster
    }

    /// All members with their agents and pods, which do not know each other.
    pub(super) fn without_objects(routing: Routing) -> Self {
        Self::unknown(routing, Node::new())
    }

    fn unknown(routing: Routing, first: Node) -> Self {
        let switch = first.sandbox().netns("switch").unwrap();
        switch.ip_batch("link add bridge type bridge\nlink set bridge up\n").unwrap();
        switch.set_sysctl("net/ipv6/conf/bridge/accept_dad", "0").unwrap();
        switch
            .ip_batch(&format!(
                "addr add {}/24 dev bridge\naddr add {}/64 dev bridge nodad\n",
                SWITCH[0], SWITCH[1]
            ))
            .unwrap();
        if routing == Routing::Routed {
            route_pods(&switch);
        }
        let folder = PathBuf::from(&first.config["cluster-folder"]);
        let mut cluster = Self { pods: Vec::new(), nodes: vec![first], switch, folder, routing };
        for member in MEMBERS {
            if cluster.nodes.len() < usize::from(member.host) {
                cluster.nodes.push(as_first(&cluster.nodes[0], member.name));
            }
            cluster.connect(member);
        }
        for index in 0..MEMBERS.len() {
            cluster.spawn(index);
        }
        for node in &mut cluster.nodes {
            node.wait_ready();
        }
        (0..MEMBERS.len()).for_each(|index| cluster.add_pods(index));
        cluster
    }

    /// Gives a node an uplink to the switch.
    pub(super) fn plug(&self, index: usize) {
        let (member, host) = (MEMBERS[index], self.nodes[index].host());
        let port = format!("port{}", member.host);
        host.veth("eth0", &self.switch, &port).unwrap();
        self.switch.ip(&format!("link set {port} master bridge")).unwrap();
        let [ipv4, ipv6] = member.addresses();
        // The same each time, as that of hardware: other nodes keep the old one for a minute otherwise.
        host.ip(&format!("link set eth0 address 02:00:00:00:00:{:02x}", member.host)).unwrap();
        host.ip_batch(&format!(
            "addr add {ipv4}/24 dev eth0\naddr add {ipv6}/64 dev eth0 nodad\n\
             route add default via {}\nroute add default via {}\n",
            SWITCH[0], SWITCH[1]
        ))
        .unwrap();
    }

    /// Takes the uplink of a node away; the routes by it go as well.
    pub(super) fn unplug(&self, index: usize) {
        self.nodes[index].host().ip("link delete eth0").unwrap();
    }

    /// Exchanges the node's uplink for one to the switch.
    fn connect(&mut self, member: Member) {
        let index = self.nodes.len() - 1;
        self.unplug(index);
        self.plug(index);
        let node = &mut self.nodes[index];
        let [ipv4, ipv6] = member.addresses();
        let [ipv4_range, ipv6_range] = member.ranges();
        let mut config = vec![
            ("cluster-folder", self.folder.to_str().unwrap().to_owned()),
            ("ipv4-node", ipv4.to_string()),
            ("ipv6-node", ipv6.to_string()),
            ("ipv4-range", ipv4_range),
            ("ipv6-range", ipv6_range),
        ];
        if matches!(self.routing, Routing::Native | Routing::Routed) {
            config.push(("routing-mode", "native".to_owned()));
            config.push(("auto-direct-node-routes", (self.routing == Routing::Native).to_string()));
        }
        if self.routing == Routing::Hybrid {
            let [near, other] = [MEMBERS[0], MEMBERS[1]].map(|member| member.ranges().join(","));
            let topology = format!("{near},{other};{}", MEMBERS[2].ranges().join(","));
            config.push(("routing-mode", "hybrid".to_owned()));
            config.push(("auto-direct-node-routes", "true".to_owned()));
            config.push(("subnet-topology", topology));
        }
        node.config.extend(config.into_iter().map(|(key, value)| (key.to_owned(), value)));
    }

    fn spawn(&mut self, index: usize) {
        let mut command = self.nodes[index].agent_command();
        command.env("K8S_NODE_NAME", MEMBERS[index].name);
        self.nodes[index].spawn_command(command);
    }

    pub(super) fn start(&mut self, index: usize) {
        self.spawn(index);
        self.nodes[index].wait_ready();
    }

    /// Writes a file of manifests for all nodes.
    pub(super) fn apply(&self, file: &str, manifests: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": manifests});
        self.nodes[0].apply(file, &list.to_string());
    }

    /// Removes a file for all nodes.
    pub(super) fn withdraw(&self, file: &str) {
        self.nodes[0].withdraw(file);
    }

    fn add_pods(&mut self, index: usize) {
        let (client, server) = (self.add_pod(index, "client"), self.add_pod(index, "server"));
        self.pods.push(Pods { client, server });
    }

    /// Adds a pod with a label `app` to a node. Other nodes do not know its address or its identity.
    pub(super) fn add_pod(&mut self, index: usize, app: &str) -> Pod {
        let member = MEMBERS[index];
        let name = format!("{app}-{}", member.name);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "default", "name": name, "labels": {"app": app}},
            "spec": {"nodeName": member.name, "containers": [{"name": "main", "image": "none"}]},
        });
        self.apply(&format!("pod-{name}.json"), &[pod]);
        self.nodes[index].add_unknown_pod("default", &name)
    }

    /// Returns the CiliumEndpoint of a pod.
    pub(super) fn endpoint(&self, index: usize, member: Member, pod: &Pod) -> Value {
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint",
            "metadata": {"namespace": "default", "name": pod.name},
            "status": {
                "identity": {"id": identity(&self.nodes[index], pod)},
                "networking": {
                    "node": member.addresses()[0],
                    "addressing": [{"ipv4": pod.ipv4, "ipv6": pod.ipv6}],
                },
            },
        })
    }

    /// Writes the objects of a node and of its pods, as its agent would do at an API server.
    pub(super) fn announce(&self, index: usize) {
        self.announce_as(index, MEMBERS[index]);
    }

    /// The same with other addresses and pod ranges.
    pub(super) fn announce_as(&self, index: usize, member: Member) {
        let node = &self.nodes[index];
        let addressing = node.get("/v1/config")["status"]["addressing"].clone();
        let router = |family: &str| addressing[family]["ip"].as_str().unwrap().parse().unwrap();
        let mut objects = vec![member.object(&[router("ipv4"), router("ipv6")])];
        let Pods { client, server } = &self.pods[index];
        objects.extend([client, server].map(|pod| self.endpoint(index, member, pod)));
        self.apply(&format!("node-{}.json", member.name), &objects);
    }

    /// Returns the entries of a map of the node's kernel.
    pub(super) fn maps(&self, index: usize, name: &str) -> String {
        self.apiary(index, &["bpf", name, "list"])
    }

    /// Returns the output of `apiary` of a node, with the maps of the node's own BPF file system.
    pub(super) fn apiary(&self, index: usize, arguments: &[&str]) -> String {
        let node = &self.nodes[index];
        let mut command = node.host().command("unshare");
        command
            .args(["--mount", "sh", "-c", r#"mount --bind "$0" /sys/fs/bpf && exec "$@""#])
            .arg(node.sandbox().bpf_root())
            .arg(binary("apiary"))
            .args(arguments)
            .env("CILIUM_SOCK", node.socket());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the logs of all agents.
    pub(super) fn logs(&self) -> String {
        let log = |(node, member): (&Node, Member)| format!("log of {}:\n{}", member.name, node.log());
        self.nodes.iter().zip(MEMBERS).map(log).collect::<Vec<_>>().join("\n")
    }

    /// Waits until the condition holds.
    #[track_caller]
    pub(super) fn until(&self, condition: &str, mut holds: impl FnMut() -> Result<(), String>) {
        if let Err(error) = try_wait_until(LIMIT, &mut holds) {
            panic!("{condition}: {error}\n{}", self.logs());
        }
    }

    /// Waits until UDP and TCP pass in both directions.
    #[track_caller]
    pub(super) fn until_reached(&self, from: &NetNs, to: &NetNs, ips: &[IpAddr]) {
        for ip in ips {
            self.until(&format!("{ip} is reached"), || reach_udp(from, to, *ip));
            self.until(&format!("{ip} is reached"), || reach_tcp(from, to, *ip));
        }
    }

    /// UDP and TCP over both families from a client to a server of another node, once it is reached.
    pub(super) fn flows(&self, from: usize, to: usize) -> Flows {
        let (client, server) = (&self.pods[from].client, &self.pods[to].server);
        self.until_reached(&client.ns, &server.ns, &server.addresses());
        flows(&client.ns, &server.ns, &server.addresses())
    }

    /// Ends flows that must not have lost anything.
    #[track_caller]
    pub(super) fn assert_perfect(&self, (udp, tcp): Flows, situation: &str) {
        for report in udp.into_iter().map(test_kit::UdpFlow::stop) {
            assert!(report.is_perfect(), "{situation}: {report:?}\n{}", self.logs());
        }
        for report in tcp.into_iter().map(test_kit::TcpFlow::stop) {
            assert!(report.is_perfect(), "{situation}: {report:?}\n{}", self.logs());
        }
    }
}

/// Makes the switch the router between pods of nodes.
fn route_pods(switch: &NetNs) {
    for (key, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        // Packets leave by the device that they came by, which senders must not shorten.
        ("net/ipv4/conf/all/send_redirects", "0"),
        ("net/ipv4/conf/bridge/send_redirects", "0"),
    ] {
        switch.set_sysctl(key, value).unwrap();
    }
    for member in MEMBERS {
        for (range, ip) in member.ranges().into_iter().zip(member.addresses()) {
            switch.ip(&format!("route add {range} via {ip}")).unwrap();
        }
    }
}

/// A node that replaces kube-proxy as the first one does, if it replies to clients of other nodes itself.
fn as_first(first: &Node, name: &str) -> Node {
    let mut node = Node::new();
    if let Some(mode) = first.config.get("bpf-lb-mode") {
        // The machine's root cgroup is outside of the first node's sandbox, which the others are made inside of.
        let cgroup = first.sandbox().cgroup().unwrap().join(name);
        std::fs::create_dir(&cgroup).unwrap();
        let cgroup = cgroup.to_str().unwrap();
        let options = [("kube-proxy-replacement", "true"), ("bpf-lb-mode", mode), ("cgroup-root", cgroup)];
        node.config.extend(options.map(|(option, value)| (option.to_owned(), value.to_owned())));
    }
    node
}

impl Drop for Cluster {
    /// Drops the nodes in reverse: each is in a mount namespace that was made inside of its predecessor's.
    fn drop(&mut self) {
        while self.nodes.pop().is_some() {}
    }
}

fn udp_socket(ns: &NetNs, ip: IpAddr, timeout: Duration) -> Result<UdpSocket, String> {
    let socket = ns.run(|| UdpSocket::bind((ip, 0))).map_err(|error| format!("bind {ip}: {error}"))?;
    socket.set_read_timeout(Some(timeout)).unwrap();
    Ok(socket)
}

fn any(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0u16; 8]) }
}

/// Sends a datagram to an address of the other namespace, and one back.
pub(super) fn reach_udp(from: &NetNs, to: &NetNs, ip: IpAddr) -> Result<(), String> {
    exchange(from, to, ip, PATIENCE).map(drop)
}

/// Whether no datagram arrives.
pub(super) fn is_refused(from: &NetNs, to: &NetNs, ip: IpAddr) -> bool {
    exchange(from, to, ip, SILENCE).is_err()
}

/// Sends a datagram and one back. Returns the address that the other end has seen.
pub(super) fn exchange(
    from: &NetNs,
    to: &NetNs,
    ip: IpAddr,
    timeout: Duration,
) -> Result<SocketAddr, String> {
    let server = udp_socket(to, ip, timeout)?;
    let client = udp_socket(from, any(ip), timeout)?;
    let target = server.local_addr().unwrap();
    client.connect(target).and_then(|()| client.send(b"question")).map_err(|error| error.to_string())?;
    let mut buffer = [0; 16];
    let (_, peer) = server.recv_from(&mut buffer).map_err(|error| format!("UDP to {target}: {error}"))?;
    server.send_to(b"answer", peer).map_err(|error| error.to_string())?;
    let length = client.recv(&mut buffer).map_err(|error| format!("UDP from {target} to {peer}: {error}"))?;
    if &buffer[..length] == b"answer" { Ok(peer) } else { Err("another datagram".to_owned()) }
}

/// Connects to an address of the other namespace and sends in both directions.
pub(super) fn reach_tcp(from: &NetNs, to: &NetNs, ip: IpAddr) -> Result<(), String> {
    let text = |error: std::io::Error| format!("TCP to {ip}: {error}");
    let listener = to.run(|| TcpListener::bind((ip, 0))).map_err(text)?;
    let target = listener.local_addr().unwrap();
    let mut client = from.run(|| TcpStream::connect_timeout(&target, PATIENCE)).map_err(text)?;
    let (mut server, _) = listener.accept().map_err(text)?;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
    }
    let mut buffer = [0; 8];
    client.write_all(b"question").map_err(text)?;
    server.read_exact(&mut buffer).map_err(text)?;
    server.write_all(b"response").map_err(text)?;
    client.read_exact(&mut buffer).map_err(text)
}
