//! The leader's cell with several pools and an API server within the process, in virtual time.

use std::sync::Arc;

use futures::FutureExt as _;
use hive::prelude::*;
use k8s_fake_apiserver::Tracker;
use k8s_tables::Row;
use k8s_types::cilium::{CiliumNode, CiliumPodIPPool};
use k8s_types::{Api, Key, Kind};
use k8s_writer::Write;
use k8s_writer::testing::idle;
use operator_election::Leadership;
use serde_json::{Value, json};
use statedb::Table;

async fn leader(options: &[(&str, &str)], leadership: Leadership, objects: &[Value]) -> TestHive {
    let objects = objects.to_vec();
    let hive = TestHive::new([
        statedb::cell(),
        metrics::cell(),
        k8s_fake_apiserver::cell(),
        operator_definitions::cell(),
        k8s_tables::table::<CiliumNode>(),
        k8s_writer::cell(),
        supply(Arc::new(leadership)),
        operator_ipam::cell(),
        invoke(move |tracker: Arc<Tracker>, _: Arc<Table<Write>>, _: Arc<Table<Row<CiliumPodIPPool>>>| {
            objects.iter().for_each(|object| tracker.add(&object.to_string()).unwrap());
        }),
    ]);
    let defaults = [("ipam", "multi-pool"), ("enable-ipv6", "false"), ("skip-crd-creation", "true")];
    let options = defaults.iter().chain(options);
    let mut hive = options.fold(hive, |hive, (key, value)| hive.set(key, value));
    hive.start().await;
    hive
}

fn node(name: &str, pools: &Value) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": name},
        "spec": {"ipam": {"pools": pools}, "of-a-later-version": {"kept": true}}, "status": {"ipam": {"operator-status": {}}},
    })
}

fn pool(name: &str, cidrs: &[&str], mask: u8) -> Value {
    json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool", "metadata": {"name": name},
        "spec": {"ipv4": {"cidrs": cidrs, "maskSize": mask}},
    })
}

fn request(pool: &str, needed: u64, cidrs: &[&str]) -> Value {
    let mut pools = json!({"requested": [{"pool": pool, "needed": {"ipv4-addrs": needed}}]});
    if !cidrs.is_empty() {
        pools["allocated"] = json!([{"pool": pool, "cidrs": cidrs}]);
    }
    pools
}

fn object(hive: &TestHive, kind: Kind, name: &str) -> Value {
    let tracker = hive.get::<Tracker>();
    let json = Api::get(&*tracker, kind, &Key::new("", name)).now_or_never().unwrap();
    json.map(|json| serde_json::from_slice(&json).unwrap()).unwrap_or_default()
}

fn cidrs(hive: &TestHive, name: &str, pool: &str) -> Vec<String> {
    let object = object(hive, Kind::CiliumNode, name);
    let pools = object["spec"]["ipam"]["pools"]["allocated"].as_array().cloned().unwrap_or_default();
    let found = pools.iter().filter(|held| held["pool"] == pool);
    let cidrs = found.flat_map(|held| held["cidrs"].as_array().cloned().unwrap_or_default());
    cidrs.map(|cidr| cidr.as_str().unwrap().to_owned()).collect()
}

fn error(hive: &TestHive, name: &str) -> String {
    let object = object(hive, Kind::CiliumNode, name);
    object["status"]["ipam"]["operator-status"]["error"].as_str().unwrap_or_default().to_owned()
}

fn set_pools(hive: &TestHive, name: &str, pools: &Value) {
    let mut object = object(hive, Kind::CiliumNode, name);
    object["spec"]["ipam"]["pools"] = pools.clone();
    hive.get::<Tracker>().update(&object.to_string(), false).unwrap();
}

