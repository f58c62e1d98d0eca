//! Pods with routes of their own (`enable-endpoint-routes`): the host's stack delivers to them, the program at the egress of
//! their interfaces enforces policy.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use integration_tests::{Node, Pod};
use test_kit::{NetNs, TcpFlow, UdpFlow, require_root, wait_until};

const WHILE: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(60);

/// Only the client may send to the server.
const POLICY: &str = "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {namespace: default, name: only-client}\n\
                      spec:\n  endpointSelector: {matchLabels: {name: server}}\n  ingress:\n  \
                      - fromEndpoints: [{matchLabels: {name: client}}]\n";

fn node(endpoint_routes: bool) -> Node {
    let mut node = Node::new();
    node.config.insert("enable-endpoint-routes".to_owned(), endpoint_routes.to_string());
    node.config.insert("allow-localhost".to_owned(), "always".to_owned());
    node.start();
    node
}

fn interface(pod: &Pod) -> &str {
    pod.result["interfaces"][0]["name"].as_str().unwrap()
}

/// The routes to a pod by its interface, one line each.
fn routes(node: &Node, pod: &Pod) -> Vec<String> {
    let device = interface(pod);
    let lines =
        |family: &str| node.host().ip(&format!("{family} route show dev {device}")).unwrap_or_default();
    let text = format!("{}{}", lines("-4"), lines("-6"));
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(line).filter(|line| !line.starts_with("fe80::")).collect()
}

fn has_routes(node: &Node, pod: &Pod) -> bool {
    let expected = [
        format!("{} proto kernel scope link", pod.ipv4),
        format!("{} proto kernel metric 1024 pref medium", pod.ipv6),
    ];
    routes(node, pod) == expected
}

fn has_egress_program(node: &Node, device: &str) -> bool {
    let filters = node.host().exec(&format!("tc filter show dev {device} egress")).unwrap();
    filters.contains(&format!("cil_to_container-{device}"))
}

/// Waits until the address answers. The host has a link-local address by a new interface, from which it looks for the pod,
/// a second later; packets before it has found the pod would be lost.
fn await_answer(from: &NetNs, address: IpAddr) {
    let ping = format!("ping -n -c 1 -W 1 {address}");
    wait_until(&ping, LIMIT, || from.exec(&ping).is_ok());
}

/// Sends UDP and TCP for a while; whether all packets have arrived.
fn talks(from: &NetNs, to: &NetNs, address: IpAddr) -> bool {
    await_answer(from, address);
    let udp = UdpFlow::start(from, to, address).unwrap();
    let Ok(tcp) = TcpFlow::start(from, to, address) else { return false };
    sleep(WHILE);
    let (udp, tcp) = (udp.stop(), tcp.stop());
    udp.is_perfect() && tcp.is_perfect()
}

/// Whether any packet arrives.
fn reaches(from: &NetNs, to: &NetNs, address: IpAddr) -> bool {
    let flow = UdpFlow::start(from, to, address).unwrap();
    sleep(WHILE);
    flow.stop().received > 0
}

#[test]
fn pods_and_the_host_talk_by_the_routes_of_the_pods() {
    require_root!();
    let mut node = node(true);
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    for pod in [&a, &b] {
        wait_until("routes to a pod", LIMIT, || has_routes(&node, pod));
        assert!(has_egress_program(&node, interface(pod)));
    }
    let mut wrong = Vec::new();
    let mut check = |what: &str, from: &NetNs, to: &NetNs, address: IpAddr| {
        if !talks(from, to, address) {
            wrong.push(format!("{what} {address}"));
        }
    };
    for family in 0..2 {
        check("pod to pod", &a.ns, &b.ns, b.addresses()[family]);
        check("pod to pod, back", &b.ns, &a.ns, a.addresses()[family]);
        check("host to pod", node.host(), &a.ns, a.addresses()[family]);
        check("pod to host", &a.ns, node.host(), [Node::IPV4, Node::IPV6][family].parse().unwrap());
        let world = [Node::WORLD_IPV4, Node::WORLD_IPV6][family].parse().unwrap();
        check("pod to world", &a.ns, node.world(), world);
        check("world to pod", node.world(), &b.ns, b.addresses()[family]);
    }
    assert!(wrong.is_empty(), "{wrong:?}\n{}", node.log());
    let config = node.get("/v1/config");
    assert_eq!(config["status"]["daemonConfigurationMap"]["EnableEndpointRoutes"], true, "{config}");

    // The control: the packets pass the interface's own route and program. Another process that sends them elsewhere stops
    // them until the agent has repaired it.
    let device = interface(&b).to_owned();
    node.host().ip(&format!("route del {}/32 dev {device}", b.ipv4)).unwrap();
    node.host().ip(&format!("-6 route del {}/128 dev {device}", b.ipv6)).unwrap();
    wait_until("the routes again", LIMIT, || has_routes(&node, &b));
    node.host().exec(&format!("tc filter del dev {device} egress")).unwrap();
    wait_until("the program again", LIMIT, || has_egress_program(&node, &device));
    // A route of another process by the interface stays.
    node.host().ip(&format!("route add 203.0.113.7/32 dev {device} proto static")).unwrap();

    let gone = a.addresses();
    node.delete_pod(a);
    let socket = &node.config["shell-sock-path"];
    let desired = || node.apiary(&["db", "show", "desired-routes", "--shell-sock-path", socket]);
    wait_until("no row of the deleted pod", LIMIT, || !desired().contains(&format!("{}/32", gone[0])));
    assert!(desired().contains(&format!("{}/32", b.ipv4)), "{}", desired());
    assert!(node.host().ip(&format!("route get {}", b.ipv4)).unwrap().contains(&device));
    assert!(routes(&node, &b).iter().any(|line| line.starts_with("203.0.113.7")));
}

