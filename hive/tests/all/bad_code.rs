//! Panics in every kind of code of cells: a clear error that names the code, nothing stuck, no task leaked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use hive::prelude::*;
use hive::{HealthTree, HiveError};
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Object)]
struct Thing;

/// An option that panics when it is read.
#[derive(Clone, Debug)]
struct Explosive;

impl std::str::FromStr for Explosive {
    type Err = std::convert::Infallible;
    fn from_str(_: &str) -> Result<Self, Self::Err> {
        panic!("boom")
    }
}

impl std::fmt::Display for Explosive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("x")
    }
}

#[derive(hive::Config, Clone, Debug)]
struct Exploding {
    /// Whatever is given
    #[flag(parse = "anything", default = "x")]
    explosive: Explosive,
}

#[derive(hive::Config, Clone, Debug)]
struct Options {
    /// A switch
    enable: bool,
}

/// A type that panics when it is dropped.
struct Fragile;

impl Drop for Fragile {
    fn drop(&mut self) {
        panic!("boom");
    }
}

/// Where the panic is reported.
#[derive(Clone, Copy, Debug)]
enum Reported {
    /// The build fails.
    Build(&'static str),
    /// The start fails and is rolled back.
    Start(&'static str),
    /// The hive runs; a health reporter is degraded.
    Health(&'static str),
    /// The stop fails, after everything has been stopped.
    Stop(&'static str),
    /// Only the log: the code belongs to the program, not to a cell.
    Log,
}

fn boom<T>() -> T {
    panic!("boom")
}

fn cases() -> Vec<(&'static str, Cell, Reported)> {
    vec![
        (
            "constructor",
            bundle([provide(|| -> Thing { boom() }), invoke(|_: Arc<Thing>| ())]),
            Reported::Start("constructor"),
        ),
        (
            "async constructor",
            bundle([provide(async || -> Thing { boom() }), invoke(|_: Arc<Thing>| ())]),
            Reported::Start("constructor"),
        ),
        (
            "invocation",
            invoke(|| {
                boom::<()>();
            }),
            Reported::Start("constructor"),
        ),
        (
            "decorator",
            bundle([
                provide(|| Thing),
                decorate(|_: Arc<Thing>| -> Thing { boom() }, invoke(|_: Arc<Thing>| ())),
            ]),
            Reported::Start("constructor"),
        ),
        (
            "start hook",
            invoke(|lifecycle: Lifecycle| lifecycle.hook("bad").on_start(|_| async { boom() }).add()),
            Reported::Start("start hook `bad` of module `m`"),
        ),
        (
            "start hook, before its future",
            invoke(|lifecycle: Lifecycle| {
                lifecycle
                    .hook("bad")
                    .on_start(|_| -> std::future::Ready<anyhow::Result<()>> { boom() })
                    .add();
            }),
            Reported::Start("start hook `bad` of module `m`"),
        ),
        (
            "parallel start hook",
            invoke(|lifecycle: Lifecycle| {
                lifecycle.hook("bad").parallel().on_start(|_| async { boom() }).add()
            }),
            Reported::Start("start hook `bad` of module `m`"),
        ),
        (
            "stop hook",
            invoke(|lifecycle: Lifecycle| lifecycle.hook("bad").on_stop(|_| async { boom() }).add()),
            Reported::Stop("stop hook `bad` of module `m`"),
        ),
        (
            "job",
            invoke(|jobs: JobGroup| drop(jobs.one_shot("bad", |_| async { boom() }).add())),
            Reported::Health("m.job-bad"),
        ),
        (
            "job that is tried again",
            invoke(|jobs: JobGroup| {
                let backoff = Backoff::constant(Duration::from_millis(10)).retries(2);
                jobs.one_shot_with_retry("bad", backoff, |_| async { boom() }).add();
            }),
            Reported::Health("m.job-bad"),
        ),
        (
            "timer",
            invoke(|jobs: JobGroup| drop(jobs.timer("bad", SECOND / 10, |_| async { boom() }).add())),
            Reported::Health("m.timer-job-bad"),
        ),
        (
            "observer",
            invoke(|jobs: JobGroup| {
                let items = futures::stream::iter([1]).chain(futures::stream::pending());
                jobs.observer("bad", items, |_, _| async { boom() }).add();
            }),
            Reported::Health("m.observer-job-bad"),
        ),
        (
            "stream of an observer",
            invoke(|jobs: JobGroup| {
                let items = futures::stream::poll_fn(|_| boom::<std::task::Poll<Option<u8>>>());
                jobs.observer("bad", items, |_, _| async { Ok(()) }).add();
            }),
            Reported::Health("m.observer-job-bad"),
        ),
        (
            "option",
            bundle([
                config::<Exploding>(),
                invoke(|config: Config<Exploding>| drop(config.explosive.clone())),
            ]),
            Reported::Build("reading the options"),
        ),
        (
            "condition",
            bundle([config::<Options>(), invoke(|| ()).when(|options: &Options| options.enable || boom())]),
            Reported::Build("boom"),
        ),
        (
            "scope",
            bundle([
                scope::<Thing>(
                    "inner",
                    "x",
                    invoke(|| {
                        boom::<()>();
                    }),
                ),
                invoke(|inner: Arc<Scope<Thing>>, jobs: JobGroup| {
                    jobs.one_shot("bad", move |_| async move { Ok(inner.start().await?) }).add();
                }),
            ]),
            Reported::Health("m.inner.scope"),
        ),
        ("mirror of health", invoke(|tree: Arc<HealthTree>| tree.mirror(|_| boom())), Reported::Log),
        ("observer of events", invoke(|events: Arc<hive::Events>| events.observe(|_| boom())), Reported::Log),
        (
            "drop of an object",
            bundle([provide(|| Arc::new(Fragile)), invoke(|_: Arc<Fragile>| ())]),
            Reported::Log,
        ),
    ]
}

/// Returns a hook and a job next to the bad code that count how often they have started and ended.
fn bystander(counts: &Arc<[AtomicU32; 4]>) -> Cell {
    struct Ends(Arc<[AtomicU32; 4]>);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0[3].fetch_add(1, Ordering::Relaxed);
        }
    }
    let counts = counts.clone();
    invoke(move |lifecycle: Lifecycle, jobs: JobGroup| {
        let (starts, stops, job) = (counts.clone(), counts.clone(), counts.clone());
        lifecycle
            .hook("good")
            .on_start(move |_| async move {
                starts[0].fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
            .on_stop(move |_| async move {
                stops[1].fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
            .add();
        jobs.one_shot("good", move |cx: JobCx| async move {
            job[2].fetch_add(1, Ordering::Relaxed);
            let _ends = Ends(job);
            cx.cancelled().await;
            Ok(())
        })
        .add();
    })
}

#[tokio::test(start_paused = true)]
async fn panics_are_reported_and_isolated() {
    for (name, bad, reported) in cases() {
        let counts: Arc<[AtomicU32; 4]> = Arc::default();
        let mut hive = TestHive::new([bystander(&counts), module("m", "x", bad)]);
        let started =
            timeout(60 * SECOND, hive.try_start()).await.unwrap_or_else(|_| panic!("{name}: stuck"));
        let says = |error: &HiveError, what: &str| {
            let text = error.to_string();
            assert!(text.contains(what) && text.contains("boom"), "{name}: {text}");
        };
        match (reported, &started) {
            (Reported::Build(what) | Reported::Start(what), Err(error)) => says(error, what),
            (Reported::Health(_) | Reported::Stop(_) | Reported::Log, Ok(())) => {}
            (reported, started) => panic!("{name}: {reported:?}, but {started:?}"),
        }
        if started.is_ok() {
            sleep(5 * SECOND).await;
            if let Reported::Health(path) = reported {
                let status = hive.health(path);
                assert!(
                    status.level == Level::Degraded && status.error.contains("boom"),
                    "{name}: {status:?}"
                );
            }
            let stopped =
                timeout(60 * SECOND, hive.try_stop()).await.unwrap_or_else(|_| panic!("{name}: stuck"));
            match (reported, stopped) {
                (Reported::Stop(what), Err(error)) => says(&error, what),
                (Reported::Stop(_), Ok(())) => panic!("{name}: not reported"),
                (_, stopped) => stopped.unwrap_or_else(|error| panic!("{name}: {error}")),
            }
        }
        drop(hive);
        tokio::task::yield_now().await;
        let count = |at: usize| counts[at].load(Ordering::Relaxed);
        assert_eq!((count(0), count(2)), (count(1), count(3)), "{name}: what has started has ended");
        assert_eq!(
            count(1),
            u32::from(
                !matches!(reported, Reported::Build(_))
                    && !matches!(reported, Reported::Start("constructor"))
            ),
            "{name}"
        );
        let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert_eq!(alive, 0, "{name}: tasks are lost");
    }
}

/// An observer that requests a shutdown does not wait for itself.
#[tokio::test(start_paused = true)]
async fn an_observer_of_events_may_cause_events() {
    let cells = invoke(|events: Arc<hive::Events>, shutdown: Shutdowner| {
        events.observe(move |event| {
            if matches!(event, hive::Event::Started { .. }) {
                shutdown.shutdown_with_code(anyhow::anyhow!("seen enough"), 7);
            }
        });
    });
    let outcome = Hive::builder(cells).build().unwrap().run_until_shutdown().await;
    assert_eq!((outcome.code, outcome.errors[0].to_string().as_str()), (Some(7), "seen enough"));
}
