//! The cost of the programs: connect(2) of a UDP socket, which sends nothing, to a service and to its backend, in the
//! cgroup and without programs.

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

#[expect(clippy::print_stdout, reason = "the result")]
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
        println!("to a service: {:?}", connect(vip));
        println!("to another address: {:?}", connect(backend));
        node.restart(&[], false).await;
        node.until_links_are_gone().await;
        println!("without programs: {:?}", connect(backend));
        node.finish().await;
    });
}
