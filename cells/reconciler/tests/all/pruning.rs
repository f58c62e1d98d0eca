//! Prunes, which wait for all sources; refreshes by age.

use std::time::Duration;

use reconciler::{Report, StatusKind};

use crate::world::*;

fn prunes(world: &World) -> usize {
    world.target.take_log().iter().filter(|line| line.starts_with("prune")).count()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_pruned_before_all_sources_are_done() {
    let mut world = World::new();
    world.target.0.lock().rows.insert(9, "left over".into());
    let (source, _) = world.routes.transact(|w| w.register_initializer("source"));
    let handle = world.run(world.builder());
    world.put([1]);
    handle.prune(); // requested, but the table is not initialized
    pass(Duration::from_secs(7200)).await;
    assert_eq!(prunes(&world), 0);
    assert_eq!(world.target.rows(), [1, 9]);
    world.routes.transact(|w| source.done(w));
    pass(10 * MS).await;
    assert_eq!(world.target.rows(), [1]);
    assert_eq!(prunes(&world), 1, "the requests before are one");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_pruned_before_all_objects_were_tried() {
    let mut world = World::new();
    world.put(0..2500); // three rounds
    world.target.set(7, Fault::Fail); // one attempt is enough
    let handle = world.run(world.builder());
    handle.prune();
    pass(10 * MS).await;
    let log = world.target.take_log();
    let before = log.iter().position(|line| line.starts_with("prune")).unwrap();
    assert_eq!(log[..before].len(), 2500, "{:?}", &log[..before.min(5)]);
    assert_eq!(
        log.iter().filter(|line| line.starts_with("prune")).count(),
        1,
        "the request before is the same"
    );
}

#[tokio::test(start_paused = true)]
async fn continuous_writes_do_not_delay_the_first_prune() {
    let mut world = World::new();
    world.put(0..30);
    let (source, _) = world.routes.transact(|w| w.register_initializer("source"));
    world.run(world.builder().round(10, 1000, 1));
    world.routes.transact(|w| source.done(w));
    for more in 1..100 {
        world.put(more * 100..more * 100 + 20); // twice the size of a round
        pass(MS).await;
    }
    let log = world.target.take_log();
    let before = log.iter().position(|line| line.starts_with("prune")).expect("one while it writes");
    let tried: Vec<u32> =
        log[..before].iter().filter_map(|line| line.strip_prefix("update ")?.parse().ok()).collect();
    assert!((0..30).all(|id| tried.contains(&id)), "{tried:?}");
}

#[tokio::test(start_paused = true)]
async fn pruned_at_once_then_every_interval_and_on_request() {
    let mut world = World::new();
    world.put([1]);
    let handle = world.run(world.builder().prune(Duration::from_secs(60)).refresh(Duration::ZERO, 1));
    pass(10 * MS).await;
    assert_eq!(world.target.take_log(), ["update 1", "prune [1]"]);
    pass(Duration::from_secs(60)).await;
    assert_eq!(prunes(&world), 1);
    world.target.0.lock().prune_fails = true;
    handle.pruned().await.unwrap();
    pass(10 * MS).await;
    assert_eq!(prunes(&world), 1);
    assert_eq!(world.reports.lock().last(), Some(&degraded(1, "prune: prune refused")));
    world.target.0.lock().prune_fails = false;
    pass(Duration::from_secs(30)).await;
    assert_eq!(prunes(&world), 0, "not tried again before its time");
    pass(Duration::from_secs(30)).await;
    assert_eq!(prunes(&world), 1);
    assert_eq!(world.reports.lock().last(), Some(&Report::Ok("OK, 1 object(s)".into())));
    assert_eq!((handle.metrics().prunes.count(), handle.metrics().prune_errors.value()), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn without_interval_prunes_run_only_on_request() {
    let mut world = World::new();
    let handle = world.run(world.builder().prune(Duration::ZERO));
    pass(Duration::from_secs(7200)).await;
    assert_eq!(prunes(&world), 0);
    handle.pruned().await.unwrap();
    assert_eq!((prunes(&world), handle.metrics().prunes.count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn refreshes_are_limited_per_second() {
    let mut world = World::new();
    world.put(1..=5);
    world.run(world.builder().prune(Duration::ZERO).refresh(Duration::from_secs(600), 2));
    pass(Duration::from_secs(599)).await;
    assert_eq!(world.target.take_log().len(), 5);
    world.target.0.lock().rows.clear(); // another process has emptied the target
    pass(Duration::from_millis(1500)).await;
    assert_eq!(world.target.take_log(), ["update 1", "update 2"]);
    pass(Duration::from_secs(5)).await;
    assert_eq!(world.target.rows(), [1, 2, 3, 4, 5]);
    world.target.take_log();
    pass(Duration::from_secs(580)).await;
    assert!(world.target.take_log().is_empty(), "young again");
    pass(Duration::from_secs(30)).await;
    assert_eq!(world.target.take_log().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn objects_are_refreshed_after_the_clock_was_set_back() {
    let mut world = World::new();
    let tomorrow = std::time::SystemTime::now() + Duration::from_secs(86400);
    world.routes.transact(|w| {
        w.insert(Route { status: reconciler::Status::done().with_updated_at(tomorrow), ..route(1, "a") });
    });
    world.put([2]);
    world.run(world.builder().prune(Duration::ZERO).refresh(Duration::from_secs(600), 2));
    pass(Duration::from_secs(601)).await;
    let log = world.target.take_log();
    assert!(log.contains(&"update 1".to_owned()), "{log:?}");
    assert_eq!(log.iter().filter(|entry| *entry == "update 2").count(), 2, "the one behind it, too: {log:?}");
}

#[tokio::test(start_paused = true)]
async fn failing_objects_are_not_refreshed() {
    let mut world = World::new();
    world.target.set(1, Fault::Fail);
    world.put([1]);
    world.run(world.builder().prune(Duration::ZERO).refresh(Duration::from_secs(1), 100));
    pass(Duration::from_secs(600)).await;
    assert_eq!(world.get(1).status.kind(), StatusKind::Error);
    let retries = world.target.take_log().len();
    assert!((10..20).contains(&retries), "200 ms, doubled up to a minute: {retries}");
}
