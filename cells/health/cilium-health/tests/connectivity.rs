//! Responder, prober and API in network namespaces of their own: a node, and peers that answer, refuse, drop and lie.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use api::StatusSource;
use api_models::{HealthStatusResponse, NodeStatus, StatusResponse};
use cilium_health::{Failure, NodeHealth, Path as HealthPath};
use hive::job::Jobs;
use hive::prelude::*;
use hive::{HealthTree, Level, TestHive};
use local_node::{LocalNode, LocalNodeStore, StateConfig};
use maps::FamilyConfig;
use metrics::Metrics;
use node_manager::testing::{Nodes, given, node};
use node_manager::{Node, NodeSource};
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, Socket, Type};
use statedb::Table;
use status::Collector;
use test_kit::{NetNs, Sandbox, require_root};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const PORT: u16 = 4240;
const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Answers both checks.
const GOOD: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// No program listens.
const SILENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
/// All packets are dropped.
const LOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 4);
const GOOD_IPV6: &str = "2001:db8::2";
const OWN_IPV6: &str = "2001:db8::1";

/// The status sources of the hive.
struct Sources(Vec<StatusSource>);

fn hive(run: &Path, nodes: Vec<Node>) -> TestHive {
    let collector = |tree: Arc<HealthTree>, jobs: Arc<Jobs>| Arc::new(Collector::new(vec![], tree, jobs));
    let own = LocalNode {
        name: "n1".to_owned(),
        cluster: "default".to_owned(),
        ipv4: Some(OWN),
        ipv6: Some(OWN_IPV6.parse().unwrap()),
        ..LocalNode::default()
    };
    TestHive::new([
        statedb::cell(),
        module("options", "Options of other cells", [config::<FamilyConfig>(), config::<StateConfig>()]),
        local_node::testing::given(own),
        given(nodes),
        module(
            "fakes",
            "Parts of other cells",
            [provide(collector), provide(|| Arc::new(Metrics::default()))],
        ),
        cilium_health::cell(),
        provide(|sources: Group<StatusSource>| Arc::new(Sources(sources.to_vec()))),
        invoke(|_: Arc<Sources>, _: Arc<Nodes>, _: Arc<LocalNodeStore>, _: Arc<Table<NodeHealth>>| ()),
    ])
    .set("state-dir", run.display())
}

fn own() -> Node {
    Node { source: NodeSource::Local, ..node("n1", &["192.0.2.1", OWN_IPV6], &[]) }
}

/// Runs the test in a sandbox: its host has an uplink to a namespace with the peers' addresses.
fn in_sandbox(work: impl AsyncFnOnce(&Sandbox, &NetNs)) {
    let sandbox = Sandbox::new().unwrap();
    let world = sandbox.netns("world").unwrap();
    sandbox.host().veth("eth0", &world, "eth0").unwrap();
    sandbox
        .host()
        .ip_batch(&format!("addr add {OWN}/24 dev eth0\naddr add {OWN_IPV6}/64 dev eth0 nodad\n"))
        .unwrap();
    world
        .ip_batch(&format!(
            "addr add {GOOD}/24 dev eth0\naddr add {SILENT}/24 dev eth0\naddr add {LOST}/24 dev eth0\n\
             addr add {GOOD_IPV6}/64 dev eth0 nodad\nrule add from {LOST} blackhole\n"
        ))
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(&sandbox, &world));
}

/// A peer's program on the health port, which sends the bytes to each connection.
struct Peer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    netns: NetNs,
}

