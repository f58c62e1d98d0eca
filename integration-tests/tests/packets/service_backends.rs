//! The backends of a service by real packets: no other host gets requests, closed ports refuse from the service's
//! address, and connections keep their backend until it is removed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{TcpFlow, UdpFlow, require_root};

const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
/// The service's second port is for flows: their receivers are sockets of their own.
const FLOW_PORT: u16 = 81;
const FLOW_BACKEND_PORT: u16 = 8081;
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of connections to observe the choice of backends.
const TRIES: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// Replies with the name of its pod to each request, over TCP and UDP on both addresses.
struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    fn start(pod: &Pod) -> Server {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for ip in pod.addresses() {
            let at = SocketAddr::new(ip, BACKEND_PORT);
            let udp = pod.ns.run(|| UdpSocket::bind(at)).unwrap();
            udp.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let (done, name) = (Arc::clone(&stop), pod.name.clone());
            threads.push(thread(move || {
                let mut question = [0; 16];
                while !done.load(Ordering::Relaxed) {
                    if let Ok((_, client)) = udp.recv_from(&mut question) {
                        let _ = udp.send_to(name.as_bytes(), client);
                    }
                }
            }));
            let tcp = pod.ns.run(|| TcpListener::bind(at)).unwrap();
            tcp.set_nonblocking(true).unwrap();
            let (done, name) = (Arc::clone(&stop), pod.name.clone());
            threads.push(thread(move || {
                while !done.load(Ordering::Relaxed) {
                    match tcp.accept() {
                        Ok((mut client, _)) => {
                            let _ = client.write_all(name.as_bytes());
                        }
                        Err(_) => sleep(Duration::from_millis(1)),
                    }
                }
            }));
        }
        Server { stop, threads }
    }
}

fn thread(work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new().name("server".to_owned()).spawn(work).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Returns the name of the pod that replies from an address. Sockets are connected: they only accept replies from it.
fn ask(from: &Pod, at: SocketAddr, protocol: Protocol) -> io::Result<String> {
    let mut answer = [0; 64];
    let len = match protocol {
        Protocol::Tcp => {
            let mut stream = from.ns.run(|| TcpStream::connect_timeout(&at, PATIENCE))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            assert_eq!(stream.peer_addr()?, at);
            stream.read(&mut answer)?
        }
        Protocol::Udp => {
            let any: SocketAddr = if at.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
            let socket = from.ns.run(|| UdpSocket::bind(any).and_then(|s| s.connect(at).map(|()| s)))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.send(b"who")?;
            socket.recv(&mut answer)?
        }
    };
    Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
}

fn services() -> [SocketAddr; 2] {
    SERVICE.map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT))
}

/// The state of a backend in its slice.
#[derive(Clone, Copy)]
enum State {
    Ready,
    Leaving,
}

/// A node that follows a state file, no service in it yet.
fn node() -> Node {
    let mut node = Node::new();
    let path = node.sandbox().dir().join("services.json");
    node.config.insert("lb-state-file".into(), path.to_str().unwrap().to_owned());
    node.config.insert("lb-state-file-interval".into(), "20ms".into());
    fs::write(&path, "{}").unwrap();
    node.start();
    node
}

