//! The stop of the writer.

use std::sync::Arc;
use std::time::Duration;

use hive::LogLevel;
use hive::prelude::*;
use k8s_types::{Key, Kind};
use k8s_writer::{Mutation, NotWritten, Writer};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::faults::{Fault, is_unreachable};
use crate::world::{World, node, spec};

#[tokio::test(start_paused = true)]
async fn pending_mutations_are_written_at_the_stop() {
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
async fn the_stop_is_bounded_and_the_rest_ends_as_stopped() {
    let mut world = World::new().await;
    world.server.next([Fault::Hangs, Fault::Unsent(is_unreachable()), Fault::Unsent(is_unreachable())]);
    let tickets: Vec<_> =
        (0..30).map(|i| world.writer.enqueue(node(&i.to_string()), Mutation::edit(spec(1)))).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    world.server.is_unreachable(true);
    let begin = Instant::now();
    world.hive.stop().await;
    assert!(begin.elapsed() < Duration::from_millis(600), "{:?}", begin.elapsed());
    let (mut written, mut ended) = (0, 0);
    for ticket in tickets {
        match ticket.done().await {
            Ok(_) => written += 1,
            Err(NotWritten::Stopped { .. }) => ended += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(written + ended, 30);
    assert!(ended > 0);
    let record = world.hive.logged(LogLevel::WARN, "Not all is written to the cluster at the stop");
    assert!(format!("{record:?}").contains(&ended.to_string()), "{record:?}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn mutations_of_stop_hooks_are_written() {
    // A cell that needs the writer stops before it, so mutations of its stop hook are written.
    let cluster = Cluster::default();
    let farewell = |writer: Arc<Writer>, lifecycle: Lifecycle| {
        lifecycle
            .hook("farewell")
            .on_stop(move |_| async move {
                writer.enqueue(node("n1"), Mutation::edit(spec("gone")));
                Ok(())
            })
            .add();
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
async fn without_a_server_each_mutation_ends_at_once() {
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
