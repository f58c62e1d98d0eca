//! The cell with the devices cell in a hive, on the real kernel.

use std::path::Path;
use std::sync::Arc;

use hive::prelude::*;
use local_node::{LocalNode, LocalNodeStore};
use statedb::Table;
use test_kit::{Sandbox, require_root};

fn hive(state: &Path) -> TestHive {
    TestHive::new([
        statedb::cell(),
        devices::cell(),
        config::<maps::FamilyConfig>(),
        local_node::cell(),
        invoke(|_: Arc<Table<LocalNode>>| ()),
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

        sandbox.host().ip("addr add 10.99.0.3/24 dev ext0").unwrap();
        sandbox.host().ip("addr del 10.99.0.7/24 dev ext0").unwrap();
        sandbox.host().ip("addr replace 10.99.0.3/24 dev ext0").unwrap();
        first
            .until("the node has its other address", || {
                store.node().unwrap().ipv4 == Some([10, 99, 0, 3].into())
            })
            .await;
        drop(store);
        first.finish().await;

        let mut second = hive(&dir).set("ipv4-range", "10.7.0.0/16");
        second.start().await;
        let node = second.get::<LocalNodeStore>().node().unwrap();
        assert_eq!(node.router_ipv4, Some([10, 7, 3, 9].into()), "from the file");
        second.assert_no_warning();
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
