//! The cell in a hive, with the real map.

use std::sync::Arc;

use bpf::Map;
use config_sources::ClusterConfig;
use datapath_abi::SubnetKey;
use hive::prelude::*;
use maps::Maps;
use statedb::{RwTable, Table};
use subnet::SubnetIdentity;
use test_kit::{Sandbox, require_root};

const HEALTH: &str = "subnet.job-topology";

/// The options in objects of the cluster.
struct Objects(Arc<RwTable<ClusterConfig>>);

fn hive(sandbox: &Sandbox, mode: &str, topology: &str) -> TestHive {
    let given = provide(|table: Arc<RwTable<ClusterConfig>>| Arc::new(Objects(table)));
    let objects = module("objects", "Options in objects", [statedb::table::<ClusterConfig>(), given]);
    let used = invoke(|_: Arc<Objects>, _: Arc<Table<SubnetIdentity>>| ());
    let cells =
        [statedb::cell(), metrics::cell(), maps::cell(), tunnel::cell(), objects, subnet::cell(), used];
    TestHive::new(cells)
        .set("bpf-root", sandbox.bpf_root().display())
        .set("bpf-map-dynamic-size-ratio", "0")
        .set("preallocate-bpf-maps", "false")
        .set("routing-mode", mode)
        .set("subnet-topology", topology)
}

/// Returns the entries of the map; `None` if it does not exist.
fn entries(hive: &TestHive) -> Option<Vec<String>> {
    let map = hive.get::<Maps>().shared("cilium_subnet_map").unwrap()?;
    let map: Map<SubnetKey, u32> = Map::new(map).unwrap();
    let text = |(key, group): (SubnetKey, u32)| format!("{}/{} {group}", key.ip().unwrap(), key.bits());
    let mut entries: Vec<String> = map.entries().unwrap().into_iter().map(text).collect();
    entries.sort();
    Some(entries)
}

fn row(source: &str, priority: u32, value: &str) -> ClusterConfig {
    let [key, source, value] = ["subnet-topology", source, value].map(str::to_owned);
    ClusterConfig { object: format!("ConfigMap kube-system/{source}"), key, source, priority, value }
}

#[test]
fn the_map_follows_the_option_and_the_objects_of_the_cluster() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut first = hive(&sandbox, "hybrid", "10.1.0.0/16,fd00:1::/64;10.2.0.0/16");
        first.start().await;
        let of_option = ["10.1.0.0/16 1", "10.2.0.0/16 2", "fd00:1::/64 1"].map(str::to_owned);
        first.until("the option", || entries(&first).as_deref() == Some(&of_option)).await;

        let objects = first.get::<Objects>().0.clone();
        objects.transact(|txn| txn.insert(row("second", 2, "10.9.0.0/16")));
        first.until("the object", || entries(&first).unwrap() == ["10.9.0.0/16 1"]).await;
        objects.transact(|txn| txn.insert(row("first", 1, ";10.9.0.0/16,10.1.0.0/16")));
        let of_first = ["10.1.0.0/16 2", "10.9.0.0/16 2"];
        first.until("the object that takes precedence", || entries(&first).unwrap() == of_first).await;
        let table = first.get::<Table<SubnetIdentity>>();
        assert_eq!(table.len(&table.snapshot()), 2);
        let pressure = first.get::<metrics::Metrics>().text();
        assert!(pressure.contains("cilium_bpf_map_pressure{map_name=\"subnet_map\"} 0.00"), "{pressure}");

        let map = first.get::<Maps>().shared("cilium_subnet_map").unwrap().unwrap();
        let map: Map<SubnetKey, u32> = Map::new(map).unwrap();
        map.delete(&SubnetKey::new([10, 1, 0, 0].into(), 16)).unwrap();
        map.update(&SubnetKey::new([10, 3, 0, 0].into(), 16), &1).unwrap();
        first.get::<Maps>().comparisons().begin();
        first.until("the repair", || entries(&first).unwrap() == of_first).await;

        objects.transact(|txn| txn.insert(row("first", 1, "10.9.0.0/16;east")));
        first.until("the refusal", || first.health(HEALTH).level == Level::Degraded).await;
        let health = format!("{:?}", first.health(HEALTH));
        assert!(
            health.contains("ConfigMap kube-system/first: option subnet-topology: \\\"east\\\""),
            "{health}"
        );
        assert_eq!(entries(&first).unwrap(), of_first, "the last valid one stays");
        objects.transact(|txn| txn.insert(row("first", 1, "")));
        first.until("no subnet", || entries(&first).unwrap().is_empty()).await;
        objects.transact(|txn| txn.retain(|_| false));
        first.until("the option again", || entries(&first).as_deref() == Some(&of_option)).await;
        assert_eq!(first.health(HEALTH).level, Level::Ok);
        first.stop().await;

        let mut next = hive(&sandbox, "hybrid", "10.1.0.0/16");
        next.start().await;
        next.until("the prune", || entries(&next).unwrap() == ["10.1.0.0/16 1"]).await;
        next.stop().await;
    });
}

#[test]
fn in_other_modes_there_is_no_topology() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut hive = hive(&sandbox, "tunnel", "10.1.0.0/16");
        hive.start().await;
        assert_eq!(entries(&hive), None);
        let table = hive.get::<Table<SubnetIdentity>>();
        assert_eq!(table.len(&table.snapshot()), 0);
        hive.stop().await;
    });
}