#[test]
fn policy_holds_on_packets_by_the_routes_of_the_pods() {
    require_root!();
    let mut node = node(true);
    let (client, server, stranger) =
        (node.add_pod("client"), node.add_pod("server"), node.add_pod("stranger"));
    wait_until("routes to the server", LIMIT, || has_routes(&node, &server));
    for address in server.addresses() {
        await_answer(&stranger.ns, address);
        await_answer(node.world(), address);
        assert!(reaches(&stranger.ns, &server.ns, address), "without a policy, {address}");
        assert!(reaches(node.world(), &server.ns, address), "without a policy, {address}");
    }
    node.apply("policy.yaml", POLICY);
    node.wait_policies(&["only-client"]);
    let check = |node: &Node, when: &str| {
        for address in server.addresses() {
            assert!(talks(&client.ns, &server.ns, address), "{when}, {address}\n{}", node.log());
            assert!(talks(node.host(), &server.ns, address), "the host, {when}, {address}\n{}", node.log());
            assert!(!reaches(&stranger.ns, &server.ns, address), "{when}, {address}");
            assert!(!reaches(node.world(), &server.ns, address), "the world, {when}, {address}");
        }
    };
    check(&node, "in force");
    node.kill();
    check(&node, "without an agent");
    node.start();
    check(&node, "after a start");
}

#[test]
fn restarts_under_traffic_lose_nothing() {
    require_root!();
    let mut node = node(true);
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    for pod in [&a, &b] {
        wait_until("routes to a pod", LIMIT, || has_routes(&node, pod));
    }
    for kills in [false, true, false] {
        let pairs = [(&a.ns, &b), (node.host(), &a)];
        for (from, to) in pairs {
            to.addresses().into_iter().for_each(|address| await_answer(from, address));
        }
        let udp: Vec<UdpFlow> = pairs
            .iter()
            .flat_map(|(from, to)| to.addresses().map(|ip| UdpFlow::start(from, &to.ns, ip).unwrap()))
            .collect();
        let tcp = b.addresses().map(|ip| TcpFlow::start(&a.ns, &b.ns, ip).unwrap());
        sleep(WHILE);
        if kills {
            node.kill();
        } else {
            node.stop();
        }
        for pod in [&a, &b] {
            assert!(has_routes(&node, pod), "routes stay");
        }
        sleep(WHILE);
        node.start();
        sleep(WHILE);
        for flow in udp {
            let report = flow.stop();
            assert!(report.is_perfect(), "kill {kills}: {report:?}\n{}", node.log());
        }
        for flow in tcp {
            let report = flow.stop();
            assert!(report.is_perfect(), "kill {kills}: {report:?}\n{}", node.log());
        }
        for pod in [&a, &b] {
            assert!(has_routes(&node, pod), "{:?}", routes(&node, pod));
        }
    }
    assert!(!node.log().contains("Route was lost"), "{}", node.log());
}

/// A route by an interface without the program would be a way past policy: both go together, in this order.
#[test]
fn the_option_can_be_switched_on_and_off_at_restarts() {
    require_root!();
    let mut node = node(false);
    let (client, server, stranger) =
        (node.add_pod("client"), node.add_pod("server"), node.add_pod("stranger"));
    node.apply("policy.yaml", POLICY);
    node.wait_policies(&["only-client"]);
    assert!(routes(&node, &server).is_empty());
    for on in [true, false] {
        node.config.insert("enable-endpoint-routes".to_owned(), on.to_string());
        let never = server.addresses().map(|ip| UdpFlow::start(&stranger.ns, &server.ns, ip).unwrap());
        let nor = server.addresses().map(|ip| UdpFlow::start(node.world(), &server.ns, ip).unwrap());
        node.stop();
        node.start();
        let is_there = |pod: &Pod| (has_routes(&node, pod), has_egress_program(&node, interface(pod)));
        for pod in [&client, &server, &stranger] {
            wait_until("routes and programs of a pod", LIMIT, || is_there(pod) == (on, on));
            assert_eq!(routes(&node, pod).len(), if on { 2 } else { 0 });
        }
        for address in server.addresses() {
            assert!(talks(&client.ns, &server.ns, address), "{on}, {address}\n{}", node.log());
            assert!(talks(node.host(), &server.ns, address), "{on}, {address}\n{}", node.log());
        }
        for flow in never.into_iter().chain(nor) {
            let report = flow.stop();
            assert_eq!(report.received, 0, "{on}: {report:?}");
        }
    }
}
