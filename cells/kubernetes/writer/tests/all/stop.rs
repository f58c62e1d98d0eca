//! The end of a run.

use std::sync::Arc;
use std::time::Duration;

use hive::LogLevel;
use hive::prelude::*;
use k8s_types::{Key, Kind};
use k8s_writer::{Mutation, NotWritten, Writer};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::faults::{Fault, away};
use crate::world::{World, node, spec};

#[tokio::test(start_paused = true)]
async fn what_is_pending_is_written_at_the_stop() {
    let mut world = World::new().await;
    world.server.latency(Duration::from_millis(20));
    let tickets: Vec<_> =
        (0..30).map(|i| world.writer.enqueue(node(&i.to_string()), Mutation::edit(spec(1)))).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    world.hive.stop().await;
    for ticket in tickets {
        ticket.done().await.unwrap();
    }
    assert_eq!(world.cluster.objects(Kind::CiliumNode).len(), 30);
    let late = world.writer.enqueue(node("late"), Mutation::edit(spec(1))).done().await;
    assert_eq!(late, Err(NotWritten::Stopped { target: "ciliumnodes/late".into() }));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_stop_is_bounded_and_the_rest_is_told() {
    let mut world = World::new().await;
    world.server.next([Fault::Hangs, Fault::Unsent(away()), Fault::Unsent(away())]);
    let tickets: Vec<_> =
        (0..30).map(|i| world.writer.enqueue(node(&i.to_string()), Mutation::edit(spec(1)))).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    world.server.away(true);
    let begin = Instant::now();
    world.hive.stop().await;
    assert!(begin.elapsed() < Duration::from_millis(600), "{:?}", begin.elapsed());
    let (mut written, mut told) = (0, 0);
    for ticket in tickets {
        match ticket.done().await {
            Ok(_) => written += 1,
            Err(NotWritten::Stopped { .. }) => told += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(written + told, 30);
    assert!(told > 0);
    let record = world.hive.logged(LogLevel::WARN, "Not all is written to the cluster at the stop");
    assert!(format!("{record:?}").contains(&told.to_string()), "{record:?}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn who_enqueues_last_is_heard() {
    // The cell that needs the writer stops before it; what it enqueues in its stop hook is written.
    let cluster = Cluster::default();
    let farewell = |writer: Arc<Writer>, lifecycle: Lifecycle| {
        lifecycle.hook("farewell").on_stop(move |_| async move {
            writer.enqueue(node("n1"), Mutation::edit(spec("gone")));
            Ok(())
        });
    };
    let mut hive = TestHive::new([
        statedb::cell(),
        supply(cluster.api()),
        k8s_writer::cell(),
        module("farewell", "Says goodbye", [invoke(farewell)]),
    ]);
    hive.start().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    hive.stop().await;
    let node = cluster.object(Kind::CiliumNode, &Key::new("", "n1")).unwrap();
    assert_eq!(node["spec"]["value"], "gone");
    drop(cluster);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_server_each_wish_ends_at_once() {
    let cells = || [statedb::cell(), k8s_writer::cell(), invoke(|_: Arc<Writer>| ())];
    let mut hive = TestHive::new(cells());
    hive.start().await;
    let writer = hive.get::<Writer>();
    assert!(!writer.has_server());
    let ended = writer.enqueue(node("n1"), Mutation::edit(spec(1))).done().await.unwrap_err();
    assert_eq!(ended.to_string(), "ciliumnodes/n1: the agent runs without a Kubernetes API server");
    drop(writer);
    hive.finish().await;
}
