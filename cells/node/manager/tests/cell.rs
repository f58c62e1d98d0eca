//! The cell with a fake API server and a fake ipcache map in a hive.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use api::{Operation, Request, Route};
use datapath_abi::{NodeKey, NodeValue};
use hive::prelude::*;
use identity::Identity;
use ipcache::testing::FakeMap;
use ipcache::{Entry, IpcacheWriter};
use ipnetwork::IpNetwork;
use k8s_fake_apiserver::Tracker;
use k8s_tables::cilium::CiliumNode;
use k8s_tables::core::EndpointSlice;
use local_node::{LocalNode, LocalNodeStore, StateConfig};
use node_manager::{Node, NodeSource};
use statedb::{RwTable, Table};
use test_kit::{Sandbox, require_root};

/// The routes of the hive, which the server would read.
struct Routes(Vec<Route>);

fn local() -> LocalNode {
    LocalNode {
        name: "n1".into(),
        cluster: "default".into(),
        ipv4: Some([192, 0, 2, 1].into()),
        router_ipv4: Some([10, 0, 1, 1].into()),
        ipv4_alloc_cidr: Some("10.0.1.0/24".parse().unwrap()),
        ..LocalNode::default()
    }
}

/// The ipcache with a map in memory.
fn fake_ipcache() -> Cell {
    let writer = |table: Arc<RwTable<Entry>>, map: Arc<FakeMap>, jobs: JobGroup| {
        let (writer, _, reconciler) = ipcache::testing::ipcache((*table).clone(), map);
        jobs.one_shot("reconcile", move |cx: JobCx| async move {
            reconciler.run_job(&cx).await;
            Ok(())
        })
        .add();
        Arc::new(writer)
    };
    let cells = [statedb::table::<Entry>(), supply(Arc::new(FakeMap::default())), provide(writer)];
    module("ipcache", "A fake ipcache", cells)
}

/// A hive whose state is below this folder, with the kernel's maps if there is a sandbox, and a server with these objects.
fn hive(state: &Path, maps: Option<&Sandbox>, objects: &[String]) -> TestHive {
    let objects = objects.to_vec();
    let add = move |tracker: Arc<Tracker>| objects.iter().for_each(|object| tracker.add(object).unwrap());
    let maps_cell = match maps {
        Some(_) => bundle([devices::cell(), maps::cell()]),
        None => config::<maps::FamilyConfig>(),
    };
    let hive = TestHive::new([
        statedb::cell(),
        k8s_fake_apiserver::cell(),
        maps_cell,
        config::<StateConfig>(),
        tunnel::cell(),
        local_node::testing::given(local()),
        config::<local_node::LocalNodeConfig>(),
        provide(|db: Arc<statedb::Db>| {
            let (_, prefixes, table) = identity::testing::of(&db, None);
            (Arc::new(prefixes), Arc::new(table))
        }),
        module("tables", "Tables", [k8s_tables::table::<CiliumNode>(), k8s_tables::table::<EndpointSlice>()]),
        fake_ipcache(),
        node_manager::cell(),
        provide(|routes: Group<Route>| Arc::new(Routes(routes.iter().cloned().collect()))),
        invoke(
            |_: Arc<Routes>,
             _: Arc<Table<Node>>,
             _: Arc<Table<Identity>>,
             _: Arc<IpcacheWriter>,
             _: Arc<LocalNodeStore>| (),
        ),
        invoke(add),
    ])
    .set("state-dir", state.display());
    match maps {
        Some(sandbox) => hive
            .set("bpf-root", sandbox.bpf_root().display())
            .set("bpf-ct-global-tcp-max", 1024)
            .set("bpf-ct-global-any-max", 1024)
            .set("bpf-nat-global-max", 2048)
            .set("bpf-neigh-global-max", 1024),
        None => hive,
    }
}

fn object(name: &str, ip: &str, cidr: &str) -> String {
    format!(
        "{{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {{name: {name}}}, spec: {{addresses: \
         [{{type: InternalIP, ip: {ip}}}], ipam: {{podCIDRs: [{cidr}]}}}}}}"
    )
}

