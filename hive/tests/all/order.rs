//! The order of start hooks: tokens, parallel along the graph, and any legal order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Object)]
struct Store;
#[derive(Object)]
struct Server;
#[derive(Object)]
struct Other;

fn slow(lifecycle: &Lifecycle, name: &'static str) -> hive::HookBuilder {
    lifecycle.hook(name).on_start(|_| async {
        sleep(SECOND).await;
        Ok(())
    })
}

/// Returns two chains: store - server, and other with two hooks of its own.
fn chains(parallel: bool) -> Vec<Cell> {
    let hook = move |lifecycle: &Lifecycle, name| match parallel {
        true => slow(lifecycle, name).parallel().add(),
        false => slow(lifecycle, name).add(),
    };
    vec![
        provide(move |lifecycle: Lifecycle| {
            hook(&lifecycle, "store");
            Store
        }),
        provide(move |_: Arc<Store>, lifecycle: Lifecycle| {
            hook(&lifecycle, "server");
            Server
        }),
        provide(move |lifecycle: Lifecycle| {
            hook(&lifecycle, "other-1");
            hook(&lifecycle, "other-2");
            Other
        }),
        invoke(move |_: Arc<Server>, _: Arc<Other>, jobs: JobGroup| {
            jobs.one_shot("works", |_| async { Ok(()) }).add();
        }),
    ]
}

async fn duration(cells: Vec<Cell>) -> (Duration, TestHive) {
    let mut hive = TestHive::new(cells);
    let begin = Instant::now();
    hive.start().await;
    (begin.elapsed(), hive)
}

