//! A kill -9 and a start with 50,000 services in the maps, packets through one of them meanwhile; the agent's memory with
//! them. Prints one row a number (name, measured, unit, goal, met, peer), tab separated.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use integration_tests::measure::{no_rows, peak, percentile, resident, row, seconds};
use integration_tests::{Node, ServiceFixture, many_services};
use test_kit::{UdpFlow, try_wait_until};

const COUNT: u32 = 50_000;
const RESTARTS: usize = 5;
/// After what was needed to read the file was given back.
const SETTLED: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(300);

fn main() {
    if !test_kit::is_root() {
        no_rows("services", "needs root");
        return;
    }
    let mut node = Node::new();
    node.follow_services("lb.json");
    node.config.insert("bpf-lb-map-max".into(), "262144".into());
    node.start();
    let (client, server) = (node.add_pod("client"), node.add_pod("server"));
    let web = ServiceFixture::new("web", &["10.96.0.10"], &[&server.ipv4.to_string()]);
    node.write_services(&many_services(COUNT, &[web]));
    let rows = 3 * COUNT as usize + 5;
    until(&node, || node.service_rows()["cilium_lb4_services_v2"].len() == rows);
    let before = node.service_rows();
    let service = SocketAddr::new([10, 96, 0, 10].into(), 80);
    let flow =
        UdpFlow::through(&client.ns, &server.ns, SocketAddr::new(server.ipv4, 8080), Some(service)).unwrap();

    let (mut read, mut synced, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for start in 2..2 + RESTARTS {
        node.kill();
        let begin = Instant::now();
        node.spawn();
        until(&node, || node.services_synced().0 == start);
        whole.push(seconds(begin));
        synced.push(node.services_synced().1.unwrap_or_default() as f64 / 1000.0);
        read.push(taken_over(&node) / 1000.0);
        node.wait_ready();
        assert!(node.service_rows() == before, "rows have changed\n{}", node.log());
    }
    let highest = peak(node.agent_pid());
    std::thread::sleep(SETTLED);
    let settled = resident(node.agent_pid());
    let report = flow.stop();
    assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    row("restart with 50k services: sources complete to in step", percentile(synced, 50), "s", 0.5);
    row("restart with 50k services: maps read", percentile(read, 50), "s", 0.5);
    row("restart with 50k services: exec to in step", percentile(whole, 50), "s", 2.0);
    row("memory with 50k services 30 s after a restart", settled, "MB", 150.0);
    row("peak of memory during a restart with 50k services", highest, "MB", 200.0);
}

fn until(node: &Node, ready: impl Fn() -> bool) {
    let probe = || if ready() { Ok(()) } else { Err(String::new()) };
    if try_wait_until(LIMIT, probe).is_err() {
        panic!("not in step\n{}", node.log());
    }
}

/// How long the latest start took to read the maps, in milliseconds.
fn taken_over(node: &Node) -> f64 {
    let log = node.log();
    let line = log.lines().rfind(|line| line.contains("Restored services of the previous run"));
    line.and_then(|line| line.split(" ms=").nth(1)?.split(' ').next()?.parse().ok()).unwrap_or(f64::NAN)
}