fn row(hive: &TestHive, name: &str) -> Option<Node> {
    let table = hive.get::<Table<Node>>();
    table.get(&table.snapshot(), Node::by_name("default", name)).map(|node| Node::clone(node))
}

async fn get(hive: &TestHive, operation: Operation) -> serde_json::Value {
    let routes = hive.get::<Routes>();
    let route = routes.0.iter().find(|route| route.operation() == operation).unwrap();
    let response = route.call(Request::new(operation, &[])).await;
    assert_eq!(response.status(), 200);
    serde_json::from_slice(&response.body().await).unwrap()
}

#[tokio::test]
async fn nodes_are_rows_and_claims_until_their_objects_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let mut hive = hive(dir.path(), None, &[]);
    hive.start().await;
    let (tracker, map) = (hive.get::<Tracker>(), hive.get::<FakeMap>());
    hive.until("the local node is there", || row(&hive, "n1").is_some_and(|node| node.is_local())).await;
    tracker.add(&object("n2", "192.0.2.2", "10.0.2.0/24")).unwrap();
    hive.until("the peer has its claims", || map.prefixes().len() == 2).await;
    assert_eq!((map.identity("192.0.2.2/32"), map.tunnel("192.0.2.2/32")), (Some(6), None));
    assert_eq!(map.identity("10.0.2.0/24"), Some(9));
    assert_eq!(map.tunnel("10.0.2.0/24"), Some([192, 0, 2, 2].into()));

    // This node's object, and a node that claims what this node and the peer have.
    tracker.add(&object("n1", "192.0.2.66", "10.0.66.0/24")).unwrap();
    tracker.add(&object("n3", "192.0.2.1", "10.0.2.128/25")).unwrap();
    let conflicts =
        || hive.hive().health().at("node-manager.conflicts").map(|row| row.error).unwrap_or_default();
    hive.until("the conflicts are reported", || !conflicts().is_empty()).await;
    assert_eq!(
        conflicts(),
        "n3: pod range 10.0.2.128/25 overlaps one of n2; n3: 192.0.2.1 is an address of n1"
    );
    assert_eq!(row(&hive, "n1").unwrap().ipv4(), Some([192, 0, 2, 1].into()));
    assert_eq!(map.prefixes().len(), 2);
    let nodes = get(&hive, Operation::GetClusterNodes).await;
    assert_eq!((nodes["self"].as_str(), nodes["nodes-added"].as_array().unwrap().len()), (Some("n1"), 3));

    tracker.delete(&object("n2", "192.0.2.2", "10.0.2.0/24")).unwrap();
    let range: IpNetwork = "10.0.2.128/25".parse().unwrap();
    hive.until("the range is free for the other node", || map.prefixes() == [range]).await;
    hive.until("the peer is gone", || row(&hive, "n2").is_none()).await;
    drop((tracker, map));
    hive.finish().await;
}

/// Returns the numbers of writes of rows of nodes, of rows of the ipcache, and of entries of its map.
fn counts(hive: &TestHive) -> [usize; 3] {
    let (nodes, entries) = (hive.get::<Table<Node>>(), hive.get::<RwTable<Entry>>());
    let revisions = [nodes.revision(&nodes.snapshot()), entries.reader().revision(&nodes.snapshot())];
    let [nodes, entries] = revisions.map(|revision| usize::try_from(revision).unwrap());
    [nodes, entries, hive.get::<FakeMap>().operations()]
}

