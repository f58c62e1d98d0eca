//! Local redirect policies by real packets: a redirected address is answered by a pod of the node, for as long as the
//! policy exists, also during a restart of the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, scope, sleep};
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{require_root, try_wait_until};

const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const ADDRESS: [&str; 2] = ["169.254.20.10", "fd00:169::10"];
const PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
const NEAR_PORT: u16 = 9090;
/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

/// Answers each request with the pod's name, until the test ends.
fn serve(pod: &Pod, port: u16) {
    for ip in pod.addresses() {
        let (at, name) = (SocketAddr::new(ip, port), pod.name.clone());
        let udp = pod.ns.run(|| UdpSocket::bind(at)).unwrap();
        let answer = name.clone();
        thread(move || {
            let mut request = [0; 16];
            while let Ok((_, from)) = udp.recv_from(&mut request) {
                let _ = udp.send_to(answer.as_bytes(), from);
            }
        });
        let tcp = pod.ns.run(|| TcpListener::bind(at)).unwrap();
        thread(move || {
            for mut stream in tcp.incoming().flatten() {
                let _ = stream.write_all(name.as_bytes());
            }
        });
    }
}

fn thread(work: impl FnOnce() + Send + 'static) {
    Builder::new().name("server".to_owned()).spawn(work).unwrap();
}

/// Returns the pods that reply from an address, over UDP and TCP. Sockets are connected: they only accept replies from
/// it.
fn ask(from: &Pod, ip: &str) -> [Option<String>; 2] {
    let at = SocketAddr::new(ip.parse().unwrap(), PORT);
    let any: SocketAddr = if at.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let (mut over_udp, mut over_tcp) = ([0; 16], String::new());
    let mut udp = || {
        let socket = from.ns.run(|| UdpSocket::bind(any).and_then(|s| s.connect(at).map(|()| s))).ok()?;
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send(b"who").ok()?;
        let length = socket.recv(&mut over_udp).ok()?;
        Some(String::from_utf8_lossy(&over_udp[..length]).into_owned())
    };
    let tcp = || {
        let mut stream = from.ns.run(|| TcpStream::connect_timeout(&at, PATIENCE)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_string(&mut over_tcp).ok()?;
        Some(over_tcp)
    };
    [udp(), tcp()]
}

fn until_answered_by(node: &Node, from: &Pod, addresses: [&str; 2], by: Option<&str>) {
    for ip in addresses {
        let wanted = [by.map(str::to_owned), by.map(str::to_owned)];
        let probe = || {
            let found = ask(from, ip);
            if found == wanted {
                Ok(())
            } else {
                Err(format!("{ip} is answered by {found:?}, not by {by:?}"))
            }
        };
        if let Err(error) = try_wait_until(LONG, probe) {
            panic!("{error}\n{}\n{}", json!(node.frontends()), node.log());
        }
    }
}

fn manifests(items: &[Value]) -> String {
    items.iter().map(|item| format!("{item:#}\n---\n")).collect()
}

/// A service with a pod as its backend.
fn service(pod: &Pod) -> String {
    let ports = |port: u16| json!([{"name": "query", "port": port, "protocol": "UDP"}, {"name": "web", "port": port, "protocol": "TCP"}]);
    let slice = |kind: &str, ip: IpAddr| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("web-{}", kind.to_lowercase()), "namespace": "default",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": kind, "endpoints": [{"addresses": [ip]}], "ports": ports(BACKEND_PORT),
        })
    };
    let [v4, v6] = pod.addresses();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": SERVICE[0], "clusterIPs": SERVICE, "ipFamilies": ["IPv4", "IPv6"], "ports": ports(PORT)},
    });
    manifests(&[slice("IPv4", v4), slice("IPv6", v6), service])
}

/// A pod's manifest once it runs.
fn running(pod: &Pod, ready: &str) -> String {
    let ips: Vec<Value> = pod.addresses().iter().map(|ip| json!({"ip": ip})).collect();
    let ports = json!([
        {"name": "query", "containerPort": NEAR_PORT, "protocol": "UDP"},
        {"name": "web", "containerPort": NEAR_PORT, "protocol": "TCP"},
    ]);
    manifests(&[json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": "default", "labels": {"name": pod.name}},
        "spec": {"containers": [{"name": "main", "image": "none", "ports": ports}]},
        "status": {"phase": "Running", "podIPs": ips, "conditions": [{"type": "Ready", "status": ready}]},
    })])
}

fn policy(name: &str, frontend: &Value) -> Value {
    let port = |name: &str, protocol: &str| json!({"port": NEAR_PORT.to_string(), "protocol": protocol, "name": name});
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumLocalRedirectPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "redirectFrontend": frontend,
            "redirectBackend": {
                "localEndpointSelector": {"matchLabels": {"name": "near"}},
                "toPorts": [port("query", "UDP"), port("web", "TCP")],
            },
            "skipRedirectFromBackend": true,
        },
    })
}

