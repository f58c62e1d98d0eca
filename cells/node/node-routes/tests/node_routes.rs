//! The cell in a hive, on the kernel of a namespace, with nodes that the test gives.

use std::sync::Arc;

use hive::prelude::*;
use local_node::LocalNode;
use node_manager::Node;
use node_manager::testing::{Nodes, given, node};
use routes::Routes;
use statedb::RwTable;
use test_kit::{Sandbox, require_root};

const HEALTH: &str = "node-routes.job-node-routes";

fn in_sandbox(work: impl AsyncFnOnce(&Sandbox)) {
    let sandbox = Sandbox::new().unwrap();
    sandbox
        .host()
        .ip_batch(
            "link add cilium_host type veth peer name pcilium_host\nlink set cilium_host up\nlink set pcilium_host up\naddr add 10.0.1.1/32 dev cilium_host\n\
             addr add fd00:1::1/128 dev cilium_host nodad\nlink add eth0 type veth peer name peth0\nlink set eth0 up\nlink set peth0 up\n\
             addr add 192.0.2.1/24 dev eth0\naddr add 2001:db8::1/64 dev eth0 nodad\n",
        )
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(&sandbox));
}

fn hive(sandbox: &Sandbox, nodes: Vec<Node>, options: &[(&str, &str)]) -> TestHive {
    let own = |table: Arc<RwTable<LocalNode>>| {
        table.transact(|txn| {
            txn.insert(LocalNode {
                name: "a".to_owned(),
                ipv4_alloc_cidr: Some("10.0.1.0/24".parse().unwrap()),
                ipv6_alloc_cidr: Some("fd00:1::/112".parse().unwrap()),
                router_ipv4: Some([10, 0, 1, 1].into()),
                router_ipv6: Some("fd00:1::1".parse().unwrap()),
                ..LocalNode::default()
            })
        });
    };
    let cells = vec![
        statedb::cell(),
        devices::cell(),
        config::<local_node::StateConfig>(),
        config::<maps::FamilyConfig>(),
        tunnel::cell(),
        statedb::table::<subnet::SubnetIdentity>(),
        routes::cell(),
        given(nodes),
        module("node", "A node", [statedb::table::<LocalNode>(), invoke(own)]),
        node_routes::cell(),
        invoke(|_: Arc<Nodes>, _: Arc<Routes>| ()),
    ];
    let hive = TestHive::new(cells).set("state-dir", sandbox.state_dir().display()).set("devices", "eth0");
    options.iter().fold(hive, |hive, (name, value)| hive.set(name, *value))
}