/// Returns the counts until so many nodes are known, and of the change of one of them.
async fn counts_with(nodes: usize) -> [[usize; 3]; 2] {
    let node = |number: usize, subnet: &str| {
        let (high, low) = (number / 256, number % 256);
        object(&format!("p{number}"), &format!("{subnet}.{high}.{low}"), &format!("10.{high}.{low}.0/24"))
    };
    let dir = tempfile::tempdir().unwrap();
    let objects: Vec<String> = (0..nodes).map(|number| node(512 + number, "172.16")).collect();
    let mut hive = hive(dir.path(), None, &objects);
    hive.start().await;
    let (tracker, map) = (hive.get::<Tracker>(), hive.get::<FakeMap>());
    hive.until("all have their claims", || map.prefixes().len() == 2 * nodes).await;
    let filled = counts(&hive);
    tracker.add(&node(519, "172.17")).unwrap();
    hive.until("the change is there", || map.identity("172.17.2.7/32").is_some()).await;
    hive.until("the old claim is gone", || map.identity("172.16.2.7/32").is_none()).await;
    let changed = counts(&hive);
    let change = [0, 1, 2].map(|at| changed[at] - filled[at]);
    drop((tracker, map));
    hive.finish().await;
    [filled, change]
}

#[tokio::test]
async fn nodes_cost_what_they_change_in_clusters_of_any_size() {
    let ([few, few_change], [many, many_change]) = (counts_with(200).await, counts_with(400).await);
    for at in 0..3 {
        assert!(few[at] >= 200, "{few:?}");
        assert!(many[at] <= few[at] * 21 / 10, "{few:?} with 200 nodes, {many:?} with 400");
        // One row of the node, an old and a new claim, and the states of their reconciliation.
        assert!(many_change[at] <= 8, "{few_change:?} with 200 nodes, {many_change:?} with 400");
    }
}

#[tokio::test]
async fn nodes_have_identities_of_their_labels() {
    let dir = tempfile::tempdir().unwrap();
    let mut hive = hive(dir.path(), None, &[])
        .set("enable-node-selector-labels", true)
        .set("node-labels", "zone !node.zone-of");
    hive.start().await;
    let (tracker, map) = (hive.get::<Tracker>(), hive.get::<FakeMap>());
    let labelled = |name: &str, ip: &str, labels: &str| {
        object(name, ip, "10.0.9.0/24").replace("{name: ", &format!("{{labels: {{{labels}}}, name: "))
    };
    let second = labelled("n2", "192.0.2.2", "zone: a, kubernetes.io/hostname: n2");
    let third =
        labelled("n3", "192.0.2.3", "zone: a, kubernetes.io/hostname: n3").replace("10.0.9", "10.0.3");
    tracker.add(&second).unwrap();
    tracker.add(&third).unwrap();
    const FIRST: u32 = (2 << 24) + 1;
    let of = |ip: &str| map.identity(&format!("{ip}/32"));
    hive.until("both have one", || of("192.0.2.2").and(of("192.0.2.3")) == Some(FIRST)).await;
    assert_eq!(of("192.0.2.2"), Some(FIRST), "equal labels, and others do not count");
    let identities = hive.get::<Table<Identity>>();
    let labels = |id| {
        let snapshot = identities.snapshot();
        identities.get(&snapshot, Identity::by_id(id)).map(|row| row.labels.texts().join(","))
    };
    let expected = "k8s:io.cilium.k8s.policy.cluster=default,reserved:remote-node,node:zone=a";
    assert_eq!(labels(FIRST).as_deref(), Some(expected));

    tracker.delete(&third).unwrap();
    tracker.add(&second.replace("zone: a", "zone: b")).unwrap();
    hive.until("the labels are followed", || of("192.0.2.2") == Some(FIRST + 1)).await;
    hive.until("the identity without a node is gone", || labels(FIRST).is_none()).await;
    tracker.delete(&second).unwrap();
    hive.until("as is that of a deleted node", || labels(FIRST + 1).is_none()).await;
    drop((tracker, map, identities));
    hive.finish().await;
}

