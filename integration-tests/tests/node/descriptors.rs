//! An agent without free descriptors forwards, reports the lack, and recovers once it has some.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use integration_tests::{Node, Pod, binary};
use test_kit::{require_command, require_root, wait_until};

const PATIENCE: Duration = Duration::from_secs(30);

/// Creates a node with this limit of file descriptors for the agent.
fn node_with(descriptors: usize) -> Node {
    let mut node = Node::new();
    let (limit, agent) = (format!("--nofile={descriptors}:{descriptors}"), binary("agent"));
    let command = node.agent_command_of(&["prlimit", &limit, agent.to_str().unwrap()]);
    node.spawn_command(command);
    node.wait_ready();
    node
}

fn probe(node: &Node) -> std::io::Result<u16> {
    node.host().run(|| {
        let mut stream = TcpStream::connect("127.0.0.1:9879")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default())
    })
}

fn reach(from: &Pod, to: &Pod) -> bool {
    from.ns.exec(&format!("ping -c 1 -W 2 {}", to.ipv4)).is_ok()
}

fn open(node: &Node) -> usize {
    fs::read_dir(format!("/proc/{}/fd", node.agent_pid())).unwrap().count()
}

/// Returns the CPU time of the agent in clock ticks.
fn ticks(node: &Node) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", node.agent_pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn idle_connections_take_descriptors_from_nobody() {
    require_root!();
    require_command!("prlimit");
    let mut node = node_with(640);
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    let mut idle = Vec::new();
    let mut probes = Vec::new();
    for _ in 0..350 {
        let mut stream = UnixStream::connect(node.socket()).unwrap();
        stream.write_all(b"GET /v1/healthz HT").unwrap();
        idle.push(stream);
        probes.push(node.host().run(|| TcpStream::connect("127.0.0.1:9879").unwrap()));
    }
    let begin = Instant::now();
    assert_eq!(probe(&node).unwrap(), 200);
    assert_eq!(node.get("/v1/healthz")["cilium"]["state"], "Ok", "{}", node.log());
    let c = node.add_pod("c");
    assert!(begin.elapsed() < PATIENCE, "not after the idle ones have run out of time");
    assert!(reach(&a, &b) && reach(&a, &c));
    assert!(open(&node) < 500, "{} descriptors", open(&node));
    drop((idle, probes));
    node.delete_pod(c);
    node.stop();
}

#[test]
fn a_hard_limit_of_256_is_enough_for_some_pods_and_told() {
    require_root!();
    require_command!("prlimit");
    let mut node = node_with(256);
    let pods: Vec<Pod> = (0..4).map(|i| node.add_pod(&format!("pod{i}"))).collect();
    assert!(reach(&pods[0], &pods[3]));
    let reserve = || fs::read_dir(node.sandbox().bpf_root().join("cilium/policy_maps")).unwrap().count();
    wait_until("policy maps are made ahead", PATIENCE, || reserve() >= 64);
    assert!(node.log().contains("raise LimitNOFILE"), "{}", node.log());
    node.kill();
    let (limit, agent) = ("--nofile=256:256", binary("agent"));
    let command = node.agent_command_of(&["prlimit", limit, agent.to_str().unwrap()]);
    node.spawn_command(command);
    node.wait_ready();
    assert!(reach(&pods[1], &pods[2]));
    for pod in pods {
        node.delete_pod(pod);
    }
    node.stop();
    assert!(!node.log().contains("os error 24"), "{}", node.log());
}

#[test]
fn without_descriptors_it_forwards_and_recovers() {
    require_root!();
    require_command!("prlimit");
    let mut node = node_with(1024);
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    let pid = node.agent_pid();
    let limit = |descriptors: usize| {
        let done = node.host().exec(&format!("prlimit --pid {pid} --nofile={descriptors}:1024"));
        done.unwrap();
    };
    // No free descriptor, only the open ones: no connection, file or socket can be opened.
    limit(open(&node).min(8));
    let waiting = UnixStream::connect(node.socket()).unwrap();
    let before = ticks(&node);
    std::thread::sleep(Duration::from_secs(4));
    let used = ticks(&node) - before;
    assert!(used < 100, "{used} ticks in 4 s: something spins");
    assert!(reach(&a, &b), "the datapath goes on");
    limit(1024);
    drop(waiting);
    let begin = Instant::now();
    loop {
        let state = node.get("/v1/healthz")["cilium"].clone();
        if state["state"] == "Ok" && probe(&node).is_ok_and(|status| status == 200) {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{state}\n{}", node.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(node.log().contains("Cannot accept a connection"), "{}", node.log());
    let c = node.add_pod("c");
    assert!(reach(&a, &c));
    node.delete_pod(c);
    node.stop();
}
