//! The leader's cell and an API server within the process, in virtual time.

use std::sync::Arc;

use futures::FutureExt as _;
use hive::prelude::*;
use k8s_fake_apiserver::Tracker;
use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use k8s_types::{Api, Key, Kind};
use k8s_writer::Write;
use k8s_writer::testing::idle;
use operator_election::Leadership;
use serde_json::{Value, json};
use statedb::Table;

const OPTIONS: &[(&str, &str)] =
    &[("enable-ipv6", "false"), ("cluster-pool-ipv4-cidr", "10.0.0.0/22"), ("skip-crd-creation", "true")];

/// A leader with an API server of its own.
fn leader(options: &[(&str, &str)], leadership: Leadership) -> TestHive {
    let hive = TestHive::new([
        statedb::cell(),
        metrics::cell(),
        k8s_fake_apiserver::cell(),
        operator_definitions::cell(),
        k8s_tables::table::<CiliumNode>(),
        k8s_writer::cell(),
        supply(Arc::new(leadership)),
        operator_ipam::cell(),
        invoke(|_: Arc<Tracker>, _: Arc<Table<Write>>, _: Arc<Table<Row<CiliumNode>>>| ()),
    ]);
    OPTIONS.iter().chain(options).fold(hive, |hive, (key, value)| hive.set(key, value))
}

async fn started(options: &[(&str, &str)]) -> TestHive {
    let mut hive = leader(options, Leadership::permanent());
    hive.start().await;
    hive
}

fn node(name: &str, cidrs: &[&str]) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": name},
        "spec": {"ipam": {"podCIDRs": cidrs, "pools": {}}, "bootid": "b", "of-a-later-version": {"kept": true}},
        "status": {"ipam": {"operator-status": {}}},
    })
}

fn object(hive: &TestHive, name: &str) -> Value {
    let tracker = hive.get::<Tracker>();
    let json = Api::get(&*tracker, Kind::CiliumNode, &Key::new("", name)).now_or_never().unwrap().unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn cidrs(hive: &TestHive, name: &str) -> Vec<String> {
    let object = object(hive, name);
    let list = object["spec"]["ipam"]["podCIDRs"].as_array().cloned().unwrap_or_default();
    list.iter().map(|cidr| cidr.as_str().unwrap().to_owned()).collect()
}

fn error(hive: &TestHive, name: &str) -> String {
    let object = object(hive, name);
    object["status"]["ipam"]["operator-status"]["error"].as_str().unwrap_or_default().to_owned()
}

fn add(hive: &TestHive, object: &Value) {
    hive.get::<Tracker>().add(&object.to_string()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn nodes_get_cidrs_and_give_them_back() {
    let hive = started(&[]).await;
    for name in ["a", "b", "c", "d"] {
        add(&hive, &node(name, &[]));
        idle(&hive).await;
    }
    let all: Vec<Vec<String>> = ["a", "b", "c", "d"].iter().map(|name| cidrs(&hive, name)).collect();
    assert_eq!(all, [["10.0.0.0/24"], ["10.0.1.0/24"], ["10.0.2.0/24"], ["10.0.3.0/24"]]);
    assert_eq!(object(&hive, "a")["spec"]["of-a-later-version"]["kept"], true, "fields of others stay");
    let health = hive.health("ipam.job-cluster-pool");
    assert_eq!(health.message, "4 nodes have CIDRs, 0 of 4 IPv4 CIDRs are free");

    // Exhausted: named in the object and in health, until a node goes.
    add(&hive, &node("e", &[]));
    idle(&hive).await;
    assert_eq!((cidrs(&hive, "e"), error(&hive, "e")), (vec![], "allocator full".to_owned()));
    let health = hive.health("ipam.job-cluster-pool");
    assert_eq!((health.level, health.error.as_str()), (Level::Degraded, "node e: allocator full"));
    hive.get::<Tracker>().delete(&node("b", &[]).to_string()).unwrap();
    idle(&hive).await;
    assert_eq!((cidrs(&hive, "e"), error(&hive, "e")), (vec!["10.0.1.0/24".to_owned()], String::new()));
    assert_eq!(hive.health("ipam.job-cluster-pool").level, Level::Ok);

    // A node made again under its name, and one that is not the operator's.
    hive.get::<Tracker>().delete(&node("a", &[]).to_string()).unwrap();
    let mut foreign = node("f", &[]);
    foreign["metadata"]["annotations"] = json!({"ipam.cilium.io/ignore": "true"});
    add(&hive, &foreign);
    add(&hive, &node("a", &[]));
    idle(&hive).await;
    assert_eq!(cidrs(&hive, "a"), ["10.0.0.0/24"]);
    assert_eq!(cidrs(&hive, "f"), Vec::<String>::new());
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_anothers_cidr_is_replaced() {
    let hive = started(&[]).await;
    add(&hive, &node("a", &["10.0.0.0/24"]));
    idle(&hive).await;
    add(&hive, &node("b", &["10.0.0.0/24"]));
    idle(&hive).await;
    assert_eq!(cidrs(&hive, "a"), ["10.0.0.0/24"]);
    assert_eq!((cidrs(&hive, "b"), error(&hive, "b")), (vec!["10.0.1.0/24".to_owned()], String::new()));
    add(&hive, &node("c", &["192.168.0.0/24"]));
    idle(&hive).await;
    assert_eq!(cidrs(&hive, "c"), ["192.168.0.0/24"], "pods may use it");
    assert_eq!(error(&hive, "c"), "allocator not configured for the requested CIDR 192.168.0.0/24");
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_lost_the_lease_writes_nothing() {
    let mut hive = leader(&[], Leadership::default());
    hive.start().await;
    add(&hive, &node("a", &[]));
    idle(&hive).await;
    assert_eq!(cidrs(&hive, "a"), Vec::<String>::new());
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn other_modes_are_left_alone_and_unknown_ones_refused() {
    let hive = started(&[("ipam", "kubernetes"), ("cluster-pool-ipv4-cidr", "")]).await;
    add(&hive, &node("a", &[]));
    idle(&hive).await;
    assert_eq!(cidrs(&hive, "a"), Vec::<String>::new());
    hive.finish().await;
    let refused =
        hive::Hive::builder(config::<operator_ipam::OperatorIpamConfig>()).set("ipam", "eni").build();
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("this operator knows cluster-pool"), "{error}");
}
