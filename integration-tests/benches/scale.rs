//! 200 endpoints in numbers: creation, restart, deletion, and how long traffic stands still meanwhile. Prints one row a
//! number (name, measured, unit, goal, met, peer), tab separated.

use std::time::{Duration, Instant};

use integration_tests::Node;
use integration_tests::measure::{Candidate, from_clients, no_rows, percentile, row, seconds};
use serde_json::Value;
use test_kit::{StallFlow, StallReport, try_wait_until};

const ENDPOINTS: usize = 200;
const CLIENTS: usize = 8;
const RESTARTS: usize = 5;
const LIMIT: Duration = Duration::from_secs(30);
/// Goal of a restart beyond the same time without one.
const STALL: f64 = 1.0;

fn main() {
    if !test_kit::is_root() {
        no_rows("scale", "needs root");
        return;
    }
    let mut node = Node::started();
    let sender = node.add_pod("sender");
    let receiver = node.add_pod("receiver");
    let policy = r#"{"apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "p"},
        "spec": {"endpointSelector": {"matchLabels": {"name": "receiver"}},
                 "ingress": [{"fromEndpoints": [{"matchLabels": {"name": "sender"}}]}]}}"#;
    node.apply("policy.yaml", policy);

    let pods = node.sandbox().netns("pods").unwrap();
    // Two more are the flow's.
    let candidates: Vec<Candidate> = (2..ENDPOINTS).map(|i| Candidate::new(&node, &pods, i)).collect();
    let socket = node.socket();
    let begin = Instant::now();
    from_clients(CLIENTS, &candidates, |candidate| {
        candidate.create(&socket);
    });
    row("creation of 200 from 8 clients", seconds(begin), "s", 0.3);

    let last = node.get("/v1/endpoint").as_array().unwrap().last().unwrap()["id"].clone();
    let restarts = (0..RESTARTS).map(|_| restart(&mut node, &last)).collect();
    row("restart with 200 endpoints to all ready", percentile(restarts, 50), "s", 0.4);

    let flow = || StallFlow::start(&sender.ns, &receiver.ns, receiver.ipv4).unwrap();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..RESTARTS {
        let running = flow();
        let begin = Instant::now();
        std::thread::sleep(Duration::from_millis(100));
        restart(&mut node, &last);
        std::thread::sleep(Duration::from_millis(100));
        let took = begin.elapsed();
        with.push(stall(&running.stop()));
        let running = flow();
        std::thread::sleep(took);
        without.push(stall(&running.stop()));
    }
    let longest = |samples: Vec<f64>| percentile(samples, 100);
    let quiet = longest(without);
    row("longest stall over 5 times without a restart", quiet, "ms", f64::INFINITY);
    row("longest stall over 5 restarts with 200 endpoints", longest(with), "ms", quiet + STALL);

    let begin = Instant::now();
    from_clients(CLIENTS, &candidates, |candidate| candidate.delete(&socket));
    row("deletion of 200 from 8 clients", seconds(begin), "s", 0.3);
    node.stop();
}

/// Stops the agent and starts it again; seconds from then until all endpoints are ready.
fn restart(node: &mut Node, last: &Value) -> f64 {
    node.stop();
    let begin = Instant::now();
    node.spawn();
    let ready = |endpoint: &Value| endpoint["status"]["state"] == "ready";
    // To ask for all endpoints costs the agent much of its time: it is asked for one, and then once for all.
    let waited = try_wait_until(LIMIT, || {
        let answer = node.request("GET", &format!("/v1/endpoint/{last}"), None).map_err(|e| e.to_string())?;
        if answer.status == 200 && ready(&answer.json()) { Ok(()) } else { Err(format!("{answer:?}")) }
    });
    waited.unwrap_or_else(|error| panic!("{error}\n{}", node.log()));
    let waited = try_wait_until(LIMIT, || {
        let all = node.get("/v1/endpoint");
        let all = all.as_array().unwrap();
        if all.iter().all(ready) { Ok(()) } else { Err(format!("of {} some are not ready", all.len())) }
    });
    waited.unwrap_or_else(|error| panic!("{error}\n{}", node.log()));
    seconds(begin)
}

/// The longest stall in milliseconds.
fn stall(report: &StallReport) -> f64 {
    assert!(report.sent > 0 && report.lost == 0, "{report:?}");
    report.longest.as_secs_f64() * 1e3
}
