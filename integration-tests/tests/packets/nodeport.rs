//! Services for clients outside of the node: node ports, external and load balancer addresses, ports of pods, with
//! backends of this node, in pods and in the host's network.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{NetNs, require_root, wait_until};

use crate::services::{ask, connect, refusal, serve_at, tcp, thread, udp};

const CLUSTER: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const EXTERNAL: [&str; 2] = ["198.51.100.7", "2001:db8:5::7"];
const BALANCER: [&str; 2] = ["198.51.100.8", "2001:db8:5::8"];
const OWN: [&str; 2] = [Node::IPV4, Node::IPV6];
const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
const HOST_PORT: u16 = 8088;
const BACKEND_PORT: u16 = 8080;
const LIMIT: Duration = Duration::from_secs(30);

fn at(addresses: [&str; 2], port: u16) -> [SocketAddr; 2] {
    addresses.map(|ip| SocketAddr::new(ip.parse().unwrap(), port))
}

/// The frontends for clients outside.
pub(crate) fn frontends() -> Vec<SocketAddr> {
    [at(OWN, NODE_PORT), at(EXTERNAL, PORT), at(BALANCER, PORT)].concat()
}

fn node() -> Node {
    let mut node = Node::with_cgroup();
    node.config.insert("kube-proxy-replacement".to_owned(), "true".to_owned());
    node.start();
    node
}

/// A backend in a slice.
#[derive(Clone, Copy)]
pub(crate) enum State {
    Ready,
    Leaving,
}

/// Applies the service with these backends, and more fields of its `spec`.
fn apply(node: &Node, backends: &[([IpAddr; 2], State)], spec: &Value) {
    let port = |protocol: &str, fields: Value| {
        let mut port = json!({"name": protocol.to_lowercase(), "protocol": protocol});
        port.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        port
    };
    let front =
        |protocol| port(protocol, json!({"port": PORT, "nodePort": NODE_PORT, "targetPort": BACKEND_PORT}));
    let back = |protocol| port(protocol, json!({"port": BACKEND_PORT}));
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "web"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": CLUSTER[0], "clusterIPs": CLUSTER, "ipFamilies": ["IPv4", "IPv6"],
            "ports": [front("TCP"), front("UDP")], "externalIPs": EXTERNAL,
        },
        "status": {"loadBalancer": {"ingress": BALANCER.map(|ip| json!({"ip": ip}))}},
    });
    service["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let slice = |v6: bool| {
        let kind = if v6 { "IPv6" } else { "IPv4" };
        let endpoint = |(ips, state): &([IpAddr; 2], State)| {
            let leaving = matches!(state, State::Leaving);
            let ip = ips.iter().find(|ip| ip.is_ipv6() == v6).unwrap();
            json!({"addresses": [ip], "conditions": {"ready": !leaving, "serving": true, "terminating": leaving}})
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": format!("web-{}", kind.to_lowercase()),
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": kind, "ports": [back("TCP"), back("UDP")],
            "endpoints": backends.iter().map(endpoint).collect::<Vec<_>>(),
        })
    };
    let all = [service, slice(false), slice(true)].map(|object| object.to_string());
    node.apply("web.yaml", &all.join("\n---\n"));
}

/// Waits until the maps have a frontend with these backends and no others at each of these addresses.
fn wait_served(node: &Node, frontends: &[SocketAddr], backends: &[[IpAddr; 2]]) {
    wait_until("the services are in the maps", LIMIT, || {
        let rows: Value = serde_json::from_str(&node.apiary(&["bpf", "lb", "list", "-o", "json"])).unwrap();
        frontends.iter().all(|frontend| {
            let ips =
                backends.iter().map(|ips| ips.iter().find(|ip| ip.is_ipv4() == frontend.is_ipv4()).unwrap());
            ["TCP", "UDP"].iter().all(|protocol| {
                let slot = |slot: usize| rows.get(format!("{frontend}/{protocol} ({slot})"));
                let slots: String = (1..=backends.len()).filter_map(slot).map(Value::to_string).collect();
                let has = |ip: &IpAddr| slots.contains(&SocketAddr::new(*ip, BACKEND_PORT).to_string());
                ips.clone().all(has) && slot(0).is_some() && slot(backends.len() + 1).is_none()
            })
        })
    });
}

