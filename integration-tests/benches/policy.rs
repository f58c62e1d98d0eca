//! Policy in numbers: from a changed file to the last wrong packet, many rules on many endpoints. Prints one row a
//! number (name, measured, unit, goal, met, peer), tab separated.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use integration_tests::measure::{bench_pods, cluster_policy, no_rows, percentile, row};
use integration_tests::{Node, Pod};
use serde_json::{Value, json};

/// Changes of one policy that are timed.
const CHANGES: usize = 200;
/// Between two packets: 10,000 a second.
const INTERVAL: Duration = Duration::from_micros(100);

fn main() {
    if !test_kit::is_root() {
        no_rows("policy", "needs root");
        return;
    }
    last_wrong_packet();
    many_rules();
}

/// Packets that carry the time of their sending, 10,000 a second, until both ends are asked to stop.
struct Stamped {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Vec<u64>>,
    receiver: JoinHandle<Vec<u64>>,
}

impl Stamped {
    fn start(from: &Pod, to: &Pod, address: IpAddr, zero: Instant) -> Stamped {
        let target = to.ns.run(|| UdpSocket::bind((address, 0))).unwrap();
        // A receiver that waits for a processor loses nothing: a loss is a verdict.
        test_kit::receive_buffer(&target, 32 << 20).unwrap();
        target.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let socket = from.ns.run(|| UdpSocket::bind(("0.0.0.0", 0))).unwrap();
        socket.connect(target.local_addr().unwrap()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let send = move || {
            let mut sent = Vec::new();
            let mut next = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let now = zero.elapsed().as_nanos() as u64;
                socket.send(&now.to_be_bytes()).unwrap();
                sent.push(now);
                // Time without a processor is not caught up with: a burst overflows queues on the way.
                next = (next + INTERVAL).max(Instant::now() - 10 * INTERVAL);
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            sent
        };
        let stopped = Arc::clone(&stop);
        let receive = move || {
            let mut received = Vec::new();
            let mut buffer = [0; 8];
            loop {
                match target.recv(&mut buffer) {
                    Ok(_) => received.push(u64::from_be_bytes(buffer)),
                    Err(_) if stopped.load(Ordering::Relaxed) => return received,
                    Err(_) => {}
                }
            }
        };
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        let sender = thread("stamped-sender").spawn(send).unwrap();
        let receiver = thread("stamped-receiver").spawn(receive).unwrap();
        Stamped { stop, sender, receiver }
    }

    /// The times of all packets sent, and of those that arrived.
    fn stop(self) -> (Vec<u64>, Vec<u64>) {
        self.stop.store(true, Ordering::Relaxed);
        (self.sender.join().unwrap(), self.receiver.join().unwrap())
    }
}

/// A policy allows and forbids a flow in turn. After each change the last packet with the old verdict is looked for.
fn last_wrong_packet() {
    let spec = |allowed: bool| {
        let app = if allowed { "client" } else { "nobody" };
        json!({
            "endpointSelector": {"matchLabels": {"app": "server"}},
            "ingress": [{"fromEndpoints": [{"matchLabels": {"app": app}}]}],
        })
    };
    let mut node = Node::started();
    node.apply("policy.yaml", &cluster_policy("server", spec(true), 0));
    let client = node.add_pod_with("default", "client", &[("app", "client")]);
    let server = node.add_pod_with("default", "server", &[("app", "server")]);
    node.wait_rules("version", &["0"]);

    let zero = Instant::now();
    let flow = Stamped::start(&client, &server, server.ipv4, zero);
    thread::sleep(Duration::from_millis(300));
    let mut changes: Vec<(u64, bool)> = Vec::new();
    for version in 1..=CHANGES {
        let allowed = version % 2 == 0;
        let begin = node.apply("policy.yaml", &cluster_policy("server", spec(allowed), version));
        changes.push(((begin - zero).as_nanos() as u64, allowed));
        // Not in step with any clock of the agent.
        thread::sleep(Duration::from_micros(60_000 + 1_000 * (version as u64 * 7 % 11)));
    }
    let (sent, received) = flow.stop();
    let received: std::collections::HashSet<u64> = received.into_iter().collect();
    let mut delays = [Vec::new(), Vec::new()];
    for (index, (begin, allowed)) in changes.iter().enumerate() {
        let end = changes.get(index + 1).map_or(u64::MAX, |(next, _)| *next);
        let wrong = sent.iter().filter(|at| (*begin..end).contains(at) && received.contains(at) != *allowed);
        let last = wrong.max().map_or(0, |at| at - begin);
        delays[usize::from(*allowed)].push(last as f64 / 1e6);
    }
    let [denied, allowed] = delays;
    row("policy file to last packet let through, p99", percentile(denied, 99), "ms", 2.0);
    row("policy file to last packet dropped, p99", percentile(allowed, 99), "ms", 2.0);
    node.stop();
}

/// 500 ports, as many to an element as one may hold.
fn many_ports(first: usize) -> Value {
    let ports: Vec<Value> =
        (first..first + 500).map(|port| json!({"port": port.to_string(), "protocol": "TCP"})).collect();
    let rules: Vec<Value> = ports
        .chunks(40)
        .map(|ports| json!({"fromEndpoints": [{"matchLabels": {"bench": "b0"}}], "toPorts": [{"ports": ports}]}))
        .collect();
    // One peer, so that a rule is a row: 500 of 16,384.
    json!({"endpointSelector": {"matchLabels": {"app": "bench"}}, "ingress": rules})
}

fn many_rules() {
    let mut node = Node::started();
    bench_pods(&node, 100);
    let endpoints = node.get("/v1/endpoint");
    let last = endpoints.as_array().into_iter().flatten().rfind(|e| e["status"]["identity"]["id"] != 1);
    let path = format!("/v1/endpoint/{}", last.map_or(&Value::Null, |endpoint| &endpoint["id"]));
    let revision =
        |endpoint: &Value| endpoint["status"]["policy"]["realized"]["policy-revision"].as_u64().unwrap_or(0);
    let mut samples = Vec::new();
    for version in 0..7 {
        let before = revision(&node.get(&path));
        let begin =
            node.apply("policy.yaml", &cluster_policy("many", many_ports(1000 + 1000 * version), version));
        // To ask for all endpoints costs the agent much of its time: one is asked for.
        while revision(&node.get(&path)) == before {
            thread::sleep(Duration::from_millis(2));
        }
        samples.push(begin.elapsed().as_secs_f64());
        // The others had it as well.
        let all = node.get("/v1/endpoint");
        let pods = all.as_array().into_iter().flatten().filter(|e| e["status"]["identity"]["id"] != 1);
        assert_eq!(pods.filter(|endpoint| revision(endpoint) > before).count(), 100);
        node.wait_rules("version", &[version.to_string()]);
        node.withdraw("policy.yaml");
        node.wait_rules("version", &[""; 0]);
    }
    row("policy of 500 L4 rules on 100 endpoints realised", percentile(samples, 50), "s", 0.05);
    node.stop();
}
