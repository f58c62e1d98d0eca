//! Numbered packets between pods, the host and the world outside, over both families.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use integration_tests::{Node, Pod, pod_manifest};
use test_kit::{NetNs, TcpFlow, UdpFlow, require_root, try_wait_until};

const WHILE: Duration = Duration::from_millis(300);

/// Sends UDP and TCP for a while. Returns an error that describes losses.
fn talk(from: &NetNs, to: &NetNs, address: IpAddr) -> Result<(), String> {
    let udp = UdpFlow::start(from, to, address).map_err(|e| e.to_string())?;
    let tcp = TcpFlow::start(from, to, address).map_err(|e| e.to_string())?;
    sleep(WHILE);
    let (udp, tcp) = (udp.stop(), tcp.stop());
    if !udp.is_perfect() {
        return Err(format!("{address}: {udp:?}"));
    }
    if !tcp.is_perfect() {
        return Err(format!("{address}: {tcp:?}"));
    }
    Ok(())
}

fn router(node: &Node) -> [IpAddr; 2] {
    let addressing = &node.get("/v1/config")["status"]["addressing"];
    ["ipv4", "ipv6"].map(|family| addressing[family]["ip"].as_str().unwrap().parse().unwrap())
}

#[test]
fn everybody_talks() {
    require_root!();
    let mut node = Node::started();
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    let mut wrong = Vec::new();
    let mut check = |what: &str, from: &NetNs, to: &NetNs, address: IpAddr| {
        if let Err(error) = talk(from, to, address) {
            wrong.push(format!("{what}: {error}"));
        }
    };
    for family in 0..2 {
        check("pod to pod", &a.ns, &b.ns, b.addresses()[family]);
        check("pod to pod, back", &b.ns, &a.ns, a.addresses()[family]);
        check("host to pod", node.host(), &a.ns, a.addresses()[family]);
        check("pod to router", &a.ns, node.host(), router(&node)[family]);
        check("pod to host", &a.ns, node.host(), [Node::IPV4, Node::IPV6][family].parse().unwrap());
        check(
            "pod to world",
            &a.ns,
            node.world(),
            [Node::WORLD_IPV4, Node::WORLD_IPV6][family].parse().unwrap(),
        );
        check("world to pod", node.world(), &b.ns, b.addresses()[family]);
    }
    assert!(wrong.is_empty(), "{}\nlog of the agent:\n{}", wrong.join("\n"), node.log());
}

#[test]
fn a_pod_that_is_added_again_talks() {
    require_root!();
    let mut node = Node::started();
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    for _ in 0..3 {
        let again = Pod::add(&node, "default", "a", &a.ns).unwrap();
        for family in 0..2 {
            talk(&b.ns, &again.ns, again.addresses()[family]).unwrap();
        }
        assert_eq!(node.endpoints().len(), 3, "the host's, one of each pod: {:?}", node.endpoints());
    }
    a.cni(&node, "DEL").unwrap();
    assert_eq!(node.endpoints().len(), 2, "{:?}", node.endpoints());
}

/// Names of the host's sides of the pods' links.
fn host_side(pod: &Pod) -> String {
    pod.result["interfaces"][0]["name"].as_str().unwrap().to_owned()
}

/// The control: without the programs the same flows do not pass, so the test above can fail.
#[test]
fn without_programs_nobody_talks() {
    require_root!();
    let mut node = Node::started();
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    talk(&a.ns, &b.ns, b.ipv4).unwrap();
    node.kill();
    for pod in [&a, &b] {
        let device = host_side(pod);
        node.host().exec(&format!("tc qdisc del dev {device} clsact")).unwrap();
    }
    // Before Linux 6.6 the host's devices have filters, too, which lead packets from the host's stack to pods.
    for device in ["cilium_host", "cilium_net", "eth0"] {
        let _ = node.host().exec(&format!("tc qdisc del dev {device} clsact"));
    }
    // Links end with their last pin.
    std::fs::remove_dir_all(node.sandbox().bpf_root().join("cilium")).unwrap();
    // The kernel frees a link asynchronously.
    sleep(Duration::from_millis(500));
    for address in b.addresses() {
        let udp = UdpFlow::start(&a.ns, &b.ns, address).unwrap();
        sleep(WHILE);
        let report = udp.stop();
        assert_eq!(report.received, 0, "{address}: {report:?}");
    }
}

