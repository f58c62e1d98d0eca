//! The leader's cell and an API server within the process, in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::prelude::*;
use k8s_fake_apiserver::FakeServer;
use k8s_types::Kind;
use k8s_types::core::Node;
use k8s_writer::Write;
use k8s_writer::testing::idle;
use operator_election::Leadership;
use serde_json::{Value, json};
use statedb::Table;

const SATISFIED: &str = "cilium.io/IPAMRequestSatisfied";

fn server() -> FakeServer {
    FakeServer::permitting(&["patch/status"])
}

fn ips(server: &FakeServer, name: &str) -> Vec<String> {
    let service = server.object(Kind::Service, name);
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
    ingress.iter().filter_map(|ingress| Some(ingress["ip"].as_str()?.to_owned())).collect()
}

/// Returns status and reason of the condition of a service.
fn satisfied(server: &FakeServer, name: &str) -> String {
    let condition = condition(&server.object(Kind::Service, name), SATISFIED);
    format!("{} {}", text(&condition["status"]), text(&condition["reason"]))
}

/// Returns the conflict and the counts of a pool.
fn pool_status(server: &FakeServer, name: &str) -> String {
    let pool = server.object(Kind::CiliumLoadBalancerIPPool, name);
    let conflict = condition(&pool, "cilium.io/PoolConflict");
    let count = |of: &str| text(&condition(&pool, &format!("cilium.io/IPs{of}"))["message"]);
    let [total, available, used] = ["Total", "Available", "Used"].map(count);
    format!("{} {} {used} of {total}, {available} left", text(&conflict["status"]), text(&conflict["reason"]))
}

/// Returns how often each object was patched since the last call.
fn patched(server: &FakeServer) -> BTreeMap<String, u32> {
    let mut patches = BTreeMap::new();
    server.take_requests().iter().for_each(|request| {
        *patches.entry(request.key.name.to_string()).or_default() += 1;
    });
    patches
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn condition(object: &Value, r#type: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == r#type).unwrap_or_default()
}

fn leader(server: &FakeServer, leadership: Leadership, options: &[(&str, &str)]) -> TestHive {
    let hive = TestHive::new([
        statedb::cell(),
        metrics::cell(),
        server.cell(),
        operator_definitions::cell(),
        k8s_tables::table::<Node>(),
        k8s_writer::cell(),
        supply(Arc::new(leadership)),
        operator_lb_ipam::cell(),
        invoke(|_: Arc<Table<Write>>| ()),
    ]);
    let defaults = [("skip-crd-creation", "true")];
    defaults.iter().chain(options).fold(hive, |hive, (key, value)| hive.set(key, value))
}

async fn started(server: &FakeServer, options: &[(&str, &str)]) -> TestHive {
    let mut hive = leader(server, Leadership::permanent(), options);
    hive.start().await;
    idle(&hive).await;
    hive
}

fn pool(name: &str, created: u32, cidrs: &[&str]) -> Value {
    let blocks: Vec<Value> = cidrs.iter().map(|cidr| json!({"cidr": cidr})).collect();
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumLoadBalancerIPPool",
        "metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z"), "generation": 3},
        "spec": {"blocks": blocks},
    })
}

fn service(name: &str, created: u32, ips: &[&str]) -> Value {
    let ingress: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z")},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}], "ipFamilies": ["IPv4"],
                 "ipFamilyPolicy": "SingleStack"},
        "status": {"loadBalancer": {"ingress": ingress}},
    })
}

