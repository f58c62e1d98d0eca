//! A whole agent that answers health checks of load balancers on another host, and terminates sockets of removed
//! backends.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use integration_tests::{Node, ServiceFixture, state_file};
use loadbalancer_sockets::{Diag, Transport};
use serde_json::json;
use test_kit::{require_root, try_wait_until};

const PORT: u16 = 31_500;
const PROXY_PORT: u16 = 10_256;

/// Returns the response of an address of the node to the host outside.
fn ask(node: &Node, ip: &str) -> Result<String, String> {
    ask_port(node, ip, PORT)
}

fn ask_port(node: &Node, ip: &str, port: u16) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((ip, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: node\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    node.world().run(ask).map_err(|error| error.to_string())
}

fn until(node: &Node, ip: &str, wanted: impl Fn(&Result<String, String>) -> bool) {
    let probe = || {
        let answer = ask(node, ip);
        if wanted(&answer) { Ok(()) } else { Err(format!("{answer:?}")) }
    };
    if let Err(error) = try_wait_until(Duration::from_secs(30), probe) {
        panic!("{ip}: {error:?}\n{}", node.log());
    }
}

#[test]
fn a_load_balancer_learns_whether_the_node_has_backends() {
    require_root!();
    let service = |policy: &str, backends: &[&str]| {
        let spec = json!({
            "type": "LoadBalancer", "externalTrafficPolicy": policy, "healthCheckNodePort": PORT,
        });
        let mut service = ServiceFixture::new("web", &["10.96.0.1"], backends).with(spec);
        service.status = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}});
        state_file(&[service])
    };
    let mut node = Node::with_cgroup();
    node.config.insert("kube-proxy-replacement".to_owned(), "true".to_owned());
    let address = format!(":{PROXY_PORT}");
    node.config.insert("kube-proxy-replacement-healthz-bind-address".to_owned(), address);
    node.follow_services("lb.json");
    node.write_services(&service("Local", &["10.244.0.9", "10.244.0.10"]));
    node.start();
    for ip in [Node::IPV4, Node::IPV6] {
        until(&node, ip, |answer| answer.as_ref().is_ok_and(|text| text.starts_with("HTTP/1.0 200 OK\r\n")));
        let answer = ask(&node, ip).unwrap();
        assert!(
            answer.contains("\r\nX-Load-Balancing-Endpoint-Weight: 4\r\n"),
            "two ports of two pods: {answer}"
        );
        assert!(answer.ends_with("\"name\":\"web\"},\"localEndpoints\":4}\n"), "{answer}");
    }
    for ip in [Node::IPV4, Node::IPV6] {
        let answer = ask_port(&node, ip, PROXY_PORT).unwrap();
        assert!(
            answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.contains("{\"lastUpdated\": "),
            "{answer}"
        );
    }
    node.write_services(&service("Local", &[]));
    until(&node, Node::IPV4, |answer| answer.as_ref().is_ok_and(|text| text.starts_with("HTTP/1.0 503 ")));
    node.write_services(&service("Cluster", &[]));
    until(&node, Node::IPV4, Result::is_err);
}

/// The map entries are those that programs write for processes in the node's cgroup; the test's is not.
#[test]
fn sockets_end_with_their_backend_on_the_host_and_in_pods() {
    require_root!();
    let service = |backends: &[&str]| state_file(&[ServiceFixture::new("web", &["10.96.0.1"], backends)]);
    let mut node = Node::with_cgroup();
    node.config.insert("bpf-lb-sock".to_owned(), "true".to_owned());
    node.follow_services("lb.json");
    node.write_services(&service(&["192.0.2.2", "192.0.2.1"]));
    let namespaces = node.sandbox().run_dir().join("netns");
    std::fs::create_dir_all(&namespaces).unwrap();
    std::os::unix::fs::symlink(node.world().path(), namespaces.join("pod")).unwrap();
    node.start();
    let map = node.sandbox().bpf_root().join("tc/globals/cilium_lb4_reverse_sk");
    let map = bpf::RawMap::open(&map).unwrap();
    // Ports of backends are 8000 above the service's.
    let connected = |backend: [u8; 4]| {
        let peer = SocketAddr::from((backend, 8080));
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(peer).unwrap();
        let all = Diag::open().unwrap().connected(Transport::Udp).unwrap();
        let cookie = all.iter().find(|socket| socket.peer == peer).unwrap().cookie;
        let port = 8080_u16.to_be_bytes();
        let key = [&cookie.to_ne_bytes()[..], &backend, &port, &[0; 2]].concat();
        let value = [&[10, 96, 0, 1][..], &80_u16.to_be_bytes(), &[0; 2]].concat();
        map.update(&key, &value, bpf::UpdateMode::Any).unwrap();
        socket
    };
    let known = || {
        let services = node.get("/v1/service");
        let text = services.to_string();
        if text.contains("192.0.2.2") { Ok(()) } else { Err(text) }
    };
    try_wait_until(Duration::from_secs(30), known).unwrap();
    let of_host = connected([192, 0, 2, 2]);
    let of_pod = node.world().run(|| connected([192, 0, 2, 2]));
    let other = connected([192, 0, 2, 1]);
    node.write_services(&service(&["192.0.2.1"]));
    let until_aborted = |node: &Node, name: &str, socket: &UdpSocket| {
        let aborted = || match socket.take_error().unwrap() {
            Some(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(()),
            error => Err(format!("{error:?}")),
        };
        if let Err(error) = try_wait_until(Duration::from_secs(30), aborted) {
            panic!("{name}: {error:?}\n{}", node.log());
        }
    };
    until_aborted(&node, "host", &of_host);
    until_aborted(&node, "pod", &of_pod);
    let lives = |socket: &UdpSocket| socket.take_error().unwrap().is_none() && socket.peer_addr().is_ok();
    assert!(lives(&other));

    // Another backend is removed while no agent runs.
    let stays = connected([192, 0, 2, 3]);
    node.kill();
    node.write_services(&service(&["192.0.2.3"]));
    node.spawn();
    node.wait_ready();
    until_aborted(&node, "of a backend that went meanwhile", &other);
    assert!(lives(&stays));
}
