//! Measures the latency of a query through the proxy and the rate of queries: directly to a server of another
//! namespace, through the proxy, and through dnsmasq as a forwarder without a cache, side by side. Prints one row a number
//! (name, measured, unit, goal, met, peer), tab separated.

use std::net::{IpAddr, SocketAddr, UdpSocket as StdUdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dns_proxy::{Client, Directory, DnsProxyConfig, Question, Server, testing};
use fqdn::Lookup;
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use labels::Label;
use metrics::Metrics;
use monitor::Monitor;
use test_kit::{NetNs, Process, Sandbox, has_command, wait_until};
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

/// Queries of a round, one after another, and rounds of each way in turn: what else the machine does hits all alike.
const ROUND: usize = 200;
const ROUNDS: usize = 20;
/// Sockets that ask at once, for how long, and how often each way has its turn.
const PARALLEL: usize = 1000;
const LOAD: Duration = Duration::from_secs(1);
const LOAD_ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(10);
/// The server: packets to port 53 of it lead to the proxy.
const PROXIED: &str = "10.2.0.2:53";
const DIRECT: &str = "10.2.0.2:5300";
const DNSMASQ: &str = "10.1.0.1:5353";
/// Microseconds that the proxy may add, and the least share of dnsmasq's queries.
const MEDIAN_GOAL: f64 = 60.0;
const TAIL_GOAL: f64 = 300.0;
const SHARE_GOAL: f64 = 0.7;

/// One endpoint, which may ask for anything.
struct Open;

impl Directory for Open {
    fn client(&self, _source: IpAddr) -> Option<Client> {
        Some(Client { endpoint: 7, identity: 1000, is_host: false })
    }

    fn allows(&self, question: Question<'_>) -> bool {
        question.name.ends_with(".test.")
    }

    fn may_see_client(&self, _server: IpAddr) -> bool {
        false
    }

    fn server(&self, _address: IpAddr) -> Server {
        Server { endpoint: 0, identity: 2 }
    }

    fn labels(&self, _identity: u32) -> Vec<Label> {
        Vec::new()
    }

    fn node(&self) -> [Option<IpAddr>; 2] {
        [None, None]
    }

    fn learn(&self, _endpoint: u16, _lookup: Lookup) -> BoxFuture<'static, ()> {
        async {}.boxed()
    }
}

/// A query for the address of `name.test`.
fn query(id: u16) -> Vec<u8> {
    let mut query = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    query[..2].copy_from_slice(&id.to_be_bytes());
    query.extend(b"\x04name\x04test\0\0\x01\0\x01");
    query
}

/// Answers all queries with one address.
fn serve(socket: &StdUdpSocket) {
    let mut buffer = [0; 512];
    while let Ok((length, client)) = socket.recv_from(&mut buffer) {
        let mut answer = buffer[..length].to_vec();
        (answer[2], answer[3], answer[7]) = (0x81, 0x80, 1);
        // Without the pseudo record that a forwarder may add.
        answer[11] = 0;
        answer.truncate(query(0).len());
        answer.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc6\x33\x64\x02");
        let _ = socket.send_to(&answer, client);
    }
}

