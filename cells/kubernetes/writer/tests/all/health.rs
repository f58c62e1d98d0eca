//! Refusals of the server are reported with their remedy.

use std::time::Duration;

use hive::LogLevel;
use k8s_types::ApiError;
use k8s_writer::{Mutation, WriteState};
use tokio::time::{Instant, sleep};

use crate::world::{World, endpoint, node, spec};

fn forbidden() -> ApiError {
    ApiError::Forbidden("ciliumendpoints.cilium.io is forbidden".into())
}

#[tokio::test(start_paused = true)]
async fn refusals_name_verb_resource_object_and_remedy_and_are_retried_slowly() {
    let world = World::new().await;
    world.server.refuse("create", Some(forbidden()));
    let tickets: Vec<_> = (0..20)
        .map(|i| world.writer.enqueue(endpoint(&format!("web-{i:02}")), Mutation::edit(spec(1))))
        .collect();
    sleep(Duration::from_secs(1)).await;
    let row = world.hive.health("k8s-writer.create-ciliumendpoints");
    assert_eq!(row.message, "The API server refuses to create ciliumendpoints");
    assert_eq!(
        row.error,
        "ciliumendpoints/shop/web-00: ciliumendpoints.cilium.io is forbidden; give the agent's role the verb create on \
         ciliumendpoints of the group \"cilium.io\", or the agent a token that is valid"
    );
    let logged = world.hive.logs().iter().filter(|record| record.level == LogLevel::WARN).count();
    assert_eq!(logged, 1, "one line for all of them");
    assert_eq!(world.row(&endpoint("web-07")).unwrap().state, WriteState::Refused);

    world.writer.enqueue(node("n1"), Mutation::new(|_| k8s_writer::Step::Done)).done().await.unwrap();
    world.server.made();
    sleep(Duration::from_secs(3600)).await;
    let made = world.server.made().len();
    assert!(made < 20 * 2 * 16, "{made} requests for 20 objects in an hour");

    world.server.refuse("create", None);
    let fixed = Instant::now();
    for ticket in tickets {
        ticket.done().await.unwrap();
    }
    assert!(fixed.elapsed() < Duration::from_secs(730), "{:?}", fixed.elapsed());
    world
        .hive
        .until("the row is gone", || {
            world.hive.hive().health().at("k8s-writer.create-ciliumendpoints").is_none()
        })
        .await;
    world.hive.assert_healthy();
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_refusal_is_no_longer_reported() {
    let world = World::new().await;
    world.server.refuse("create", Some(ApiError::Invalid("spec.value: must be a string".into())));
    world.writer.enqueue(endpoint("a"), Mutation::edit(spec(1)));
    sleep(Duration::from_secs(1)).await;
    let error = world.hive.health("k8s-writer.create-ciliumendpoints").error;
    assert_eq!(
        error,
        "ciliumendpoints/shop/a: spec.value: must be a string; look whether the definition of ciliumendpoints in the \
         cluster is of the agent's release"
    );
    world.writer.forget(&endpoint("a"));
    sleep(Duration::from_secs(1)).await;
    assert!(world.hive.hive().health().at("k8s-writer.create-ciliumendpoints").is_none());
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_in_the_metrics_and_in_a_table() {
    let world = World::new().await;
    world.writer.enqueue(node("a"), Mutation::edit(spec(1))).done().await.unwrap();
    world.server.is_unreachable(true);
    for name in ["b", "c", "d"] {
        world.writer.enqueue(node(name), Mutation::edit(spec(1)));
    }
    sleep(Duration::from_secs(100)).await;
    let text = world.hive.get::<metrics::Metrics>().text();
    for line in [
        "cilium_k8s_writes_total{verb=\"create\",kind=\"CiliumNode\",outcome=\"success\"} 1",
        "cilium_k8s_writes_total{verb=\"get\",kind=\"CiliumNode\",outcome=\"not_found\"} 1",
        "cilium_k8s_workqueue_depth{name=\"k8s-writes\"} 3.0",
        "cilium_k8s_workqueue_adds_total{name=\"k8s-writes\"} 4",
        "cilium_k8s_workqueue_oldest_seconds{name=\"k8s-writes\"} 100",
        "cilium_k8s_workqueue_work_duration_seconds_count{name=\"k8s-writes\"}",
        "cilium_k8s_workqueue_retries_total{name=\"k8s-writes\"}",
        "cilium_k8s_workqueue_queue_duration_seconds_count{name=\"k8s-writes\"} 4",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let row = world.row(&node("b")).unwrap();
    let shown = statedb::TableDisplay::row(&row);
    assert_eq!(
        (&*shown[0], &*shown[1], &*shown[2], &*shown[4], &*shown[5]),
        ("ciliumnodes/b", "get", "retrying", "connection refused", "100s")
    );
    assert!(row.attempts > 1);
    assert_eq!(serde_json::to_value(&row).unwrap()["age"], 100);
    world.finish().await;
}
