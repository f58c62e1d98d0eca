//! The cell with the devices cell in a hive, on the real kernel.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use api::{Operation, Request, Route};
use datapath_abi::{NodeKey, NodeValue};
use hive::prelude::*;
use local_node::{LocalNode, LocalNodeStore};
use statedb::Table;
use test_kit::{Sandbox, require_root};

/// A hive with maps in the sandbox.
fn with_maps(sandbox: &Sandbox) -> TestHive {
    TestHive::new([
        statedb::cell(),
        devices::cell(),
        maps::cell(),
        local_node::cell(),
        provide(|routes: Group<Route>| Arc::new(Routes(routes.iter().cloned().collect()))),
        invoke(|_: Arc<Routes>, _: Arc<Table<LocalNode>>| ()),
    ])
    .set("state-dir", sandbox.run_dir().display())
    .set("bpf-root", sandbox.bpf_root().display())
    .set("bpf-ct-global-tcp-max", 1024)
    .set("bpf-ct-global-any-max", 1024)
    .set("bpf-nat-global-max", 2048)
    .set("bpf-neigh-global-max", 1024)
    .set("ipv4-range", "10.1.0.0/16")
    .set("devices", "ext0")
}

#[test]
fn the_nodes_number_is_in_the_map_and_stays() {
    require_root!();
    in_sandbox(async |sandbox| {
        let ids = async |hive: &TestHive| -> Vec<(u16, IpAddr)> {
            let path = hive.get::<maps::Maps>().path("cilium_node_map_v2");
            let read = || bpf::Map::<NodeKey, NodeValue>::open(&path).and_then(|map| map.entries());
            hive.until("the map has rows", || read().is_ok_and(|rows| rows.len() >= 2)).await;
            let mut rows: Vec<_> = read().unwrap().iter().map(|(k, v)| (v.id, k.ip().unwrap())).collect();
            rows.sort();
            rows
        };
        let mut first = with_maps(sandbox);
        first.start().await;
        let rows = ids(&first).await;
        let own: IpAddr = [10, 99, 0, 7].into();
        assert_eq!(rows, [(1, own), (1, "fd99::7".parse().unwrap())]);
        let path = first.get::<maps::Maps>().path("cilium_node_map_v2");
        first.stop().await;

        // The id of the previous run stays.
        let map = bpf::Map::<NodeKey, NodeValue>::open(&path).unwrap();
        map.update(&NodeKey::from(own), &NodeValue { id: 3829, spi: 0, pad: 0 }).unwrap();
        map.delete(&NodeKey::from("fd99::7".parse::<IpAddr>().unwrap())).unwrap();
        let mut second = with_maps(sandbox);
        second.start().await;
        assert_eq!(ids(&second).await, [(3829, own), (3829, "fd99::7".parse().unwrap())]);
        let routes = second.get::<Routes>();
        let route = routes.0.iter().find(|r| r.operation() == Operation::GetNodeIds).unwrap();
        let response = route.call(Request::new(Operation::GetNodeIds, &[])).await;
        assert_eq!(response.status(), 200);
        second.stop().await;
    });
}

/// The routes of the hive, which the server would read.
struct Routes(Vec<Route>);

fn hive(state: &Path) -> TestHive {
    TestHive::new([
        statedb::cell(),
        devices::cell(),
        config::<maps::FamilyConfig>(),
        local_node::cell(),
        provide(|routes: Group<Route>| Arc::new(Routes(routes.iter().cloned().collect()))),
        invoke(|_: Arc<Routes>, _: Arc<Table<LocalNode>>| ()),
    ])
    .set("state-dir", state.display())
    .set("devices", "ext0")
}

fn in_sandbox(work: impl AsyncFnOnce(&Sandbox)) {
    let sandbox = Sandbox::new().unwrap();
    let world = sandbox.netns("world").unwrap();
    sandbox.host().veth("ext0", &world, "peer0").unwrap();
    sandbox.host().ip("addr add 10.99.0.7/24 dev ext0").unwrap();
    sandbox.host().ip("addr add fd99::7/64 dev ext0 nodad").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(&sandbox));
}

#[test]
fn the_row_is_there_follows_and_survives_a_restart() {
    require_root!();
    in_sandbox(async |sandbox| {
        let dir = sandbox.run_dir();
        let mut first = hive(&dir);
        first.start().await;
        let store = first.get::<LocalNodeStore>();
        let node = store.node().unwrap();
        assert_eq!(node.ipv4, Some([10, 99, 0, 7].into()));
        assert_eq!(node.ipv6, Some("fd99::7".parse().unwrap()));
        assert_eq!(node.ipv4_alloc_cidr, Some("10.7.0.0/16".parse().unwrap()));
        assert_eq!(node.boot_id.len(), 36);
        assert!(!node.name.is_empty());

        store.update(|node| node.router_ipv4 = Some([10, 7, 3, 9].into()));
        let file = dir.join("state/globals/node_config.h");
        first
            .until("the router is stored", || {
                std::fs::read_to_string(&file).is_ok_and(|text| text.contains("0xa, 0x7, 0x3, 0x9"))
            })
            .await;

        let routes = first.get::<Routes>();
        let route = routes.0.iter().find(|r| r.operation() == Operation::GetClusterNodes).unwrap();
        let response = route.call(Request::new(Operation::GetClusterNodes, &[])).await;
        assert_eq!(response.status(), 200);

        sandbox.host().ip("addr add 10.99.0.3/24 dev ext0").unwrap();
        sandbox.host().ip("addr del 10.99.0.7/24 dev ext0").unwrap();
        sandbox.host().ip("addr replace 10.99.0.3/24 dev ext0").unwrap();
        first
            .until("the node has its other address", || {
                store.node().unwrap().ipv4 == Some([10, 99, 0, 3].into())
            })
            .await;
        drop((store, routes));
        first.finish().await;

        let mut second = hive(&dir).set("ipv4-range", "10.7.0.0/16");
        second.start().await;
        let node = second.get::<LocalNodeStore>().node().unwrap();
        assert_eq!(node.router_ipv4, Some([10, 7, 3, 9].into()), "from the file");
        second.logged_no_warning();
        second.finish().await;
    });
}

#[test]
fn the_router_is_found_on_its_device() {
    require_root!();
    in_sandbox(async |sandbox| {
        sandbox.host().ip("link add cilium_host type veth peer name cilium_net").unwrap();
        sandbox.host().ip("addr add 10.244.0.5/32 dev cilium_host").unwrap();
        let mut hive = hive(&sandbox.run_dir()).set("ipv4-range", "10.244.0.0/24");
        hive.start().await;
        let node = hive.get::<LocalNodeStore>().node().unwrap();
        assert_eq!(node.router_ipv4, Some([10, 244, 0, 5].into()));
        hive.stop().await;
    });
}

#[test]
fn bad_options_stop_the_start_with_a_remedy() {
    require_root!();
    in_sandbox(async |sandbox| {
        for (options, expected) in [
            (
                [("ipv4-range", "10.0.0.0/35"), ("ipv6-range", "auto")],
                "option ipv4-range: '10.0.0.0/35' is wrong; give an IPv4 prefix",
            ),
            (
                [("enable-ipv4", "false"), ("enable-ipv6", "false")],
                "options enable-ipv4 and enable-ipv6 are both false: enable at least one",
            ),
        ] {
            let mut hive = hive(&sandbox.run_dir());
            for (key, value) in options {
                hive = hive.set(key, value);
            }
            let error = hive.try_start().await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    });
}
