//! A rule that names a port, during the rollout of a workload with another port under that name in its new pods.

use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{require_root, wait_until};

const OLD: u16 = 8080;
const NEW: u16 = 9090;
const LIMIT: Duration = Duration::from_secs(120);

/// Creates a pod of `app: web` with this port under the name `answers`.
fn manifest(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{
            "name": "main", "image": "none",
            "ports": [{"name": "answers", "containerPort": port, "protocol": "UDP"}],
        }]},
    })
}

fn policy() -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "by-name", "namespace": "default"},
        "spec": {
            "endpointSelector": {"matchLabels": {"app": "client"}},
            "egress": [{
                "toEndpoints": [{"matchLabels": {"app": "web"}}],
                "toPorts": [{"ports": [{"port": "answers", "protocol": "UDP"}]}],
            }],
        },
    })
}

/// Sends to a pod's port continuously until stopped. Returns the numbers of sent and received packets.
fn flow(stop: &AtomicBool, send: impl Fn(), received: &UdpSocket) -> [usize; 2] {
    let [mut sent, mut came] = [0, 0];
    while !stop.load(Ordering::Relaxed) {
        send();
        sent += 2;
        thread::sleep(Duration::from_millis(1));
        came += count(received);
    }
    thread::sleep(Duration::from_millis(50));
    [sent, came + count(received)]
}

/// Receives on both ports of a pod.
fn receivers(pod: &Pod) -> [UdpSocket; 2] {
    [OLD, NEW].map(|port| {
        let socket = pod.ns.run(|| UdpSocket::bind(("::", port))).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    })
}

/// Returns the number of packets received since the last call.
fn count(socket: &UdpSocket) -> usize {
    let mut buffer = [0; 16];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count()
}

fn identity(node: &Node, name: &str) -> (u64, String) {
    let endpoint = node.get(&format!("/v1/endpoint/pod-name:default%2F{name}"));
    let identity = &endpoint["status"]["identity"];
    (identity["id"].as_u64().unwrap(), identity["labels"].to_string())
}

#[test]
fn a_rollout_with_another_named_port_denies_neither_version() {
    require_root!();
    let mut node = Node::started();
    node.apply("policy.yaml", &policy().to_string());
    let client = node.add_pod_with("default", "client", &[("app", "client")]);
    node.apply("pod-old.yaml", &manifest("old", OLD).to_string());
    let old = node.add_unknown_pod("default", "old");
    node.wait_policies(&["by-name"]);
    let sockets = client.ns.run(|| [("0.0.0.0", 0), ("::", 0)].map(|any| UdpSocket::bind(any).unwrap()));
    let send = |to: IpAddr, port: u16| {
        sockets[usize::from(to.is_ipv6())].send_to(b"x", (to, port)).unwrap();
    };
    let of_old = receivers(&old);
    for address in old.addresses() {
        wait_until("the old version answers", LIMIT, || {
            send(address, OLD);
            thread::sleep(Duration::from_millis(10));
            count(&of_old[0]) > 0
        });
    }

    // Packets to the old version at any moment of the rollout.
    let stop = AtomicBool::new(false);
    let to_old = || old.addresses().into_iter().for_each(|address| send(address, OLD));
    let (new, [sent, came]) = thread::scope(|scope| {
        let flow = scope.spawn(|| flow(&stop, to_old, &of_old[0]));
        node.apply("pod-new.yaml", &manifest("new", NEW).to_string());
        let new = node.add_unknown_pod("default", "new");
        thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        (new, flow.join().unwrap())
    });
    assert_eq!(came, sent, "the old version was denied\n{}", node.log());

    let [(of_old_pods, labels), (of_new_pods, _)] = ["old", "new"].map(|name| identity(&node, name));
    assert_ne!(of_old_pods, of_new_pods);
    assert!(labels.contains("gen:io.cilium.k8s.named-ports=answers.UDP.8080"), "{labels}");
    let of_new = receivers(&new);
    for address in new.addresses() {
        wait_until("the new version answers", LIMIT, || {
            send(address, NEW);
            thread::sleep(Duration::from_millis(10));
            count(&of_new[1]) > 0
        });
    }
    // The control: the name is another port at each.
    for (pod, port) in [(&old, NEW), (&new, OLD)] {
        pod.addresses().into_iter().for_each(|address| send(address, port));
    }
    thread::sleep(Duration::from_millis(100));
    assert_eq!((count(&of_old[1]), count(&of_new[0])), (0, 0), "the other version's port is open");

    // So it stays over a restart, before and after the manifests are read again.
    let stop = AtomicBool::new(false);
    let [sent, came] = thread::scope(|scope| {
        let flow = scope.spawn(|| flow(&stop, to_old, &of_old[0]));
        node.stop();
        node.start();
        thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        flow.join().unwrap()
    });
    assert_eq!(came, sent, "denied during a restart\n{}", node.log());
    assert_eq!(["old", "new"].map(|name| identity(&node, name).0), [of_old_pods, of_new_pods]);
}
