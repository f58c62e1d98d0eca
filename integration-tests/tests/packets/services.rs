//! Packets to services: requests of pods to a service's address, and the replies.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use integration_tests::{Node, Pod, ServiceFixture as Fixture};
use serde_json::json;
use test_kit::{NetNs, require_root};

const IPV4: &str = "10.96.0.10";
const IPV6: &str = "fd00:96::10";
const SERVICE_PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
/// Longer than any reply takes on a busy machine; requests that must fail wait this long.
pub(crate) const PATIENCE: Duration = Duration::from_millis(700);

/// Answers every request with the pod's name, until the test ends. A TCP connection may have several requests.
fn serve(pod: &Pod) {
    serve_at(&pod.ns, &pod.addresses(), &pod.name);
}

/// The same in a namespace at these addresses.
pub(crate) fn serve_at(ns: &NetNs, addresses: &[IpAddr], name: &str) {
    for &ip in addresses {
        let address = SocketAddr::new(ip, BACKEND_PORT);
        let name: Arc<str> = name.into();
        let udp = ns.run(|| UdpSocket::bind(address)).unwrap();
        let answer = name.clone();
        thread(move || {
            let mut request = [0; 64];
            while let Ok((_, from)) = udp.recv_from(&mut request) {
                let _ = udp.send_to(answer.as_bytes(), from);
            }
        });
        let tcp = ns.run(|| TcpListener::bind(address)).unwrap();
        thread(move || {
            for mut stream in tcp.incoming().flatten() {
                let answer = name.clone();
                thread(move || {
                    let mut request = [0; 1];
                    while stream.read_exact(&mut request).is_ok() {
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
    }
}

pub(crate) fn thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(work).unwrap()
}

/// One UDP request from a port of its own; the answer counts only if it comes from the address that was asked.
pub(crate) fn udp(from: &NetNs, to: SocketAddr) -> Option<String> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket =
        from.run(|| UdpSocket::bind(any).and_then(|socket| socket.connect(to).map(|()| socket))).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send(b"?").ok()?;
    let mut answer = [0; 64];
    let length = socket.recv(&mut answer).ok()?;
    Some(String::from_utf8(answer[..length].to_vec()).unwrap())
}

pub(crate) fn connect(from: &NetNs, to: SocketAddr) -> Option<TcpStream> {
    let stream = from.run(|| TcpStream::connect_timeout(&to, PATIENCE)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    Some(stream)
}

pub(crate) fn ask(stream: &mut TcpStream) -> Option<String> {
    stream.write_all(b"?").ok()?;
    let mut answer = [0; 64];
    match stream.read(&mut answer).ok()? {
        0 => None,
        length => Some(String::from_utf8(answer[..length].to_vec()).unwrap()),
    }
}

pub(crate) fn tcp(from: &NetNs, to: SocketAddr) -> Option<String> {
    ask(&mut connect(from, to)?)
}

/// Returns the destinations that `apiary why` names for TCP packets from one address to another, and its whole text.
pub(crate) fn explained(
    apiary: impl Fn(&[&str]) -> String,
    from: IpAddr,
    to: SocketAddr,
    sport: Option<u16>,
) -> (BTreeSet<SocketAddr>, String) {
    let (from, ip, target) = (from.to_string(), to.ip().to_string(), format!("{}/TCP", to.port()));
    let mut arguments = vec!["why", &from, &ip, &target];
    let sport = sport.map(|port| format!("--source-port={port}"));
    arguments.extend(sport.as_deref());
    let text = apiary(&arguments);
    arguments.extend(["-o", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&apiary(&arguments)).unwrap();
    let branches = answer["path"]["branches"].as_array().unwrap();
    (branches.iter().map(|branch| branch["destination"].as_str().unwrap().parse().unwrap()).collect(), text)
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

fn both() -> [SocketAddr; 2] {
    [at(IPV4, SERVICE_PORT), at(IPV6, SERVICE_PORT)]
}

fn web(pods: &[&Pod]) -> Fixture {
    let ips: Vec<String> = pods.iter().flat_map(|pod| pod.addresses()).map(|ip| ip.to_string()).collect();
    let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
    Fixture::new("web", &[IPV4, IPV6], &ips)
}

/// A node with a client and servers.
fn node(servers: &[&str]) -> (Node, Pod, Vec<Pod>) {
    let mut node = Node::new();
    node.follow_services("lb.yaml");
    node.start();
    let client = node.add_pod("client");
    let servers: Vec<Pod> = servers.iter().map(|name| node.add_pod(name)).collect();
    servers.iter().for_each(serve);
    (node, client, servers)
}

/// Packets dropped so far because a service had no backend.
fn drops(node: &Node) -> u64 {
    let metrics = node.apiary(&["bpf", "metrics", "list", "-o", "json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&metrics).unwrap();
    let rows = rows.iter().filter(|row| row["reason"] == "Service backend not found");
    rows.filter_map(|row| row["packets"].as_u64()).sum()
}

#[test]
fn a_service_answers_under_its_own_address_on_its_own_port() {
    require_root!();
    let (node, client, servers) = node(&["one"]);
    for to in both() {
        assert_eq!((udp(&client.ns, to), tcp(&client.ns, to)), (None, None), "there is no service yet");
    }
    node.serve(&[web(&[&servers[0]])]);
    for to in both() {
        let one = Some("one".to_owned());
        assert_eq!((udp(&client.ns, to), tcp(&client.ns, to)), (one.clone(), one), "{to}\n{}", node.log());
        // The same but for the port.
        let beside = SocketAddr::new(to.ip(), SERVICE_PORT + 1);
        assert_eq!((udp(&client.ns, beside), tcp(&client.ns, beside)), (None, None), "{beside}");
    }
    // The backend itself stays reachable by its own name.
    for ip in servers[0].addresses() {
        let to = SocketAddr::new(ip, BACKEND_PORT);
        let one = Some("one".to_owned());
        assert_eq!((udp(&client.ns, to), tcp(&client.ns, to)), (one.clone(), one));
    }
    node.serve(&[]);
    for to in both() {
        assert_eq!((udp(&client.ns, to), tcp(&client.ns, to)), (None, None), "{to} is gone");
    }
}

#[test]
fn new_connections_go_to_all_backends_and_old_ones_stay() {
    require_root!();
    let (node, client, servers) = node(&["one", "two"]);
    let (one, two) = (&servers[0], &servers[1]);
    let asked = |ask: fn(&NetNs, SocketAddr) -> Option<String>, to| -> BTreeSet<String> {
        (0..40)
            .map(|n| ask(&client.ns, to).unwrap_or_else(|| panic!("request {n} to {to}\n{}", node.log())))
            .collect()
    };
    let names = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|&name| name.to_owned()).collect() };
    for to in both() {
        node.serve(&[web(&[one])]);
        let mut old = connect(&client.ns, to).unwrap();
        assert_eq!(ask(&mut old).as_deref(), Some("one"));
        node.serve(&[web(&[one, two])]);
        assert_eq!((asked(udp, to), asked(tcp, to)), (names(&["one", "two"]), names(&["one", "two"])));
        for _ in 0..20 {
            assert_eq!(ask(&mut old).as_deref(), Some("one"), "a connection stays where it is");
        }
        let own = old.local_addr().unwrap();
        let addresses = |pods: &[&Pod]| -> BTreeSet<SocketAddr> {
            let ips = pods.iter().flat_map(|pod| pod.addresses());
            ips.filter(|ip| ip.is_ipv4() == to.is_ipv4())
                .map(|ip| SocketAddr::new(ip, BACKEND_PORT))
                .collect()
        };
        let (new, text) = explained(|arguments| node.apiary(arguments), own.ip(), to, None);
        assert_eq!(new, addresses(&[one, two]), "{text}");
        let (known, text) = explained(|arguments| node.apiary(arguments), own.ip(), to, Some(own.port()));
        assert_eq!(known, addresses(&[one]), "{text}");
        assert!(text.contains("the connection keeps its backend"), "{text}");
        assert!(text.contains(&format!("source {} becomes {to}", known.first().unwrap())), "{text}");
        node.serve(&[web(&[two])]);
        assert_eq!((asked(udp, to), asked(tcp, to)), (names(&["two"]), names(&["two"])));
    }
}

#[test]
fn a_client_with_affinity_stays_with_its_backend() {
    require_root!();
    let (node, client, servers) = node(&["one", "two", "three"]);
    let servers: Vec<&Pod> = servers.iter().collect();
    let sticky = |pods: &[&Pod]| web(pods).with(json!({"sessionAffinity": "ClientIP"}));
    node.serve(&[sticky(&servers)]);
    for to in both() {
        let first = tcp(&client.ns, to).unwrap();
        for _ in 0..20 {
            assert_eq!(tcp(&client.ns, to).as_ref(), Some(&first));
        }
        // Without its backend it gets another, and stays there.
        let left: Vec<&Pod> = servers.iter().copied().filter(|pod| pod.name != first).collect();
        node.serve(&[sticky(&left)]);
        let second = tcp(&client.ns, to).unwrap();
        assert_ne!(second, first);
        for _ in 0..20 {
            assert_eq!(tcp(&client.ns, to).as_ref(), Some(&second));
        }
        node.serve(&[sticky(&servers)]);
    }
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    require_root!();
    let (node, client, servers) = node(&["one"]);
    node.serve(&[web(&[&servers[0]])]);
    for to in both() {
        let one = Some("one".to_owned());
        assert_eq!((udp(&servers[0].ns, to), tcp(&servers[0].ns, to)), (one.clone(), one.clone()), "{to}");
        assert_eq!(tcp(&client.ns, to), one);
    }
}

/// Returns the error of a request.
pub(crate) fn refusal(from: &NetNs, to: SocketAddr) -> [ErrorKind; 2] {
    // An ICMP error that arrives while connect(2) still holds the socket does not count; the next one, a second later, does.
    let tcp = from.run(|| TcpStream::connect_timeout(&to, Duration::from_millis(2500))).unwrap_err();
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let udp = from.run(|| UdpSocket::bind(any).and_then(|udp| udp.connect(to).map(|()| udp))).unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    udp.send(b"?").unwrap();
    [tcp.kind(), udp.recv(&mut [0]).unwrap_err().kind()]
}

#[test]
fn a_service_without_backends_refuses_or_drops() {
    require_root!();
    for (response, kinds, counted) in [
        ("reject", [ErrorKind::ConnectionRefused; 2], 0),
        ("drop", [ErrorKind::TimedOut, ErrorKind::WouldBlock], 4),
    ] {
        let mut node = Node::new();
        node.follow_services("lb.yaml");
        node.config.insert("service-no-backend-response".to_owned(), response.to_owned());
        node.start();
        let client = node.add_pod("client");
        node.serve(&[web(&[])]);
        for to in both() {
            assert_eq!(refusal(&client.ns, to), kinds, "{to} {response}");
            let from = client.addresses().into_iter().find(|ip| ip.is_ipv4() == to.is_ipv4()).unwrap();
            let target = format!("{}/TCP", to.port());
            // Its status is a failure, as the packet does not arrive.
            let question = ["why", &from.to_string(), &to.ip().to_string(), &target];
            let why = node.apiary_command(&question).output().unwrap();
            let why = String::from_utf8(why.stdout).unwrap();
            let expected = if response == "reject" { "REFUSED" } else { "DROPPED" };
            assert!(why.contains(&format!("{expected}, the service has no active backend")), "{why}");
        }
        assert!(drops(&node) >= counted, "{response}: {}", node.apiary(&["bpf", "metrics", "list"]));
    }
}

#[test]
fn addresses_of_load_balancers_are_served_to_pods() {
    require_root!();
    let (node, client, servers) = node(&["one"]);
    let mut service = web(&[&servers[0]])
        .with(json!({"type": "LoadBalancer", "externalIPs": ["198.51.100.7", "2001:db8:5::7"]}));
    service.status = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}, {"ip": "2001:db8:6::7"}]}});
    node.serve(&[service]);
    for ip in ["198.51.100.7", "2001:db8:5::7", "203.0.113.7", "2001:db8:6::7"] {
        assert_eq!(tcp(&client.ns, at(ip, SERVICE_PORT)).as_deref(), Some("one"), "{ip}\n{}", node.log());
    }
}

/// Requests from ever new ports, a thousand a second, until the stop; returns how many, and which ones failed.
struct Requests {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    sender: JoinHandle<Vec<String>>,
}

impl Requests {
    fn start(from: &NetNs, to: SocketAddr) -> Requests {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ns, stopped, counted) = (from.clone(), stop.clone(), count.clone());
        let sender = thread(move || {
            let begin = Instant::now();
            let mut failed = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let sent = counted.fetch_add(1, Ordering::Relaxed);
                if udp(&ns, to).is_none() {
                    failed.push(format!("request {sent} to {to} after {:?}", begin.elapsed()));
                }
                let due = Duration::from_millis(sent + 1);
                sleep(due.saturating_sub(begin.elapsed()));
            }
            failed
        });
        Requests { stop, count, sender }
    }

    /// Returns the number of requests, and the failed ones.
    fn stop(self) -> (u64, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self.sender.join().unwrap();
        (self.count.load(Ordering::Relaxed), failed)
    }
}

