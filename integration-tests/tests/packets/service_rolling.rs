//! A set of 1,000 backends is replaced twice under load: clients of a live backend get replies, and no request is sent
//! to a backend after its removal.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use bpf::Map;
use datapath_abi::{LbBackend, LbService, LbServiceKey, ipv4_from_word, ipv4_word, lb_backend_state};
use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{NetNs, require_root, try_wait_until};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle as Task;

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const SERVICE_PORT: u16 = 80;
const PODS: usize = 4;
/// Backends are ports of the pods; a slice has one port at all of them.
const PORTS: u16 = 250;
/// Number of ports that are added and removed at once: a tenth.
const STEP: u16 = 25;
const STEPS: u16 = 20;
const FIRST: u16 = 10_000;
/// Requests use source ports only once, so that no entry of an earlier connection matches.
const CLIENT_PORTS: Range<u16> = 1_024..u16::MAX;
const PATIENCE: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(60);

type Backend = (IpAddr, u16);

/// Backends that run: each answers requests with its port, until it is stopped.
struct Servers {
    runtime: Runtime,
    running: HashMap<Backend, Task<()>>,
}

impl Servers {
    fn new() -> Servers {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Servers { runtime: runtime.unwrap(), running: HashMap::new() }
    }

    fn start(&mut self, pods: &[Pod], ports: Range<u16>) {
        for pod in pods {
            let bind = |port| UdpSocket::bind((pod.ipv4, port)).unwrap();
            let sockets: Vec<UdpSocket> = pod.ns.run(|| ports.clone().map(bind).collect());
            for (port, socket) in ports.clone().zip(sockets) {
                socket.set_nonblocking(true).unwrap();
                let task = self.runtime.spawn(async move {
                    let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
                    let (mut question, name) = ([0; 16], port.to_string());
                    loop {
                        if let Ok((_, client)) = socket.recv_from(&mut question).await {
                            let _ = socket.send_to(name.as_bytes(), client).await;
                        }
                    }
                });
                self.running.insert((pod.ipv4, port), task);
            }
        }
    }

    /// Their sockets are closed: a request that is sent there is refused.
    fn stop(&mut self, pods: &[Pod], ports: Range<u16>) {
        for backend in pods.iter().flat_map(|pod| ports.clone().map(|port| (pod.ipv4, port))) {
            let task = self.running.remove(&backend).unwrap();
            task.abort();
            while !task.is_finished() {
                sleep(Duration::from_micros(100));
            }
        }
    }
}

/// One request: when it began, how long it took, and which port answered.
struct Request {
    begin: Instant,
    took: Duration,
    answer: Result<u16, String>,
}

/// Requests, a thousand a second, one after the other.
struct Requests {
    stop: Arc<AtomicBool>,
    finished: Arc<AtomicUsize>,
    sender: JoinHandle<Vec<Request>>,
}

impl Requests {
    fn start(from: &NetNs) -> Requests {
        let (stop, finished) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (ns, stopped, done) = (from.clone(), stop.clone(), finished.clone());
        let work = move || {
            ns.run(|| {
                let start = Instant::now();
                let (mut requests, mut due) = (Vec::new(), Duration::ZERO);
                for port in CLIENT_PORTS {
                    if stopped.load(Ordering::Relaxed) {
                        break;
                    }
                    let begin = Instant::now();
                    let answer = ask(port).map_err(|error| error.to_string());
                    requests.push(Request { begin, took: begin.elapsed(), answer });
                    done.fetch_add(1, Ordering::AcqRel);
                    // On a machine so slow that ports would run out, fewer.
                    due += Duration::from_millis(if requests.len() < 40_000 { 1 } else { 10 });
                    sleep(due.saturating_sub(start.elapsed()));
                }
                requests
            })
        };
        let sender = Builder::new().name("requests".to_owned()).spawn(work).unwrap();
        Requests { stop, finished, sender }
    }