#[tokio::test(start_paused = true)]
async fn parallel_hooks_run_along_the_graph() {
    let (time, mut hive) = duration(chains(false)).await;
    assert_eq!(time, 4 * SECOND);
    assert_eq!(hive.hook_order(), ["store", "server", "other-1", "other-2", "job-works"]);
    hive.stop().await;
    let (time, mut hive) = duration(chains(true)).await;
    assert_eq!(time, 2 * SECOND, "two chains of two");
    let order = hive.hook_order();
    let at = |name: &str| order.iter().position(|hook| hook == name).unwrap();
    assert!(at("store") < at("server") && at("other-1") < at("other-2"), "{order:?}");
    assert_eq!(at("job-works"), 4, "after all that its constructor depends on");
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_is_not_parallel_keeps_its_place() {
    let hooks = |lifecycle: Lifecycle| slow(&lifecycle, "alone").add();
    let parallel =
        |name: &'static str| invoke(move |lifecycle: Lifecycle| slow(&lifecycle, name).parallel().add());
    let cells = vec![parallel("a"), parallel("b"), invoke(hooks), parallel("c"), parallel("d")];
    let (time, mut hive) = duration(cells).await;
    assert_eq!(time, 3 * SECOND);
    assert_eq!(hive.hook_order(), ["a", "b", "alone", "c", "d"]);
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn started_hooks_stop_in_reverse_and_a_failure_drops_the_running() {
    let hook = |name: &'static str, wait: u32, fails: bool| {
        invoke(move |lifecycle: Lifecycle| {
            let start = move |_| async move {
                sleep(wait * SECOND).await;
                if fails { anyhow::bail!("no route to host") } else { Ok(()) }
            };
            lifecycle.hook(name).parallel().on_start(start).on_stop(|_| async { Ok(()) }).add();
        })
    };
    let mut hive = TestHive::new(vec![hook("late", 3, false), hook("early", 1, false)]);
    hive.start().await;
    hive.stop().await;
    assert_eq!(hive.hook_order(), ["early", "late"]);
    assert_eq!(hive.stop_order(), ["late", "early"]);

    let cells = vec![hook("late", 3, false), hook("early", 1, false), hook("fails", 2, true)];
    let mut hive = TestHive::new(cells);
    let begin = Instant::now();
    let text = hive.try_start().await.unwrap_err().to_string();
    assert!(text.contains("`fails`") && text.ends_with("no route to host; 1 hook undone"), "{text}");
    assert_eq!(begin.elapsed(), 2 * SECOND);
    assert_eq!(hive.stop_order(), ["early"], "the one that was dropped has not started");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_all_that_run() {
    let stuck = |name: &'static str| {
        invoke(move |lifecycle: Lifecycle| {
            lifecycle.hook(name).parallel().on_start(|_| std::future::pending()).add();
        })
    };
    let ends = invoke(|lifecycle: Lifecycle, shutdown: Shutdowner| {
        lifecycle
            .hook("ends")
            .parallel()
            .on_start(move |_| async move {
                sleep(SECOND).await;
                shutdown.shutdown();
                Ok(())
            })
            .add();
    });
    let outcome =
        Hive::builder(vec![stuck("a"), stuck("b"), ends]).build().unwrap().run_until_shutdown().await;
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
}

#[tokio::test(start_paused = true)]
async fn a_cycle_of_tokens_is_named() {
    struct A;
    struct B;
    let mut hive = TestHive::new([
        invoke(|lifecycle: Lifecycle| lifecycle.hook("chicken").after::<A>().provides::<B>().add()),
        invoke(|lifecycle: Lifecycle| lifecycle.hook("egg").after::<B>().provides::<A>().add()),
    ]);
    let text = hive.try_start().await.unwrap_err().to_string();
    assert!(text.contains("start hook `chicken`"), "{text}");
    assert!(text.contains("not run: chicken, egg wait for each other's tokens"), "{text}");
}

/// The seeds produce different orders, all of them legal.
#[tokio::test(start_paused = true)]
async fn every_seed_yields_a_legal_order() {
    let mut orders = BTreeSet::new();
    for seed in 0..50 {
        let mut hive = TestHive::new(chains(false)).shuffle(seed);
        hive.start().await;
        let order = hive.hook_order();
        let at = |name: &str| order.iter().position(|hook| hook == name).unwrap();
        assert!(at("store") < at("server") && at("other-1") < at("other-2"), "{order:?}");
        assert_eq!(at("job-works"), 4, "{order:?}");
        orders.insert(order.clone());
        hive.stop().await;
        let reverse: Vec<String> = order.into_iter().rev().filter(|hook| hook.starts_with("job")).collect();
        assert_eq!(hive.stop_order(), reverse);
    }
    assert_eq!(orders.len(), 6, "all ways to shuffle two chains of two");
}

/// A hook that relies on another one without a declared dependency fails.
#[tokio::test(start_paused = true)]
async fn a_hidden_dependency_shows() {
    struct Bound;
    let cells = |declared: bool| {
        let folder = Arc::new(parking_lot::Mutex::new(false));
        let made = folder.clone();
        [
            invoke(move |lifecycle: Lifecycle| {
                let made = made.clone();
                lifecycle
                    .hook("makes")
                    .provides::<Bound>()
                    .on_start(move |_| async move {
                        *made.lock() = true;
                        Ok(())
                    })
                    .add();
            }),
            invoke(move |lifecycle: Lifecycle| {
                let folder = folder.clone();
                let hook = lifecycle.hook("needs").on_start(move |_| async move {
                    anyhow::ensure!(*folder.lock(), "no folder");
                    Ok(())
                });
                if declared { hook.after::<Bound>().add() } else { hook.add() }
            }),
        ]
    };
    let mut failed = [0, 0];
    for seed in 0..20 {
        for declared in [false, true] {
            let mut hive = TestHive::new(cells(declared)).shuffle(seed);
            match hive.try_start().await {
                Ok(()) => hive.stop().await,
                Err(_) => failed[usize::from(declared)] += 1,
            }
        }
    }
    assert!((1..20).contains(&failed[0]), "{failed:?}");
    assert_eq!(failed[1], 0);
}
