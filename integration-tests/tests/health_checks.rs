//! A whole agent that answers health checks of load balancers, asked from another host.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use integration_tests::{Node, ServiceFixture, state_file};
use serde_json::json;
use test_kit::{require_root, try_wait_until};

const PORT: u16 = 31_500;

/// The answer that the host outside gets from an address of the node.
fn ask(node: &Node, ip: &str) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((ip, PORT))?;
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
    let mut node = Node::new();
    node.config.insert("kube-proxy-replacement".to_owned(), "true".to_owned());
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
    node.write_services(&service("Local", &[]));
    until(&node, Node::IPV4, |answer| answer.as_ref().is_ok_and(|text| text.starts_with("HTTP/1.0 503 ")));
    node.write_services(&service("Cluster", &[]));
    until(&node, Node::IPV4, Result::is_err);
}
