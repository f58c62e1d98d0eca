//! 5,000 nodes and nothing else: tables and maps, and the probing of their health.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::Node;
use integration_tests::measure::{resident, row, seconds};
use integration_tests::simulated::{SimulatedCluster, Size, node_address};
use k8s_types::Kind;

use crate::agent::{ipcache, wait_for};
use crate::processor_seconds;

const NODES: usize = 5000;
const SETTLED: Duration = Duration::from_secs(30);
const PROBING: Duration = Duration::from_secs(60);
const KINDS: &[Kind] = &[Kind::Namespace, Kind::Node, Kind::CiliumNode];

pub(crate) fn run() {
    let few = start(10, false);
    let many = start(NODES, false);
    row("5k nodes alone: tables and maps filled", many.filled - few.filled, "s", 0.3);
    row("5k nodes alone: memory", many.memory - few.memory, "MB", 12.0);
    let probing = start(NODES, true);
    row("5k nodes alone: processor time without probing", many.processor, "%", 1.0);
    row("5k nodes alone: processor time of probing", probing.processor - many.processor, "%", 1.0);
}

struct Measured {
    filled: f64,
    memory: f64,
    processor: f64,
}

fn start(nodes: usize, is_probed: bool) -> Measured {
    let mut node = Node::new();
    let cluster = SimulatedCluster::new(node.host(), Size::nodes(nodes), KINDS);
    cluster.join(&mut node);
    if is_probed {
        node.config.insert("enable-health-checking".to_owned(), "true".to_owned());
        // The world answers for all nodes.
        node.world().ip("route add local 172.16.0.0/12 dev lo").unwrap();
        node.world().ip("link set lo up").unwrap();
        answer_probes(&node);
    }
    let begin = Instant::now();
    cluster.spawn(&mut node);
    let ipcache = loop {
        match ipcache(&node) {
            Some(map) => break map,
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    for number in 0..nodes {
        wait_for(&ipcache, node_address(number), Some(6), &node);
    }
    let filled = seconds(begin);
    node.wait_ready();
    thread::sleep(SETTLED);
    let memory = resident(node.agent_pid());
    let (begin, before) = (Instant::now(), processor_seconds(node.agent_pid()));
    thread::sleep(PROBING);
    let processor = (processor_seconds(node.agent_pid()) - before) / seconds(begin) * 100.0;
    node.stop();
    Measured { filled, memory, processor }
}

/// Answers HTTP probes of health at all addresses.
#[expect(clippy::disallowed_methods, reason = "the benchmark is no cell; the thread ends with the process")]
fn answer_probes(node: &Node) {
    let listener = node.world().run(|| TcpListener::bind("0.0.0.0:4240")).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
        }
    });
}