impl Peer {
    fn start(netns: &NetNs, ip: IpAddr, answer: &'static str) -> Self {
        let address = SocketAddr::new(ip, PORT);
        let listener = netns.run(|| TcpListener::bind(address)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let _request = stream.read(&mut [0; 256]);
                let _sent = stream.write_all(answer.as_bytes());
            }
        });
        Self { address, stop, thread: thread.ok(), netns: netns.clone() }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _woken = self.netns.run(|| std::net::TcpStream::connect(self.address));
        self.thread.take().map(JoinHandle::join);
    }
}

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Sends a request to the API; returns status and body.
async fn request(run: &Path, method: &str, path: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(run.join("health.sock")).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Probes all nodes; returns them by name.
async fn probe(hive: &TestHive, run: &Path) -> Vec<NodeStatus> {
    let socket = run.join("health.sock");
    hive.until("the API answers", || std::os::unix::net::UnixStream::connect(&socket).is_ok()).await;
    let (status, body) = request(run, "PUT", "/v1beta/status/probe").await;
    assert_eq!(status, 200, "{body}");
    let answer: HealthStatusResponse = serde_json::from_str(&body).unwrap();
    assert_eq!(answer.local.unwrap().name, "n1");
    answer.nodes.to_vec()
}

fn rows(hive: &TestHive) -> Vec<NodeHealth> {
    let table = hive.get::<Table<NodeHealth>>();
    table.all(&table.snapshot()).map(|row| NodeHealth::clone(row)).collect()
}

fn health(hive: &TestHive, path: &str) -> Option<(Level, String)> {
    let status = hive.hive().health().at(path)?;
    Some((status.level, format!("{}{}", status.message, status.error)))
}

#[test]
fn peers_that_answer_refuse_and_are_lost() {
    require_root!();
    in_sandbox(async |sandbox, world| {
        let run = sandbox.run_dir();
        let _v4 = Peer::start(world, GOOD.into(), HELLO);
        let _v6 = Peer::start(world, GOOD_IPV6.parse().unwrap(), HELLO);
        let mut good = node("good", &["192.0.2.2", GOOD_IPV6], &[]);
        // The peer's health endpoint does not listen.
        good.health_ipv4 = Some(SILENT);
        let nodes = vec![own(), good, node("lost", &["192.0.2.4"], &[]), node("silent", &["192.0.2.3"], &[])];
        let mut hive = hive(&run, nodes);
        hive.start().await;
        let nodes = probe(&hive, &run).await;
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["good", "lost", "n1", "silent"]);
        let host = |at: usize| nodes[at].host.clone().unwrap();
        for (at, secondary) in [(0, GOOD_IPV6), (2, OWN_IPV6)] {
            let mut paths = vec![host(at).primary_address.unwrap()];
            paths.extend(host(at).secondary_addresses.to_vec());
            assert_eq!(paths[1].ip, secondary);
            for path in paths {
                for check in [path.icmp.unwrap(), path.http.unwrap()] {
                    assert_eq!(check.status, "", "{}", path.ip);
                    assert!(check.latency > 0);
                    assert!(!check.last_probed.is_empty());
                }
            }
        }
        let lost = host(1).primary_address.unwrap();
        for check in [lost.icmp.unwrap(), lost.http.unwrap()] {
            assert_eq!((check.status.as_str(), check.latency), ("Connection timed out", 0));
        }
        let refused =
            "Get \"http://192.0.2.3:4240/hello\": dial tcp 192.0.2.3:4240: connect: connection refused";
        let endpoint = nodes[0].health_endpoint.clone().unwrap().primary_address.unwrap();
        for path in [host(3).primary_address.unwrap(), endpoint] {
            assert_eq!(path.icmp.unwrap().status, "");
            assert_eq!(path.http.unwrap().status, refused);
        }

        // The same in the table, in health and in metrics.
        let rows = rows(&hive);
        assert_eq!(rows.len(), 4);
        assert!(matches!(rows[3].host[..], [HealthPath { http: Some(Err(Failure::Refused(_))), .. }]));
        let text = "3 of 4 nodes unreachable: good: endpoint 192.0.2.3 HTTP";
        hive.until("health names the nodes", || {
            health(&hive, "cilium-health.nodes").is_some_and(|(level, message)| {
                level == Level::Ok
                    && message.starts_with(text)
                    && message.contains("likely cause: the node is down")
            })
        })
        .await;
        let metrics = hive.get::<Metrics>().text();
        for line in [
            r#"cilium_node_health_connectivity_status{source_cluster="default",source_node_name="n1",type="node",status="unreachable"} 2"#,
            r#"cilium_node_health_connectivity_status{source_cluster="default",source_node_name="n1",type="endpoint",status="unreachable"} 1"#,
            "cilium_unreachable_nodes 2",
            "cilium_unreachable_health_endpoints 1",
        ] {
            assert!(metrics.contains(line), "{line}\n{metrics}");
        }
        // It is no fault of this agent.
        let mut status = StatusResponse::default();
        hive.get::<Sources>().0.iter().for_each(|source| source.fill(&mut status));
        assert_eq!(status.cluster.unwrap().cilium_health.unwrap().state, "Ok");
        assert!(hive.hive().health().snapshot().iter().all(|status| status.level != Level::Degraded));

        // The lost one answers again: the control of the rule; another one leaves the cluster.
        world.ip(&format!("rule del from {LOST} blackhole")).unwrap();
        let _lost = Peer::start(world, LOST.into(), HELLO);
        let table = hive.get::<Nodes>().0.clone();
        table.transact(|w| drop(w.delete(Node::by_name("default", "silent"))));
        hive.until("the row is removed", || self::rows(&hive).len() == 3).await;
        let nodes = probe(&hive, &run).await;
        let lost = nodes[1].host.clone().unwrap().primary_address.unwrap();
        assert_eq!((lost.icmp.unwrap().status, lost.http.unwrap().status), Default::default());
        hive.stop().await;
        assert!(!run.join("health.sock").exists());
    });
}

