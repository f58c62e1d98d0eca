//! The cell with the allocator, the node's row and a fake API server in a hive, in virtual time. The test is the operator.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use ipam::{Address, Family, Ipam, Restored, RestoredAddress};
use k8s_fake_apiserver::Tracker;
use k8s_tables::Row;
use k8s_types::cilium::{CiliumNode, CiliumPodIPPool};
use k8s_types::core::{Namespace, Pod};
use k8s_types::with_type;
use local_node::{LocalNode, LocalNodeStore};
use serde_json::{Value, json};
use statedb::Table;
use tokio::time::{Instant, sleep};

const NODE: &str = "n1";

fn hive(row: LocalNode, restored: &'static [(&'static str, &'static str)]) -> TestHive {
    let remembered = provide(move || {
        Member(Restored::new(move || {
            let one = |(at, (address, owner)): (usize, &(&str, &str))| RestoredAddress {
                address: address.parse().unwrap(),
                endpoint: at as u16 + 1,
                owner: (*owner).to_owned(),
            };
            Ok(restored.iter().enumerate().map(one).collect())
        }))
    });
    TestHive::new([
        statedb::cell(),
        metrics::cell(),
        k8s_fake_apiserver::cell(),
        k8s_writer::cell(),
        config::<maps::FamilyConfig>(),
        local_node::testing::row(row),
        module(
            "tables",
            "Tables",
            [k8s_tables::table::<CiliumNode>(), k8s_tables::table::<Pod>(), k8s_tables::table::<Namespace>()],
        ),
        ipam::cell(),
        remembered,
        ipam_multi_pool::cell(),
        invoke(|_: Arc<Tracker>, _: Arc<Ipam>, _: Arc<LocalNodeStore>, _: Arc<Table<Address>>| ()),
    ])
    .set("enable-ipv6", false)
    .set("ipam", "multi-pool")
}

fn node() -> LocalNode {
    LocalNode { name: NODE.into(), ipv4_cidr_wait: Some("not read".into()), ..LocalNode::default() }
}

struct Cluster {
    hive: TestHive,
}

impl Cluster {
    async fn start(row: LocalNode, restored: &'static [(&'static str, &'static str)]) -> Cluster {
        let mut hive = hive(row, restored);
        hive.start().await;
        Cluster { hive }
    }

    fn add(&self, object: &Value) {
        self.hive.get::<Tracker>().add(&object.to_string()).unwrap();
    }

    fn pools(&self) -> Value {
        let objects = self.hive.get::<Table<Row<CiliumNode>>>();
        let row = objects.get(&objects.snapshot(), Row::by_name("", NODE)).cloned();
        row.map(|row| json!(row.spec.ipam.pools)).unwrap_or_default()
    }

    /// Replaces `allocated` as the operator does.
    fn allocate(&self, allocated: &Value) {
        let objects = self.hive.get::<Table<Row<CiliumNode>>>();
        let row = objects.get(&objects.snapshot(), Row::by_name("", NODE)).cloned().unwrap();
        let mut object: Value = with_type(&row.object);
        object["spec"]["ipam"]["pools"]["allocated"] = allocated.clone();
        self.hive.get::<Tracker>().update(&object.to_string(), false).unwrap();
    }

    async fn until_requested(&self, pool: &str, count: u64) {
        let requested = || {
            let pools = self.pools();
            let list = pools["requested"].as_array().cloned().unwrap_or_default();
            list.iter()
                .find(|request| request["pool"] == pool)
                .and_then(|request| request["needed"]["ipv4-addrs"].as_u64())
        };
        self.hive
            .until(&format!("{count} of {pool} are requested"), || requested().unwrap_or_default() == count)
            .await;
    }

    fn allocate_address(&self, owner: &str) -> Result<String, String> {
        let given = self.hive.get::<Ipam>().allocate(owner, Some(Family::V4), false);
        given.map(|given| given[0].address.to_string()).map_err(|error| error.to_string())
    }

    async fn until_allocated(&self, owner: &str) -> String {
        let mut given = None;
        self.hive
            .until(&format!("{owner} has an address"), || {
                given = self.allocate_address(owner).ok();
                given.is_some()
            })
            .await;
        given.unwrap()
    }

    fn health(&self, path: &str) -> String {
        self.hive.hive().health().at(path).map(|row| row.error).unwrap_or_default()
    }
}

fn object(pools: &Value) -> Value {
    json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": NODE},
           "spec": {"bootid": "b", "ipam": {"pools": pools}}})
}

fn pod(name: &str, annotations: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
           "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
           "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "none"}]}})
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
}

fn allocated(pools: &[(&str, &[&str])]) -> Value {
    pools.iter().map(|(pool, cidrs)| json!({"pool": pool, "cidrs": cidrs})).collect()
}

