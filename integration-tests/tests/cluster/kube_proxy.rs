//! A real kube-proxy beside the agent: a node moves from it to the agent's services and back, and clients see no
//! difference.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use cluster_stage::{StageOptions, User};
use integration_tests::{Cluster, Node, brought_by};
use k8s_types::schema::custom_resource_definitions;
use test_kit::{NetNs, Process, require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(2);
const NODE_PORT: u16 = 30_080;
const BACKEND: &str = "10.77.0.2";
/// Requests of a round, of which the fastest of some counts: other tests run beside.
const REQUESTS: u32 = 200;
const ROUNDS: usize = 8;

const SERVICE: &str = r#"
{apiVersion: v1, kind: List, items: [
  {apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {
    type: NodePort, externalIPs: [198.51.100.7], ports: [
      {name: tcp, protocol: TCP, port: 80, nodePort: 30080, targetPort: 8080},
      {name: udp, protocol: UDP, port: 80, nodePort: 30080, targetPort: 8080}]}},
  {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
    metadata: {name: web, namespace: default, labels: {kubernetes.io/service-name: web}},
    ports: [{name: tcp, protocol: TCP, port: 8080}, {name: udp, protocol: UDP, port: 8080}],
    endpoints: [{addresses: [10.77.0.2], conditions: {ready: true}}]}]}
"#;

/// Returns the path of kube-proxy; `None` if it is not built, which takes minutes: `make test FULL=1` builds it.
fn kube_proxy() -> Option<PathBuf> {
    brought_by("kube-proxy").map(|folder| folder.join("kube-proxy"))
}

/// Answers each datagram and each byte of a connection with the port that it comes from.
fn serve(ns: &NetNs) {
    let address: SocketAddr = format!("{BACKEND}:8080").parse().unwrap();
    let udp = ns.run(|| UdpSocket::bind(address)).unwrap();
    thread(move || {
        while let Ok((_, from)) = udp.recv_from(&mut [0; 16]) {
            let _ = udp.send_to(&from.port().to_be_bytes(), from);
        }
    });
    let tcp = ns.run(|| TcpListener::bind(address)).unwrap();
    thread(move || {
        while let Ok((mut stream, from)) = tcp.accept() {
            // One that is cut by a switch is silent for ever.
            thread(move || {
                if stream.read_exact(&mut [0; 1]).is_ok() {
                    let _ = stream.write_all(&from.port().to_be_bytes());
                }
            });
        }
    });
}

fn thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(work).unwrap()
}

/// The addresses of the service.
fn frontends() -> [SocketAddr; 2] {
    [format!("{}:{NODE_PORT}", Node::IPV4), "198.51.100.7:80".to_owned()].map(|text| text.parse().unwrap())
}

/// Which end translates a client's packets. kube-proxy gives them random ports, the agent keeps the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    KubeProxy,
    Agent,
}

fn by(own: SocketAddr, seen: [u8; 2]) -> By {
    if u16::from_be_bytes(seen) == own.port() { By::Agent } else { By::KubeProxy }
}

/// One request of a new connection.
fn tcp(to: SocketAddr) -> std::io::Result<By> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"?")?;
    let mut seen = [0; 2];
    stream.read_exact(&mut seen)?;
    Ok(by(stream.local_addr()?, seen))
}

fn udp(to: SocketAddr) -> std::io::Result<By> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(b"?")?;
    let mut seen = [0; 2];
    socket.recv(&mut seen)?;
    Ok(by(socket.local_addr()?, seen))
}

/// A service of a node with a machine behind another device as its backend.
struct Stage {
    cluster: Cluster,
    proxy: Option<Process>,
    program: PathBuf,
}

