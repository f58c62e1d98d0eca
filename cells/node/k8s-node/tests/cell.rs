//! The cell with the node's row and a fake API server in a hive.

use std::sync::Arc;

use hive::prelude::*;
use k8s_fake_apiserver::Tracker;
use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use k8s_types::core::Node;
use local_node::{AutomaticRanges, LocalNode, LocalNodeStore, NodeName, PodCidrSource};
use statedb::Table;

fn hive() -> TestHive {
    TestHive::new([
        statedb::cell(),
        k8s_fake_apiserver::cell(),
        k8s_writer::cell(),
        statedb::table::<devices::NodeAddress>(),
        config::<maps::FamilyConfig>(),
        local_node::testing::row(LocalNode { name: "n1".into(), ..LocalNode::default() }),
        module("tables", "Tables", [k8s_tables::table::<Node>(), k8s_tables::table::<CiliumNode>()]),
        k8s_node::cell(),
        invoke(|_: Arc<PodCidrSource>, _: Arc<LocalNodeStore>, _: Arc<AutomaticRanges>, _: Arc<NodeName>| ()),
    ])
    .set("enable-ipv6", false)
}

#[tokio::test]
async fn the_node_is_followed_from_its_objects() {
    let mut hive = hive();
    hive.start().await;
    assert_eq!(*hive.get::<PodCidrSource>(), PodCidrSource::Cluster);
    let (store, tracker) = (hive.get::<LocalNodeStore>(), hive.get::<Tracker>());
    let error = || hive.hive().health().at("k8s-node.job-follow").map(|row| row.error).unwrap_or_default();
    hive.until("the Node is missed", || error().contains("Node n1 does not exist in the cluster")).await;
    tracker
        .add("{apiVersion: v1, kind: Node, metadata: {name: n1, uid: u-1, labels: {a: b}}, spec: {podCIDR: 10.9.0.0/24}}")
        .unwrap();
    hive.until("the Node is known", || !error().contains("does not exist")).await;
    assert!(error().contains("there is no CiliumNode n1 yet"), "{}", error());
    assert_eq!(store.node().unwrap().labels["a"], "b");
    assert_eq!(store.node().unwrap().ipv4_alloc_cidr, None, "cluster-pool is not about the Node's ranges");
    let cilium_node = |cidr: &str| {
        format!(
            "{{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {{name: n1}}, spec: {{ipam: {{podCIDRs: [{cidr}]}}}}}}"
        )
    };
    tracker.add(&cilium_node("10.0.1.0/24")).unwrap();
    let range = || store.node().unwrap().ipv4_alloc_cidr.map(|cidr| cidr.to_string()).unwrap_or_default();
    hive.until("the range is there", || range() == "10.0.1.0/24").await;
    hive.until("nothing is missed", || error().is_empty()).await;
    tracker.update(&cilium_node("10.0.2.0/24"), false).unwrap();
    hive.until("the range is another one", || range() == "10.0.2.0/24").await;
    assert_eq!(store.node().unwrap().withdrawn_alloc_cidrs, ["10.0.1.0/24".parse().unwrap()]);
    drop((store, tracker));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_mode_without_ranges_of_the_cluster_gets_automatic_ones_after_ten_seconds() {
    let mut hive = hive().set("ipam", "delegated-plugin").set("local-router-ipv4", "169.254.23.0");
    hive.start().await;
    let store = hive.get::<LocalNodeStore>();
    store.update(|node| node.ipv4 = Some([192, 0, 2, 7].into()));
    let begin = tokio::time::Instant::now();
    let table = store.table();
    table.wait_for(LocalNode::query(), |node| node.ipv4_alloc_cidr.is_some()).await;
    assert_eq!(store.node().unwrap().ipv4_alloc_cidr, Some("10.7.0.0/16".parse().unwrap()));
    assert!(begin.elapsed().as_secs() >= 9, "{:?}", begin.elapsed());
    drop((store, table));
    hive.finish().await;
}

#[tokio::test]
async fn annotations_are_written_when_they_are_asked_for() {
    let mut hive = hive().set("annotate-k8s-node", true).set("ipam", "kubernetes");
    hive.start().await;
    let (store, tracker) = (hive.get::<LocalNodeStore>(), hive.get::<Tracker>());
    tracker
        .add("{apiVersion: v1, kind: Node, metadata: {name: n1, uid: u-1}, spec: {podCIDRs: [10.0.1.0/24]}}")
        .unwrap();
    store.update(|node| node.router_ipv4 = Some([10, 0, 1, 9].into()));
    let nodes = hive.get::<Table<Row<Node>>>();
    let value = |key: &str| {
        let row = nodes.get(&nodes.snapshot(), Row::by_name("", "n1")).cloned();
        row.and_then(|row| row.metadata.annotations.get(key).map(ToString::to_string)).unwrap_or_default()
    };
    hive.until("the range is an annotation", || value("network.cilium.io/ipv4-pod-cidr") == "10.0.1.0/24")
        .await;
    hive.until("the router is, too", || value("network.cilium.io/ipv4-cilium-host") == "10.0.1.9").await;
    drop((store, tracker, nodes));
    hive.finish().await;
}
