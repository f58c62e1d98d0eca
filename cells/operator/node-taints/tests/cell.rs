//! The leader's cell and an API server within the process, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use k8s_fake_apiserver::FakeServer;
use k8s_types::core::Node;
use k8s_types::{ApiError, Kind};
use k8s_writer::Write;
use k8s_writer::testing::idle;
use operator_election::{ElectionConfig, Leadership};
use serde_json::{Value, json};
use statedb::Table;
use tokio::time::sleep;

const KEY: &str = "node.cilium.io/agent-not-ready";

fn server() -> FakeServer {
    FakeServer::permitting(&["patch", "patch/status"])
}

/// Answers all patches of a node with a conflict.
fn conflict(server: &FakeServer, node: &'static str) {
    server.on_request(move |_, request| match request.key.name == node {
        true => Err(ApiError::Conflict("modified".to_owned())),
        false => Ok(()),
    });
}

fn taints(server: &FakeServer, name: &str) -> Vec<String> {
    let node = server.object(Kind::Node, name);
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned()).collect()
}

fn conditions(server: &FakeServer, name: &str) -> usize {
    server.object(Kind::Node, name)["status"]["conditions"].as_array().map_or(0, Vec::len)
}

fn leader(server: &FakeServer, leadership: Leadership, options: &[(&str, &str)]) -> TestHive {
    let hive = TestHive::new([
        statedb::cell(),
        metrics::cell(),
        server.cell(),
        config::<ElectionConfig>(),
        operator_definitions::cell(),
        k8s_tables::table::<Node>(),
        operator_objects::pods(),
        k8s_writer::cell(),
        supply(Arc::new(leadership)),
        operator_node_taints::cell(),
        invoke(|_: Arc<Table<Write>>| ()),
    ]);
    let defaults =
        [("skip-crd-creation", "true"), ("k8s-namespace", "kube-system"), ("set-cilium-node-taints", "true")];
    defaults.iter().chain(options).fold(hive, |hive, (key, value)| hive.set(key, value))
}

async fn started(server: &FakeServer, options: &[(&str, &str)]) -> TestHive {
    let mut hive = leader(server, Leadership::permanent(), options);
    hive.start().await;
    hive
}

fn node(name: &str, taints: &[&str]) -> Value {
    let taints: Vec<Value> = taints.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn agent(node: &str, ready: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("cilium-{node}"), "namespace": "kube-system", "labels": {"k8s-app": "cilium"}},
        "spec": {"nodeName": node, "hostNetwork": true, "containers": [{"name": "agent", "image": "none"}]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    })
}

