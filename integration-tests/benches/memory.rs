//! Memory of the agent, after settling and at its peak. Prints one row a number (name, measured, unit, goal, met, peer),
//! tab separated.

use std::thread;
use std::time::Duration;

use integration_tests::Node;
use integration_tests::measure::{bench_pods, bench_policies, no_rows, peak, resident, row};

/// After what is done once was done, and what is kept for a while was let go.
const SETTLED: Duration = Duration::from_secs(60);

fn main() {
    if !test_kit::is_root() {
        no_rows("memory", "needs root");
        return;
    }
    // Memory does not depend on load: all nodes settle at the same time, each in a sandbox of its thread.
    thread::scope(|scope| {
        let nodes = [
            scope.spawn(|| vec![("memory with 0 endpoints after 60 s", settled(0, 0), 25.0)]),
            scope.spawn(|| vec![("memory with 50 endpoints after 60 s", settled(50, 0), 28.0)]),
            scope.spawn(|| vec![("memory with 50 endpoints and 100 policies", settled(50, 100), 32.0)]),
            scope.spawn(many),
        ];
        for node in nodes {
            for (name, megabytes, goal) in node.join().unwrap() {
                row(name, megabytes, "MB", goal);
            }
        }
    });
}

/// Memory of an agent that has had so much to do.
fn settled(endpoints: usize, policies: usize) -> f64 {
    let mut node = Node::started();
    bench_pods(&node, endpoints);
    if policies > 0 {
        node.apply("policies.yaml", &bench_policies(policies, endpoints, 0));
        node.wait_rules("version", &["0"]);
    }
    thread::sleep(SETTLED);
    let memory = resident(node.agent_pid());
    node.stop();
    memory
}

fn many() -> Vec<(&'static str, f64, f64)> {
    let mut node = Node::started();
    bench_pods(&node, 200);
    thread::sleep(SETTLED);
    let created = resident(node.agent_pid());
    node.stop();
    node.start();
    let highest = peak(node.agent_pid());
    thread::sleep(SETTLED);
    let restarted = resident(node.agent_pid());
    node.stop();
    vec![
        ("memory with 200 endpoints after 60 s", created, 35.0),
        ("memory with 200 endpoints 60 s after a restart", restarted, 35.0),
        ("peak of memory during a restart with 200 endpoints", highest, 48.0),
    ]
}