impl Stage {
    fn new(program: PathBuf) -> Self {
        let mut cluster =
            Cluster::of(Node::with_cgroup(), &StageOptions::default(), &custom_resource_definitions());
        let node = &mut cluster.node;
        let far = node.sandbox().netns("far").unwrap();
        node.host().veth("far0", &far, "eth0").unwrap();
        node.host().ip("addr add 10.77.0.1/24 dev far0").unwrap();
        far.ip_batch(&format!("addr add {BACKEND}/24 dev eth0\nroute add default via 10.77.0.1\n")).unwrap();
        node.host().set_sysctl("net/ipv4/ip_forward", "1").unwrap();
        serve(&far);
        let options = [("devices", "eth0,far0"), ("direct-routing-device", "far0"), ("enable-ipv6", "false")];
        node.config.extend(options.map(|(option, value)| (option.to_owned(), value.to_owned())));
        cluster.stage.apply(SERVICE).unwrap();
        let status =
            format!(r#"{{"status":{{"addresses":[{{"type":"InternalIP","address":"{}"}}]}}}}"#, Node::IPV4);
        let patch = ["patch", "node", Cluster::NODE, "--subresource=status", "--type=merge", "-p", &status];
        cluster.stage.kubectl(&patch).unwrap();
        Self { cluster, proxy: None, program }
    }

    fn start_proxy(&mut self, mode: &str) {
        let node = &self.cluster.node;
        let log = File::create(node.sandbox().dir().join("kube-proxy.log")).unwrap();
        let mut command = node.host().command(&self.program);
        command
            .arg("--kubeconfig")
            .arg(self.cluster.gate.kubeconfig(User::Admin).unwrap())
            .args([format!("--hostname-override={}", Cluster::NODE), format!("--proxy-mode={mode}")])
            .args(["--nodeport-addresses=0.0.0.0/0", "--masquerade-all"])
            // The machine's limits are not the node's.
            .args(["--conntrack-max-per-core=0", "--conntrack-min=0"])
            .args(["--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"])
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.proxy = Some(Process::start(&mut command).unwrap());
    }

    /// Ends kube-proxy and removes its rules, as users do who move.
    fn remove_proxy(&mut self) {
        drop(self.proxy.take());
        // It ends with an error for tools of modes that the machine does not have.
        let _ = self.cluster.node.host().command(&self.program).arg("--cleanup").output().unwrap();
    }

    fn switch(&mut self, replacement: bool) {
        if self.cluster.node.config.contains_key("kube-proxy-replacement") {
            self.cluster.node.stop();
        }
        self.cluster.node.config.insert("kube-proxy-replacement".to_owned(), replacement.to_string());
        self.cluster.start();
    }

    fn logs(&self) -> String {
        let path = self.cluster.node.sandbox().dir().join("kube-proxy.log");
        format!("{}\n{}", std::fs::read_to_string(path).unwrap_or_default(), self.cluster.node.log())
    }

    /// Waits until all addresses are served by this end over both protocols.
    fn until_served(&self, expected: By) {
        let world = self.cluster.node.world();
        for to in frontends() {
            let served = test_kit::try_wait_until(LIMIT, || {
                let found = world.run(|| [tcp(to), udp(to)]);
                let is_it = |by: &std::io::Result<By>| by.as_ref().is_ok_and(|by| *by == expected);
                if found.iter().all(is_it) { Ok(()) } else { Err(format!("{to}: {found:?}")) }
            });
            served.unwrap_or_else(|error| panic!("not by {expected:?}: {error}\n{}", self.logs()));
        }
    }

    /// Connections with a request each, in a second.
    fn rate(&self) -> f64 {
        let [to, _] = frontends();
        let round = || {
            let begin = Instant::now();
            for _ in 0..REQUESTS {
                tcp(to).unwrap();
            }
            f64::from(REQUESTS) / begin.elapsed().as_secs_f64()
        };
        self.cluster.node.world().run(|| (0..ROUNDS).map(|_| round()).fold(0.0, f64::max))
    }
}

/// Requests of new connections while something changes.
struct Client {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<(u32, Vec<String>)>,
}

impl Client {
    fn start(world: &NetNs) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let done = ends.clone();
        let work = move || {
            let (mut requests, mut failed) = (0, Vec::new());
            while !done.load(Ordering::Relaxed) {
                for to in frontends() {
                    requests += 1;
                    failed.extend(tcp(to).err().map(|error| format!("request {requests} to {to}: {error}")));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            (requests, failed)
        };
        Self { ends, thread: world.run(|| thread(work)) }
    }

    /// Ends it; requests and descriptions of those that have failed.
    fn stop(self) -> (u32, Vec<String>) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A connection that has begun by one of the two is none of the other.
const CUT: usize = 2;

/// A node moves from kube-proxy to the agent while it runs, and back.
#[expect(clippy::print_stdout, reason = "the ratio is for the reader")]
fn moves(mode: &str) {
    require_root!();
    let program = kube_proxy();
    test_kit::require!(program.is_some(), "kube-proxy is not built: tools/kube-proxy does it");
    let mut stage = Stage::new(program.unwrap());
    stage.switch(false);
    stage.start_proxy(mode);
    stage.until_served(By::KubeProxy);
    let by_proxy = stage.rate();

    let client = Client::start(stage.cluster.node.world());
    stage.switch(true);
    stage.until_served(By::Agent);
    let (requests, failed) = client.stop();
    assert!(requests > 10 && failed.len() <= CUT, "on: {requests}, {failed:?}\n{}", stage.logs());
    stage.remove_proxy();
    stage.until_served(By::Agent);
    let by_agent = stage.rate();
    let ratio = by_agent / by_proxy;
    println!(
        "TCP_CRR through a NodePort with SNAT, of kube-proxy in mode {mode}: {ratio:.2} \
         ({by_agent:.0}/s, kube-proxy {by_proxy:.0}/s)"
    );

    stage.start_proxy(mode);
    let host = stage.cluster.node.host();
    wait_until("kube-proxy has written its rules", LIMIT, || host.run(is_proxy_healthy));
    let client = Client::start(stage.cluster.node.world());
    stage.switch(false);
    stage.until_served(By::KubeProxy);
    let (requests, failed) = client.stop();
    assert!(requests > 10 && failed.len() <= CUT, "off: {requests}, {failed:?}\n{}", stage.logs());
}

fn is_proxy_healthy() -> bool {
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect("127.0.0.1:10256")?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    get().is_ok_and(|answer| answer.contains(" 200 "))
}

#[test]
fn a_node_moves_from_kube_proxy_with_nftables_and_back() {
    moves("nftables");
}

#[test]
fn a_node_moves_from_kube_proxy_with_iptables_and_back() {
    moves("iptables");
}
