//! The cost of the programs: connect(2) of a UDP socket, which sends nothing, to a service and to its backend, in the
//! cgroup, over the same without programs. Prints one row a number (name, measured, unit, goal, met, peer), tab separated.

#[path = "../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a part of what the tests need")]
mod kit;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use kit::{Node, Service, UDP, on_a_runtime};

const CALLS: u32 = 100_000;
const ROUNDS: u32 = 5;

/// Returns the shortest mean time of a call.
fn connect(to: SocketAddr) -> Duration {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let round = || {
        let start = Instant::now();
        for _ in 0..CALLS {
            socket.connect(to).unwrap();
        }
        start.elapsed() / CALLS
    };
    (0..ROUNDS).map(|_| round()).min().unwrap_or_default()
}

/// Microseconds that the programs may add to a call.
const GOAL: f64 = 3.0;

/// Prints the time that the programs add to a call.
#[expect(clippy::print_stdout, reason = "a benchmark prints its rows")]
fn row(name: &str, time: Duration, alone: Duration) {
    let added = (time.as_secs_f64() - alone.as_secs_f64()) * 1e6;
    let met = if added <= GOAL { "yes" } else { "no" };
    println!(
        "sockets: connect to {name}, over none\t{added:.2}\tus\t{GOAL}\t{met}\t{time:?}, {alone:?} without"
    );
}

fn main() {
    // `cargo test --benches` only shows that it builds.
    if !std::env::args().any(|argument| argument == "--bench") || !test_kit::is_root() {
        return;
    }
    let (vip, backend): (SocketAddr, SocketAddr) =
        ("10.96.0.1:80".parse().unwrap(), "127.0.0.1:8080".parse().unwrap());
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        node.put(&Service::new("10.96.0.1:80", UDP, &[backend]));
        let (service, other) = (connect(vip), connect(backend));
        node.restart(&[], false).await;
        node.until_links_are_gone().await;
        let alone = connect(backend);
        row("a service", service, alone);
        row("another address", other, alone);
        node.finish().await;
    });
}