/// With `policy-cidr-match-mode` each address of a node is selected by prefixes, and follows the node.
#[tokio::test]
async fn addresses_of_nodes_have_labels_of_their_prefixes() {
    let dir = tempfile::tempdir().unwrap();
    let mut hive = hive(dir.path(), None, &[]).set("policy-cidr-match-mode", "nodes");
    hive.start().await;
    let (tracker, map) = (hive.get::<Tracker>(), hive.get::<FakeMap>());
    let identities = hive.get::<Table<Identity>>();
    let labels = |ip: &str| {
        let id = map.identity(&format!("{ip}/32"))?;
        let snapshot = identities.snapshot();
        identities.get(&snapshot, Identity::by_id(id)).map(|row| row.labels.texts().join(","))
    };
    let node = object("n2", "192.0.2.2", "10.0.9.0/24");
    tracker.add(&node).unwrap();
    let expected = |ip: &str| Some(format!("cidr:{ip}/32,reserved:remote-node"));
    hive.until("an identity of the address", || labels("192.0.2.2") == expected("192.0.2.2")).await;
    tracker.add(&node.replace("192.0.2.2", "192.0.2.7")).unwrap();
    hive.until("the next address", || labels("192.0.2.7") == expected("192.0.2.7")).await;
    assert_eq!(map.identity("192.0.2.2/32"), None);
    let count = || identities.all(&identities.snapshot()).filter(|row| row.id >> 24 == 2).count();
    hive.until("the identity of the first address is gone", || count() == 1).await;
    tracker.delete(&node.replace("192.0.2.2", "192.0.2.7")).unwrap();
    hive.until("as is that of a deleted node", || count() == 0).await;
    drop((tracker, map, identities));
    hive.finish().await;
}

/// The API server on another node, on this one, and outside of the cluster.
#[tokio::test]
async fn addresses_of_the_api_server_have_its_label() {
    let dir = tempfile::tempdir().unwrap();
    let slice = |addresses: &[&str]| {
        let endpoints: Vec<String> = addresses.iter().map(|ip| format!("{{addresses: [{ip}]}}")).collect();
        format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: kubernetes, namespace: default, \
             labels: {{kubernetes.io/service-name: kubernetes}}}}, addressType: IPv4, endpoints: [{}], ports: []}}",
            endpoints.join(", ")
        )
    };
    let other = slice(&["192.0.2.3"]).replace("default", "shop");
    let objects = [slice(&["192.0.2.2", "198.51.100.7"]), other, object("n2", "192.0.2.2", "10.0.2.0/24")];
    let mut hive = hive(dir.path(), None, &objects);
    hive.start().await;
    let (tracker, map) = (hive.get::<Tracker>(), hive.get::<FakeMap>());
    let identities = hive.get::<Table<Identity>>();
    let labels_of = |id| {
        let snapshot = identities.snapshot();
        identities.get(&snapshot, Identity::by_id(id)).map(|row| row.labels.texts().join(","))
    };
    let labels = |ip: &str| labels_of(map.identity(&format!("{ip}/32"))?);
    hive.until("the other node has its identity", || map.identity("192.0.2.2/32") == Some(7)).await;
    let expected = "cidr:198.51.100.7/32,reserved:kube-apiserver,reserved:world-ipv4";
    hive.until("the address outside has its label", || labels("198.51.100.7").as_deref() == Some(expected))
        .await;
    assert_eq!(labels_of(1).as_deref(), Some("reserved:host"));
    let outside = map.identity("198.51.100.7/32").unwrap();

    // It moves to this node, and to a node that has not come yet.
    tracker.add(&slice(&["192.0.2.1", "192.0.2.3"])).unwrap();
    hive.until("the host has it", || {
        labels_of(1).as_deref() == Some("reserved:host,reserved:kube-apiserver")
    })
    .await;
    hive.until("the other node has it no more", || map.identity("192.0.2.2/32") == Some(6)).await;
    hive.until("the identity outside is gone", || labels_of(outside).is_none()).await;
    assert_eq!(map.identity("198.51.100.7/32"), None);
    hive.until("the other address has it", || labels("192.0.2.3").is_some_and(|all| all.contains("cidr:")))
        .await;
    tracker.add(&object("n3", "192.0.2.3", "10.0.3.0/24")).unwrap();
    hive.until("as that of a node", || map.identity("192.0.2.3/32") == Some(7)).await;
    tracker.delete(&slice(&[])).unwrap();
    hive.until("and no node without a slice", || map.identity("192.0.2.3/32") == Some(6)).await;
    hive.until("nor the host", || labels_of(1).as_deref() == Some("reserved:host")).await;
    drop((tracker, map, identities));
    hive.finish().await;
}