#[tokio::test(start_paused = true)]
async fn nodes_get_ranges_of_the_pools_that_they_request() {
    let create = [("auto-create-cilium-pod-ip-pools", "default=ipv4-cidrs:10.0.0.0/27;ipv4-mask-size:29")];
    let hive = leader(&create, Leadership::permanent(), &[pool("blue", &["10.1.0.0/24"], 28)]).await;
    let tracker = hive.get::<Tracker>();
    for name in ["a", "b"] {
        tracker.add(&node(name, &request("default", 8, &[])).to_string()).unwrap();
        idle(&hive).await;
    }
    assert_eq!(object(&hive, Kind::CiliumPodIPPool, "default")["spec"]["ipv4"]["maskSize"], 29);
    assert_eq!(cidrs(&hive, "a", "default"), ["10.0.0.0/29", "10.0.0.8/29"]);
    assert_eq!(cidrs(&hive, "b", "default"), ["10.0.0.16/29", "10.0.0.24/29"]);
    assert_eq!(object(&hive, Kind::CiliumNode, "a")["spec"]["of-a-later-version"]["kept"], true);
    let summary = "2 nodes have ranges; by pool blue: 0, default: 4";
    assert_eq!(hive.health("ipam.job-multi-pool").message, summary);

    // Exhausted: named in the object and in health, until a node gives a range back.
    tracker.add(&node("c", &request("default", 1, &[])).to_string()).unwrap();
    idle(&hive).await;
    let exhausted = "ipam-multi-pool-sync allocation failed: ipv4 pool default is exhausted: the node has 0 of 1 addresses";
    assert_eq!((cidrs(&hive, "c", "default"), error(&hive, "c")), (vec![], exhausted.to_owned()));
    assert_eq!(hive.health("ipam.job-multi-pool").error, format!("node c: {exhausted}"));
    set_pools(&hive, "a", &request("default", 6, &["10.0.0.0/29"]));
    idle(&hive).await;
    assert_eq!(
        (cidrs(&hive, "c", "default"), error(&hive, "c")),
        (vec!["10.0.0.8/29".to_owned()], String::new())
    );
    assert_eq!(hive.health("ipam.job-multi-pool").level, Level::Ok);

    // A pool that comes after the request, and one that goes.
    set_pools(&hive, "c", &json!({"requested": [{"pool": "late", "needed": {"ipv4-addrs": 3}}]}));
    idle(&hive).await;
    assert!(
        error(&hive, "c").ends_with("cannot allocate from non-existing pool: late"),
        "{}",
        error(&hive, "c")
    );
    tracker.add(&pool("late", &["10.2.0.0/24"], 29).to_string()).unwrap();
    idle(&hive).await;
    assert_eq!(
        (cidrs(&hive, "c", "late"), error(&hive, "c")),
        (vec!["10.2.0.0/29".to_owned()], String::new())
    );
    tracker.delete(&pool("late", &["10.2.0.0/24"], 29).to_string()).unwrap();
    idle(&hive).await;
    assert_eq!(cidrs(&hive, "c", "late"), ["10.2.0.0/29"], "it stays until the node gives it back");
    assert_eq!(hive.health("ipam.job-multi-pool").error, "node c: 10.2.0.0/29 is not of pool late any more");

    // A node that goes.
    tracker.delete(&node("b", &json!({})).to_string()).unwrap();
    tracker.add(&node("d", &request("default", 12, &[])).to_string()).unwrap();
    idle(&hive).await;
    assert_eq!(cidrs(&hive, "d", "default").len(), 2);
    drop(tracker);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_operator_takes_over_what_nodes_have() {
    let mut foreign = node("f", &request("default", 1, &[]));
    foreign["metadata"]["annotations"] = json!({"ipam.cilium.io/ignore": "true"});
    let objects = [
        pool("default", &["10.0.0.0/27"], 29),
        // Listed before those that have ranges.
        node("a", &request("default", 1, &[])),
        node("b", &request("default", 12, &["10.0.0.0/29"])),
        node("c", &request("default", 1, &["10.0.0.8/29"])),
        node("d", &request("default", 1, &["10.0.0.8/29"])),
        foreign,
    ];
    let hive = leader(&[], Leadership::permanent(), &objects).await;
    idle(&hive).await;
    assert_eq!(cidrs(&hive, "c", "default"), ["10.0.0.8/29"]);
    assert_eq!(cidrs(&hive, "b", "default").len(), 2);
    assert_eq!(cidrs(&hive, "b", "default")[0], "10.0.0.0/29");
    let (of_a, of_d) = (cidrs(&hive, "a", "default"), cidrs(&hive, "d", "default"));
    assert_eq!(of_a.len() + of_d.len(), 1, "four ranges in all: {of_a:?} {of_d:?}");
    assert!(!of_d.contains(&"10.0.0.8/29".to_owned()), "the other node has it");
    assert_eq!(cidrs(&hive, "f", "default"), Vec::<String>::new());
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_lost_the_lease_writes_nothing() {
    let objects = [pool("default", &["10.0.0.0/27"], 29), node("a", &request("default", 1, &[]))];
    let hive = leader(&[], Leadership::default(), &objects).await;
    idle(&hive).await;
    assert_eq!(cidrs(&hive, "a", "default"), Vec::<String>::new());
    hive.finish().await;
}