    /// Waits until all requests in flight are answered.
    fn drain(&self) {
        let now = self.finished.load(Ordering::Acquire);
        let probe = || match self.finished.load(Ordering::Acquire) {
            finished if finished > now + 1 => Ok(()),
            finished => Err(format!("{finished} requests")),
        };
        try_wait_until(LIMIT, probe).unwrap();
    }

    fn stop(self) -> Vec<Request> {
        self.stop.store(true, Ordering::Relaxed);
        self.sender.join().unwrap()
    }
}

fn ask(from: u16) -> std::io::Result<u16> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, from))?;
    socket.connect((SERVICE, SERVICE_PORT))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(b"who")?;
    let mut answer = [0; 16];
    let length = socket.recv(&mut answer)?;
    let text = std::str::from_utf8(&answer[..length]).ok().and_then(|text| text.parse().ok());
    text.ok_or_else(|| std::io::Error::other(format!("{answer:?}")))
}

/// The service's slices: ports that are ready, and ports that are about to leave.
fn slices(pods: &[Pod], ready: Range<u16>, leaving: Range<u16>) -> String {
    let slice = |port: u16, leaves: bool| -> Value {
        let conditions = json!({"ready": !leaves, "serving": true, "terminating": leaves});
        let endpoint = |pod: &Pod| json!({"addresses": [pod.ipv4], "conditions": conditions});
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("web-{port}"),
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": "IPv4",
            "ports": [{"protocol": "UDP", "port": port}],
            "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
        })
    };
    let slices = ready.map(|port| slice(port, false)).chain(leaving.map(|port| slice(port, true)));
    slices.fold(String::new(), |mut text, slice| {
        writeln!(text, "---\n{slice}").unwrap();
        text
    })
}

/// The maps of the kernel, read as a program would.
struct Maps {
    services: Map<LbServiceKey<u32>, LbService>,
    backends: Map<u32, LbBackend<u32>>,
}

impl Maps {
    fn open(node: &Node) -> Maps {
        let (services, backends) = ("cilium_lb4_services_v2", "cilium_lb4_backends_v3");
        Maps {
            services: Map::open(&node.pin(services)).unwrap(),
            backends: Map::open(&node.pin(backends)).unwrap(),
        }
    }

    /// Waits until the service has these backends and the maps no others. Returns the duration.
    fn settle(&self, node: &Node, pods: &[Pod], ready: &Range<u16>, leaving: &Range<u16>) -> Duration {
        let begin = Instant::now();
        let of = |ports: &Range<u16>, state: u8| {
            let at = |port: u16| pods.iter().map(move |pod| ((pod.ipv4, port), state));
            ports.clone().flat_map(at).collect::<Vec<_>>()
        };
        let mut wanted: BTreeMap<Backend, u8> = of(ready, lb_backend_state::ACTIVE).into_iter().collect();
        wanted.extend(of(leaving, lb_backend_state::TERMINATING));
        let count = |ports: &Range<u16>| (ports.len() * PODS) as u16;
        // Those that leave serve as long as there are no others.
        let counts = match ready.is_empty() {
            true => (count(leaving), 0),
            false => (count(ready), count(leaving)),
        };
        let key = LbServiceKey {
            address: ipv4_word(SERVICE),
            dport: SERVICE_PORT.to_be(),
            backend_slot: 0,
            proto: 17,
            scope: 0,
            pad: [0; 2],
        };
        let probe = || {
            let master = self.services.lookup(&key).unwrap();
            let found = master.map_or((0, 0), |row| (row.count, row.qcount));
            if found != counts {
                return Err(format!("counts {found:?} instead of {counts:?}"));
            }
            let rows = self.backends.entries().unwrap().into_iter();
            let rows = rows.map(|(_, row)| {
                ((IpAddr::from(ipv4_from_word(row.address)), u16::from_be(row.port)), row.state)
            });
            let found: BTreeMap<Backend, u8> = rows.collect();
            if found == wanted { Ok(()) } else { Err(format!("{} backends", found.len())) }
        };
        if let Err(error) = try_wait_until(LIMIT, probe) {
            panic!("{ready:?} {leaving:?}: {error}\n{}", node.log());
        }
        begin.elapsed()
    }
}

