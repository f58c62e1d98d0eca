//! The source of packets that leave the node.

use super::*;

/// Sends a packet from the pod to the world. Returns the source that it arrives with.
fn source(pod: &NetNs, world: &NetNs, to: &str) -> IpAddr {
    let to: IpAddr = to.parse().unwrap();
    let receiver = world.run(|| UdpSocket::bind((to, 7000)).unwrap());
    receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let sender = pod.run(|| UdpSocket::bind((any, 0)).unwrap());
    let mut found = None;
    wait_until("a packet arrives", PATIENCE, || {
        let _ = sender.send_to(b"x", (to, 7000));
        found = receiver.recv_from(&mut [0; 8]).ok().map(|(_, from)| from.ip());
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn packets_of_pods_leave_with_the_nodes_address() {
    require_programs!();
    for backend in BACKENDS {
        let sandbox = sandbox(backend);
        let host = sandbox.host().clone();
        let (pod, world) = (sandbox.netns("pod").unwrap(), sandbox.netns("world").unwrap());
        connect(&host, &pod, &world);
        let sources =
            || ["192.0.2.2", "2001:db8::2", "198.51.100.2"].map(|to| source(&pod, &world, to).to_string());
        assert_eq!(sources(), ["10.244.0.9", "fd00:10:244::9", "10.244.0.9"], "without rules");
        with_rules(&[], async |_| {
            assert_eq!(sources(), ["192.0.2.1", "2001:db8::1", "192.0.2.1"], "{backend}");
        });
        assert_eq!(sources(), ["192.0.2.1", "2001:db8::1", "192.0.2.1"], "rules stay at the stop");
        with_rules(
            &[("enable-ipv6-masquerade", "false"), ("ipv4-native-routing-cidr", "198.51.100.0/24")],
            async |_| {
                assert_eq!(sources(), ["192.0.2.1", "fd00:10:244::9", "10.244.0.9"], "{backend}");
            },
        );
        with_rules(
            &[("egress-masquerade-interfaces", "other0"), ("iptables-random-fully", "true")],
            async |_| {
                assert_eq!(sources(), ["10.244.0.9", "fd00:10:244::9", "10.244.0.9"], "{backend}");
            },
        );
        // Nodes of a network that routes the addresses of pods see them.
        with_rules(&[("routing-mode", "native")], async |hive| {
            let mut sets = Sets::open().unwrap();
            let mut members = || NODE_SETS.map(|set| sets.members(set).unwrap());
            let wanted: [Vec<IpAddr>; 2] = ["192.0.2.2", "2001:db8::2"].map(|ip| vec![ip.parse().unwrap()]);
            hive.until("nodes are in the sets", || members() == wanted).await;
            assert_eq!(sources(), ["10.244.0.9", "fd00:10:244::9", "192.0.2.1"], "{backend}");
            let nodes = hive.get::<Nodes>();
            nodes.0.transact(|txn| drop(txn.delete(Node::by_name("default", "peer"))));
            hive.until("a node that is gone is in none", || members().iter().all(Vec::is_empty)).await;
            assert_eq!(sources()[0], "192.0.2.1", "{backend}");
        });
        // A start with a tunnel needs no sets. The kernel may free the rules that used them only after the first.
        with_rules(&[], async |_| {});
        with_rules(&[], async |_| {
            let mut sets = Sets::open().unwrap();
            assert_eq!(NODE_SETS.map(|set| sets.exists(set).unwrap()), [false, false], "{backend}");
        });
        host.ip("addr add 192.0.2.77/32 dev eth0").unwrap();
        host.ip("route replace 198.51.100.0/24 via 192.0.2.2 src 192.0.2.77").unwrap();
        host.ip("route add default via 192.0.2.2").unwrap();
        with_rules(&[("enable-masquerade-to-route-source", "true"), ("devices", "eth0")], async |hive| {
            let rules = || saved(&host, &tools(backend)[0]).rules("nat", "CILIUM_POST_nat").unwrap().to_vec();
            hive.until("the routes have rules", || rules().iter().any(|rule| rule.contains("192.0.2.77")))
                .await;
            assert_eq!(sources()[2], "192.0.2.77", "{:?}", rules());
            host.ip("route del 198.51.100.0/24").unwrap();
            hive.until("a removed route has none", || {
                !rules().iter().any(|rule| rule.contains("192.0.2.77"))
            })
            .await;
        });
    }
}