pub(crate) fn serve(node: &Node, backends: &[([IpAddr; 2], State)], spec: &Value) {
    apply(node, backends, spec);
    let backends: Vec<[IpAddr; 2]> = backends.iter().map(|backend| backend.0).collect();
    wait_served(node, &frontends(), &backends);
}

/// Gives a pod a port of the node.
fn open_host_port(node: &Node, pod: &Pod) {
    let port = |protocol| json!({"containerPort": BACKEND_PORT, "hostPort": HOST_PORT, "protocol": protocol});
    let [v4, v6] = pod.addresses();
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": pod.name, "labels": {"name": pod.name}, "uid": "1-2-3"},
        "spec": {"containers": [{"name": "main", "image": "none", "ports": [port("TCP"), port("UDP")]}]},
        "status": {
            "phase": "Running", "hostIP": Node::IPV4, "hostIPs": OWN.map(|ip| json!({"ip": ip})),
            "podIP": v4, "podIPs": [{"ip": v4}, {"ip": v6}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    node.apply(&format!("pod-{}.yaml", pod.name), &object.to_string());
    wait_served(node, &at(OWN, HOST_PORT), &[pod.addresses()]);
}

pub(crate) fn world_asks(node: &Node, to: SocketAddr) -> (Option<String>, Option<String>) {
    (udp(node.world(), to), tcp(node.world(), to))
}

pub(crate) fn both(name: &str) -> (Option<String>, Option<String>) {
    (Some(name.to_owned()), Some(name.to_owned()))
}

fn own() -> [IpAddr; 2] {
    OWN.map(|ip| ip.parse().unwrap())
}

#[test]
fn clients_outside_reach_pods_and_the_host_by_every_kind_of_frontend() {
    require_root!();
    let mut node = node();
    let pod = node.add_pod("one");
    serve_at(&pod.ns, &pod.addresses(), "one");
    for to in at(OWN, NODE_PORT) {
        let closed = refusal(node.world(), to);
        assert_eq!(closed, [ErrorKind::ConnectionRefused; 2], "{to}: no service has the port yet");
    }
    serve(&node, &[(pod.addresses(), State::Ready)], &json!({}));
    for to in frontends() {
        assert_eq!(world_asks(&node, to), both("one"), "{to}\n{}", node.log());
    }
    open_host_port(&node, &pod);
    for to in at(OWN, HOST_PORT) {
        assert_eq!(world_asks(&node, to), both("one"), "{to}, a port of the pod\n{}", node.log());
    }
    // The twins: another port of the node, and the service's own address, which is not for clients outside.
    for to in at(OWN, NODE_PORT + 1) {
        assert_eq!(refusal(node.world(), to), [ErrorKind::ConnectionRefused; 2], "{to}");
    }
    for to in at(CLUSTER, PORT) {
        assert_eq!(world_asks(&node, to), (None, None), "{to}");
    }
    let metrics = node.apiary(&["bpf", "metrics", "list", "-o", "json"]);
    assert!(metrics.contains("Is a ClusterIP"), "{metrics}");
    // A backend in the host's network.
    serve_at(node.host(), &own(), "host");
    serve(&node, &[(own(), State::Ready)], &json!({}));
    for to in frontends() {
        wait_until("the host answers", LIMIT, || world_asks(&node, to) == both("host"));
    }
}

#[test]
fn source_ranges_hold_at_load_balancer_addresses() {
    require_root!();
    let mut node = node();
    let pod = node.add_pod("one");
    serve_at(&pod.ns, &pod.addresses(), "one");
    let ready = [(pod.addresses(), State::Ready)];
    serve(&node, &ready, &json!({"loadBalancerSourceRanges": ["203.0.113.0/24", "2001:db8:77::/64"]}));
    for to in at(BALANCER, PORT) {
        wait_until("others are refused", LIMIT, || world_asks(&node, to) == (None, None));
    }
    for to in at(OWN, NODE_PORT) {
        assert_eq!(world_asks(&node, to), both("one"), "{to}: ranges are of the load balancer");
    }
    serve(&node, &ready, &json!({"loadBalancerSourceRanges": ["192.0.2.0/24", "2001:db8::/64"]}));
    for to in at(BALANCER, PORT) {
        wait_until("clients of the range are served", LIMIT, || world_asks(&node, to) == both("one"));
    }
}

/// Without backends, and with one whose port is closed: refused by the frontend, over UDP by an ICMP error that names
/// the packet that the client has sent.
#[test]
fn frontends_refuse_without_backends_and_with_closed_ones() {
    require_root!();
    let mut node = node();
    let pod = node.add_pod("one");
    for backends in [&[][..], &[(pod.addresses(), State::Ready)], &[(own(), State::Ready)]] {
        serve(&node, backends, &json!({}));
        for to in frontends() {
            let refused = [ErrorKind::ConnectionRefused; 2];
            assert_eq!(refusal(node.world(), to), refused, "{to} {}\n{}", backends.len(), node.log());
        }
    }
}

/// Streams and datagrams in pieces arrive whole, in both directions, with the checksums that devices complete.
#[test]
fn large_transfers_and_datagrams_in_pieces_arrive_whole() {
    require_root!();
    let mut node = node();
    let pod = node.add_pod("one");
    for (ns, addresses) in [(pod.ns.clone(), pod.addresses()), (node.host().clone(), own())] {
        serve_echo(&ns, &addresses);
        serve(&node, &[(addresses, State::Ready)], &json!({}));
        for to in frontends() {
            wait_until("the backend is the only one", LIMIT, || echoes(&node, to, 10));
            assert!(echoes(&node, to, 1_000_000), "{to}");
            assert!(echoes_datagram(&node, to, 4000), "{to}");
        }
    }
}

/// Replies with what it receives.
fn serve_echo(ns: &NetNs, addresses: &[IpAddr]) {
    for &ip in addresses {
        let address = SocketAddr::new(ip, BACKEND_PORT);
        let datagrams = ns.run(|| UdpSocket::bind(address)).unwrap();
        thread(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((len, from)) = datagrams.recv_from(&mut buffer) {
                let _ = datagrams.send_to(&buffer[..len], from);
            }
        });
        let streams = ns.run(|| TcpListener::bind(address)).unwrap();
        thread(move || {
            for mut stream in streams.incoming().flatten() {
                thread(move || {
                    let mut writer = stream.try_clone().unwrap();
                    let _ = std::io::copy(&mut stream, &mut writer);
                });
            }
        });
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

/// Whether a stream to a frontend returns what was written.
fn echoes(node: &Node, to: SocketAddr, len: usize) -> bool {
    let Some(stream) = connect(node.world(), to) else { return false };
    let sent = pattern(len);
    let mut writer = stream.try_clone().unwrap();
    let writing = thread({
        let sent = sent.clone();
        move || {
            let _ = writer.write_all(&sent);
        }
    });
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut received = vec![0; len];
    let whole = (&stream).read_exact(&mut received).is_ok() && received == sent;
    writing.join().unwrap();
    whole
}

fn echoes_datagram(node: &Node, to: SocketAddr, len: usize) -> bool {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket =
        node.world().run(|| UdpSocket::bind(any).and_then(|udp| udp.connect(to).map(|()| udp))).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let sent = pattern(len);
    socket.send(&sent).unwrap();
    let mut received = vec![0; 65_536];
    socket.recv(&mut received).is_ok_and(|received_len| received[..received_len] == sent)
}

/// A connection goes on while its backend becomes unready and the agent stops, starts and is killed; new connections
/// go elsewhere.
#[test]
fn connections_outlive_readiness_restarts_and_kills() {
    require_root!();
    let mut node = node();
    let (pod, other) = (node.add_pod("one"), node.add_pod("two"));
    serve_at(&pod.ns, &pod.addresses(), "one");
    serve_at(&other.ns, &other.addresses(), "two");
    serve(&node, &[(pod.addresses(), State::Ready)], &json!({}));
    let mut streams: Vec<(SocketAddr, TcpStream)> =
        frontends().into_iter().map(|to| (to, connect(node.world(), to).unwrap())).collect();
    let mut all_answer = |when: &str| {
        for (to, stream) in &mut streams {
            assert_eq!(ask(stream).as_deref(), Some("one"), "{to} {when}");
        }
    };
    all_answer("at first");
    serve(&node, &[(other.addresses(), State::Ready), (pod.addresses(), State::Leaving)], &json!({}));
    for to in frontends() {
        wait_until("new connections go to the other", LIMIT, || {
            (0..5).all(|_| tcp(node.world(), to).as_deref() == Some("two"))
        });
    }
    all_answer("unready");
    node.stop();
    all_answer("without an agent");
    for to in frontends() {
        assert_eq!(world_asks(&node, to), both("two"), "{to} without an agent");
    }
    node.start();
    all_answer("after a start");
    node.kill();
    all_answer("after a kill");
    node.start();
    all_answer("at last");
    for to in frontends() {
        assert_eq!(world_asks(&node, to), both("two"), "{to} at last");
    }
}

/// With Maglev tables a flow has the same backend at every frontend with these backends and this port: the hash leaves the
/// address out, and each frontend has a table of its own. A start with tables of another size makes them again.
#[test]
fn flows_have_the_same_backend_at_every_frontend() {
    require_root!();
    let mut node = Node::with_cgroup();
    let options = [
        ("kube-proxy-replacement", "true"),
        ("bpf-lb-algorithm", "maglev"),
        ("bpf-lb-maglev-table-size", "251"),
    ];
    node.config.extend(options.map(|(option, value)| (option.to_owned(), value.to_owned())));
    node.start();
    let pods = [node.add_pod("one"), node.add_pod("two")];
    for pod in &pods {
        serve_at(&pod.ns, &pod.addresses(), &pod.name);
    }
    serve(&node, &pods.each_ref().map(|pod| (pod.addresses(), State::Ready)), &json!({}));
    for (size, ports) in [("251", 20_000..20_012_u16), ("1021", 21_000..21_012)] {
        if size != "251" {
            node.stop();
            node.config.insert("bpf-lb-maglev-table-size".to_owned(), size.to_owned());
            node.start();
        }
        wait_until("the tables are in the maps", LIMIT, || {
            node.apiary(&["bpf", "lb", "maglev", "list"]).lines().count() > 2 * frontends().len()
        });
        let ask = |to| ports.clone().map(|port| udp_from(&node, port, to)).collect::<Vec<_>>();
        for (external, balancer) in at(EXTERNAL, PORT).into_iter().zip(at(BALANCER, PORT)) {
            let found = ask(external);
            assert_eq!(ask(balancer), found, "{size} {external}\n{}", node.log());
            for name in ["one", "two"] {
                let is_chosen = found.iter().any(|answer| answer.as_deref() == Some(name));
                assert!(is_chosen, "{size} {external}: {found:?}");
            }
        }
    }
}

/// Asks a frontend from this port.
fn udp_from(node: &Node, port: u16, to: SocketAddr) -> Option<String> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = node.world().run(|| UdpSocket::bind((any, port))).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.send(b"?").unwrap();
    let mut answer = [0; 64];
    let length = socket.recv(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}