#[test]
fn no_request_fails_while_backends_roll_over_and_the_agent_restarts() {
    require_root!();
    let (mut node, client, servers) = node(&["one", "two", "three", "four"]);
    let set = |first: usize| web(&[&servers[first % 4], &servers[(first + 1) % 4]]);
    node.serve(&[set(0)]);
    let requests: Vec<Requests> = both().map(|to| Requests::start(&client.ns, to)).into();
    // Repeatedly one backend is removed and one added, all of them alive.
    for first in 1..=20 {
        node.serve(&[set(first)]);
    }
    node.stop();
    sleep(Duration::from_millis(50));
    node.start();
    node.serve(&[set(21)]);
    node.kill();
    sleep(Duration::from_millis(50));
    node.start();
    node.serve(&[set(22)]);
    for requests in requests {
        let (count, failed) = requests.stop();
        assert!(count > 100 && failed.is_empty(), "{} of {count}: {failed:?}\n{}", failed.len(), node.log());
    }
}

#[test]
fn connections_and_streams_stay_over_restarts() {
    require_root!();
    let (mut node, client, servers) = node(&["one", "two"]);
    node.serve(&[web(&[&servers[0], &servers[1]])]);
    let mut streams: Vec<(SocketAddr, TcpStream, String)> = Vec::new();
    for to in both() {
        for _ in 0..4 {
            let mut stream = connect(&client.ns, to).unwrap();
            let name = ask(&mut stream).unwrap();
            streams.push((to, stream, name));
        }
    }
    for kill in [false, true] {
        if kill {
            node.kill();
        } else {
            node.stop();
        }
        let mut check = |when: &str| {
            for (to, stream, name) in &mut streams {
                assert_eq!(ask(stream).as_ref(), Some(&*name), "{to} {when}, kill {kill}");
            }
        };
        check("while no agent runs");
        node.spawn();
        check("while it starts");
        node.wait_ready();
        check("afterwards");
    }
}

