//! A node that loses the devices that face the network.

use std::sync::Arc;

use devices::NodeAddress;
use hive::prelude::*;
use statedb::{Db, Table};
use test_kit::{Sandbox, require_root};

const HEALTH: &str = "node-address.job-node-address-update";

#[test]
fn the_loss_of_the_last_device_of_the_network_is_named_until_it_is_back() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let (host, world) = (sandbox.host(), sandbox.netns("world").unwrap());
    let plug = |name: &str, network: u8| {
        host.veth(name, &world, name).unwrap();
        host.ip_batch(&format!(
            "addr add 192.0.{network}.1/24 dev {name}\n\
             route add default via 192.0.{network}.2 metric {network}\n"
        ))
        .unwrap();
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let used = invoke(|_: Arc<Table<NodeAddress>>| ());
        let mut hive = TestHive::new([provide(|| Arc::new(Db::new())), devices::cell(), used]);
        hive.start().await;
        let addresses = hive.get::<Table<NodeAddress>>();
        let rows = || addresses.all(&addresses.snapshot()).cloned().collect::<Vec<_>>();
        let is_ok_with = |devices: &[&str]| {
            let rows = rows();
            let is_there = |name: &str| rows.iter().any(|row| row.device_name == name);
            ["ext0", "ext1"].iter().all(|name| is_there(name) == devices.contains(name))
                && hive.health(HEALTH).level == Level::Ok
        };
        let is_named = |reason: &str| {
            let health = hive.health(HEALTH);
            health.level == Level::Degraded
                && health.message.contains("No device faces the network")
                && format!("{health:?}").contains(reason)
        };
        // An address of another device, so that the job has had a round.
        host.ip("addr add 192.0.9.1/32 dev lo").unwrap();
        hive.until("a round", || rows().iter().any(|row| row.addr.to_string() == "192.0.9.1")).await;
        assert!(is_ok_with(&[]), "a node that never had one is complete");
        plug("ext0", 2);
        hive.until("one device", || is_ok_with(&["ext0"])).await;
        plug("ext1", 3);
        hive.until("two devices", || is_ok_with(&["ext0", "ext1"])).await;
        host.ip("link del ext1").unwrap();
        hive.until("another one is left", || is_ok_with(&["ext0"])).await;

        host.ip("link set ext0 down").unwrap();
        hive.until("a device that is down", || is_named("ext0: ")).await;
        host.ip("link del ext0").unwrap();
        hive.until("no device", || is_named("ext0: the device is gone")).await;
        plug("ext0", 2);
        hive.until("it is back", || is_ok_with(&["ext0"])).await;
        hive.stop().await;
    });
}
