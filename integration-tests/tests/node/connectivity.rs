//! A whole agent probes the nodes of its cluster, responds to probes, and answers on `health.sock`.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use integration_tests::{Answer, Node, request};
use serde_json::{Value, json};
use test_kit::{require_root, try_wait_until};

const PATIENCE: Duration = Duration::from_secs(120);

fn node() -> Node {
    let mut node = Node::new();
    node.config.remove("enable-health-checking");
    node.config.insert("prometheus-serve-addr".to_owned(), "127.0.0.1:9962".to_owned());
    node.start();
    node
}

fn socket(node: &Node) -> PathBuf {
    node.socket().with_file_name("health.sock")
}

fn ask(node: &Node, method: &str, path: &str) -> Answer {
    request(&socket(node), method, path, None).unwrap()
}

/// Probes all nodes until the answer is as wanted.
fn probe_until(node: &Node, wanted: impl Fn(&Value) -> bool) -> Value {
    let probe = || {
        let answer =
            request(&socket(node), "PUT", "/v1beta/status/probe", None).map_err(|error| error.to_string())?;
        let answer = answer.json();
        if wanted(&answer) { Ok(answer) } else { Err(answer.to_string()) }
    };
    try_wait_until(PATIENCE, probe).unwrap_or_else(|error| panic!("{error:?}\n{}", node.log()))
}

fn peer() -> String {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "peer"},
        "spec": {"addresses": [{"type": "InternalIP", "ip": Node::WORLD_IPV4}]},
    })
    .to_string()
}