fn kernel(sandbox: &Sandbox, arguments: &str) -> Vec<String> {
    let text = sandbox.host().ip(arguments).unwrap_or_default();
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn by_host(sandbox: &Sandbox) -> Vec<String> {
    kernel(sandbox, "-4 route show dev cilium_host")
}

const OWN: [&str; 2] =
    ["10.0.1.0/24 via 10.0.1.1 proto kernel src 10.0.1.1", "10.0.1.1 proto kernel scope link"];
const TO_B: &str = "10.0.2.0/24 via 10.0.1.1 proto kernel src 10.0.1.1 mtu 1450";
const TO_C: &str = "10.0.3.0/24 via 10.0.1.1 proto kernel src 10.0.1.1 mtu 1450";

#[test]
fn by_tunnel_each_node_has_its_routes_and_a_restart_keeps_them() {
    require_root!();
    in_sandbox(async |sandbox| {
        let b = node("b", &["192.0.2.2"], &["10.0.2.0/24", "fd00:2::/112"]);
        let c = node("c", &["192.0.2.3"], &["10.0.3.0/24", "10.0.1.0/25"]);
        let mut first = hive(sandbox, vec![b.clone(), c.clone()], &[]);
        first.start().await;
        let all = [OWN[0], OWN[1], TO_B, TO_C];
        first.until("all routes", || by_host(sandbox) == all).await;
        let v6 = "fd00:2::/112 proto kernel src fd00:1::1 metric 1024 mtu 1450 pref medium";
        first
            .until("those of IPv6", || {
                kernel(sandbox, "-6 route show dev cilium_host").contains(&v6.to_owned())
            })
            .await;
        first.until("the claim of an own range", || first.health(HEALTH).level == Level::Degraded).await;
        let health = first.health(HEALTH);
        assert!(
            format!("{health:?}").contains("c: range 10.0.1.0/25 is part of this node's own 10.0.1.0/24"),
            "{health:?}"
        );

        let nodes = first.get::<Nodes>();
        let moved = node("c", &["192.0.2.3"], &["10.0.4.0/24"]);
        nodes.0.transact(|txn| txn.insert(moved));
        let to_new = TO_C.replace("10.0.3.0", "10.0.4.0");
        first.until("the other range", || by_host(sandbox) == [OWN[0], OWN[1], TO_B, &*to_new]).await;
        first.until("no claim", || first.health(HEALTH).level == Level::Ok).await;
        nodes.0.transact(|txn| txn.delete(Node::by_name("default", "c")));
        first.until("the deletion", || by_host(sandbox) == all[..3]).await;
        nodes.0.transact(|txn| txn.insert(c.clone()));
        first.until("the node's return", || by_host(sandbox) == all).await;
        first.stop().await;
        assert_eq!(by_host(sandbox), all);

        // The next run knows only c: the routes of b go when its nodes are complete, and those of c stay.
        let mut next = hive(sandbox, vec![c], &[]);
        next.start().await;
        next.until("the prune", || by_host(sandbox) == [OWN[0], OWN[1], TO_C]).await;
        next.stop().await;
    });
}

#[test]
fn direct_routes_follow_the_routes_of_the_host() {
    require_root!();
    in_sandbox(async |sandbox| {
        sandbox.host().ip("route add default via 192.0.2.254 dev eth0").unwrap();
        let b = node("b", &["192.0.2.2", "2001:db8::2"], &["10.0.2.0/24", "fd00:2::/112"]);
        let c = node("c", &["198.51.100.3"], &["10.0.3.0/24"]);
        let options =
            [("routing-mode", "native"), ("auto-direct-node-routes", "true"), ("route-metric", "50")];
        let mut hive = hive(sandbox, vec![b, c], &options);
        hive.start().await;
        let routes = || kernel(sandbox, "-4 route show proto kernel metric 50");
        let to_b = "10.0.2.0/24 via 192.0.2.2 dev eth0";
        let has = |prefix: &str| routes().iter().any(|line| line.starts_with(prefix));
        hive.until("the route to b", || has(to_b)).await;
        let v6 = || kernel(sandbox, "-6 route show fd00:2::/112");
        hive.until("that of IPv6", || v6().iter().any(|line| line.contains("via 2001:db8::2 dev eth0")))
            .await;
        hive.until("the gateway", || hive.health(HEALTH).level == Level::Degraded).await;
        let health = format!("{:?}", hive.health(HEALTH));
        let text =
            "c: route to destination 198.51.100.3 contains gateway 192.0.2.254, must be directly reachable";
        assert!(health.contains(text), "{health}");
        assert!(!has("10.0.3.0/24"), "{:?}", routes());

        sandbox.host().ip("route add 198.51.100.0/24 dev eth0").unwrap();
        hive.until("the route to c", || has("10.0.3.0/24 via 198.51.100.3 dev eth0")).await;
        hive.until("no error", || hive.health(HEALTH).level == Level::Ok).await;
        sandbox.host().ip("route del 198.51.100.0/24 dev eth0").unwrap();
        hive.until("the gateway again", || !has("10.0.3.0/24") && has(to_b)).await;
        hive.stop().await;
    });
}

#[test]
fn in_native_mode_left_overs_of_a_tunnel_are_deleted() {
    require_root!();
    in_sandbox(async |sandbox| {
        let left = "route add 10.0.2.0/24 via 10.0.1.1 dev cilium_host src 10.0.1.1 proto kernel mtu 1450";
        sandbox
            .host()
            .ip_batch(&format!("route add 10.0.1.1 dev cilium_host proto kernel\n{left}\n"))
            .unwrap();
        let b = node("b", &["192.0.2.2"], &["10.0.2.0/24"]);
        let mut hive = hive(sandbox, vec![b], &[("routing-mode", "native")]);
        hive.start().await;
        hive.until("only own routes", || by_host(sandbox) == OWN).await;
        hive.stop().await;
    });
}