#[tokio::test(start_paused = true)]
async fn a_node_follows_the_readiness_of_its_agent() {
    let server = server();
    server.add(&node("n1", &[KEY, "dedicated"]));
    server.add(&node("n2", &[]));
    let hive = started(&server, &[]).await;
    idle(&hive).await;
    assert_eq!(taints(&server, "n1"), [KEY, "dedicated"], "a node without an agent is left alone");
    server.add(&agent("n1", "False"));
    server.add(&agent("n2", "False"));
    idle(&hive).await;
    assert_eq!(
        (taints(&server, "n1"), taints(&server, "n2")),
        (vec![KEY.into(), "dedicated".into()], vec![KEY.into()])
    );
    assert_eq!(conditions(&server, "n1"), 1);
    server.add(&agent("n1", "True"));
    server.add(&agent("n2", "True"));
    idle(&hive).await;
    assert_eq!((taints(&server, "n1"), taints(&server, "n2")), (vec!["dedicated".to_owned()], vec![]));
    let condition = &server.object(Kind::Node, "n1")["status"]["conditions"][1];
    assert_eq!(condition["reason"], "CiliumIsUp");
    assert_eq!(condition["status"], "False");
    assert_eq!(condition["message"], "Cilium is running on this node");
    let message = hive.health("node-taint-sync.job-sync").message;
    assert_eq!(message, "2 nodes have an agent, 0 of them none that is ready");

    // The agent restarts: the taint comes and goes, the condition stays as it is.
    let version = server.object(Kind::Node, "n1")["status"].clone();
    server.add(&agent("n1", "False"));
    idle(&hive).await;
    assert_eq!(taints(&server, "n1"), ["dedicated", KEY]);
    server.add(&agent("n1", "True"));
    idle(&hive).await;
    assert_eq!(
        (taints(&server, "n1"), &server.object(Kind::Node, "n1")["status"]),
        (vec!["dedicated".to_owned()], &version)
    );

    // The deletion of the pod changes nothing, and a node that joins later is served.
    server.remove(Kind::Pod, "kube-system/cilium-n1");
    server.add(&agent("n3", "True"));
    idle(&hive).await;
    assert_eq!(taints(&server, "n1"), ["dedicated"]);
    server.add(&node("n3", &[KEY]));
    idle(&hive).await;
    assert_eq!(taints(&server, "n3"), [""; 0]);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_retried_and_holds_up_no_other_node() {
    let server = server();
    for name in ["n1", "n2"] {
        server.add(&node(name, &[KEY]));
        server.add(&agent(name, "True"));
    }
    conflict(&server, "n1");
    let hive = started(&server, &[]).await;
    hive.until("the other node is served", || taints(&server, "n2").is_empty()).await;
    assert_eq!(taints(&server, "n1"), [KEY]);
    // Meanwhile another client changes the taints.
    server.add(&node("n1", &["dedicated", KEY]));
    sleep(Duration::from_secs(30)).await;
    server.execute_all();
    idle(&hive).await;
    assert_eq!((taints(&server, "n1"), conditions(&server, "n1")), (vec!["dedicated".to_owned()], 2));

    // A change that is not needed any more is withdrawn.
    conflict(&server, "n2");
    server.add(&agent("n2", "False"));
    sleep(Duration::from_secs(5)).await;
    server.add(&agent("n2", "True"));
    idle(&hive).await;
    server.execute_all();
    sleep(Duration::from_secs(300)).await;
    assert_eq!(taints(&server, "n2"), [""; 0]);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn options_turn_each_change_off_and_name_other_taints_and_pods() {
    let server = server();
    let cluster = || {
        server.add(&node("n1", &[KEY]));
        server.add(&node("n2", &[]));
        server.add(&agent("n1", "True"));
        server.add(&agent("n2", "False"));
    };
    let off = |option| (option, "false");
    for (options, expected, count) in [
        (vec![off("remove-cilium-node-taints"), off("set-cilium-is-up-condition")], [true, false], 1),
        (vec![off("remove-cilium-node-taints")], [true, true], 2),
        (vec![off("set-cilium-node-taints"), off("set-cilium-is-up-condition")], [false, false], 1),
        (vec![("cilium-pod-labels", "k8s-app=apiary")], [true, false], 1),
        (vec![("cilium-pod-namespace", "cilium")], [true, false], 1),
        (vec![("agent-not-ready-taint-key", "other")], [true, false], 2),
    ] {
        cluster();
        let hive = started(&server, &options).await;
        idle(&hive).await;
        let found = ["n1", "n2"].map(|name| taints(&server, name).iter().any(|key| key == KEY));
        assert_eq!((found, conditions(&server, "n1")), (expected, count), "{options:?}");
        hive.finish().await;
    }
    let mut hive = leader(&server, Leadership::permanent(), &[("cilium-pod-labels", "k8s-app of x")]);
    let error = hive.try_start().await.unwrap_err().to_string();
    assert!(error.contains("cilium-pod-labels") && error.contains("give a selector"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_lost_the_lease_writes_nothing() {
    let server = server();
    server.add(&node("n1", &[KEY]));
    server.add(&agent("n1", "True"));
    let mut hive = leader(&server, Leadership::default(), &[]);
    hive.start().await;
    idle(&hive).await;
    assert_eq!((taints(&server, "n1"), conditions(&server, "n1")), (vec![KEY.to_owned()], 1));
    hive.finish().await;
}