#[test]
fn nodes_are_probed_and_this_one_responds() {
    require_root!();
    let node = node();
    // The responder, from another host.
    let address: SocketAddr = format!("{}:4240", Node::IPV4).parse().unwrap();
    let hello = || {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /hello HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        std::io::Result::Ok(text)
    };
    let text = try_wait_until(PATIENCE, || node.world().run(hello).map_err(|error| error.to_string()));
    assert!(text.unwrap().starts_with("HTTP/1.0 200 OK\r\n"));

    // This node alone, then another one on which no agent listens.
    let alone = probe_until(&node, |answer| answer["nodes"].as_array().is_some_and(|nodes| nodes.len() == 1));
    let own = &alone["nodes"][0];
    assert_eq!(own["name"], alone["local"]["name"]);
    let primary = &own["host"]["primary-address"];
    assert_eq!(primary["ip"], Node::IPV4);
    for check in ["http", "icmp"] {
        assert_eq!(primary[check]["status"], Value::Null, "{alone}");
        assert!(primary[check]["latency"].as_i64().unwrap() > 0, "{alone}");
    }
    node.apply("peer.json", &peer());
    let both = probe_until(&node, |answer| answer["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2));
    let nodes = both["nodes"].as_array().unwrap();
    let other = nodes.iter().find(|node| node["name"] != both["local"]["name"]).unwrap();
    let path = &other["host"]["primary-address"];
    assert_eq!((&path["ip"], &path["icmp"]["status"]), (&json!(Node::WORLD_IPV4), &Value::Null), "{both}");
    assert!(path["http"]["status"].as_str().unwrap().ends_with("connect: connection refused"), "{both}");

    // The agent's status stays as it is, and health names the node that cannot be reached.
    let status = node.get("/v1/healthz");
    assert_eq!(status["cluster"]["ciliumHealth"], json!({"state": "Ok"}));
    assert_eq!(status["cilium"]["state"], "Ok", "{status}");
    let health = ask(&node, "GET", "/v1beta/healthz").json();
    assert_eq!(health["cilium"]["cilium"]["state"], "Ok");
    assert!(health["uptime"].as_str().unwrap().ends_with('s'), "{health}");
    assert_eq!(health["system-load"].as_object().unwrap().len(), 3);
    let metrics = node.metrics();
    assert!(metrics.iter().any(|line| line == "cilium_unreachable_nodes 1"), "{metrics:?}");

    // The command line.
    let socket = socket(&node);
    let health = |words: &[&str]| {
        let host = ["--host", socket.to_str().unwrap(), "health"];
        node.apiary(&[&host[..], words].concat())
    };
    assert_eq!(health(&["ping"]), "OK\n");
    // The first probes may come before the health endpoint responds.
    let lines = try_wait_until(PATIENCE, || {
        ask(&node, "PUT", "/v1beta/status/probe");
        let lines = health(&["status"]);
        if lines.contains("1/2 reachable") { Ok(lines) } else { Err(lines) }
    });
    let lines = lines.unwrap();
    assert!(lines.starts_with("Cluster health:") && lines.contains("(localhost)"), "{lines}");
    assert!(health(&["status", "--verbose"]).contains("    Host connectivity to 192.0.2.2:\n"));
    let answer: Value = serde_json::from_str(&health(&["status", "-o", "json"])).unwrap();
    assert_eq!(answer["local"], both["local"]);
    let lines = health(&["get"]);
    assert!(lines.starts_with("Daemon uptime:") && lines.contains("\nNode load:"), "{lines}");
    let lines = node.apiary(&["status"]);
    assert!(lines.contains("1/2 reachable") && lines.contains("  peer "), "{lines}");

    // The node leaves.
    node.withdraw("peer.json");
    probe_until(&node, |answer| answer["nodes"].as_array().is_some_and(|nodes| nodes.len() == 1));
}

#[test]
fn a_port_that_is_in_use_is_named_and_taken_later() {
    require_root!();
    let mut node = Node::new();
    node.config.remove("enable-health-checking");
    let occupied = node.host().run(|| std::net::TcpListener::bind((Node::IPV4, 4240))).unwrap();
    node.start();
    let part = || node.get("/v1/healthz")["cluster"]["ciliumHealth"].clone();
    let remedy = "port 4240 of 192.0.2.1 is in use: free it, or give all nodes another --cluster-health-port";
    let until = |wanted: Value| {
        let is = || if part() == wanted { Ok(()) } else { Err(part().to_string()) };
        try_wait_until(PATIENCE, is).unwrap_or_else(|error| panic!("{error:?}\n{}", node.log()));
    };
    until(json!({"state": "Failure", "msg": remedy}));
    assert_eq!(node.get("/v1/healthz")["cilium"]["state"], "Warning");
    drop(occupied);
    until(json!({"state": "Ok"}));
}

/// Returns the number of sockets that a process has open.
fn sockets(process: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// Returns the resident memory of a process in kB.
fn resident(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Opens connections until `stop` is set, keeps the newest, and sends a byte of a request on each from time to time.
fn flood(address: SocketAddr, stop: &AtomicBool, opened: &AtomicUsize) {
    let request = b"GET /hello HTTP/1.1\r\nHost: x\r\nX-Slow: and slower";
    let mut streams: VecDeque<(TcpStream, usize)> = VecDeque::new();
    while !stop.load(Ordering::SeqCst) {
        for _ in 0..20 {
            if let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
                opened.fetch_add(1, Ordering::SeqCst);
                streams.push_back((stream, 0));
            }
        }
        while streams.len() > 500 {
            streams.pop_front();
        }
        // Every second one sends nothing.
        for (stream, sent) in streams.iter_mut().step_by(2).filter(|(_, sent)| *sent < request.len()) {
            let _sent_or_evicted = stream.write_all(&request[*sent..=*sent]);
            *sent += 1;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_flood_of_idle_connections_keeps_no_probe_out() {
    require_root!();
    let node = node();
    probe_until(&node, |answer| answer["nodes"].as_array().is_some_and(|nodes| nodes.len() == 1));
    let process = node.agent_pid();
    let (sockets_before, memory_before) = (sockets(process), resident(process));
    let address: SocketAddr = format!("{}:4240", Node::IPV4).parse().unwrap();
    let (stop, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    let world = node.world();
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| world.run(|| flood(address, &stop, &opened)));
        // Ends the attack also when an assertion fails, so that the scope ends.
        let _ends = EndOnDrop(&stop);
        let flooded = || if opened.load(Ordering::SeqCst) > 600 { Ok(()) } else { Err("not yet".to_owned()) };
        try_wait_until(PATIENCE, flooded).unwrap();
        for round in 0..10 {
            let hello = || {
                // The limit of a node's probe.
                let limit = Duration::from_secs(10);
                let mut stream = TcpStream::connect_timeout(&address, limit)?;
                stream.set_read_timeout(Some(limit))?;
                stream.write_all(b"GET /hello HTTP/1.0\r\n\r\n")?;
                let mut text = String::new();
                stream.read_to_string(&mut text)?;
                std::io::Result::Ok(text)
            };
            // A request that comes late on a loaded machine may be evicted as those of the attacker are.
            let is_answered = || match world.run(hello) {
                Ok(text) if text.starts_with("HTTP/1.0 200") => Ok(()),
                answer => Err(format!("{round}: {answer:?}")),
            };
            try_wait_until(PATIENCE, is_answered).unwrap();
            // 256 connections, and those of this test.
            let added = sockets(process).saturating_sub(sockets_before);
            assert!(added <= 256 + 16, "{round}: {added} sockets");
        }
        let own = probe_until(&node, |answer| {
            answer["nodes"][0]["host"]["primary-address"]["http"]["status"].is_null()
        });
        assert!(own["nodes"][0]["host"]["primary-address"]["http"]["latency"].as_i64().unwrap() > 0, "{own}");
        let added = resident(process).saturating_sub(memory_before);
        assert!(added < 16 << 10, "{added} kB");
        stop.store(true, Ordering::SeqCst);
        attacker.join().unwrap();
    });
    let closed = || {
        let left = sockets(process).saturating_sub(sockets_before);
        if left <= 16 { Ok(()) } else { Err(left.to_string()) }
    };
    try_wait_until(PATIENCE, closed).expect("closed connections are forgotten");
}

/// Sets a flag when it is dropped.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
