//! A real API server through `k8s-client`, with the assertions that also apply to the tracker of scripts.

use std::sync::Arc;

use cluster_stage::{Gate, User};
use hive::prelude::*;
use integration_tests::ApiServer;
use k8s_types::{Api, Source};
use test_kit::require_root;

use crate::stage_with_definitions;

/// Creates a hive that is connected to the server through the gate, and the interface to it.
async fn connected(gate: &Gate, namespace: String) -> (TestHive, ApiServer) {
    let taken = move |sources: Group<Arc<dyn Source>>, api: Option<Arc<dyn Api>>| {
        let source = sources.iter().next().expect("no source").clone();
        Arc::new(ApiServer { source, api: api.expect("no server"), namespace: namespace.clone() })
    };
    let kubeconfig = gate.kubeconfig(User::Agent).unwrap();
    let cells = [k8s_client::cell(), module("taken", "Objects for the test", [provide(taken)])];
    let mut hive = TestHive::needing::<ApiServer>(cells)
        .set("k8s-kubeconfig-path", kubeconfig.display())
        .set("k8s-client-qps", 100)
        .set("k8s-client-burst", 100);
    hive.start().await;
    let server = ApiServer::clone(&hive.get::<ApiServer>());
    (hive, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_answers_as_the_tracker_does() {
    require_root!();
    let stage = stage_with_definitions();
    let gate = stage.gate().unwrap();
    let (mut hive, server) = connected(&gate, stage.namespace("answers")).await;
    server.is_one().await;
    drop(server);
    hive.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_was_cut_off_learns_what_has_happened_meanwhile() {
    require_root!();
    let stage = stage_with_definitions();
    let gate = stage.gate().unwrap();
    let (mut hive, server) = connected(&gate, stage.namespace("cut")).await;
    let disturbed = async |server: &ApiServer| {
        gate.close();
        let namespace = &*server.namespace;
        stage.kubectl(&["-n", namespace, "delete", "configmap", "going"]).unwrap();
        stage.apply(&server.config_map("coming", "1").to_string()).unwrap();
        gate.open();
    };
    server.a_lost_place_is_found_again(disturbed).await;
    drop(server);
    hive.stop().await;
}
