//! A whole agent whose programs translate services for processes of the node, in a cgroup of the test.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use integration_tests::{Node, ServiceFixture, state_file};
use serde_json::{Value, json};
use test_kit::{require_root, try_wait_until};

const VIP: &str = "10.96.0.1";

/// The uid of a pod of the host's network namespace.
const UID: &str = "0a1b2c3d-0000-4000-8000-000000000001";

/// Connects a process of the node's cgroup to the service; returns the answer and the peer's address as the process has
/// it.
fn ask(node: &Node) -> Result<(), String> {
    ask_from(node, &node.sandbox().cgroup().unwrap())
}

fn ask_from(node: &Node, cgroup: &Path) -> Result<(), String> {
    let procs = cgroup.join("cgroup.procs");
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

/// Translations at sockets of a process in a pod's cgroup are flows of the pod; those of other processes are none.
fn check_flows(node: &Node) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "hosted", "namespace": "default", "uid": UID},
        "spec": {"hostNetwork": true, "containers": [{"name": "c"}]},
        "status": {"podIPs": [{"ip": Node::IPV4}], "containerStatuses": [
            {"name": "c", "state": {"running": {}}, "containerID": "containerd://c0ffee"},
        ]},
    });
    node.apply("hosted.yaml", &pod.to_string());
    let pod_cgroup =
        node.sandbox().cgroup().unwrap().join(format!("kubepods-pod{}.slice", UID.replace('-', "_")));
    let cgroup = pod_cgroup.join("cri-containerd-c0ffee.scope");
    fs::create_dir_all(&cgroup).unwrap();
    let id = fs::metadata(&cgroup).unwrap().ino().to_string();
    let flows = || -> Result<Vec<Value>, String> {
        // Pods are searched for once a second at most.
        ask_from(node, &cgroup)?;
        let text = node.apiary(&["hubble", "observe", "--all", "-t", "trace-sock", "-o", "json"]);
        let flows: Vec<Value> =
            text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["flow"].take()).collect();
        let points: Vec<&str> = flows.iter().filter_map(|flow| flow["sock_xlate_point"].as_str()).collect();
        let needed = ["SOCK_XLATE_POINT_PRE_DIRECTION_FWD", "SOCK_XLATE_POINT_POST_DIRECTION_FWD"];
        if needed.iter().all(|point| points.contains(point)) { Ok(flows) } else { Err(text) }
    };
    let flows =
        try_wait_until(Duration::from_secs(30), flows).unwrap_or_else(|e| panic!("{e:?}\n{}", node.log()));
    for flow in flows {
        assert_eq!((&flow["Type"], &flow["cgroup_id"]), (&json!("SOCK"), &json!(id)), "{flow}");
        assert_eq!(flow["IP"]["source"], Node::IPV4, "{flow}");
        let is_before = flow["verdict"] == "TRACED";
        let destination = if is_before { VIP } else { Node::IPV4 };
        assert_eq!(flow["IP"]["destination"], destination, "{flow}");
        if is_before {
            assert_eq!(flow["destination_service"]["name"], "web", "{flow}");
        }
    }
    let listed = node.get("/v1/cgroup-dump-metadata");
    let container = json!({"cgroup-id": fs::metadata(&cgroup).unwrap().ino(), "cgroup-path": cgroup});
    let expected =
        json!({"name": "hosted", "namespace": "default", "ips": [Node::IPV4], "containers": [container]});
    assert_eq!(listed, json!({"pod-metadatas": [expected]}));
    fs::remove_dir(&cgroup).and_then(|()| fs::remove_dir(&pod_cgroup)).unwrap();
}

#[test]
fn processes_of_the_node_reach_services_by_their_sockets() {
    require_root!();
    let mut node = Node::with_cgroup();
    node.config.insert("kube-proxy-replacement".to_owned(), "true".to_owned());
    node.config.insert("enable-hubble".to_owned(), "true".to_owned());
    let socket = node.socket().with_file_name("hubble.sock");
    node.config.insert("hubble-socket-path".to_owned(), socket.display().to_string());
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
    check_flows(&node);
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
    assert_eq!(node.get("/v1/cgroup-dump-metadata"), json!({"pod-metadatas": null}));
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
