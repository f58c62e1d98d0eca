//! The first connection to a DNS name, in numbers: how long an answer is held until policy map and ipcache have the name's
//! addresses. Prints one row a number (name, measured, unit, goal, met, peer), tab separated.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::measure::{compared_row, no_rows, percentile};
use integration_tests::{Node, Pod};
use serde_json::json;
use test_kit::wait_until;

/// Names that are asked for, each twice.
const NAMES: u16 = 500;
/// Milliseconds that an answer may be held.
const GOAL: f64 = 2.0;
/// The code of a refused query (RFC 1035).
const REFUSED: u8 = 5;
const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// The bytes of a query before its name, and of its type and class.
const HEADER: usize = 12;

fn main() {
    if !test_kit::is_root() {
        no_rows("names", "needs root");
        return;
    }
    // One selector for all names, as most policies have, and one for each: those need an identity of their own, too.
    first_connections("of a pattern", &["*.allowed.test".to_owned()]);
    let each: Vec<String> = (0..NAMES).map(|number| format!("{}.allowed.test", name(number))).collect();
    first_connections("with a rule of its own", &each);
}

fn name(number: u16) -> String {
    format!("name-{number:03}")
}

fn address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(198, 18, high, low)
}

fn query(number: u16) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in [&*name(number), "allowed", "test"] {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// Answers queries with the address of the name's number until `done`.
fn serve(socket: &UdpSocket, done: &AtomicBool) {
    let mut buffer = [0; 512];
    while !done.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        let mut answer = buffer[..length].to_vec();
        let digits = std::str::from_utf8(&answer[HEADER + 6..HEADER + 9]).unwrap_or_default();
        let number = digits.parse().unwrap_or_default();
        (answer[2], answer[3], answer[7]) = (0x81, 0x80, 1);
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4]);
        answer.extend(address(number).octets());
        let _ = socket.send_to(&answer, from);
    }
}

/// Returns the milliseconds until a query is answered; `None` without an answer that has an address.
fn ask(pod: &Pod, number: u16) -> Option<f64> {
    let socket = pod.ns.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.connect((Node::WORLD_IPV4, 53)).unwrap();
    let (query, mut buffer) = (query(number), [0; 512]);
    let start = Instant::now();
    socket.send(&query).ok()?;
    let length = socket.recv(&mut buffer).ok()?;
    let took = start.elapsed().as_secs_f64() * 1e3;
    assert_ne!(buffer[3] & 15, REFUSED, "{}", name(number));
    buffer[..length].ends_with(&address(number).octets()).then_some(took)
}

/// Asks for names that no endpoint knows yet, one after another, and for each again at once.
fn first_connections(case: &str, patterns: &[String]) {
    let mut node = Node::new();
    node.config.insert("install-iptables-rules".to_owned(), "true".to_owned());
    node.config.insert("enable-ipv4-masquerade".to_owned(), "false".to_owned());
    node.start();
    let selectors: Vec<_> = patterns.iter().map(|pattern| json!({"matchPattern": pattern})).collect();
    let dns = json!([{
        "ports": [{"port": "53", "protocol": "ANY"}],
        "rules": {"dns": [{"matchPattern": "*.allowed.test"}]},
    }]);
    let spec = json!({"endpointSelector": {}, "egress": [
        {"toCIDR": [format!("{}/32", Node::WORLD_IPV4)], "toPorts": dns},
        {"toFQDNs": selectors},
    ]});
    let policy = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "names", "namespace": "default"}, "spec": spec,
    });
    node.apply("names.yaml", &policy.to_string());
    let pod = node.add_pod("client");
    let socket = node.world().run(|| UdpSocket::bind((Node::WORLD_IPV4, 53))).unwrap();
    socket.set_read_timeout(Some(POLL)).unwrap();
    let done = AtomicBool::new(false);
    let (mut new, mut known) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| serve(&socket, &done));
        // The last name is for the set-up: from then on queries go to the proxy.
        let learned = |number| node.get("/v1/fqdn/cache").to_string().contains(&name(number));
        wait_until("the proxy answers", LIMIT, || ask(&pod, NAMES).is_some() && learned(NAMES));
        for number in 0..NAMES {
            new.push(ask(&pod, number).unwrap());
            known.push(ask(&pod, number).unwrap());
        }
        done.store(true, Ordering::Relaxed);
    });
    let entries = node.apiary(&["bpf", "ipcache", "list"]);
    let missing = (0..NAMES).find(|number| !entries.contains(&address(*number).to_string()));
    assert_eq!(missing, None, "each answer has brought its address\n{entries}");
    let base = percentile(known, 50);
    let held = |hundredths| percentile(new.clone(), hundredths) - base;
    let peer = format!("p50 {:.3}; {base:.3} ms for a name that is known", held(50));
    compared_row(&format!("answer with a new name {case} held, p99"), held(99), "ms", GOAL, &peer);
    node.stop();
}
