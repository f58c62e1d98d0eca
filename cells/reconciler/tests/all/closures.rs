//! Panics in closures of the user: a panic is an error of its object, and does not end the reconciler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reconciler::{Report, StatusKind};
use statedb::Query;

use crate::world::*;

/// A switch that makes a closure of a test panic.
#[derive(Clone, Default)]
struct Fuse(Arc<AtomicBool>);

impl Fuse {
    fn set(&self, lit: bool) {
        self.0.store(lit, Ordering::Relaxed);
    }

    fn check(&self) {
        assert!(!self.0.load(Ordering::Relaxed), "boom");
    }
}

/// Returns a reconciler of routes with status closures that panic for route 2 while their fuse is lit.
fn fused(world: &World, read: &Fuse, write: &Fuse) -> Ready {
    let (read, write) = (read.clone(), write.clone());
    let check = |fuse: &Fuse, route: &Route| {
        if route.id == 2 {
            fuse.check();
        }
    };
    reconciler::Reconciler::builder(world.routes.clone())
        .status(
            move |route: &Route| {
                check(&read, route);
                &route.status
            },
            move |route, status| {
                check(&write, route);
                route.status = status;
            },
        )
        .ops(world.target.clone())
        .prune(Duration::ZERO)
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_status_getter_is_an_error_of_its_object() {
    let mut world = World::new();
    let (read, write) = (Fuse::default(), Fuse::default());
    let handle = world.run(fused(&world, &read, &write));
    read.set(true);
    let revision = world.put([1, 2, 3]);
    let progress = handle.wait_until(revision).await.unwrap();
    assert_eq!((world.target.rows(), progress.failing_since), (vec![1, 3], Some(2)));
    pass(MS).await;
    let error = degraded(1, "reading the status panicked: boom");
    assert_eq!(world.reports.lock().last(), Some(&error));
    pass(300 * MS).await;
    assert_eq!(handle.metrics().errors.value(), 2, "tried again after 200 ms");
    read.set(false);
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(world.target.rows(), [1, 2, 3]);
    assert!(world.get(2).status.is_done());
    pass(MS).await;
    assert_eq!(world.reports.lock().last(), Some(&Report::Ok("OK, 3 object(s)".into())));
    // An object that is reconciled already needs no operation when its status can be read again.
    read.set(true);
    let (_, snapshot) =
        world.routes.transact(|w| w.update(Query::primary(2u32), |route| route.via.push('x')));
    handle.wait_until(world.routes.revision(&snapshot)).await.unwrap();
    world.target.take_log();
    pass(MS).await;
    assert_eq!(world.reports.lock().last(), Some(&error));
    read.set(false);
    handle.wait_until_ok(world.routes.revision(&snapshot)).await.unwrap();
    pass(MS).await;
    assert_eq!(world.reports.lock().last(), Some(&Report::Ok("OK, 3 object(s)".into())));
    assert!(world.target.take_log().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_status_setter_is_an_error_of_its_object() {
    let mut world = World::new();
    let (read, write) = (Fuse::default(), Fuse::default());
    let handle = world.run(fused(&world, &read, &write));
    write.set(true);
    let revision = world.put([1, 2, 3]);
    let progress = handle.wait_until(revision).await.unwrap();
    assert_eq!(progress.failing_since, Some(2));
    assert_eq!([1, 2, 3].map(|id| world.get(id).status.is_done()), [true, false, true]);
    assert_eq!(world.get(2).status.kind(), StatusKind::Pending, "the row cannot store the error");
    pass(MS).await;
    let error = degraded(1, "writing the status panicked: boom");
    assert_eq!(world.reports.lock().last(), Some(&error));
    pass(300 * MS).await;
    assert_eq!(handle.metrics().errors.value(), 2, "tried again after 200 ms");
    write.set(false);
    handle.wait_until_ok(revision).await.unwrap();
    assert!(world.get(2).status.is_done());
}

#[tokio::test(start_paused = true)]
async fn a_panicking_merge_is_an_error_of_its_object() {
    let mut world = World::new();
    let fuse = Fuse::default();
    let slow = SlowTarget(world.target.clone());
    let merge = {
        let fuse = fuse.clone();
        move |current: &mut Route, reconciled: &Route| {
            fuse.check();
            current.handle = reconciled.handle;
        }
    };
    let handle = world.run(world.builder().async_ops(slow).merge(merge).prune(Duration::ZERO));
    fuse.set(true);
    world.target.set(1, Fault::Slow(10 * MS));
    let revision = world.put([1]);
    pass(5 * MS).await;
    world.routes.transact(|w| w.update(Query::primary(1u32), |route| route.via = "b".into()));
    let progress = handle.wait_until(revision).await.unwrap();
    assert_eq!(progress.failing_since, Some(1));
    let failed = world.get(1);
    assert_eq!((failed.status.error(), failed.via.as_str()), (Some("merge panicked: boom"), "b"));
    fuse.set(false);
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(world.get(1).handle, 1001);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_report_does_not_end_the_reconciler() {
    let world = World::new();
    let mut tasks = tokio::task::JoinSet::new();
    let (handle, reconciler) = world.builder().report(|_| panic!("boom")).build();
    tasks.spawn(reconciler.run());
    for id in 1..=3 {
        let revision = world.put([id]);
        handle.wait_until_ok(revision).await.unwrap();
        pass(MS).await;
    }
    assert_eq!(world.target.rows(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_during_refresh_skips_its_object() {
    let mut world = World::new();
    let (read, write) = (Fuse::default(), Fuse::default());
    let builder = fused(&world, &read, &write).refresh(Duration::from_secs(60), 10);
    let handle = world.run(builder);
    let revision = world.put([1, 2, 3]);
    handle.wait_until_ok(revision).await.unwrap();
    for fuse in [&read, &write] {
        world.target.take_log();
        fuse.set(true);
        pass(Duration::from_secs(70)).await;
        assert_eq!(world.target.take_log(), ["update 1", "update 3"]);
        fuse.set(false);
        // The next write of the object includes it again.
        let revision = world.put([2]);
        handle.wait_until_ok(revision).await.unwrap();
    }
}
