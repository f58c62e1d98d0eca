//! The cell with the node's row and a fake API server in a hive.

use hive::prelude::*;
use k8s_fake_apiserver::Tracker;
use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use local_node::{LocalNode, LocalNodeStore, NodeName};
use statedb::{Obj, Table};
use std::sync::Arc;
use std::time::Duration;

fn hive(tracker: impl FnOnce(TestHive) -> TestHive) -> TestHive {
    let node = LocalNode { name: "n1".into(), ipv4: Some([192, 0, 2, 1].into()), ..LocalNode::default() };
    let hive = TestHive::new([
        statedb::cell(),
        k8s_fake_apiserver::cell(),
        k8s_writer::cell(),
        config::<maps::FamilyConfig>(),
        local_node::testing::row(node),
        module("tables", "Tables", [k8s_tables::table::<CiliumNode>()]),
        ciliumnode::cell(),
        invoke(|_: Arc<LocalNodeStore>, _: Arc<NodeName>| ()),
    ]);
    tracker(hive.set("enable-ipv6", false))
}

/// The object as the API server has it.
fn object(objects: &Table<Row<CiliumNode>>) -> Option<Obj<Row<CiliumNode>>> {
    objects.get(&objects.snapshot(), Row::by_name("", "n1")).cloned()
}

#[tokio::test]
async fn the_object_is_made_once_the_node_is_known_and_follows_it() {
    let mut hive = hive(|hive| hive);
    hive.start().await;
    let (store, tracker) = (hive.get::<LocalNodeStore>(), hive.get::<Tracker>());
    let objects = hive.get::<Table<Row<CiliumNode>>>();
    let waits = || hive.hive().health().at("ciliumnode.job-publish").map(|row| row.message);
    hive.until("it waits", || waits().as_deref() == Some("Waits for the Node object")).await;
    assert!(object(&objects).is_none());
    store.update(|node| {
        node.uid = "u-1".into();
        node.labels = [("zone".to_owned(), "a".to_owned())].into();
    });
    hive.until("it is there", || object(&objects).is_some()).await;
    let made = object(&objects).unwrap();
    assert_eq!(made.metadata.owner_references[0].uid, "u-1");
    assert_eq!(made.spec.addresses[0].ip, "192.0.2.1");

    // The operator writes its field; then the router's address comes.
    let mut with_cidr = made.object.clone();
    with_cidr.spec.ipam.pod_cidrs = vec!["10.0.1.0/24".into()];
    tracker.update(&k8s_types::with_type(&with_cidr).to_string(), false).unwrap();
    store.update(|node| node.router_ipv4 = Some([10, 0, 1, 9].into()));
    hive.until("the router is known", || object(&objects).unwrap().spec.addresses.len() == 2).await;
    assert_eq!(object(&objects).unwrap().spec.ipam.pod_cidrs[0], "10.0.1.0/24");
    store.update(|node| node.labels = [("zone".to_owned(), "b".to_owned())].into());
    hive.until("the label is another one", || {
        object(&objects).unwrap().metadata.labels.get("zone").unwrap() == "b"
    })
    .await;
    assert!(hive.hive().health().at("ciliumnode.other-writer").is_none(), "the operator's field is its own");

    // While the Node is being deleted nothing is made again.
    store.update(|node| node.is_being_deleted = true);
    hive.until("it has noticed", || waits().unwrap().contains("is being deleted")).await;
    tracker.delete(&k8s_types::with_type(&object(&objects).unwrap().object).to_string()).unwrap();
    hive.until("it is gone", || object(&objects).is_none()).await;
    store.update(|node| {
        node.is_being_deleted = false;
        node.uid = "u-2".into();
    });
    hive.until("the new Node has one", || {
        object(&objects).is_some_and(|object| object.metadata.owner_references[0].uid == "u-2")
    })
    .await;
    drop((store, tracker, objects));
    hive.finish().await;
}

#[tokio::test]
async fn another_writer_is_corrected_and_named() {
    let mut hive = hive(|hive| hive);
    hive.start().await;
    let (store, tracker) = (hive.get::<LocalNodeStore>(), hive.get::<Tracker>());
    let objects = hive.get::<Table<Row<CiliumNode>>>();
    // An object that exists before the first write is adopted; that is no report.
    tracker
        .add("{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: n1, labels: {x: stale}}, spec: {bootid: old}}")
        .unwrap();
    hive.until("the table has it", || object(&objects).is_some()).await;
    store.update(|node| node.uid = "u-1".into());
    let address = || object(&objects).unwrap().spec.addresses.first().map(|address| address.ip.to_string());
    hive.until("it is adopted", || address().as_deref() == Some("192.0.2.1")).await;
    assert!(object(&objects).unwrap().metadata.labels.is_empty());
    let health = || hive.hive().health().at("ciliumnode.other-writer");
    assert!(health().is_none());

    let mut lie = object(&objects).unwrap().object.clone();
    lie.spec.addresses[0].ip = "198.51.100.1".into();
    tracker.update(&k8s_types::with_type(&lie).to_string(), false).unwrap();
    hive.until("it is reported", || health().is_some()).await;
    let error = health().unwrap().error;
    assert!(error.starts_with("changed: /spec/addresses; they are written again."), "{error}");
    hive.until("it is corrected", || address().as_deref() == Some("192.0.2.1")).await;
    assert!(health().is_some(), "it is reported for a minute");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    hive.until("the report is over", || health().is_none()).await;
    drop((store, tracker, objects));
    hive.finish().await;
}

#[tokio::test]
async fn without_the_option_nothing_is_written() {
    let mut hive = hive(|hive| hive.set("auto-create-cilium-node-resource", false));
    hive.start().await;
    hive.get::<LocalNodeStore>().update(|node| node.uid = "u-1".into());
    let row = hive.health("ciliumnode");
    assert_eq!(row.message, "Off by auto-create-cilium-node-resource=false");
    hive.finish().await;
}

#[tokio::test]
async fn a_pattern_that_is_none_is_refused() {
    let mut hive = hive(|hive| hive.set("exclude-node-label-patterns", "(a"));
    let error = hive.try_start().await.unwrap_err().to_string();
    assert!(error.contains("option exclude-node-label-patterns: '(a' is no regular expression"), "{error}");
}