#[test]
fn a_pod_may_only_send_from_its_own_addresses() {
    require_root!();
    let mut node = Node::started();
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    let foreign = node.unused_ipv4().to_string();
    a.ns.ip(&format!("addr add {foreign}/32 dev eth0")).unwrap();
    let ping = |source: &str| pings(&a.ns, &["-I", source, &b.ipv4.to_string()]);
    assert!(ping(&a.ipv4.to_string()), "its own address is allowed\n{}", node.log());
    assert!(!ping(&foreign), "a foreign address is not");
    let metrics = node.apiary(&["bpf", "metrics", "list"]);
    assert!(metrics.contains("Invalid source ip"), "{metrics}");
}

/// One hop reaches the pod's node (a BGP session with a router on the node uses one), two reach the world behind it.
#[test]
fn a_pods_last_hop_reaches_its_node() {
    require_root!();
    let mut node = Node::started();
    let pod = node.add_pod("a");
    let routers = router(&node).map(|ip| ip.to_string());
    let pings = |hops: &str, address: &str| pings(&pod.ns, &["-t", hops, address]);
    for address in [Node::IPV4, Node::IPV6, &routers[0], &routers[1]] {
        assert!(pings("1", address), "{address}\n{}", node.log());
    }
    for address in [Node::WORLD_IPV4, Node::WORLD_IPV6] {
        assert!(pings("2", address), "{address}\n{}", node.log());
        assert!(!pings("1", address), "{address}: the control");
    }
}

/// Cilium's plugin sets the host's side up before the agent is notified of the endpoint.
#[test]
fn unknown_pods_are_dropped_at_the_hosts_side() {
    require_root!();
    let mut node = Node::started();
    let known = node.add_pod("known");
    let stranger = node.sandbox().netns("stranger").unwrap();
    node.host().veth("lxc57a26e500001", &stranger, "eth0").unwrap();
    let gateway = router(&node)[0];
    let own = node.unused_ipv4();
    stranger
        .ip_batch(&format!(
            "addr add {own}/32 dev eth0\nroute add {gateway}/32 dev eth0\nroute add default via {gateway}\n\
             neigh add {gateway} lladdr {} dev eth0\n",
            mac(&node.host().ip("-o link show lxc57a26e500001").unwrap())
        ))
        .unwrap();
    let reaches = |address: &str| pings(&stranger, &[address]);
    for address in [known.ipv4.to_string(), Node::WORLD_IPV4.to_owned()] {
        assert!(!reaches(&address), "a pod that the agent does not know reaches {address}");
    }
    let udp = UdpFlow::start(&stranger, &known.ns, known.ipv4).unwrap();
    sleep(WHILE);
    let report = udp.stop();
    assert_eq!(report.received, 0, "{report:?}");
    // The control: once it is an endpoint, the same packets pass.
    node.apply("stranger.yaml", &pod_manifest("default", "stranger", &[("name", "stranger")]));
    let body = format!(
        r#"{{"k8s-namespace":"default","k8s-pod-name":"stranger","container-id":"stranger","container-interface-name":"eth0","state":"waiting-for-identity",
            "interface-name":"lxc57a26e500001","interface-index":{},"mac":"{}","host-mac":"{}",
            "addressing":{{"ipv4":"{own}"}},"sync-build-endpoint":true}}"#,
        index(&node.host().ip("-o link show lxc57a26e500001").unwrap()),
        mac(&stranger.ip("-o link show eth0").unwrap()),
        mac(&node.host().ip("-o link show lxc57a26e500001").unwrap()),
    );
    let answer = node.request("PUT", "/v1/endpoint/cni-attachment-id:stranger:eth0", Some(&body)).unwrap();
    assert_eq!(answer.status, 201, "{answer:?}\n{}", node.log());
    assert!(reaches(&known.ipv4.to_string()), "a known pod reaches the other\n{}", node.log());
}

/// Whether three pings in a row are answered.
fn pings(from: &NetNs, arguments: &[&str]) -> bool {
    let mut ping = from.command("ping");
    ping.args(["-c3", "-i0.05", "-W1", "-q"]).args(arguments).stdout(std::process::Stdio::null());
    ping.status().unwrap().success()
}

fn mac(line: &str) -> String {
    line.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
}

fn index(line: &str) -> u32 {
    line.split(':').next().unwrap().trim().parse().unwrap()
}

