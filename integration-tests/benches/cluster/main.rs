//! An agent in a simulated cluster of 5,000 nodes, 50,000 pods, 10,000 services with 100,000 endpoints, 6,000 identities and
//! 2,500 policies, which this process serves over HTTP; an operator in a small one, and in one of 5,000 nodes, 100,000
//! endpoints and 60,000 identities. Prints one row a number (name, measured, unit, goal, met, peer), tab separated.

mod agent;
mod nodes;
mod operator;

use std::fs;

use integration_tests::measure::no_rows;

/// The resolution of processor times in `/proc`: `_SC_CLK_TCK` is 100 on Linux.
const TICK_SECONDS: f64 = 0.01;

fn main() {
    if !test_kit::is_root() {
        no_rows("cluster", "needs root");
        return;
    }
    // A part alone: `cargo bench --bench cluster -- nodes`.
    let parts: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runs = |part: &str| parts.is_empty() || parts.iter().any(|asked| asked == part);
    if runs("agent") {
        agent::run();
    }
    if runs("nodes") {
        nodes::run();
    }
    if runs("operator") {
        operator::idle();
    }
    if runs("operator-large") {
        operator::large();
    }
}

/// Returns the processor time of a process in seconds.
fn processor_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() * TICK_SECONDS
}