/// Maps of another size are other maps: programs and agent have the same ones.
#[test]
fn services_go_on_in_maps_of_another_size() {
    require_root!();
    let (mut node, client, servers) = node(&["one", "two"]);
    node.serve(&[web(&[&servers[0]])]);
    for (rows, server) in [("1000", 1), ("2000", 0)] {
        let old: Vec<TcpStream> = both().iter().map(|to| connect(&client.ns, *to).unwrap()).collect();
        node.stop();
        node.config.insert("bpf-lb-map-max".to_owned(), rows.to_owned());
        node.start();
        let before = servers[1 - server].name.as_str();
        for (to, mut old) in both().into_iter().zip(old) {
            assert_eq!(tcp(&client.ns, to).as_deref(), Some(before), "{to} {rows}\n{}", node.log());
            assert_eq!(ask(&mut old).as_deref(), Some(before), "{to} {rows}");
        }
        node.serve(&[web(&[&servers[server]])]);
        for to in both() {
            let now = Some(servers[server].name.as_str());
            assert_eq!(
                (udp(&client.ns, to).as_deref(), tcp(&client.ns, to).as_deref()),
                (now, now),
                "{to} {rows}"
            );
        }
    }
}

/// An unused address does not answer in any of these tests: the controls above can fail.
#[test]
fn nobody_answers_where_nobody_is() {
    require_root!();
    let (_node, client, servers) = node(&["one"]);
    let ip: IpAddr = servers[0].ipv4;
    assert_eq!(udp(&client.ns, SocketAddr::new(ip, BACKEND_PORT + 1)), None);
    assert_eq!(udp(&client.ns, SocketAddr::new(ip, BACKEND_PORT)).as_deref(), Some("one"));
}
