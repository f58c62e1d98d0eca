//! Other clients change objects that are being written, and owners replace their mutations.

use std::time::Duration;

use k8s_types::{ApiError, Key, Kind};
use k8s_writer::{Mutation, NotWritten, Step, Verb, WriteState};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::faults::Fault;
use crate::flows;
use crate::world::{World, endpoint, node, object, spec};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[tokio::test(start_paused = true)]
async fn writes_of_the_agents_cells() {
    let world = World::new().await;
    let (writer, api) = (world.writer.clone(), world.cluster.api());
    let stage = flows::Stage { writer, api, namespace: "shop".into() };
    flows::a_node_is_made_then_changed_and_the_fields_of_others_stay(&stage).await;
    flows::an_endpoint_is_made_patched_and_deleted_by_its_uid(&stage).await;
    flows::an_identity_is_made_once_and_kept_from_collection(&stage).await;
    flows::annotations_of_a_node_are_merged(&stage).await;
    drop(stage);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_conflict_the_object_is_read_again_and_the_other_change_is_kept() {
    let world = World::new().await;
    let key = Key::new("", "n1");
    world.cluster.make(Kind::CiliumNode, &key, object(0));
    world.server.latency(ms(10));
    let ticket = world.writer.enqueue(node("n1"), Mutation::edit(spec(1)));
    sleep(ms(15)).await; // The get is answered, the put is in flight.
    world.cluster.change(Kind::CiliumNode, &key, |node| node["spec"]["theirs"] = json!(true));
    ticket.done().await.unwrap();
    let node = world.cluster.object(Kind::CiliumNode, &key).unwrap();
    assert_eq!((&node["spec"]["value"], &node["spec"]["theirs"]), (&json!(1), &json!(true)));
    assert_eq!(world.server.verbs(), ["get", "update", "get", "update"]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn ten_attempts_half_a_second_apart() {
    let world = World::new().await;
    let conflict = ApiError::Conflict("the object has been modified".into());
    world.server.refuse("update", Some(conflict.clone()));
    world.cluster.make(Kind::CiliumNode, &Key::new("", "n1"), object(0));
    let begin = Instant::now();
    let ticket = world.writer.enqueue(node("n1"), flows::node(json!([]), json!({})));
    let failed = ticket.done().await.unwrap_err();
    let target = "ciliumnodes/n1".to_owned();
    assert_eq!(failed, NotWritten::Failed { target, verb: Verb::Update, tries: 10, error: conflict });
    assert_eq!(
        failed.to_string(),
        "ciliumnodes/n1: update failed 10 times, last: the object has been modified"
    );
    assert_eq!(begin.elapsed().as_millis() / 100, 45);
    assert_eq!((world.server.verbs().len(), world.rows()), (20, 0));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_newest_mutation_is_executed() {
    let world = World::new().await;
    world.server.latency(ms(10));
    let first = world.writer.enqueue(node("a"), Mutation::edit(spec(1)));
    sleep(ms(5)).await; // In flight: it completes, and so does the last one.
    let others: Vec<_> = (2..50).map(|i| world.writer.enqueue(node("a"), Mutation::edit(spec(i)))).collect();
    let last = world.writer.enqueue(node("a"), Mutation::edit(spec(50)));
    first.done().await.unwrap();
    for other in others {
        assert!(matches!(other.done().await, Err(NotWritten::Superseded { .. })));
    }
    last.done().await.unwrap();
    assert_eq!(world.cluster.object(Kind::CiliumNode, &Key::new("", "a")).unwrap()["spec"]["value"], 50);
    assert_eq!(world.server.verbs(), ["get", "create", "get", "update"]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn parts_have_separate_mutations_which_one_of_the_object_replaces() {
    let world = World::new().await;
    world.server.is_unreachable(true);
    let labels = Mutation::edit(|object| object["metadata"]["labels"] = json!({"app": "web"}));
    let whole = world.writer.enqueue(endpoint("a"), Mutation::edit(spec(1)));
    let part = world.writer.enqueue(endpoint("a").part("labels"), labels.clone());
    assert_eq!(world.rows(), 2);
    world.server.is_unreachable(false);
    whole.done().await.unwrap();
    part.done().await.unwrap();
    let present = world.cluster.object(Kind::CiliumEndpoint, &Key::new("shop", "a")).unwrap();
    assert_eq!(
        (&present["spec"]["value"], &present["metadata"]["labels"]["app"]),
        (&json!(1), &json!("web"))
    );

    world.server.is_unreachable(true);
    let part = world.writer.enqueue(endpoint("a").part("labels"), labels);
    let gone = world.writer.enqueue(endpoint("a"), Mutation::delete(None));
    assert_eq!(world.rows(), 1);
    assert!(matches!(part.done().await, Err(NotWritten::Superseded { .. })));
    world.server.is_unreachable(false);
    gone.done().await.unwrap();
    assert_eq!(world.cluster.objects(Kind::CiliumEndpoint).len(), 0);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn withdrawn_mutations_are_not_written() {
    let world = World::new().await;
    world.server.is_unreachable(true);
    let ticket = world.writer.enqueue(endpoint("a"), Mutation::edit(spec(1)));
    sleep(ms(1000)).await;
    assert_eq!(world.row(&endpoint("a")).unwrap().state, WriteState::Retrying);
    world.writer.forget(&endpoint("a"));
    assert!(matches!(ticket.done().await, Err(NotWritten::Superseded { .. })));
    world.server.is_unreachable(false);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!((world.cluster.objects(Kind::CiliumEndpoint).len(), world.rows()), (0, 0));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_does_not_exist_yet_is_waited_for() {
    let world = World::new().await;
    let status = Mutation::edit_status(|node| node["status"]["used"] = json!(3));
    let ticket = world.writer.enqueue(node("a"), status);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(world.row(&node("a")).unwrap().error, "there is no such object yet");
    world.cluster.make(Kind::CiliumNode, &Key::new("", "a"), object(1));
    ticket.done().await.unwrap();
    let node = world.cluster.object(Kind::CiliumNode, &Key::new("", "a")).unwrap();
    assert_eq!((&node["status"]["used"], &node["spec"]["value"]), (&json!(3), &json!(1)));
    world.finish().await;
}

/// The agent is killed after each request of an endpoint's life, whether the server has executed it or not; the next
/// run enqueues the same mutation.
#[tokio::test(start_paused = true)]
async fn a_kill_between_requests_is_repaired_by_the_next_run() {
    let pod = |uid: &str| flows::Pod { name: "web-0".into(), uid: uid.into() };
    let key = Key::new("shop", "web-0");
    for kept in 0..6 {
        for lost in [false, true] {
            let cluster = Cluster::default();
            let old = World::of(cluster.clone()).await;
            let made =
                old.writer.enqueue(endpoint("web-0"), flows::endpoint(pod("old"), None, json!({"id": 1})));
            made.done().await.unwrap();
            let last = if lost { Fault::LostAnswer } else { Fault::Hangs };
            old.server.next(std::iter::repeat_n(Fault::None, kept).chain([last, Fault::Hangs]));
            old.writer.enqueue(endpoint("web-0"), flows::endpoint(pod("new"), None, json!({"id": 2})));
            sleep(ms(300)).await;
            let World { hive, writer, table, .. } = old;
            drop((writer, table));
            hive.kill();

            let new = World::of(cluster.clone()).await;
            let mutation = flows::endpoint(pod("new"), None, json!({"id": 2}));
            new.writer.enqueue(endpoint("web-0"), mutation).done().await.unwrap();
            let present = cluster.object(Kind::CiliumEndpoint, &key).unwrap();
            assert_eq!(
                present["metadata"]["ownerReferences"][0]["uid"], "new",
                "killed after {kept}, lost {lost}"
            );
            assert_eq!(present["status"], json!({"id": 2}));
            new.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_mutation_that_panics_is_reported_and_blocks_no_other() {
    let world = World::new().await;
    world.writer.enqueue(node("a"), Mutation::new(|_| panic!("no such thing")));
    world.writer.enqueue(node("b"), Mutation::new(|_| Step::Create(object(1)))).done().await.unwrap();
    sleep(ms(10)).await;
    let row = world.row(&node("a")).unwrap();
    assert!(row.state == WriteState::Refused && row.error.contains("a fault of the agent"), "{row:?}");
    world.finish().await;
}