#[tokio::test(start_paused = true)]
async fn ranges_are_requested_used_and_given_back() {
    let cluster = Cluster::start(node(), &[]).await;
    let refused = cluster.allocate_address("router").unwrap_err();
    assert_eq!(refused, "unable to allocate from pool \"default\" (family ipv4): pool not (yet) available");
    cluster
        .hive
        .until("the object is missed", || {
            cluster.health("multi-pool.job-pools").contains("there is no CiliumNode n1 yet")
        })
        .await;
    cluster.add(&object(&json!({})));
    // The router's request waits.
    cluster.until_requested("default", 16).await;
    let reason = "CiliumNode n1 has no range of the pool default in spec.ipam.pools.allocated, which the operator assigns";
    assert_eq!(cluster.health("multi-pool.job-pools"), reason);
    cluster.allocate(&allocated(&[("default", &["10.0.0.0/28"]), ("blue", &["10.1.0.0/29"])]));
    let store = cluster.hive.get::<LocalNodeStore>();
    cluster.hive.until("the router has an address", || store.node().unwrap().router_ipv4.is_some()).await;
    assert_eq!(store.node().unwrap().ipv4_alloc_cidr.unwrap().to_string(), "10.0.0.0/28");
    // The router has been served by the agent itself: its wait ended. The range of `blue` is given back: nothing needs it.
    cluster
        .hive
        .until("the other pool is given back", || cluster.pools()["allocated"].as_array().unwrap().len() == 1)
        .await;
    cluster.hive.until("it is not routed", || store.node().unwrap().routed_cidrs().count() == 1).await;

    // A pod of that pool.
    cluster.add(&namespace());
    cluster.add(&pod("web", &json!({"ipam.cilium.io/ip-pool": "blue"})));
    let error = "unable to allocate from pool \"blue\" (family ipv4): pool not (yet) available";
    cluster
        .hive
        .until("it is refused for want of a range", || {
            cluster.allocate_address("shop/web").is_err_and(|e| e == error)
        })
        .await;
    cluster.until_requested("blue", 1).await;
    let default = cluster.pools()["allocated"][0]["cidrs"].clone();
    cluster.allocate(
        &json!([{"pool": "blue", "cidrs": ["10.1.0.8/29"]}, {"pool": "default", "cidrs": default}]),
    );
    let address = cluster.until_allocated("shop/web").await;
    assert!(address.starts_with("10.1.0.1") || address.starts_with("10.1.0.9"), "{address}");
    let status = cluster.hive.get::<Ipam>().status(true);
    assert_eq!(status.allocations[&format!("blue/{address}")], "shop/web");

    // It goes, its address rests, and the range goes as well.
    cluster.hive.get::<Ipam>().release(address.parse().unwrap(), "blue").unwrap();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(cluster.pools()["allocated"].as_array().unwrap().len(), 2, "packets for it may still come");
    drop(store);
    cluster.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_pool_requests_more_and_writes_are_spaced() {
    let cluster = Cluster::start(node(), &[]).await;
    cluster.add(&object(&json!({"allocated": allocated(&[("default", &["10.0.0.0/29"])])})));
    cluster.until_requested("default", 16).await;
    let begin = Instant::now();
    for at in 0..5 {
        cluster.until_allocated(&format!("health-{at}")).await;
    }
    let error = cluster.allocate_address("health-5").unwrap_err();
    assert!(
        error.starts_with("all CIDR ranges are exhausted: range is full: pool default has 6 IPv4 addresses"),
        "{error}"
    );
    for at in 6..9 {
        cluster.allocate_address(&format!("health-{at}")).unwrap_err();
    }
    // Six in use and four that wait.
    cluster.until_requested("default", 24).await;
    assert!(begin.elapsed() >= Duration::from_secs(14), "{:?}", begin.elapsed());
    cluster.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_range_that_the_operator_takes_away_keeps_its_owners_and_gives_nothing() {
    let cluster = Cluster::start(node(), &[]).await;
    cluster.add(&object(&json!({"allocated": allocated(&[("default", &["10.0.0.0/28"])])})));
    let store = cluster.hive.get::<LocalNodeStore>();
    cluster.hive.until("the router has an address", || store.node().unwrap().router_ipv4.is_some()).await;
    let router = store.node().unwrap().router_ipv4.unwrap();
    let (of_router, other) = ("10.0.0.0/28", "10.0.1.0/28");
    cluster.until_requested("default", 16).await;
    cluster.allocate(&allocated(&[("default", &[other])]));
    let holds =
        |cidr: &str| cluster.pools()["allocated"][0]["cidrs"].as_array().unwrap().contains(&json!(cidr));
    let named = || cluster.health("multi-pool.reclaimed-ranges");
    // The longest interval of writes.
    tokio::time::sleep(Duration::from_secs(61)).await;
    cluster.hive.until("health names it", || named().contains(&format!("{of_router} of pool default"))).await;
    cluster.hive.until("it is written again", || holds(of_router) && holds(other)).await;
    for at in 0..8 {
        let address = cluster.until_allocated(&format!("health-{at}")).await;
        assert!(address.starts_with("10.0.1."), "{address}");
    }
    assert_eq!(store.node().unwrap().router_ipv4, Some(router));
    // A second time it is the operator's last word.
    cluster.allocate(&allocated(&[("default", &[other])]));
    let withdrawn = || cluster.health("ipam.job-withdrawn-ranges");
    cluster
        .hive
        .until("health names it", || withdrawn().contains(&format!("{of_router}: 1 addresses, of router")))
        .await;
    sleep(Duration::from_secs(60)).await;
    assert!(!holds(of_router));
    drop(store);
    cluster.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_with_what_there_was_and_another_nodes_range_is_not_claimed() {
    let mut row = LocalNode { ipv4_cidr_wait: None, router_ipv4: Some([10, 0, 0, 3].into()), ..node() };
    row.assign_pools(
        "default",
        vec![
            local_node::NodePool {
                name: "default".into(),
                cidrs: vec!["10.0.0.0/28".parse().unwrap()],
                ..Default::default()
            },
            local_node::NodePool {
                name: "blue".into(),
                cidrs: vec!["10.1.0.0/28".parse().unwrap()],
                ..Default::default()
            },
        ],
    );
    let cluster = Cluster::start(row, &[("10.0.0.5", "shop/a"), ("10.1.0.5", "shop/b")]).await;
    let store = cluster.hive.get::<LocalNodeStore>();
    assert_eq!(store.node().unwrap().router_ipv4, Some([10, 0, 0, 3].into()), "no server is needed");
    let status = cluster.hive.get::<Ipam>().status(true);
    assert_eq!(status.allocations["blue/10.1.0.5"], "shop/b [restored]");
    assert!(cluster.until_allocated("health").await.starts_with("10.0.0."));

    let mut other = object(&json!({"allocated": allocated(&[("blue", &["10.1.0.0/29"])])}));
    other["metadata"]["name"] = "n2".into();
    cluster.add(&other);
    cluster.add(&object(&json!({"allocated": allocated(&[("default", &["10.0.0.0/28"])])})));
    let withdrawn = || cluster.health("ipam.job-withdrawn-ranges");
    cluster
        .hive
        .until("health names it", || withdrawn().contains("10.1.0.0/28: 1 addresses, of shop/b [restored]"))
        .await;
    cluster.until_requested("blue", 1).await;
    assert_eq!(cluster.pools()["allocated"].as_array().unwrap().len(), 1, "it is the other node's now");
    drop(store);
    cluster.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn pools_are_chosen_by_their_objects() {
    let cluster = Cluster::start(node(), &[]).await;
    cluster.add(&object(
        &json!({"allocated": allocated(&[("default", &["10.0.0.0/28"]), ("red", &["10.2.0.0/28"])])}),
    ));
    cluster.add(&json!({"apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": "red", "annotations": {"ipam.cilium.io/skip-masquerade": "true"}},
        "spec": {"ipv4": {"cidrs": ["10.2.0.0/16"], "maskSize": 28}, "podSelector": {"matchLabels": {"io.kubernetes.pod.name": "db"}}}}));
    cluster.add(&namespace());
    cluster.add(&pod("db", &json!({})));
    cluster.add(&pod("web", &json!({})));
    assert!(cluster.until_allocated("shop/web").await.starts_with("10.0.0."));
    // The range of `red` may have been given back in between: nothing needed it.
    let error = "unable to allocate from pool \"red\" (family ipv4): pool not (yet) available";
    match cluster.allocate_address("shop/db") {
        Ok(address) => assert!(address.starts_with("10.2.0."), "{address}"),
        Err(refused) => assert_eq!(refused, error),
    }
    let pools = cluster.hive.get::<Table<Row<CiliumPodIPPool>>>();
    let row = pools.get(&pools.snapshot(), Row::by_name("", "red")).cloned().unwrap();
    assert_eq!(
        statedb::TableDisplay::row(&*row),
        ["red", "10.2.0.0/16", "28", "", "-", "SkipMasquerade=true"]
    );
    drop((pools, row));
    cluster.hive.finish().await;
}

#[tokio::test]
async fn other_modes_have_one_pool_and_watch_no_pools() {
    let mut hive = hive(node(), &[]).set("ipam", "cluster-pool");
    hive.start().await;
    assert_eq!(hive.health("multi-pool").message, "Off: one pool by the option ipam");
    let store = hive.get::<LocalNodeStore>();
    store.update(|node| node.assign_ipv4_cidrs(&["10.0.0.0/28".parse().unwrap()]));
    let given = hive.get::<Ipam>().allocate("shop/unknown", None, false).unwrap();
    assert_eq!(&*given[0].pool, "default");
    drop(store);
    hive.finish().await;
}

#[tokio::test]
async fn a_pre_allocation_that_is_no_number_is_refused() {
    let mut hive = hive(node(), &[]).set("ipam-multi-pool-pre-allocation", "blue=many");
    let error = hive.try_start().await.unwrap_err().to_string();
    assert!(error.contains("option ipam-multi-pool-pre-allocation: blue=many is wrong"), "{error}");
}