/// Returns the microseconds of queries one after another, each from a port of its own.
fn one_by_one(client: &NetNs, server: SocketAddr) -> Vec<f64> {
    let mut buffer = [0; 512];
    let ask = |id: u16| {
        let socket = client.run(|| StdUdpSocket::bind("0.0.0.0:0")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.connect(server).unwrap();
        let (query, start) = (query(id), Instant::now());
        socket.send(&query).unwrap();
        let length = socket.recv(&mut buffer).unwrap();
        let took = start.elapsed().as_secs_f64() * 1e6;
        assert!(buffer[..2] == query[..2] && buffer[..length].ends_with(&[198, 51, 100, 2]));
        took
    };
    (1..=ROUND as u16).map(ask).collect()
}

/// Returns the answers a second to sockets that each ask again as soon as they have one.
fn at_once(client: &NetNs, server: SocketAddr) -> f64 {
    let bind = || (0..PARALLEL).map(|_| StdUdpSocket::bind("0.0.0.0:0").unwrap()).collect::<Vec<_>>();
    let sockets = client.run(bind);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answers: usize = runtime.block_on(async {
        let start = Instant::now();
        let ask = async |socket: StdUdpSocket, id: u16| {
            socket.set_nonblocking(true).unwrap();
            let socket = UdpSocket::from_std(socket).unwrap();
            socket.connect(server).await.unwrap();
            let (query, mut buffer, mut answers) = (query(id), [0; 512], 0);
            while start.elapsed() < LOAD {
                socket.send(&query).await.unwrap();
                // A full queue drops packets; clients ask again.
                let received = tokio::time::timeout(LOAD, socket.recv(&mut buffer)).await;
                answers += usize::from(matches!(received, Ok(Ok(_))) && start.elapsed() < LOAD);
            }
            answers
        };
        join_all(sockets.into_iter().zip(1..).map(|(socket, id)| ask(socket, id))).await.iter().sum()
    });
    answers as f64 / LOAD.as_secs_f64()
}

fn percentile(samples: &mut [f64], hundredths: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[(samples.len() * hundredths).div_ceil(100) - 1]
}

/// Prints a row.
#[expect(clippy::print_stdout, reason = "a benchmark prints its rows")]
fn row(name: &str, measured: f64, unit: &str, goal: f64, is_met: bool, peer: &str) {
    let met = if is_met { "yes" } else { "no" };
    println!("DNS proxy: {name}\t{measured:.2}\t{unit}\t{goal}\t{met}\t{peer}");
}

/// Returns the namespaces of the client and the server, connected through the namespace of the node.
fn namespaces(sandbox: &Sandbox) -> (NetNs, NetNs) {
    let (client, server) = (sandbox.netns("client").unwrap(), sandbox.netns("server").unwrap());
    let host = sandbox.host();
    host.veth("toclient", &client, "eth0").unwrap();
    host.veth("toserver", &server, "eth0").unwrap();
    host.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    host.ip_batch(
        "addr add 10.1.0.1/24 dev toclient\naddr add 10.2.0.1/24 dev toserver\n\
         rule add iif toclient ipproto udp dport 53 lookup 100\nroute add local default dev lo table 100\n",
    )
    .unwrap();
    client.ip_batch("addr add 10.1.0.2/24 dev eth0\nroute add default via 10.1.0.1\n").unwrap();
    server.ip_batch("addr add 10.2.0.2/24 dev eth0\nroute add default via 10.2.0.1\n").unwrap();
    (client, server)
}

/// Starts dnsmasq as a forwarder to the server, if there is one.
fn dnsmasq(client: &NetNs) -> Option<Process> {
    if !has_command("dnsmasq") {
        return None;
    }
    let mut command = Command::new("dnsmasq");
    let (ip, port) = DNSMASQ.split_once(':')?;
    command.args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--user=root",
    ]);
    command.args(["--pid-file=", "--bind-interfaces", "--cache-size=0", "--dns-forward-max=4096"]);
    command.args([&format!("--listen-address={ip}"), &format!("--port={port}"), "--server=10.2.0.2#5300"]);
    let process = Process::start(&mut command).unwrap();
    let socket = client.run(|| StdUdpSocket::bind("0.0.0.0:0")).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    wait_until("dnsmasq answers", LIMIT, || {
        socket.send_to(&query(1), DNSMASQ).is_ok() && socket.recv(&mut [0; 512]).is_ok()
    });
    Some(process)
}

fn main() {
    // `cargo test --benches` only shows that it builds.
    if !std::env::args().any(|argument| argument == "--bench") || !test_kit::is_root() {
        return;
    }
    let sandbox = Sandbox::new().unwrap();
    let (client, server) = namespaces(&sandbox);
    for address in [PROXIED, DIRECT] {
        let socket = server.run(|| StdUdpSocket::bind(address)).unwrap();
        std::thread::Builder::new().spawn(move || serve(&socket)).unwrap();
    }
    // As many workers as the agent has.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stop = CancellationToken::new();
    let (serving, listener) = (stop.clone(), "0.0.0.0:53".parse().unwrap());
    runtime.spawn(async move {
        let (metrics, monitor) = (Metrics::default(), Arc::new(Monitor::new(1)));
        let config = DnsProxyConfig::default();
        testing::serve(listener, Arc::new(Open), config, &metrics, monitor, serving).await.unwrap();
    });
    let dnsmasq = dnsmasq(&client);
    let mut ways = vec![(DIRECT, Vec::new()), (PROXIED, Vec::new())];
    ways.extend(dnsmasq.as_ref().map(|_| (DNSMASQ, Vec::new())));
    for _ in 0..ROUNDS {
        for (server, samples) in &mut ways {
            samples.extend(one_by_one(&client, server.parse().unwrap()));
        }
    }
    for (hundredths, goal) in [(50, MEDIAN_GOAL), (99, TAIL_GOAL)] {
        let times: Vec<f64> = ways.iter_mut().map(|(_, samples)| percentile(samples, hundredths)).collect();
        let added = times[1] - times[0];
        let peer =
            times.get(2).map_or("no dnsmasq".to_owned(), |time| format!("dnsmasq {:.2}", time - times[0]));
        let name = format!("p{hundredths} of a query, over {:.0} us direct", times[0]);
        row(&name, added, "us", goal, added <= goal, &peer);
    }
    let mut rates = vec![Vec::new(); ways.len()];
    for _ in 0..LOAD_ROUNDS {
        for ((server, _), rates) in ways.iter().zip(&mut rates) {
            rates.push(at_once(&client, server.parse().unwrap()));
        }
    }
    let medians: Vec<f64> = rates.iter_mut().map(|rates| percentile(rates, 50)).collect();
    let Some(of_dnsmasq) = medians.get(2) else { return };
    let share = medians[1] / of_dnsmasq;
    let peer = format!("{:.0}/s; dnsmasq {of_dnsmasq:.0}/s; direct {:.0}/s", medians[1], medians[0]);
    row("queries of 1000 at once, of dnsmasq's", share, "x", SHARE_GOAL, share >= SHARE_GOAL, &peer);
    stop.cancel();
}