#[tokio::test]
async fn a_restart_restores_nodes_until_the_sources_have_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state/nodes.json");
    let mut first = hive(dir.path(), None, &[]);
    first.start().await;
    let tracker = first.get::<Tracker>();
    tracker.add(&object("n2", "192.0.2.2", "10.0.2.0/24")).unwrap();
    tracker.add(&object("n3", "192.0.2.3", "10.0.3.0/24")).unwrap();
    first.until("both are known", || row(&first, "n2").and(row(&first, "n3")).is_some()).await;
    drop(tracker);
    first.finish().await;
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"n2\"") && text.contains("\"n3\"") && !text.contains("\"n1\""), "{text}");

    let mut second = hive(dir.path(), None, &[object("n3", "192.0.2.33", "10.0.3.0/24")]);
    second.start().await;
    let source = |name: &str| row(&second, name).map(|node| node.source);
    second.until("the object is read", || source("n3") == Some(NodeSource::CustomResource)).await;
    second.until("the node without an object is gone", || source("n2").is_none()).await;
    assert_eq!(row(&second, "n3").unwrap().ipv4(), Some([192, 0, 2, 33].into()));
    second.finish().await;
}

#[test]
fn ids_are_in_the_map_and_stay() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let entries = |hive: &TestHive| {
            let path = hive.get::<maps::Maps>().path("cilium_node_map_v2");
            let rows = bpf::Map::<NodeKey, NodeValue>::open(&path).and_then(|map| map.entries());
            let mut rows: Vec<(IpAddr, u16)> =
                rows.unwrap_or_default().iter().map(|(key, value)| (key.ip().unwrap(), value.id)).collect();
            rows.sort();
            rows
        };
        let ip = |last: u8| IpAddr::from([192, 0, 2, last]);
        let router: IpAddr = [10, 0, 1, 1].into();
        let state = sandbox.run_dir();
        let mut first = hive(&state, Some(&sandbox), &[]);
        first.start().await;
        let tracker = first.get::<Tracker>();
        tracker.add(&object("n2", "192.0.2.2", "10.0.2.0/24")).unwrap();
        tracker.add(&object("n3", "192.0.2.3", "10.0.3.0/24")).unwrap();
        first.until("all have an id", || entries(&first).len() == 4).await;
        let before = entries(&first);
        let id = |rows: &[(IpAddr, u16)], ip| rows.iter().find(|row| row.0 == ip).map(|row| row.1);
        let (own, n2, n3) = (id(&before, ip(1)), id(&before, ip(2)), id(&before, ip(3)));
        assert_eq!(own, id(&before, router));
        assert!(own != n2 && own != n3 && n2 != n3);
        assert_eq!(get(&first, Operation::GetNodeIds).await.as_array().unwrap().len(), 3);

        // Another process removes an entry and adds one of no node.
        let path = first.get::<maps::Maps>().path("cilium_node_map_v2");
        let map = bpf::Map::<NodeKey, NodeValue>::open(&path).unwrap();
        map.delete(&NodeKey::from(ip(2))).unwrap();
        map.update(&NodeKey::from(ip(99)), &NodeValue { id: 99, spi: 0, pad: 0 }).unwrap();
        first.get::<maps::Maps>().comparisons().begin();
        first.until("the map is repaired", || entries(&first) == before).await;
        drop(tracker);
        first.stop().await;

        // n3 has left while no agent ran, and an entry has no node.
        map.update(&NodeKey::from(ip(77)), &NodeValue { id: 77, spi: 0, pad: 0 }).unwrap();
        let mut second = hive(&state, Some(&sandbox), &[object("n2", "192.0.2.2", "10.0.2.0/24")]);
        second.start().await;
        second.until("stale entries are gone", || entries(&second).len() == 3).await;
        let after = entries(&second);
        assert_eq!((id(&after, ip(1)), id(&after, router), id(&after, ip(2))), (own, own, n2));
        second.stop().await;
    });
}