/// Writes the service with these backends into the state file and waits until the maps have as many slots.
fn serve(node: &Node, backends: &[(&Pod, State)]) {
    let ports = |flow: u16, first: u16| {
        let one = |protocol: &str, name: &str, port: u16| json!({"name": format!("{name}-{protocol}").to_lowercase(), "protocol": protocol, "port": port});
        json!([
            one("TCP", "ask", first),
            one("UDP", "ask", first),
            one("TCP", "flow", flow),
            one("UDP", "flow", flow)
        ])
    };
    let slice = |v6: bool| {
        let kind = if v6 { "IPv6" } else { "IPv4" };
        let endpoint = |(pod, state): &(&Pod, State)| {
            let ip = pod.addresses().into_iter().find(|ip| ip.is_ipv6() == v6).unwrap();
            let leaving = matches!(state, State::Leaving);
            json!({"addresses": [ip], "conditions": {"ready": !leaving, "serving": true, "terminating": leaving}})
        };
        json!({
            "metadata": {"name": format!("web-{kind}").to_lowercase(), "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": kind,
            "ports": ports(FLOW_BACKEND_PORT, BACKEND_PORT),
            "endpoints": backends.iter().map(endpoint).collect::<Vec<_>>(),
        })
    };
    let file = json!({
        "services": [{"metadata": {"name": "web"}, "spec": {"clusterIPs": SERVICE, "ports": ports(FLOW_PORT, PORT)}}],
        "endpoints": [slice(false), slice(true)],
    });
    let path = node.config["lb-state-file"].clone();
    let draft = format!("{path}.draft");
    fs::write(&draft, file.to_string()).unwrap();
    fs::rename(draft, path).unwrap();

    // A backend that leaves keeps its slot, behind those that do not.
    let begin = Instant::now();
    loop {
        let rows: Value = serde_json::from_str(&node.apiary(&["bpf", "lb", "list", "-o", "json"])).unwrap();
        let done = services().iter().all(|service| {
            ["TCP", "UDP"].iter().all(|protocol| {
                let row = |slot: usize| rows.get(format!("{service}/{protocol} ({slot})")).is_some();
                row(0) && row(backends.len()) && !row(backends.len() + 1)
            })
        });
        if done {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{rows:#}\n{}", node.log());
        sleep(Duration::from_millis(5));
    }
}

/// Waits until one backend answers all requests of the client.
fn wait_for_only(name: &str, client: &Pod, service: SocketAddr, protocol: Protocol) {
    let begin = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < TRIES / 4 {
        let answer = ask(client, service, protocol).unwrap();
        in_a_row = if answer == name { in_a_row + 1 } else { 0 };
        assert!(begin.elapsed() < Duration::from_secs(10), "{service} {protocol:?}: still {answer}");
    }
}

/// Returns how many times each backend answers the client.
fn answers(client: &Pod, service: SocketAddr, protocol: Protocol) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    for _ in 0..TRIES {
        let name =
            ask(client, service, protocol).unwrap_or_else(|error| panic!("{service} {protocol:?}: {error}"));
        *answers.entry(name).or_default() += 1;
    }
    answers
}

#[test]
fn clients_reach_every_backend_and_nobody_else() {
    require_root!();
    let mut node = node();
    let (client, one, two, bystander) =
        (node.add_pod("client"), node.add_pod("one"), node.add_pod("two"), node.add_pod("bystander"));
    let _servers = [&one, &two, &bystander].map(Server::start);
    serve(&node, &[(&one, State::Ready), (&two, State::Ready)]);
    for service in services() {
        for protocol in PROTOCOLS {
            let names: Vec<String> = answers(&client, service, protocol).into_keys().collect();
            assert_eq!(names, ["one", "two"], "{service} {protocol:?}");
            // The control: without the service nothing answers.
            let elsewhere = SocketAddr::new(service.ip(), PORT + 1000);
            assert!(ask(&client, elsewhere, protocol).is_err(), "{elsewhere} {protocol:?}");
        }
    }
    // A pod with the same port open is asked once it is a backend.
    serve(&node, &[(&bystander, State::Ready)]);
    for service in services() {
        for protocol in PROTOCOLS {
            let names: Vec<String> = answers(&client, service, protocol).into_keys().collect();
            assert_eq!(names, ["bystander"], "{service} {protocol:?}");
        }
    }
}

/// A closed port behind a service refuses as if the service did, for UDP by an ICMP error that speaks of the service.
#[test]
fn a_closed_port_behind_a_service_refuses() {
    require_root!();
    let mut node = node();
    let (client, one) = (node.add_pod("client"), node.add_pod("one"));
    serve(&node, &[(&one, State::Ready)]);
    for service in services() {
        for protocol in PROTOCOLS {
            let refused = ask(&client, service, protocol).unwrap_err().kind();
            assert_eq!(refused, ErrorKind::ConnectionRefused, "{service} {protocol:?}");
        }
    }
    let _server = Server::start(&one);
    for service in services() {
        for protocol in PROTOCOLS {
            assert_eq!(ask(&client, service, protocol).unwrap(), "one", "{service} {protocol:?}: the twin");
        }
    }
}

/// Flows through the service to one of its backends.
struct Flows(Vec<(SocketAddr, UdpFlow, TcpFlow)>);

impl Flows {
    fn start(client: &Pod, backend: &Pod) -> Flows {
        let both = |ip: IpAddr| {
            let service = services().into_iter().find(|service| service.is_ipv4() == ip.is_ipv4()).unwrap();
            let service = SocketAddr::new(service.ip(), FLOW_PORT);
            let at = SocketAddr::new(ip, FLOW_BACKEND_PORT);
            let udp = UdpFlow::through(&client.ns, &backend.ns, at, Some(service)).unwrap();
            (service, udp, TcpFlow::through(&client.ns, &backend.ns, at, Some(service)).unwrap())
        };
        Flows(backend.addresses().map(both).into())
    }

    fn assert_perfect(self, node: &Node) {
        for (service, udp, tcp) in self.0 {
            let (udp, tcp) = (udp.stop(), tcp.stop());
            assert!(udp.is_perfect(), "{service}: {udp:?}\n{}", node.log());
            assert!(tcp.is_perfect(), "{service}: {tcp:?}\n{}", node.log());
        }
    }
}

/// Connections keep their backend while others are added and removed, until their own is removed.
#[test]
fn connections_stay_while_backends_come_and_go() {
    require_root!();
    let mut node = node();
    let (client, one, two, three) =
        (node.add_pod("client"), node.add_pod("one"), node.add_pod("two"), node.add_pod("three"));
    let _servers = [&one, &two, &three].map(Server::start);
    serve(&node, &[(&one, State::Ready)]);
    let flows = Flows::start(&client, &one);
    for _ in 0..10 {
        serve(&node, &[(&one, State::Ready), (&two, State::Ready), (&three, State::Ready)]);
        serve(&node, &[(&two, State::Ready), (&one, State::Ready)]);
        // It leaves: what it has stays, what is new goes elsewhere.
        serve(&node, &[(&two, State::Ready), (&one, State::Leaving)]);
        for service in services() {
            for protocol in PROTOCOLS {
                wait_for_only("two", &client, service, protocol);
            }
        }
        serve(&node, &[(&one, State::Ready)]);
    }
    flows.assert_perfect(&node);

    // The control: flows to a backend that is gone arrive there no longer.
    let flows = Flows::start(&client, &one);
    sleep(Duration::from_millis(100));
    serve(&node, &[(&two, State::Ready)]);
    sleep(Duration::from_millis(50));
    let before: Vec<u64> = flows.0.iter().map(|(_, udp, _)| udp.received()).collect();
    sleep(Duration::from_millis(200));
    let after: Vec<u64> = flows.0.iter().map(|(_, udp, _)| udp.received()).collect();
    assert!(before.iter().all(|packets| *packets > 0), "{before:?}");
    assert_eq!(before, after, "{}", node.log());
    for (_, udp, tcp) in flows.0 {
        let report = udp.stop();
        assert!(report.received < report.sent, "{report:?}");
        assert!(tcp.stop().error.is_some());
    }
}
