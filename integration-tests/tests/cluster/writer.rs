//! Writes to a real API server: the assertions of the writer's tests, and those that need a real server.

#[path = "../../../cells/kubernetes/writer/tests/all/flows.rs"]
mod flows;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster_stage::{Gate, Stage, StageOptions, User};
use hive::prelude::*;
use integration_tests::{Right, asked, granted};
use k8s_types::{Api, Key, Kind, Patch};
use k8s_writer::{Mutation, Step, Target, Write, Writer};
use serde_json::json;
use statedb::Table;
use test_kit::require_root;
use tokio::runtime::Runtime;
use tokio::time::sleep;

/// Creates an agent with only a client and a writer.
async fn agent(gate: &Gate, user: User) -> TestHive {
    let mut hive = TestHive::new([
        statedb::cell(),
        k8s_client::cell(),
        k8s_writer::cell(),
        invoke(|_: Arc<Writer>, _: Arc<Table<Write>>, _: Option<Arc<dyn Api>>| ()),
    ])
    .set("k8s-kubeconfig-path", gate.kubeconfig(user).unwrap().display())
    .set("k8s-client-qps", 0);
    hive.start().await;
    hive
}

fn defined(stage: &Stage) {
    let kinds = [Kind::CiliumNode, Kind::CiliumEndpoint, Kind::CiliumIdentity];
    stage.define(&kinds.map(k8s_types::schema::custom_resource_definition)).unwrap();
}

/// The gate listens in the namespace of the thread that makes it: all is on one thread.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn an_agent_with_the_roles_of_the_chart_writes_all_it_has_to() {
    require_root!();
    let stage = Stage::with(&StageOptions { rbac: true, audit: true, ..StageOptions::default() }).unwrap();
    defined(&stage);
    stage.apply(include_str!("../../../config/roles.yaml")).unwrap();
    let namespace = stage.namespace("writer");
    let gate = stage.gate().unwrap();
    runtime().block_on(async {
        let (hive, others) = (agent(&gate, User::Agent).await, agent(&gate, User::Admin).await);
        let rows = hive.get::<Table<Write>>();
        let ground = flows::Stage {
            writer: hive.get::<Writer>(),
            api: others.get::<dyn Api>(),
            namespace: namespace.as_str().into(),
        };
        flows::a_node_is_made_then_changed_and_the_fields_of_others_stay(&ground).await;
        flows::an_endpoint_is_made_patched_and_deleted_by_its_uid(&ground).await;
        flows::an_identity_is_made_once_and_kept_from_collection(&ground).await;

        // A missing permission is reported by name, and the write succeeds once it is granted.
        let (node, annotations) = (Key::new("", "n1"), json!({"metadata": {"annotations": {"a": "b"}}}));
        stage.apply("{apiVersion: v1, kind: Node, metadata: {name: n1}}").unwrap();
        let patch = Patch::Strategic(annotations.to_string().into());
        let mutation = Mutation::request(Step::Patch { patch, status: true });
        let refused = Target::new(Kind::Node, node);
        ground.writer.enqueue(refused, mutation);
        let health = || hive.hive().health().at("k8s-writer.patch-nodes/status");
        hive.until("the refusal is reported", || health().is_some()).await;
        let row = health().unwrap();
        assert_eq!(row.message, "The API server refuses to patch nodes/status");
        assert!(row.error.contains("verb patch on nodes/status of the group \"\""), "{}", row.error);
        stage
            .kubectl(&["create", "clusterrole", "annotator", "--verb=patch", "--resource=nodes/status"])
            .unwrap();
        let account = "--serviceaccount=kube-system:cilium";
        stage
            .kubectl(&["create", "clusterrolebinding", "annotator", "--clusterrole=annotator", account])
            .unwrap();
        hive.until("it is written", || rows.is_empty(&rows.snapshot())).await;
        assert_eq!(stage.get(&["node", "n1"]).unwrap()["metadata"]["annotations"]["a"], "b");
        hive.until("it is reported no more", || health().is_none()).await;
        flows::annotations_of_a_node_are_merged(&ground).await;
        drop((ground, rows));
        hive.finish().await;
        others.finish().await;
    });

    // The roles allow to write what was written here, and nothing else. Pods are read one by one by the endpoints' cell.
    let reads_pod = |right: &Right| right.verb == "get" && right.resource == "pods";
    let writes = |rights: BTreeSet<Right>| -> Vec<Right> {
        rights.into_iter().filter(|right| !right.follows() && !reads_pod(right)).collect()
    };
    let (asked, refused) = asked(&stage, User::Agent);
    assert_eq!(refused.len(), 1, "only what the test is about: {refused:?}");
    let asked = asked.difference(&refused).cloned().collect();
    assert_eq!(writes(granted(&stage, User::Agent)), writes(asked));
}

#[test]
fn an_api_server_that_is_killed_and_comes_back_gets_the_newest_wishes() {
    require_root!();
    let stage = Stage::start().unwrap();
    defined(&stage);
    let gate = stage.gate().unwrap();
    runtime().block_on(async {
        let hive = agent(&gate, User::Agent).await;
        let writer = hive.get::<Writer>();
        let name = |i: usize| Key::new("default", format!("pod-{i}"));
        let target = |i: usize| Target::new(Kind::CiliumEndpoint, name(i));
        let status = |id: usize| Mutation::edit(move |object| object["status"]["id"] = json!(id));
        let first: Vec<_> = (0..40).map(|i| writer.enqueue(target(i), status(1))).collect();
        let mut uids = Vec::new();
        for ticket in first {
            uids.push(ticket.done().await.unwrap().uid().unwrap());
        }
        stage.kill_api_server().unwrap();
        for id in 2..6 {
            for i in 0..40 {
                writer.enqueue(target(i), status(id));
            }
            sleep(Duration::from_millis(500)).await;
        }
        for (i, uid) in uids.iter().enumerate().take(20) {
            writer.enqueue(target(i), Mutation::delete(Some(uid.clone())));
        }
        let rows = hive.get::<Table<Write>>();
        assert_eq!(rows.len(&rows.snapshot()), 40);
        stage.start_api_server().unwrap();
        hive.until("all is written", || rows.is_empty(&rows.snapshot())).await;
        let left = stage.get(&["ciliumendpoints"]).unwrap();
        let mut left: Vec<(String, u64)> = left["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|object| {
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                (name, object["status"]["id"].as_u64().unwrap())
            })
            .collect();
        left.sort();
        let expected: Vec<(String, u64)> = (20..40).map(|i| (format!("pod-{i}"), 5)).collect();
        assert_eq!(left, expected);
        drop((writer, rows));
        hive.finish().await;
    });
}