#[tokio::test(start_paused = true)]
async fn services_get_addresses_once_there_is_a_pool_and_pools_count_them() {
    let server = server();
    server.add(&service("web", 1, &[]));
    server.add(&service("old", 2, &["192.0.2.9"]));
    let hive = started(&server, &[]).await;
    assert_eq!((ips(&server, "web"), ips(&server, "old")), (vec![], vec!["192.0.2.9".to_owned()]));
    assert_eq!(patched(&server), BTreeMap::new(), "it sleeps while there is no pool");

    server.add(&pool("a", 1, &["10.0.0.0/31"]));
    idle(&hive).await;
    assert_eq!(
        (ips(&server, "web"), ips(&server, "old")),
        (vec!["10.0.0.0".to_owned()], vec!["10.0.0.1".to_owned()])
    );
    assert_eq!(satisfied(&server, "web"), "True satisfied");
    assert_eq!(pool_status(&server, "a"), "False resolved 2 of 2, 0 left");
    let conflict = condition(&server.object(Kind::CiliumLoadBalancerIPPool, "a"), "cilium.io/PoolConflict");
    assert_eq!(conflict["observedGeneration"], 3);
    assert!(conflict["lastTransitionTime"].as_str().unwrap().ends_with('Z'), "{conflict}");
    assert_eq!(hive.health("lb-ipam.job-pools").message, "2 services have 2 addresses, 0 lack some");
    assert_eq!(patched(&server), [("a".into(), 1), ("old".into(), 1), ("web".into(), 1)].into(), "each once");

    // Another service waits until an address is free; what others have is not moved.
    server.add(&service("late", 3, &[]));
    idle(&hive).await;
    assert_eq!((ips(&server, "late"), satisfied(&server, "late")), (vec![], "False out_of_ips".to_owned()));
    server.remove(Kind::Service, "web");
    idle(&hive).await;
    assert_eq!(
        (ips(&server, "late"), satisfied(&server, "late")),
        (vec!["10.0.0.0".to_owned()], "True satisfied".into())
    );
    assert_eq!(ips(&server, "old"), ["10.0.0.1"]);

    // A pool that is disabled, and one that comes with the same addresses.
    server.edit(Kind::CiliumLoadBalancerIPPool, "a", |pool| pool["spec"]["disabled"] = json!(true));
    server.add(&pool("b", 2, &["10.0.0.0/30"]));
    server.add(&service("new", 4, &[]));
    idle(&hive).await;
    assert_eq!(satisfied(&server, "new"), "False no_pool");
    assert_eq!(pool_status(&server, "b"), "True cidr_overlap 2 of 4, 2 left");
    let health = hive.health("lb-ipam.job-pools");
    assert!(health.error.starts_with("pool b: Pool conflicts since range"), "{}", health.error);

    // The pool goes: its addresses are of the other pool now.
    server.remove(Kind::CiliumLoadBalancerIPPool, "a");
    idle(&hive).await;
    assert_eq!(
        ["old", "late", "new"].map(|name| ips(&server, name).remove(0)),
        ["10.0.0.1", "10.0.0.0", "10.0.0.2"]
    );
    assert_eq!(pool_status(&server, "b"), "False resolved 3 of 4, 1 left");
    assert_eq!(hive.health("lb-ipam.job-pools").level, Level::Ok);

    // It shrinks: services that lose their addresses get others of another pool.
    server.add(&pool("c", 5, &["10.1.0.0/24"]));
    server.edit(Kind::CiliumLoadBalancerIPPool, "b", |pool| {
        pool["spec"]["blocks"] = json!([{"start": "10.0.0.1"}])
    });
    idle(&hive).await;
    assert_eq!(
        ["old", "late", "new"].map(|name| ips(&server, name).remove(0)),
        ["10.0.0.1", "10.1.0.0", "10.1.0.1"]
    );

    // Without any pool all stay as they are, also new ones.
    server.remove(Kind::CiliumLoadBalancerIPPool, "b");
    idle(&hive).await;
    server.remove(Kind::CiliumLoadBalancerIPPool, "c");
    idle(&hive).await;
    server.add(&service("none", 6, &[]));
    idle(&hive).await;
    assert_eq!(
        (ips(&server, "new"), satisfied(&server, "none")),
        (vec!["10.1.0.1".to_owned()], " ".to_owned())
    );
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_leader_takes_over_what_statuses_say_and_writes_nothing() {
    let server = server();
    server.add(&pool("a", 1, &["10.0.0.0/24"]));
    for i in 0..50 {
        server.add(&service(&format!("s{i}"), i % 7, &[]));
    }
    let hive = started(&server, &[]).await;
    let before: Vec<Vec<String>> = (0..50).map(|i| ips(&server, &format!("s{i}"))).collect();
    assert!(before.iter().all(|ips| ips.len() == 1));
    hive.finish().await;

    // Meanwhile one is deleted, another one is set by hand, and two older leaders have given one address twice.
    server.remove(Kind::Service, "s0");
    server.add(&service("hand", 9, &["10.0.0.200"]));
    server.edit(Kind::Service, "s4", |service| {
        service["status"]["loadBalancer"]["ingress"] =
            json!([{"ip": before[5][0]}, {"hostname": "lb.example.org"}]);
    });
    patched(&server);
    let hive = started(&server, &[]).await;
    assert_eq!(ips(&server, "hand"), ["10.0.0.200"], "kept");
    let stay = (1..50).filter(|i| ![4, 5].contains(i)).all(|i| ips(&server, &format!("s{i}")) == before[i]);
    assert!(stay);
    // s4 is the older one of the two.
    assert_eq!(ips(&server, "s4"), before[5]);
    assert_ne!(ips(&server, "s5"), before[5]);
    let ingress = server.object(Kind::Service, "s4")["status"]["loadBalancer"]["ingress"].clone();
    assert!(ingress.as_array().unwrap().contains(&json!({"hostname": "lb.example.org"})), "{ingress}");
    let patched: Vec<String> = patched(&server).into_keys().collect();
    assert_eq!(patched, ["hand", "s5"], "the others are as they should be");
    assert_eq!(pool_status(&server, "a"), "False resolved 50 of 256, 206 left");
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn another_leader_that_was_faster_is_not_overwritten() {
    let server = server();
    server.add(&pool("a", 1, &["10.0.0.0/24"]));
    server.add(&service("web", 1, &[]));
    let mut faster = service("web", 1, &["10.0.0.77"]);
    faster["metadata"]["labels"] = json!({"changed": "meanwhile"});
    let mut faster = Some(faster);
    server.on_request(move |tracker, request| {
        let change = faster.take_if(|_| request.key.name == "web");
        change.map_or(Ok(()), |object| tracker.update(&object.to_string(), false))
    });
    let hive = started(&server, &[]).await;
    assert_eq!(server.object(Kind::Service, "web")["metadata"]["labels"]["changed"], "meanwhile");
    assert_eq!(ips(&server, "web"), ["10.0.0.77", "10.0.0.0"], "kept, beside the one that it had been given");
    assert_eq!(pool_status(&server, "a"), "False resolved 2 of 256, 254 left");
    assert_eq!(satisfied(&server, "web"), "True satisfied");
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn members_of_statuses_that_only_another_version_knows_stay() {
    let server = server();
    let later = json!({"stage": "warm", "list": [{"a": 1}]});
    for mut object in [pool("a", 1, &["10.0.0.0/24"]), service("web", 1, &[])] {
        object["status"]["later"] = later.clone();
        if object["kind"] == "Service" {
            object["status"]["loadBalancer"]["later"] = later.clone();
        }
        server.add(&object);
    }
    let hive = started(&server, &[]).await;
    assert_eq!(ips(&server, "web"), ["10.0.0.0"], "it was written");
    assert_eq!(pool_status(&server, "a"), "False resolved 1 of 256, 255 left");
    server.edit(Kind::Service, "web", |service| service["spec"]["type"] = json!("ClusterIP"));
    idle(&hive).await;
    assert_eq!(ips(&server, "web"), Vec::<String>::new(), "the list that has become empty is removed");
    let status = server.object(Kind::Service, "web")["status"].clone();
    assert_eq!((&status["later"], &status["loadBalancer"]["later"]), (&later, &later));
    assert_eq!(pool_status(&server, "a"), "False resolved 0 of 256, 256 left", "it was written, too");
    assert_eq!(server.object(Kind::CiliumLoadBalancerIPPool, "a")["status"]["later"], later);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn only_services_of_its_classes_are_served_and_those_that_leave_lose_their_addresses() {
    let server = server();
    server.add(&pool("a", 1, &["10.0.0.0/24"]));
    let class = |name: &str, class: &str| {
        let mut service = service(name, 1, &[]);
        service["spec"]["loadBalancerClass"] = json!(class);
        server.add(&service);
    };
    class("l2", "io.cilium/l2-announcer");
    class("bgp", "io.cilium/bgp-control-plane");
    class("other", "example.org/lb");
    server.add(&service("web", 1, &[]));
    let mut inside = service("inside", 1, &[]);
    inside["spec"]["type"] = json!("ClusterIP");
    server.add(&inside);
    let served = || ["web", "l2", "bgp", "other", "inside"].map(|name| ips(&server, name).len());
    let hive = started(&server, &[]).await;
    assert_eq!(served(), [1, 0, 0, 0, 0]);

    // As an agent or another client changes the type; another address than the operator's stays.
    server.edit(Kind::Service, "web", |service| {
        service["spec"]["type"] = json!("ClusterIP");
        service["status"]["loadBalancer"]["ingress"]
            .as_array_mut()
            .unwrap()
            .push(json!({"ip": "203.0.113.1"}));
        service["status"]["conditions"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "Other", "status": "True"}));
    });
    idle(&hive).await;
    assert_eq!(
        (ips(&server, "web"), satisfied(&server, "web")),
        (vec!["203.0.113.1".to_owned()], " ".to_owned())
    );
    assert_eq!(condition(&server.object(Kind::Service, "web"), "Other")["status"], "True");
    assert_eq!(pool_status(&server, "a"), "False resolved 0 of 256, 256 left");
    hive.finish().await;

    server.edit(Kind::Service, "web", |service| service["spec"]["type"] = json!("LoadBalancer"));
    let hive = started(&server, &[("default-lb-service-ipam", "none")]).await;
    assert_eq!(
        (served(), ips(&server, "web")),
        ([1, 0, 0, 0, 0], vec!["203.0.113.1".to_owned()]),
        "not its own"
    );
    hive.finish().await;
    let off = [("enable-lb-ipam", "false")];
    let hive = started(&server, &off).await;
    assert_eq!(ips(&server, "web"), ["203.0.113.1"]);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_lost_the_lease_writes_nothing() {
    let server = server();
    server.add(&pool("a", 1, &["10.0.0.0/24"]));
    server.add(&service("web", 1, &[]));
    let mut hive = leader(&server, Leadership::default(), &[]);
    hive.start().await;
    idle(&hive).await;
    assert_eq!((ips(&server, "web"), patched(&server)), (vec![], BTreeMap::new()));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn five_thousand_services_are_served_with_one_write_each() {
    let server = server();
    server.add(&pool("a", 1, &["10.0.0.0/16"]));
    for i in 0..5000 {
        server.add(&service(&format!("s{i}"), i % 60, &[]));
    }
    let hive = started(&server, &[]).await;
    idle(&hive).await;
    let patched = patched(&server);
    assert!(patched.iter().all(|(name, count)| *count == 1 || name == "a"), "{patched:?}");
    let all: std::collections::BTreeSet<String> =
        (0..5000).flat_map(|i| ips(&server, &format!("s{i}"))).collect();
    assert_eq!(all.len(), 5000, "no address is given twice");
    assert_eq!(pool_status(&server, "a"), "False resolved 5000 of 65536, 60536 left");
    hive.finish().await;
}

fn node(name: &str, r#type: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"zone": name}}, "spec": {},
        "status": {"addresses": [{"type": r#type, "address": ip}]},
    })
}

fn slice(name: &str, service: &str, endpoints: &[(&str, bool)]) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(node, ready)| json!({"addresses": ["10.9.0.1"], "conditions": {"ready": ready}, "nodeName": node}))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [],
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": service}},
        "endpoints": endpoints,
    })
}

#[tokio::test(start_paused = true)]
async fn services_of_the_node_class_get_addresses_of_nodes() {
    let server = server();
    server.add(&pool("a", 1, &["10.0.0.0/24"]));
    let of_nodes = |name: &str, policy: &str| {
        let mut service = service(name, 1, &["198.51.100.1"]);
        service["spec"]["loadBalancerClass"] = json!("io.cilium/node");
        service["spec"]["externalTrafficPolicy"] = json!(policy);
        server.add(&service);
    };
    of_nodes("all", "Cluster");
    of_nodes("local", "Local");
    server.add(&service("web", 1, &[]));
    for (name, ip) in [("n1", "192.0.2.1"), ("n2", "192.0.2.2"), ("n3", "192.0.2.3")] {
        server.add(&node(name, "InternalIP", ip));
    }
    server.add(&slice("l-1", "local", &[("n1", true), ("n2", false)]));
    let hive = started(&server, &[]).await;
    assert_eq!(ips(&server, "all"), ["198.51.100.1"], "off by default");
    hive.finish().await;

    let hive = started(&server, &[("enable-node-ipam", "true")]).await;
    assert_eq!(ips(&server, "all"), ["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    assert_eq!(ips(&server, "local"), ["192.0.2.1"]);
    assert_eq!(ips(&server, "web"), ["10.0.0.0"], "pools go on");
    assert_eq!(satisfied(&server, "all"), " ");

    // Endpoints move, a node is about to go, another one gets an external address, one is selected by its labels.
    server.add(&slice("l-2", "local", &[("n3", true)]));
    server.add(&slice("l-1", "local", &[("n1", false)]));
    idle(&hive).await;
    assert_eq!(ips(&server, "local"), ["192.0.2.3"]);
    server.remove(Kind::EndpointSlice, "l-2");
    server.edit(Kind::Node, "n2", |node| {
        node["spec"]["taints"] = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    });
    idle(&hive).await;
    assert_eq!(
        (ips(&server, "all"), ips(&server, "local")),
        (vec!["192.0.2.1".into(), "192.0.2.3".to_owned()], vec![])
    );
    let select = |value: &str| {
        server.edit(Kind::Service, "all", |service| {
            service["metadata"]["annotations"] = json!({"io.cilium.nodeipam/match-node-labels": value});
        });
    };
    select("zone in (n3)");
    idle(&hive).await;
    assert_eq!(ips(&server, "all"), ["192.0.2.3"]);
    select("zone of n3");
    idle(&hive).await;
    assert_eq!(ips(&server, "all"), ["192.0.2.3"], "stays until the selector can be read");
    assert!(hive.health("lb-ipam.job-nodes").error.starts_with("service default/all: io.cilium.nodeipam/"));
    server.add(&node("n4", "ExternalIP", "203.0.113.4"));
    select("");
    idle(&hive).await;
    assert_eq!(ips(&server, "all"), ["203.0.113.4"]);

    // A heartbeat of a node writes nothing.
    patched(&server);
    server.edit(Kind::Node, "n1", |node| {
        node["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}])
    });
    idle(&hive).await;
    assert_eq!(patched(&server), BTreeMap::new());
    hive.finish().await;
}