#[test]
fn the_api_answers_as_cilium() {
    require_root!();
    in_sandbox(async |sandbox, _| {
        let run = sandbox.run_dir();
        let mut hive = hive(&run, vec![]).set("enable-cilium-health-api-server-access", "Get*");
        hive.start().await;
        let socket = run.join("health.sock");
        hive.until("the API answers", || std::os::unix::net::UnixStream::connect(&socket).is_ok()).await;
        let (status, body) = request(&run, "GET", "/v1beta/status").await;
        // Cilium's recorded answer, with this node's name and time.
        let sample = include_str!("samples/health_status.json");
        let time =
            |text: &str| text.split("\"timestamp\":\"").nth(1).map(|time| time[..20].to_owned()).unwrap();
        let expected = sample.replace("peer1", "n1").replace(&time(sample), &time(&body));
        assert_eq!((status, body), (200, expected));
        let not_found = r#"{"code":404,"message":"path /v1beta/nope was not found"}"#.to_owned();
        assert_eq!(request(&run, "GET", "/v1beta/nope").await, (404, not_found));
        let wrong = r#"{"code":405,"message":"method GET is not allowed, but [PUT] are"}"#.to_owned();
        assert_eq!(request(&run, "GET", "/v1beta/status/probe").await, (405, wrong));
        let (status, body) = request(&run, "PUT", "/v1beta/status/probe").await;
        assert_eq!((status, body.contains("administratively disabled")), (403, true));
        // No round of the status has run in this hive.
        assert_eq!(request(&run, "GET", "/v1beta/healthz").await.0, 500);
        hive.stop().await;
    });
}

