//! The tracker is an API server: by the assertions that a real one is held to as well.

use std::sync::Arc;

use hive::prelude::*;
use integration_tests::ApiServer;
use k8s_fake_apiserver::{HttpServer, Tracker};
use k8s_types::{Api, Kind, Source};
use serde_json::json;
use statedb::Db;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

fn tracker() -> (Tracker, ApiServer) {
    let tracker = Tracker::new(&Db::new().table().unwrap());
    let server = Arc::new(tracker.clone());
    (tracker, ApiServer { source: server.clone(), api: server, namespace: "garden".to_owned() })
}

#[tokio::test]
async fn the_tracker_answers_as_a_server() {
    tracker().1.is_one().await;
}

#[tokio::test]
async fn a_resync_of_the_tracker_makes_watches_list_again() {
    let (tracker, server) = tracker();
    let resync = async |server: &ApiServer| {
        let now = ["staying", "coming"].map(|name| server.config_map(name, "2").to_string());
        tracker.resync(&Kind::ConfigMap.into(), &now).unwrap();
    };
    server.a_lost_place_is_found_again(resync).await;
}

/// Connects the real client to the tracker over HTTP.
async fn connected() -> (TestHive, JoinSet<std::io::Error>, Tracker, ApiServer) {
    let tracker = Tracker::new(&Db::new().table().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    let http = HttpServer::new(&tracker);
    serving.spawn(async move { http.serve(listener).await });
    let names = ["ciliumnodes", "ciliumendpoints", "ciliumidentities", "ciliumnetworkpolicies"];
    for name in names {
        tracker.add(&definition(name)).unwrap();
    }
    let taken = |sources: Group<Arc<dyn Source>>, api: Option<Arc<dyn Api>>| {
        let (source, api) = (sources.first().expect("no source").clone(), api.expect("no server"));
        Arc::new(ApiServer { source, api, namespace: "garden".to_owned() })
    };
    let cells = [k8s_client::cell(), module("taken", "Objects for the test", [provide(taken)])];
    let mut hive = TestHive::needing::<ApiServer>(cells)
        .set("k8s-api-server-urls", url)
        .set("k8s-client-qps", 1000)
        .set("k8s-client-burst", 1000);
    hive.start().await;
    let server = ApiServer::clone(&hive.get::<ApiServer>());
    (hive, serving, tracker, server)
}

fn definition(plural: &str) -> String {
    let metadata = json!({"name": format!("{plural}.cilium.io")});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata})
        .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tracker_answers_as_a_server_over_http() {
    let (mut hive, serving, _tracker, server) = connected().await;
    server.is_one().await;
    drop((server, serving));
    hive.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resync_of_the_tracker_ends_watches_over_http() {
    let (mut hive, serving, tracker, server) = connected().await;
    let resync = async |server: &ApiServer| {
        let now = ["staying", "coming"].map(|name| server.config_map(name, "2").to_string());
        tracker.resync(&Kind::ConfigMap.into(), &now).unwrap();
    };
    server.a_lost_place_is_found_again(resync).await;
    drop((server, serving));
    hive.stop().await;
}
