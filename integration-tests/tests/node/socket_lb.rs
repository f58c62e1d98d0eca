//! A whole agent whose programs translate services for processes of the node, in a cgroup of the test.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use integration_tests::{Node, ServiceFixture, state_file};
use test_kit::{require_root, try_wait_until};

const VIP: &str = "10.96.0.1";

/// Connects a process of the node's cgroup to the service; returns the answer and the peer's address as the process has
/// it.
fn ask(node: &Node) -> Result<(), String> {
    let procs = node.sandbox().cgroup().unwrap().join("cgroup.procs");
    let script = format!(
        "echo 0 > {}; exec 3<>/dev/tcp/{VIP}/80 && read -t 20 -u 3 line && echo $line",
        procs.display()
    );
    let output = node.host().command("bash").args(["-c", &script]).output().unwrap();
    match String::from_utf8_lossy(&output.stdout).trim() {
        "web" => Ok(()),
        answer => Err(format!("{answer:?} {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn until_answered(node: &Node) {
    if let Err(error) = try_wait_until(Duration::from_secs(30), || ask(node)) {
        panic!("{error:?}\n{}", node.log());
    }
}

fn links(node: &Node) -> PathBuf {
    node.sandbox().bpf_root().join("cilium/socketlb/links/cgroup")
}

/// Returns whether the status reports it.
fn is_reported(node: &Node) -> bool {
    let status = node.get("/v1/healthz");
    status["kube-proxy-replacement"]["features"]["socketLB"]["enabled"] == true
}

#[test]
fn processes_of_the_node_reach_services_by_their_sockets() {
    require_root!();
    let mut node = Node::with_cgroup();
    node.config.insert("kube-proxy-replacement".to_owned(), "true".to_owned());
    node.follow_services("lb.json");
    node.write_services(&state_file(&[ServiceFixture::new("web", &[VIP], &[Node::IPV4])]));
    // Ports of backends are 8000 above the service's.
    let listener = TcpListener::bind((Node::IPV4, 8080)).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a server of the test, which ends with it")]
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(b"web\n"));
        }
    });
    node.start();
    // Attached after capabilities were dropped.
    until_answered(&node);
    assert!(is_reported(&node), "{}", node.log());
    assert_eq!(fs::read_dir(links(&node)).unwrap().count(), 11);
    // A control: the test's own process is in another cgroup.
    let vip = format!("{VIP}:80").parse().unwrap();
    assert!(TcpStream::connect_timeout(&vip, Duration::from_millis(200)).is_err());

    for _ in 0..2 {
        node.kill();
        ask(&node).expect("while no agent runs");
        node.spawn();
        ask(&node).expect("while an agent starts");
        node.wait_ready();
        ask(&node).expect("with the new agent");
        assert!(is_reported(&node), "{}", node.log());
    }

    node.kill();
    node.config.remove("kube-proxy-replacement");
    node.spawn();
    node.wait_ready();
    let gone = || if links(&node).exists() { Err("links are there".to_owned()) } else { Ok(()) };
    try_wait_until(Duration::from_secs(30), gone).unwrap();
    assert!(!is_reported(&node), "{}", node.log());
}

#[test]
fn without_a_cgroup_health_names_the_remedy_and_the_agent_runs() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("bpf-lb-sock".to_owned(), "true".to_owned());
    // Nothing can be mounted on a device.
    node.config.insert("cgroup-root".to_owned(), "/dev/null".to_owned());
    node.start();
    let named = || {
        let log = node.log();
        let parts = ["option cgroup-root: /dev/null is not a cgroup v2", "mount -t cgroup2 none /dev/null"];
        if parts.iter().all(|part| log.contains(part)) { Ok(()) } else { Err(log) }
    };
    try_wait_until(Duration::from_secs(30), named).unwrap();
    assert!(!is_reported(&node));
}