/// Returns the response of the responder to the first line of a request.
fn ask(netns: &NetNs, ip: IpAddr, line: &str) -> io::Result<String> {
    netns.run(|| {
        let mut stream = std::net::TcpStream::connect((ip, PORT))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(format!("{line} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })
}

/// The same from another thread, while this one runs the hive.
async fn answer(netns: &NetNs, ip: IpAddr, line: &'static str) -> io::Result<String> {
    let netns = netns.clone();
    tokio::task::spawn_blocking(move || ask(&netns, ip, line)).await.unwrap()
}

#[test]
fn the_responder_waits_for_its_port_and_follows_the_addresses() {
    require_root!();
    in_sandbox(async |sandbox, world| {
        let run = sandbox.run_dir();
        let occupied = TcpListener::bind((OWN, PORT)).unwrap();
        let mut hive = hive(&run, vec![own()]);
        hive.start().await;
        let path = "cilium-health.job-responder-ipv4";
        hive.until("the port is reported", || {
            health(&hive, path).is_some_and(|(level, message)| {
                level == Level::Degraded && message.contains("port 4240 of 192.0.2.1 is in use: free it")
            })
        })
        .await;
        let state = || {
            let mut status = StatusResponse::default();
            hive.get::<Sources>().0.iter().for_each(|source| source.fill(&mut status));
            status.cluster.unwrap().cilium_health.unwrap().state
        };
        assert_eq!(state(), "Failure");
        // The other family is served meanwhile, and the node's row says which path fails.
        assert!(
            answer(world, OWN_IPV6.parse().unwrap(), "GET /hello").await.unwrap().starts_with("HTTP/1.0 200")
        );
        drop(occupied);
        hive.until("the port is served", || state() == "Ok").await;
        let response = answer(world, OWN.into(), "GET /hello").await.unwrap();
        assert!(response.starts_with("HTTP/1.0 200 OK\r\n"), "{response}");
        assert!(response.ends_with("\r\n\r\n"), "no body: {response}");
        for line in ["GET /", "POST /hello", "GET /healthz"] {
            assert!(answer(world, OWN.into(), line).await.unwrap().starts_with("HTTP/1.0 404"), "{line}");
        }

        // The node gets another address, first in its row and then on the device.
        let other = Ipv4Addr::new(192, 0, 2, 9);
        hive.get::<LocalNodeStore>().update(|node| node.ipv4 = Some(other));
        hive.until("the address is missed", || state() == "Failure").await;
        assert!(answer(world, OWN.into(), "GET /hello").await.is_err(), "the old one is not served any more");
        sandbox.host().ip(&format!("addr add {other}/24 dev eth0")).unwrap();
        hive.until("the address is served", || state() == "Ok").await;
        assert!(answer(world, other.into(), "GET /hello").await.unwrap().starts_with("HTTP/1.0 200"));

        // Without an address of one family all addresses are served.
        hive.get::<LocalNodeStore>().update(|node| node.ipv4 = None);
        hive.until("all addresses are served", || {
            world.run(|| std::net::TcpStream::connect((OWN, PORT))).is_ok() && state() == "Ok"
        })
        .await;
        assert!(answer(world, OWN.into(), "GET /hello").await.unwrap().starts_with("HTTP/1.0 200"));
        assert!(
            answer(world, OWN_IPV6.parse().unwrap(), "GET /hello").await.unwrap().starts_with("HTTP/1.0 200")
        );
        assert!(hive.hive().health().at(path).is_none(), "the listener's report goes with it");
        hive.stop().await;
    });
}

/// Connections of a client that opens ever more of them and sends nothing, or a byte from time to time.
struct Flood {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    /// Each of the threads keeps 200 connections open and replaces the oldest ones. `bytes`: what a connection sends, one byte
    /// a round.
    fn start(netns: &NetNs, to: SocketAddr, bytes: [&'static [u8]; 3]) -> Self {
        let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let flood = |bytes: &'static [u8]| {
            let (netns, stop, opened) = (netns.clone(), stop.clone(), opened.clone());
            let work = move || {
                let mut streams: VecDeque<(std::net::TcpStream, usize)> = VecDeque::new();
                while !stop.load(Ordering::SeqCst) {
                    for _ in 0..20 {
                        let connect =
                            || std::net::TcpStream::connect_timeout(&to, Duration::from_millis(200));
                        if let Ok(stream) = netns.run(connect) {
                            opened.fetch_add(1, Ordering::SeqCst);
                            streams.push_back((stream, 0));
                        }
                    }
                    while streams.len() > 200 {
                        streams.pop_front();
                    }
                    for (stream, sent) in &mut streams {
                        if let Some(byte) = bytes.get(*sent..=*sent) {
                            // Fails for a connection that was evicted.
                            let _sent_or_evicted = stream.write_all(byte);
                            *sent += 1;
                        }
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            };
            std::thread::Builder::new().spawn(work).unwrap()
        };
        let threads = bytes.into_iter().map(flood).collect();
        Self { stop, opened, threads }
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[test]
fn idle_and_slow_connections_do_not_keep_probes_out() {
    require_root!();
    in_sandbox(async |sandbox, world| {
        let run = sandbox.run_dir();
        let mut hive = hive(&run, vec![]);
        hive.start().await;
        let path = "cilium-health.job-responder-ipv4";
        hive.until("the port is served", || health(&hive, path).is_some_and(|(_, text)| text == "Running"))
            .await;
        // Nothing, an incomplete request line, an incomplete header.
        let bytes = [&b""[..], b"GET /hel", b"GET /hello HTTP/1.1\r\nHost: x\r\nX-Slow: y"];
        let flood = Flood::start(world, (OWN, PORT).into(), bytes);
        hive.until("more connections are open than fit", || flood.opened() > 600).await;
        for round in 0..20 {
            let answer = answer(world, OWN.into(), "GET /hello").await;
            assert!(
                answer.as_ref().is_ok_and(|text| text.starts_with("HTTP/1.0 200")),
                "{round}: {answer:?}"
            );
        }
        drop(flood);
        hive.stop().await;
    });
}

/// A peer that answers pings by a raw socket, truthfully or not.
struct PingPeer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The change that makes a reply false: of its bytes, from the ICMP header on; none for a true one.
type Change = fn(&mut [u8]);

impl PingPeer {
    fn start(netns: &NetNs, changes: &'static [Change]) -> Self {
        netns.set_sysctl("net/ipv4/icmp_echo_ignore_all", "1").unwrap();
        let mut socket = netns.run(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            let mut packet = [0; 256];
            while !stopped.load(Ordering::SeqCst) {
                let Ok(length) = socket.read(&mut packet) else { continue };
                let source = Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]);
                let message = &packet[20..length];
                if message[0] != 8 {
                    continue;
                }
                for change in changes {
                    let mut reply = message.to_vec();
                    reply[0] = 0;
                    change(&mut reply);
                    reply[2..4].copy_from_slice(&[0, 0]);
                    let sum =
                        reply.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
                    let sum = (sum & 0xffff) + (sum >> 16);
                    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
                    reply[2..4].copy_from_slice(&sum.to_be_bytes());
                    socket.send_to(&reply, &SocketAddr::new(source.into(), 0).into()).unwrap();
                }
            }
        });
        Self { stop, thread: thread.ok() }
    }
}

impl Drop for PingPeer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn replies_to_other_pings_do_not_count() {
    require_root!();
    const FALSE: &[Change] = &[
        |reply| reply[4] ^= 1,
        |reply| reply[7] ^= 0x80,
        |reply| reply[23] ^= 1,
        |reply| reply[0] = 3,
        |reply| reply[1] = 1,
    ];
    const TRUE: &[Change] = &[|_| ()];
    in_sandbox(async |sandbox, world| {
        let run: PathBuf = sandbox.run_dir();
        let _http = Peer::start(world, GOOD.into(), HELLO);
        let mut hive = hive(&run, vec![node("liar", &["192.0.2.2"], &[])]);
        hive.start().await;
        let icmp = async || {
            let node = probe(&hive, &run).await.remove(0);
            let path = node.host.unwrap().primary_address.unwrap();
            assert_eq!(path.http.unwrap().status, "");
            path.icmp.unwrap().status
        };
        let liar = PingPeer::start(world, FALSE);
        assert_eq!(icmp().await, "Connection timed out");
        drop(liar);
        // The control: the same peer with a true reply.
        let _honest = PingPeer::start(world, TRUE);
        assert_eq!(icmp().await, "");
        hive.stop().await;
    });
}

#[test]
fn switched_off_it_does_nothing() {
    require_root!();
    in_sandbox(async |sandbox, world| {
        let run = sandbox.run_dir();
        let mut hive = hive(&run, vec![own()]).set("enable-health-checking", false);
        hive.start().await;
        let mut status = StatusResponse::default();
        hive.get::<Sources>().0.iter().for_each(|source| source.fill(&mut status));
        assert_eq!(status.cluster, None);
        assert!(world.run(|| std::net::TcpStream::connect((OWN, PORT))).is_err());
        assert!(!run.join("health.sock").exists());
        hive.stop().await;
    });
}

/// Nodes with two families and health endpoints have four addresses, each of which is probed once in a cycle.
#[test]
fn probing_5000_nodes_takes_less_than_a_hundredth_of_a_core() {
    const NODES: u32 = 500;
    const ADDRESSES: f64 = 4.0 * 5000.0;
    const BASE_SECONDS: f64 = 60.0;
    const ROUNDS: usize = 3;
    require_root!();
    in_sandbox(async |sandbox, world| {
        // Every address of the range answers.
        world.ip("route add local 10.77.0.0/16 dev lo").unwrap();
        sandbox.host().ip(&format!("route add 10.77.0.0/16 via {GOOD}")).unwrap();
        let _peers = Peer::start(world, Ipv4Addr::UNSPECIFIED.into(), HELLO);
        let nodes = (1..=NODES).map(|at| {
            let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 0, 0)) + at).to_string();
            node(&format!("peer{at}"), &[&ip], &[])
        });
        let run = sandbox.run_dir();
        let mut hive = hive(&run, nodes.collect());
        hive.start().await;
        let socket = run.join("health.sock");
        hive.until("the API answers", || std::os::unix::net::UnixStream::connect(&socket).is_ok()).await;
        let mut cheapest = f64::MAX;
        for _ in 0..ROUNDS {
            // That of this thread, which runs the hive and no peer.
            let begin = clock_gettime(ClockId::ThreadCPUTime);
            let (status, _) = request(&run, "PUT", "/v1beta/status/probe").await;
            let took = clock_gettime(ClockId::ThreadCPUTime) - begin;
            assert_eq!(status, 200);
            let took = Duration::new(took.tv_sec.try_into().unwrap(), took.tv_nsec.try_into().unwrap());
            cheapest = cheapest.min(took.as_secs_f64() / f64::from(NODES));
        }
        assert!(rows(&hive).iter().all(|row| matches!(row.host[0].http, Some(Ok(_)))), "all have answered");
        let share = cheapest * ADDRESSES / (BASE_SECONDS * (1.0 + ADDRESSES).ln());
        assert!(share <= 0.01, "{:.2} % of a core, {:.0} us a probe", share * 100.0, cheapest * 1e6);
        hive.stop().await;
    });
}