const SERVICE_MANIFEST: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\n\
    spec: {type: ClusterIP, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80, protocol: UDP}]}\n";

#[expect(clippy::print_stdout, reason = "the numbers of the specification")]
#[test]
fn no_request_fails_while_a_thousand_backends_roll_over_twice() {
    require_root!();
    let mut node = Node::started();
    let client = node.add_pod("client");
    let pods: Vec<Pod> = (0..PODS).map(|n| node.add_pod(&format!("server{n}"))).collect();
    let mut servers = Servers::new();
    let (mut ready, mut leaving) = (FIRST..FIRST + PORTS, FIRST..FIRST);
    servers.start(&pods, ready.clone());
    node.apply("service.yaml", SERVICE_MANIFEST);
    node.apply("slices.yaml", &slices(&pods, ready.clone(), leaving.clone()));
    let maps = Maps::open(&node);
    maps.settle(&node, &pods, &ready, &leaving);

    let requests = Requests::start(&client.ns);
    // The time from which no request may be sent to a port any more.
    let mut left: BTreeMap<u16, Instant> = BTreeMap::new();
    let mut times = Vec::new();
    for step in 0..=STEPS {
        let gone = leaving.clone();
        // Some come, as many are about to leave, and those of the step before are gone. At last all leave together.
        (ready, leaving) = match step < STEPS {
            true => (ready.start + STEP..ready.end + STEP, ready.start..ready.start + STEP),
            false => (ready.end..ready.end, ready.clone()),
        };
        if !ready.is_empty() {
            servers.start(&pods, ready.end - STEP..ready.end);
        }
        node.apply("slices.yaml", &slices(&pods, ready.clone(), leaving.clone()));
        if step % 7 == 3 {
            // Kill the agent before it has completed the change.
            sleep(Duration::from_millis(u64::from(step) * 50));
            node.kill();
            node.spawn();
        }
        times.push(maps.settle(&node, &pods, &ready, &leaving));
        if !ready.is_empty() {
            left.extend(leaving.clone().map(|port| (port, Instant::now())));
        }
        requests.drain();
        servers.stop(&pods, gone);
    }
    node.wait_ready();
    sleep(Duration::from_millis(200));
    let requests = requests.stop();

    let failed: Vec<String> = requests
        .iter()
        .enumerate()
        .filter_map(|(n, request)| Some(format!("request {n}: {}", request.answer.as_ref().err()?)))
        .collect();
    assert!(failed.is_empty(), "{} of {}: {failed:?}\n{}", failed.len(), requests.len(), node.log());
    let answers = || requests.iter().filter_map(|request| Some((request, *request.answer.as_ref().ok()?)));
    let late: Vec<_> = answers()
        .filter(|(request, port)| left.get(port).is_some_and(|left| request.begin > *left))
        .map(|(_, port)| port)
        .collect();
    assert!(late.is_empty(), "sent to ports that had left: {late:?}");
    let ports: BTreeSet<u16> = answers().map(|(_, port)| port).collect();
    assert!(
        requests.len() > 1_000 && ports.len() > 2 * usize::from(PORTS),
        "{} {}",
        requests.len(),
        ports.len()
    );
    let (longest, slowest) = (times.iter().max(), requests.iter().map(|request| request.took).max());
    println!("{} requests, the slowest {slowest:?}; steps took at most {longest:?}", requests.len());

    // The control: with its servers gone, requests fail.
    servers.stop(&pods, leaving);
    let refused = client.ns.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.connect(SocketAddr::from((SERVICE, SERVICE_PORT))).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send(b"who").unwrap();
        socket.recv(&mut [0; 16]).is_err()
    });
    assert!(refused);
}
