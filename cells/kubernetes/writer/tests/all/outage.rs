//! An unreachable server: no mutation is lost, and few requests are sent.

use std::time::Duration;

use k8s_types::{Key, Kind};
use k8s_writer::{Mutation, Target, WriteState};
use tokio::time::{Instant, sleep};

use crate::faults::{Fault, busy};
use crate::world::{World, endpoint, node, object, spec};

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[tokio::test(start_paused = true)]
async fn an_hour_costs_a_row_per_object_and_few_requests_and_loses_nothing() {
    let world = World::new().await;
    let kind = Kind::CiliumEndpoint;
    let name = |i: usize| Key::new("shop", format!("pod-{i}"));
    for i in 0..200 {
        world.cluster.make(kind, &name(i), object("before"));
    }
    world.server.is_unreachable(true);
    let begin = Instant::now();
    let mut last = 0;
    // All objects are written repeatedly; at the end the first hundred are deleted.
    while begin.elapsed() < seconds(3600) {
        last += 1;
        for i in 0..200 {
            world.writer.enqueue(Target::new(kind, name(i)), Mutation::edit(spec(last)));
        }
        sleep(seconds(60)).await;
        assert_eq!(world.rows(), 200);
    }
    for i in 0..100 {
        let uid = world.cluster.object(kind, &name(i)).unwrap()["metadata"]["uid"].as_str().unwrap().into();
        world.writer.enqueue(Target::new(kind, name(i)), Mutation::delete(Some(uid)));
    }
    sleep(seconds(30)).await;
    let made = world.server.made();
    assert!((300..600).contains(&made.len()), "{} requests in an hour", made.len());
    let most = (0..200).map(|i| made.iter().filter(|made| made.name == *name(i).name).count()).max();
    assert!(most < Some(10), "each in its turn: {most:?}");
    let health = world.hive.health("k8s-writer.job-write");
    assert_eq!(health.message, "The API server takes no requests, writes wait for it");
    assert_eq!(health.error, "connection refused");

    world.server.is_unreachable(false);
    let back = Instant::now();
    world.idle().await;
    assert!(back.elapsed() < seconds(13), "{:?}", back.elapsed());
    for i in 0..200 {
        let value = world.cluster.object(kind, &name(i)).map(|object| object["spec"]["value"].clone());
        assert_eq!(value, (i >= 100).then(|| last.into()), "{i}");
    }
    let made = world.server.made();
    assert!(made.len() <= 100 + 2 * 100 + 10, "{} requests afterwards", made.len());
    assert!(world.server.most() <= 8);
    assert_eq!(world.hive.health("k8s-writer.job-write").message, "Running");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn lost_responses_are_detected() {
    let world = World::new().await;
    world.server.next([Fault::LostAnswer]);
    let made = world.writer.enqueue(
        endpoint("a"),
        Mutation::new(|present| match present {
            None => k8s_writer::Step::Create(object(1)),
            Some(_) => k8s_writer::Step::Done,
        })
        .at_first(k8s_writer::Step::Create(object(1))),
    );
    let written = made.done().await.unwrap();
    let uid = written.uid().unwrap();
    assert_eq!(world.server.verbs(), ["create", "create", "get"]);

    world.server.next([Fault::None, Fault::LostAnswer]);
    world.writer.enqueue(endpoint("a"), Mutation::edit(spec(2))).done().await.unwrap();
    assert_eq!(world.server.verbs(), ["get", "update", "get"]);
    world.server.next([Fault::LostAnswer]);
    world.writer.enqueue(endpoint("a"), Mutation::delete(Some(uid))).done().await.unwrap();
    assert_eq!(world.server.verbs(), ["delete", "delete"]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_gets_no_requests_until_its_retry_after() {
    let world = World::new().await;
    world.server.next([Fault::Unsent(busy(30))]);
    world.writer.enqueue(node("a"), Mutation::edit(spec(1)));
    sleep(seconds(1)).await;
    world.server.made();
    for i in 0..20 {
        world.writer.enqueue(node(&i.to_string()), Mutation::edit(spec(1)));
    }
    sleep(seconds(28)).await;
    assert_eq!(world.server.made().len(), 0);
    world.idle().await;
    assert_eq!(world.cluster.objects(Kind::CiliumNode).len(), 21);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_response_times_out_and_blocks_only_its_object() {
    let world = World::new().await;
    world.server.next([Fault::Hangs]);
    let hanging = world.writer.enqueue(node("a"), Mutation::edit(spec(1)));
    sleep(seconds(1)).await;
    assert_eq!(world.row(&node("a")).unwrap().state, WriteState::Writing);
    let begin = Instant::now();
    world.writer.enqueue(node("b"), Mutation::edit(spec(1))).done().await.unwrap();
    assert!(begin.elapsed() < seconds(1));
    hanging.done().await.unwrap();
    assert!(begin.elapsed() > seconds(28) && begin.elapsed() < seconds(31), "{:?}", begin.elapsed());
    world.finish().await;
}
