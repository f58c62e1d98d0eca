//! The leader's cell and an API server within the process, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use k8s_fake_apiserver::{FakeServer, Request};
use k8s_types::cilium::{CiliumEndpointSlice, CiliumNode};
use k8s_types::core::Namespace;
use k8s_types::{ApiError, Kind};
use operator_election::Leadership;
use serde_json::{Value, json};
use tokio::time::sleep;

/// A time in which all is written that can be.
const SETTLED: Duration = Duration::from_secs(60);

fn server() -> FakeServer {
    FakeServer::permitting(&["create", "update", "delete"])
}

/// Returns the names of endpoints by slice, each as `namespace/name`.
fn contents(server: &FakeServer) -> BTreeMap<String, BTreeSet<String>> {
    let name = |slice: &Value| slice["metadata"]["name"].as_str().unwrap().to_owned();
    let endpoints = |slice: &Value| {
        let of = slice["namespace"].as_str().unwrap().to_owned();
        let endpoints = slice["endpoints"].as_array().unwrap().clone();
        endpoints.iter().map(|endpoint| format!("{of}/{}", endpoint["name"].as_str().unwrap())).collect()
    };
    all_slices(server).iter().map(|slice| (name(slice), endpoints(slice))).collect()
}

fn all_slices(server: &FakeServer) -> Vec<Value> {
    server.objects(Kind::CiliumEndpointSlice)
}

/// Returns the writes since the last call, by verb and namespace of the slice.
fn take_writes(server: &FakeServer) -> Vec<(&'static str, String)> {
    let write = |request: &Request| {
        let has_uid = request.verb != "delete" || request.only_if.uid.is_some();
        assert!(has_uid, "{request} without its uid");
        (request.verb, request.object["namespace"].as_str().unwrap_or_default().to_owned())
    };
    server.take_requests().iter().map(write).collect()
}

async fn leader(server: &FakeServer, leadership: Leadership, options: &[(&str, &str)]) -> TestHive {
    let hive = TestHive::new([
        statedb::cell(),
        server.cell(),
        operator_definitions::cell(),
        k8s_tables::table::<CiliumNode>(),
        operator_objects::endpoints(|()| true),
        k8s_tables::table::<CiliumEndpointSlice>(),
        k8s_tables::table::<Namespace>(),
        k8s_writer::cell(),
        supply(Arc::new(leadership)),
        operator_endpoint_slices::cell(),
    ]);
    let defaults = [("skip-crd-creation", "true"), ("enable-cilium-endpoint-slice", "true")];
    let mut hive = defaults.iter().chain(options).fold(hive, |hive, (key, value)| hive.set(key, value));
    hive.start().await;
    hive
}

async fn started(server: &FakeServer, options: &[(&str, &str)]) -> TestHive {
    leader(server, Leadership::permanent(), options).await
}

/// An endpoint with an identity; 0 for one that has none yet.
fn endpoint(namespace: &str, name: &str, identity: i64) -> Value {
    let metadata = json!({
        "name": name, "namespace": namespace,
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": format!("uid-of-{name}")}],
    });
    let mut status = json!({
        "id": 7, "state": "ready", "encryption": {"key": 3}, "service-account": "cook",
        "networking": {"addressing": [{"ipv4": "10.0.0.7", "ipv6": "fd00::7"}], "node": "192.0.2.1"},
        "named-ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    });
    if identity > 0 {
        status["identity"] = json!({"id": identity, "labels": ["k8s:app=web"]});
    }
    json!({"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": metadata, "status": status})
}

fn slice(name: &str, namespace: &str, endpoints: &[&str]) -> Value {
    let endpoints: Vec<Value> = endpoints.iter().map(|name| json!({"name": name, "id": 1})).collect();
    json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice",
        "metadata": {"name": name, "labels": {"kept": "yes"}}, "namespace": namespace, "endpoints": endpoints,
    })
}

fn names(namespace: &str, numbers: std::ops::Range<usize>) -> BTreeSet<String> {
    numbers.map(|number| format!("{namespace}/web-{number}")).collect()
}

fn add(server: &FakeServer, namespace: &str, numbers: std::ops::Range<usize>) {
    numbers.for_each(|number| server.add(&endpoint(namespace, &format!("web-{number}"), 300)));
}

