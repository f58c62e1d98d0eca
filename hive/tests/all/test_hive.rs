//! The hive for tests: its own log, leaks at the end, and its assertions.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use hive::LogLevel;
use hive::prelude::*;
use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::instrument::WithSubscriber;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a cell that logs a line from every kind of code.
fn talks(name: &'static str) -> Cell {
    module(
        name,
        "Talks",
        invoke(move |lifecycle: Lifecycle, jobs: JobGroup| {
            tracing::info!(name, "constructed");
            lifecycle
                .hook("talk")
                .on_start(move |_| async move {
                    tracing::warn!(name, port = 9234, "started");
                    Ok(())
                })
                .add();
            jobs.one_shot("talk", move |_| async move {
                tokio::task::yield_now().await;
                tracing::info_span!("request", id = 7).in_scope(|| tracing::debug!(name, "works"));
                Ok(())
            })
            .add();
            jobs.one_shot("fails", |_| async { anyhow::bail!("no route to host") }).add();
        }),
    )
}

/// Returns the message of the panic.
async fn fault(future: impl Future<Output = ()>) -> String {
    let panic = AssertUnwindSafe(future).catch_unwind().await.unwrap_err();
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    // Masks line numbers of this file.
    let mut parts = text.split("test_hive.rs:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + "test_hive.rs:_" + part.trim_start_matches(|c: char| c.is_ascii_digit())
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn hives_side_by_side_have_their_own_logs() {
    let mut hives: Vec<TestHive> = ["a", "b", "c"].map(|name| TestHive::new(talks(name))).into();
    for hive in &mut hives {
        hive.start().await;
    }
    for (hive, name) in hives.iter_mut().zip(["a", "b", "c"]) {
        hive.until("the jobs have run", || {
            hive.has_logged(LogLevel::DEBUG, "works") && hive.has_logged(LogLevel::WARN, "Job failed")
        })
        .await;
        hive.stop().await;
        let own =
            hive.logs().into_iter().filter(|record| record.fields.iter().any(|(key, _)| *key == "name"));
        let own: Vec<String> = own
            .filter(|record| !record.message.starts_with("Job"))
            .map(|record| record.to_string())
            .collect();
        assert_eq!(
            own,
            [
                format!("INFO {name}: constructed name={name}"),
                format!("WARN {name}: started name={name} port=9234"),
                format!("DEBUG {name}: works name={name}"),
            ]
        );
        let failed = hive.logged(LogLevel::WARN, "Job failed name=job-fails error=no route to host");
        assert_eq!(&*failed.module, name, "lines of the hive about a module carry its path");
        assert_eq!(&*hive.logged(LogLevel::INFO, "Stopped hive").module, "");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scope_and_late_jobs_are_in_the_log() {
    struct Leader;
    let group: Arc<Mutex<Option<JobGroup>>> = Arc::default();
    let keep = group.clone();
    let cells = module(
        "m",
        "x",
        [
            hive::scope::<Leader>("leader", "x", talks("inner")),
            invoke(move |_: Arc<Scope<Leader>>, jobs: JobGroup| *keep.lock() = Some(jobs)),
        ],
    );
    let mut hive = TestHive::needing::<Scope<Leader>>(cells);
    hive.start().await;
    hive.get::<Scope<Leader>>().start().await.unwrap();
    let jobs = group.lock().take().unwrap();
    jobs.one_shot("late", |_| async {
        tracing::info!("late");
        Ok(())
    })
    .add();
    sleep(SECOND).await;
    assert_eq!(&*hive.logged(LogLevel::WARN, "started").module, "m.leader.inner");
    assert_eq!(&*hive.logged(LogLevel::INFO, "late").module, "m");
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn code_of_the_test_logs_to_tracing_to() {
    let mut hive = TestHive::new(module("m", "x", invoke(|health: Health| health.ok("well"))));
    hive.start().await;
    tracing::warn!("elsewhere");
    async { tracing::warn!("here") }.with_subscriber(hive.tracing_to().clone()).await;
    assert_eq!(&*hive.logged(LogLevel::WARN, "here").module, "");
    assert!(!hive.has_logged(LogLevel::WARN, "elsewhere"));
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn assertions_print_the_actual_state() {
    let mut hive = TestHive::new([talks("a"), module("b", "x", invoke(|health: Health| health.ok("well")))]);
    hive.start().await;
    hive.assert_started_in_order(["talk", "job-talk", "job-fails"]);
    let text = fault(async { hive.assert_started_in_order(["job-talk", "talk"]) }).await;
    assert!(text.contains("`talk` ran earlier") && text.contains("[\"talk\", \"job-talk\""), "{text}");
    let text = fault(async { hive.assert_stopped_in_order(["talk"]) }).await;
    assert!(text.contains("`talk` did not run; stop hooks: []"), "{text}");
    let text = fault(async { drop(hive.logged(LogLevel::WARN, "ended")) }).await;
    assert!(text.contains("WARN `ended`; there are:\n  WARN a: started name=a"), "{text}");
    let text = fault(async { hive.assert_no_warning() }).await;
    assert!(text.contains("WARN a: started name=a port=9234"), "{text}");
    hive.assert_healthy();
    sleep(SECOND).await;
    let text = fault(async { hive.assert_healthy() }).await;
    assert!(text.contains("a.job-fails: Failed (duration 0.0ns): no route to host"), "{text}");
    let text = fault(hive.until("never", || false)).await;
    let begin = "in vain at hive/tests/all/test_hive.rs:_: waited for half a minute: never\n  health a";
    assert!(text.starts_with(begin), "{text}");
    assert!(
        text.contains("\n  health a.job-fails: Degraded Failed (duration 0.0ns) no route to host\n"),
        "{text}"
    );
    assert!(text.contains("\n  log WARN a: Job failed name=job-fails") && !text.contains("DEBUG"), "{text}");
    hive.stop().await;
}

#[tokio::test]
async fn failures_name_the_line_of_the_test() {
    let mut hive = TestHive::needing::<Store>([]);
    let text = fault(hive.start()).await;
    assert_eq!(
        text,
        "start at hive/tests/all/test_hive.rs:_: 1 fault in the graph:
  - missing Arc<all::test_hive::Store>
    needed by TestHive::needing (hive/tests/all/test_hive.rs:_) at the root
    hint: no cell in the list provides it; add the module that does, or a constructor that gives Arc<Store>"
    );
    // In a synchronous method the panic itself has the line of the caller.
    let at = Arc::new(Mutex::new(String::new()));
    let (seen, before) = (at.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        if std::thread::current().name() == Some("test_hive::failures_name_the_line_of_the_test") {
            *seen.lock() = at;
        } else {
            before(panic);
        }
    }));
    let mut hive = TestHive::new([]);
    hive.start().await;
    let own = |at: &str| at.starts_with("hive/tests/all/test_hive.rs:");
    let text = fault(async { drop(hive.get::<Store>()) }).await;
    assert!(text.starts_with("not built: ") && own(&at.lock()), "{text} {at:?}");
    let text = fault(async { drop(hive.health("nobody")) }).await;
    assert!(text.starts_with("no health report: nobody") && own(&at.lock()), "{text} {at:?}");
    let text = fault(async { drop(hive.logged(LogLevel::INFO, "nothing")) }).await;
    assert!(text.starts_with("not logged: ") && own(&at.lock()), "{text} {at:?}");
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn jobs_that_do_not_end_are_named() {
    let cells = module(
        "m",
        "x",
        invoke(|jobs: JobGroup| {
            jobs.one_shot("deaf", |_| std::future::pending()).add();
            jobs.timer("tidy", SECOND, |_| async { Ok(()) }).add();
        }),
    );
    let mut hive = TestHive::new(cells);
    hive.start().await;
    sleep(SECOND).await;
    let text = fault(hive.stop()).await;
    assert_eq!(
        text,
        "stop at hive/tests/all/test_hive.rs:_: something is left of the hive\n  job `job-deaf` of module `m` did not end within 5s of being cancelled: its code does not look at JobCx::cancelled()"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_blocks_its_thread_is_named() {
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let cells = module(
        "m",
        "x",
        invoke(move |jobs: JobGroup| {
            let blocked = blocked.clone();
            jobs.one_shot("blocks", move |_| async move {
                let _unblocked = blocked.lock().recv();
                Ok(())
            })
            .grace(Duration::from_millis(10))
            .add();
        }),
    );
    let mut hive = TestHive::new(cells);
    hive.start().await;
    hive.until("the job runs", || hive.has_logged(LogLevel::DEBUG, "Job started")).await;
    let left = hive.try_finish().await.unwrap_err();
    let jobs: Vec<String> = left.jobs.iter().map(ToString::to_string).collect();
    assert_eq!(
        jobs,
        ["`job-blocks` of module `m` still runs: it holds up its thread; use hive::blocking(..).await"]
    );
    drop(unblock);
}

struct Store;
trait Reader: Send + Sync {}
impl Reader for Store {}
struct Server {
    _store: Arc<Store>,
    peer: Mutex<Option<Arc<Client>>>,
}
struct Client {
    _server: Arc<Server>,
}

fn new_store() -> (Arc<Store>, Arc<dyn Reader>) {
    let store = Arc::new(Store);
    (store.clone(), store)
}

fn new_server(store: Arc<Store>, _: Arc<dyn Reader>) -> Arc<Server> {
    Arc::new(Server { _store: store, peer: Mutex::default() })
}

fn new_client(server: Arc<Server>) -> Arc<Client> {
    Arc::new(Client { _server: server })
}

#[tokio::test(start_paused = true)]
async fn leaked_objects_are_named_with_constructor_and_dependents() {
    let cells = |in_a_circle: bool| {
        let meet = move |server: Arc<Server>, client: Arc<Client>| {
            if in_a_circle {
                *server.peer.lock() = Some(client);
            }
        };
        module("web", "x", [provide(new_store), provide(new_server), provide(new_client), invoke(meet)])
    };
    let mut hive = TestHive::new(cells(false));
    hive.start().await;
    hive.finish().await;

    let mut hive = TestHive::new(cells(true));
    hive.start().await;
    let left = hive.try_finish().await.unwrap_err();
    let text = left.to_string();
    let objects: Vec<String> = left.objects.iter().map(|object| object.types.join(" and ")).collect();
    assert_eq!(
        objects,
        [
            "all::test_hive::Client",
            "all::test_hive::Store and dyn all::test_hive::Reader",
            "all::test_hive::Server"
        ]
    );
    assert!(
        text.contains(
            "object Arc<all::test_hive::Client>, held once, given by all::test_hive::new_client (hive/tests/all/test_hive.rs:"
        ),
        "{text}"
    );
    assert!(
        text.contains("in module `web`; perhaps held by all::test_hive::new_server, whose objects are left"),
        "{text}"
    );

    // A handle that the test itself holds.
    let mut hive = TestHive::new(cells(false));
    hive.start().await;
    let server = hive.get::<Server>();
    let text = fault(hive.finish()).await;
    assert!(text.starts_with("finish at hive/tests/all/test_hive.rs:_: "), "{text}");
    assert!(text.contains("object Arc<all::test_hive::Server>, held once"), "{text}");
    assert!(text.contains("; drop it before, or say .holding::<all::test_hive::Server>()"), "{text}");
    drop(server);
    let mut hive = TestHive::new(cells(false)).holding::<Server>().holding::<dyn Reader>();
    hive.start().await;
    let _server = hive.get::<Server>();
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_escaped_task_is_detected_by_its_objects() {
    #[expect(clippy::disallowed_methods, reason = "it is the fault that is looked for")]
    fn escapes(store: Arc<Store>) {
        tokio::spawn(async move {
            std::future::pending::<()>().await;
            drop(store);
        });
    }
    let mut hive = TestHive::new([provide(new_store), invoke(escapes)]);
    hive.start().await;
    let left = hive.try_finish().await.unwrap_err();
    assert_eq!(left.objects[0].types[0], "all::test_hive::Store");
}

#[tokio::test(start_paused = true)]
async fn failed_starts_and_scopes_leak_nothing() {
    struct Part;
    // A service that holds the handles of its own hooks and jobs: pending hooks that are kept would form a reference
    // cycle.
    struct Service {
        _lifecycle: Lifecycle,
        _jobs: JobGroup,
    }
    fn service(lifecycle: Lifecycle, jobs: JobGroup) -> Arc<Service> {
        let service = Arc::new(Service { _lifecycle: lifecycle.clone(), _jobs: jobs.clone() });
        let (first, own) = (service.clone(), service.clone());
        lifecycle
            .hook("fails")
            .on_start(move |_| async move {
                drop(first);
                anyhow::bail!("no")
            })
            .add();
        jobs.one_shot("job", move |_| async move {
            drop(own);
            Ok(())
        })
        .add();
        service
    }
    let part = || [provide(service), invoke(|_: Arc<Service>| ())];
    let mut hive = TestHive::new(module("m", "x", part()));
    hive.try_start().await.unwrap_err();
    hive.finish().await;

    let mut hive = TestHive::needing::<Scope<Part>>(hive::scope::<Part>("part", "x", part()));
    hive.start().await;
    let scope = hive.get::<Scope<Part>>();
    scope.start().await.unwrap_err();
    scope.start().await.unwrap_err();
    drop(scope);
    hive.finish().await;
}

/// A test that does not stop its hive would not see errors of the stop.
#[tokio::test]
async fn a_hive_that_nobody_stops_fails_the_test() {
    let mut hive = TestHive::new(talks("a"));
    hive.start().await;
    let text = fault(async move { drop(hive) }).await;
    let remedy =
        "end the test with finish().await or stop().await, or kill() a hive that is to end without a stop";
    assert_eq!(text, format!("never stopped at hive/tests/all/test_hive.rs:_: {remedy}"));

    // A hive that has not started, or failed to, needs no stop; a killed one is not stopped on purpose.
    drop(TestHive::new(talks("a")));
    let stopped = Arc::new(Mutex::new(false));
    let seen = stopped.clone();
    let mut hive = TestHive::new(invoke(move |lifecycle: Lifecycle, jobs: JobGroup| {
        let seen = seen.clone();
        lifecycle
            .hook("stop")
            .on_stop(move |_| async move {
                *seen.lock() = true;
                Ok(())
            })
            .add();
        jobs.one_shot("waits", |_| std::future::pending()).add();
    }));
    hive.start().await;
    hive.kill();
    assert!(!*stopped.lock());
}