/// The stack replies for addresses of the receiving interface, here one of the node's, and stores the sender as
/// neighbour.
#[test]
fn a_pod_resolves_an_address_of_the_host_on_its_link() {
    require_root!();
    let mut node = Node::started();
    let pod = node.add_pod("a");
    let device = host_side(&pod);
    node.host().ip(&format!("addr add {}/128 dev {device} nodad", Node::IPV6)).unwrap();
    pod.ns.ip(&format!("route add {}/128 dev eth0", Node::IPV6)).unwrap();
    assert!(pings(&pod.ns, &["-I", &pod.ipv6.to_string(), Node::IPV6]), "{}", node.log());
    let resolved = pod.ns.ip(&format!("neigh show {} dev eth0", Node::IPV6)).unwrap();
    let expected = mac(&node.host().ip(&format!("-o link show {device}")).unwrap());
    assert!(resolved.contains(&format!("lladdr {expected}")), "{resolved}");
    let learned = node.host().ip(&format!("-6 neigh show dev {device}")).unwrap();
    let own = mac(&pod.ns.ip("-o link show eth0").unwrap());
    assert!(learned.contains(&format!("{} lladdr {own}", pod.ipv6)), "{learned}");
    // The control: an unused address is not resolved.
    pod.ns.ip("route add 2001:db8::99/128 dev eth0").unwrap();
    assert!(!pings(&pod.ns, &["-I", &pod.ipv6.to_string(), "2001:db8::99"]));
}

/// A veth of the node's namespace with an address of its own, forwarded like any other.
fn foreign(node: &Node, name: &str, network: u8) -> NetNs {
    let ns = node.sandbox().netns(&format!("foreign{network}")).unwrap();
    node.host().veth(name, &ns, "eth0").unwrap();
    node.host()
        .ip_batch(&format!(
            "addr add 198.51.{network}.1/24 dev {name}\naddr add fd0f:{network}::1/64 dev {name} nodad\n"
        ))
        .unwrap();
    ns.ip_batch(&format!(
        "addr add 198.51.{network}.2/24 dev eth0\naddr add fd0f:{network}::2/64 dev eth0 nodad\n\
         route add default via 198.51.{network}.1\nroute add default via fd0f:{network}::1\n"
    ))
    .unwrap();
    ns
}

/// Whether a foreign namespace reaches the node, and the world through it, in both families.
fn foreign_passes(ns: &NetNs) -> Vec<&'static str> {
    let targets = [Node::IPV4, Node::IPV6, Node::WORLD_IPV4, Node::WORLD_IPV6];
    targets.into_iter().filter(|target| pings(ns, &[target])).collect()
}

/// Waits until a foreign namespace reaches everything: its link and routers need a moment to come up.
fn until_foreign_passes(node: &Node, name: &str, ns: &NetNs) {
    let passes = || match foreign_passes(ns) {
        passed if passed == [Node::IPV4, Node::IPV6, Node::WORLD_IPV4, Node::WORLD_IPV6] => Ok(()),
        passed => Err(format!("only {passed:?}")),
    };
    if let Err(error) = try_wait_until(Duration::from_secs(10), passes) {
        panic!("{name}: {error}\n{}\n{}", node_filters(node, name), node.log());
    }
}

/// LXC, Incus and administrators use such names for veths.
#[test]
fn veths_of_others_named_lxc_are_left_alone() {
    require_root!();
    let mut node = Node::started();
    let pod = node.add_pod("a");
    let mut others = Vec::new();
    for (network, name) in
        ["lxc1234_eth0", "lxcbr0-like", "lxcguest", "lxc66da2a01a00g"].into_iter().enumerate()
    {
        let ns = foreign(&node, name, network as u8);
        until_foreign_passes(&node, name, &ns);
        others.push((name, ns));
    }
    let filters = |name: &str| node_filters(&node, name);
    assert!(others.iter().all(|(name, _)| filters(name).is_empty()));
    // The control: a name as CNI plugins give it is a pod's that was not announced.
    let unknown = foreign(&node, "lxc66da2a01a00f", 99);
    assert_eq!(foreign_passes(&unknown), [] as [&str; 0]);
    assert!(filters("lxc66da2a01a00f").contains("cil_from_container"));
    // A filter that an earlier build has attached to a veth of another name is removed at the next start.
    node.kill();
    node.host().ip("link set lxc66da2a01a00f down").unwrap();
    node.host().ip("link set lxc66da2a01a00f name lxcguest2").unwrap();
    node.host().ip("link set lxcguest2 up").unwrap();
    node.host().ip("addr replace fd0f:99::1/64 dev lxcguest2 nodad").unwrap();
    assert_eq!(foreign_passes(&unknown), [] as [&str; 0]);
    node.start();
    until_foreign_passes(&node, "lxcguest2", &unknown);
    talk(node.host(), &pod.ns, pod.ipv4).unwrap();
}

fn node_filters(node: &Node, name: &str) -> String {
    node.host().exec(&format!("tc filter show dev {name} ingress")).unwrap()
}