fn of_address(ip: &str) -> Value {
    let port =
        |name: &str, protocol: &str| json!({"port": PORT.to_string(), "protocol": protocol, "name": name});
    json!({"addressMatcher": {"ip": ip, "toPorts": [port("query", "UDP"), port("web", "TCP")]}})
}

fn skip_map(node: &Node) -> String {
    // The command needs a file, and the shell writes only files in this folder.
    let file = tempfile::Builder::new().prefix("apiary-skip").tempfile_in("/tmp").unwrap();
    let path = file.path().to_str().unwrap();
    let printed =
        node.apiary(&["shell", "--shell-sock-path", &node.config["shell-sock-path"], "skiplbmap", path]);
    assert!(printed.is_empty(), "{printed}");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_redirected_address_is_answered_by_the_pod_of_the_node() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("enable-local-redirect-policy".to_owned(), "true".to_owned());
    node.start();
    let client = node.add_pod("client");
    let (far, near) = (node.add_pod("far"), node.add_pod("near"));
    serve(&far, BACKEND_PORT);
    serve(&near, NEAR_PORT);
    node.apply("web.yaml", &service(&far));
    until_answered_by(&node, &client, SERVICE, Some("far"));
    until_answered_by(&node, &client, ADDRESS, None);

    let of_service = json!({"serviceMatcher": {"serviceName": "web", "namespace": "default"}});
    let policies = [
        policy("service", &of_service),
        policy("v4", &of_address(ADDRESS[0])),
        policy("v6", &of_address(ADDRESS[1])),
    ];
    node.apply("policies.yaml", &manifests(&policies));
    node.apply("pod-near.yaml", &running(&near, "True"));
    until_answered_by(&node, &client, SERVICE, Some("near"));
    until_answered_by(&node, &client, ADDRESS, Some("near"));

    // As the API and the tool show it.
    let listed = node.get("/v1/lrp");
    let listed = listed.as_array().unwrap();
    let types: Vec<&str> = listed.iter().map(|policy| policy["frontend-type"].as_str().unwrap()).collect();
    assert_eq!(types, ["clusterIP + all svc ports", "IP + named ports", "IP + named ports"]);
    let backend = &listed[1]["frontend-mappings"][0]["backends"][0];
    assert_eq!(
        (&backend["pod-id"], &backend["backend-address"]["port"]),
        (&json!("default/near"), &json!(NEAR_PORT))
    );
    let table = node.apiary(&["lrp", "list"]);
    assert!(table.starts_with("LRP namespace   LRP name") && table.contains("default/web"), "{table}");
    assert!(table.contains(&format!("{}:{PORT}/UDP -> ", ADDRESS[0])), "{table}");
    // The skip maps have the pod's network namespace with all that is redirected to it.
    let skipped = || {
        let rows = skip_map(&node);
        let cookies: BTreeSet<&str> = rows.lines().filter_map(|line| line.split(' ').next()).collect();
        match (rows.lines().count(), cookies.len()) {
            (4, 1) => Ok(()),
            _ => Err(rows.clone()),
        }
    };
    if let Err(rows) = try_wait_until(LONG, skipped) {
        panic!("{rows}\n{}", node.log());
    }

    // A start of the agent: no other backend answers meanwhile.
    node.kill();
    node.spawn();
    let done = AtomicBool::new(false);
    let answers = scope(|threads| {
        let asking = Builder::new().spawn_scoped(threads, || {
            let mut answers = BTreeMap::new();
            while !done.load(Ordering::Relaxed) {
                for ip in [SERVICE[0], ADDRESS[1]] {
                    for answer in ask(&client, ip) {
                        *answers.entry((ip, answer)).or_insert(0) += 1;
                    }
                }
            }
            answers
        });
        node.wait_ready();
        until_answered_by(&node, &client, SERVICE, Some("near"));
        sleep(Duration::from_secs(2));
        done.store(true, Ordering::Relaxed);
        asking.unwrap().join().unwrap()
    });
    let only = |((_, answer), count): (&(&str, Option<String>), &i32)| {
        answer.as_deref() == Some("near") && *count > 10
    };
    assert!(answers.len() == 2 && answers.iter().all(only), "{answers:?}\n{}", node.log());

    // Without a ready pod all traffic goes to its original destination, as without policies.
    node.apply("pod-near.yaml", &running(&near, "False"));
    until_answered_by(&node, &client, SERVICE, Some("far"));
    until_answered_by(&node, &client, ADDRESS, None);
    node.apply("pod-near.yaml", &running(&near, "True"));
    until_answered_by(&node, &client, ADDRESS, Some("near"));
    node.withdraw("policies.yaml");
    until_answered_by(&node, &client, SERVICE, Some("far"));
    until_answered_by(&node, &client, ADDRESS, None);
    let emptied = || match skip_map(&node) {
        rows if rows.is_empty() => Ok(()),
        rows => Err(rows),
    };
    if let Err(rows) = try_wait_until(LONG, emptied) {
        panic!("{rows}\n{}", node.log());
    }
    assert_eq!(node.get("/v1/lrp"), json!([]));
}