/// All endpoints that are in slices; none may be in two.
fn all(server: &FakeServer) -> BTreeSet<String> {
    let contents = contents(server);
    let all: BTreeSet<String> = contents.values().flatten().cloned().collect();
    assert_eq!(contents.values().map(BTreeSet::len).sum::<usize>(), all.len(), "{contents:?}");
    all
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_each_namespace_are_in_slices_of_their_own() {
    let server = server();
    add(&server, "shop", 0..250);
    server.add(&endpoint("bank", "vault", 400));
    server.add(&endpoint("bank", "waits", 0));
    let mut hive = started(&server, &[]).await;
    sleep(SETTLED).await;
    let mut expected = names("shop", 0..250);
    expected.insert("bank/vault".to_owned());
    assert_eq!(all(&server), expected);
    let mut sizes: Vec<usize> = contents(&server).values().map(BTreeSet::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 50, 100, 100]);

    let slices = all_slices(&server);
    let bank = slices.iter().find(|slice| slice["namespace"] == "bank").unwrap();
    let name = bank["metadata"]["name"].as_str().unwrap();
    assert!(name.len() == 19 && name.starts_with("ces-") && name.as_bytes()[13] == b'-', "{name}");
    let expected = json!([{
        "name": "vault", "id": 400, "pod-uid": "uid-of-vault", "encryption": {"key": 3}, "service-account": "cook",
        "networking": {"addressing": [{"ipv4": "10.0.0.7", "ipv6": "fd00::7"}], "node": "192.0.2.1"},
        "named-ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    }]);
    assert_eq!(bank["endpoints"], expected);

    // The one that waited gets its identity; another one is new; one changes, and one changes in what no other node needs.
    // A newer version has written a member that this one does not know.
    let mut newer = bank.clone();
    newer["topology"] = json!({"zone": "a"});
    server.add(&newer);
    take_writes(&server);
    server.add(&endpoint("bank", "waits", 401));
    server.add(&endpoint("bank", "desk", 402));
    server.add(&endpoint("bank", "vault", 403));
    let mut log = endpoint("shop", "web-3", 300);
    log["status"]["log"] = json!([{"code": "OK", "message": "changed"}]);
    server.add(&log);
    sleep(SETTLED).await;
    assert_eq!(take_writes(&server), [("update", "bank".to_owned())]);
    let slices = all_slices(&server);
    let bank = slices.iter().find(|slice| slice["namespace"] == "bank").unwrap();
    assert_eq!(bank["topology"], newer["topology"]);
    let ids: Vec<(&str, i64)> = bank["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|endpoint| (endpoint["name"].as_str().unwrap(), endpoint["id"].as_i64().unwrap()))
        .collect();
    assert_eq!(ids, [("desk", 402), ("vault", 403), ("waits", 401)]);

    // They go, and the slice with the last of them; a new one gets into the fullest slice of its namespace.
    for name in ["vault", "waits", "desk"] {
        server.remove(Kind::CiliumEndpoint, &format!("bank/{name}"));
    }
    server.remove(Kind::CiliumEndpoint, "shop/web-7");
    sleep(SETTLED).await;
    let mut writes = take_writes(&server);
    writes.sort();
    assert_eq!(writes, [("delete", String::new()), ("update", "shop".to_owned())]);
    add(&server, "shop", 250..251);
    sleep(SETTLED).await;
    let mut sizes: Vec<usize> = contents(&server).values().map(BTreeSet::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [50, 100, 100]);
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_continues_with_the_slices_that_there_are() {
    let server = server();
    add(&server, "shop", 0..25);
    let options = [("ces-max-ciliumendpoints-per-ces", "10")];
    let mut hive = started(&server, &options).await;
    sleep(SETTLED).await;
    hive.stop().await;
    let before = contents(&server);
    assert_eq!((before.len(), all(&server)), (3, names("shop", 0..25)));

    take_writes(&server);
    let mut hive = started(&server, &options).await;
    sleep(SETTLED).await;
    assert_eq!((take_writes(&server), contents(&server)), (Vec::new(), before.clone()));
    hive.stop().await;

    // Meanwhile one has gone, one is new, one is in a second slice, and there are slices of another program.
    let gone = before.values().next().unwrap().first().unwrap().clone();
    server.remove(Kind::CiliumEndpoint, &gone);
    add(&server, "shop", 25..26);
    let twice = before.values().nth(1).unwrap().first().unwrap();
    server.add(&slice("zzz", "shop", &[twice.strip_prefix("shop/").unwrap(), "web-never"]));
    server.add(&slice("without-namespace", "", &["web-1"]));
    let mut hive = started(&server, &options).await;
    sleep(SETTLED).await;
    let mut expected = names("shop", 0..26);
    expected.remove(&gone);
    let after = contents(&server);
    assert_eq!((after.len(), all(&server)), (3, expected), "{after:?}");
    for (name, endpoints) in &before {
        let stay = endpoints.iter().filter(|endpoint| **endpoint != gone);
        assert!(stay.clone().all(|endpoint| after[name].contains(endpoint)), "{before:?}\n{after:?}");
    }

    // A smaller maximum: those that are too many get into others.
    hive.stop().await;
    let mut hive = started(&server, &[("ces-max-ciliumendpoints-per-ces", "4")]).await;
    sleep(SETTLED).await;
    assert!(contents(&server).values().all(|endpoints| endpoints.len() <= 4), "{:?}", contents(&server));
    assert_eq!(all(&server).len(), 25);
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn slices_that_others_change_are_written_again() {
    let server = server();
    add(&server, "shop", 0..3);
    let mut hive = started(&server, &[]).await;
    sleep(SETTLED).await;
    let (name, endpoints) = contents(&server).pop_first().unwrap();

    server.add(&slice(&name, "shop", &["web-1", "web-9"]));
    sleep(SETTLED).await;
    assert_eq!(contents(&server), [(name.clone(), endpoints.clone())].into());
    // Metadata that the operator does not own is kept.
    assert_eq!(all_slices(&server)[0]["metadata"]["labels"]["kept"], "yes");

    server.add(&slice(&name, "bank", &["web-1"]));
    sleep(SETTLED).await;
    assert_eq!(contents(&server), [(name.clone(), endpoints.clone())].into());

    server.remove(Kind::CiliumEndpointSlice, &name);
    sleep(SETTLED).await;
    assert_eq!(contents(&server), [(name.clone(), endpoints.clone())].into());

    server.add(&slice("made-by-hand", "shop", &["web-2"]));
    sleep(SETTLED).await;
    assert_eq!(contents(&server), [(name, endpoints)].into());
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_or_is_away_gets_the_newest_state_later() {
    let server = server();
    let mut hive = started(&server, &[]).await;
    let away = || ApiError::Unavailable { message: "away".to_owned(), retry_after: None };
    let mut errors = vec![away(), ApiError::Conflict("changed".to_owned()), away(), away()];
    server.on_request(move |_, _| errors.pop().map_or(Ok(()), Err));
    add(&server, "shop", 0..3);
    sleep(Duration::from_secs(1)).await;
    // Created while the write of a former state is retried.
    add(&server, "shop", 3..6);
    server.remove(Kind::CiliumEndpoint, "shop/web-0");
    sleep(2 * SETTLED).await;
    assert_eq!(all(&server), names("shop", 1..6));
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn writes_are_spaced_by_the_number_of_nodes_and_important_namespaces_come_first() {
    let server = server();
    for number in 0..10 {
        server.add(&endpoint(&format!("ns-{number}"), "web", 300));
    }
    let annotations = json!({"cilium.io/ces-namespace": "priority"});
    let metadata = json!({"name": "ns-7", "annotations": annotations});
    server.add(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    let limits = r#"[{"nodes":0,"limit":0.1,"burst":2},{"nodes":2,"limit":1,"burst":2}]"#;
    let mut hive = started(&server, &[("ces-rate-limits", limits)]).await;
    sleep(Duration::from_millis(900)).await;
    let writes = take_writes(&server);
    assert_eq!((writes.len(), &*writes[0].1), (2, "ns-7"));
    sleep(Duration::from_secs(21)).await;
    assert_eq!(take_writes(&server).len(), 2);
    for name in ["n1", "n2"] {
        server.add(&json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": name}, "spec": {}}));
    }
    sleep(Duration::from_secs(18)).await;
    assert_eq!(contents(&server).len(), 10);
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn neither_a_process_without_the_lease_nor_one_without_the_option_writes() {
    let server = server();
    add(&server, "shop", 0..3);
    let mut hive = leader(&server, Leadership::default(), &[]).await;
    sleep(SETTLED).await;
    hive.stop().await;
    let mut hive = started(&server, &[("enable-cilium-endpoint-slice", "false")]).await;
    sleep(SETTLED).await;
    hive.stop().await;
    assert_eq!((take_writes(&server), all_slices(&server).len()), (Vec::new(), 0));
}
