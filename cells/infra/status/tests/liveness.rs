//! Stuck jobs fail the probes after their deadline and are reported by name, whatever they block.

use std::net::TcpListener as StdListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hive::TestHive;
use hive::prelude::*;
use parking_lot::{Condvar, Mutex};
use statedb::{RwTable, TableDisplay, TableSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

const DEADLINE: Duration = Duration::from_secs(4);
/// Upper bound of all waits: a loaded machine is slow.
const PATIENCE: Duration = Duration::from_secs(20);

/// A row that jobs write.
#[derive(Clone, Debug, serde::Serialize)]
struct Row(u32);

impl TableSpec for Row {
    const NAME: &'static str = "rows";
    type Key<'a> = u32;
    fn key(&self) -> u32 {
        self.0
    }
}

impl TableDisplay for Row {
    fn columns() -> &'static [&'static str] {
        &["Number"]
    }
    fn row(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }
}

/// Blocks threads until it is opened, at the latest at the end of the test.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn wait(&self) {
        let mut open = self.0.0.lock();
        self.0.1.wait_while(&mut open, |open| !*open);
    }
    fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

struct OpenAtEnd(Gate);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

struct Agent {
    hive: TestHive,
    socket: PathBuf,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Agent {
    async fn end(mut self) {
        self.hive.stop().await;
    }

    async fn start(cell: Cell) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cilium.sock");
        let port = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut hive = TestHive::new([statedb::cell(), metrics::cell(), api::cell(), status::cell(), cell])
            .set("socket-path", socket.display())
            .set("agent-health-port", port)
            .set("status-collector-interval", "1s")
            .set("status-collector-failure-threshold", format!("{}s", DEADLINE.as_secs()));
        hive.start().await;
        Self { hive, socket, port, _folder: folder }
    }

    /// Sends the kubelet's request with blocking calls: the runtime of the test may be the one that hangs.
    fn probe(&self) -> u16 {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Waits until probes get this status; returns the time it took.
    fn turns(&self, status: u16) -> Duration {
        let begin = Instant::now();
        while self.probe() != status {
            assert!(begin.elapsed() < PATIENCE, "not {status} after {:?}", begin.elapsed());
            std::thread::sleep(Duration::from_millis(50));
        }
        begin.elapsed()
    }

    async fn status(&self) -> api_models::StatusResponse {
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        stream.write_all(b"GET /v1/healthz HTTP/1.0\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let start = answer.find('{').unwrap();
        serde_json::from_str(answer[start..].lines().next().unwrap()).unwrap()
    }
}

fn watchdog_rows(agent: &Agent) -> Vec<hive::Status> {
    let rows = agent.hive.hive().health().snapshot();
    rows.into_iter().filter(|row| row.path().contains("watchdog")).collect()
}

fn sick(add: impl Fn(JobGroup) + Send + Sync + 'static) -> Cell {
    module("sick", "Has jobs that hang", [invoke(add)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_never_completes_its_work_is_reported_and_recovers() {
    let go_on = Arc::new(tokio::sync::Notify::new());
    let wait = go_on.clone();
    let agent = Agent::start(sick(move |jobs| {
        let wait = wait.clone();
        jobs.one_shot("follow", move |cx: JobCx| async move {
            let working = cx.working();
            wait.notified().await;
            drop(working);
            cx.cancelled().await;
            Ok(())
        })
        .add();
    }))
    .await;
    assert_eq!(agent.probe(), 200);
    let red = agent.turns(503);
    assert!(red > DEADLINE / 4, "red after {red:?}");
    let status = agent.status().await;
    let cilium = status.cilium.unwrap();
    assert_eq!((cilium.state.as_str(), cilium.msg.as_str()), ("Warning", "Stale status data"));
    assert_eq!(status.stale.keys().collect::<Vec<_>>(), ["sick.job-follow"]);
    assert!(!status.stale["sick.job-follow"].0.starts_with("0001"));
    let row = watchdog_rows(&agent).remove(0);
    assert_eq!(row.error, "does not come to an end with what it began, deadline 4s");

    go_on.notify_one();
    agent.turns(200);
    let status = agent.status().await;
    assert_eq!(status.cilium.unwrap().state, "Ok");
    assert_eq!(status.stale.len(), 0);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_holds_a_tables_lock_is_reported_with_its_waiters() {
    let gate = Gate::default();
    let _end = OpenAtEnd(gate.clone());
    let held = gate.clone();
    let cells = module(
        "sick",
        "Has jobs that hang",
        [
            statedb::table::<Row>(),
            invoke(move |rows: Arc<RwTable<Row>>, jobs: JobGroup| {
                let (gate, locked) = (held.clone(), Arc::new(tokio::sync::Notify::new()));
                let (holder, of_holder, waiter) = (rows.clone(), locked.clone(), rows);
                jobs.one_shot("holder", move |cx: JobCx| async move {
                    let _working = cx.working();
                    tokio::task::spawn_blocking(move || {
                        let transaction = holder.write();
                        of_holder.notify_one();
                        gate.wait();
                        transaction.commit();
                    })
                    .await?;
                    Ok(())
                })
                .add();
                jobs.one_shot("waiter", move |_| async move {
                    locked.notified().await;
                    waiter.transact(|rows| rows.insert(Row(1)));
                    Ok(())
                })
                .add();
            }),
        ],
    );
    let agent = Agent::start(cells).await;
    assert_eq!(agent.probe(), 200);
    agent.turns(503);
    let begin = Instant::now();
    let rows = loop {
        let rows = watchdog_rows(&agent);
        if rows.len() >= 2 || begin.elapsed() > PATIENCE {
            break rows;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let named: Vec<_> = rows.iter().map(|row| (row.path(), row.error.clone())).collect();
    let text = |job: &str, error: &str| {
        (format!("agent-healthz.watchdog.sick.job-{job}"), format!("{error}, deadline 4s"))
    };
    assert_eq!(
        named,
        [text("holder", "does not come to an end with what it began"), text("waiter", "blocks its thread")]
    );
    gate.open();
    agent.turns(200);
    let rows = agent.hive.get::<RwTable<Row>>();
    assert_eq!(rows.len(&rows.snapshot()), 1);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_fail_when_all_threads_of_the_runtime_hang() {
    let (gate, hang) = (Gate::default(), tokio::sync::watch::Sender::new(false));
    let _end = OpenAtEnd(gate.clone());
    let (held, begin) = (gate.clone(), hang.subscribe());
    let agent = Agent::start(sick(move |jobs| {
        for job in 0..4 {
            let (held, mut begin) = (held.clone(), begin.clone());
            jobs.one_shot(format!("hog-{job}"), move |_| async move {
                begin.wait_for(|begin| *begin).await?;
                held.wait();
                Ok(())
            })
            .add();
        }
    }))
    .await;
    // The test itself runs on this runtime, so it must not await anything while that hangs.
    assert_eq!(agent.probe(), 200);
    hang.send_replace(true);
    agent.turns(503);
    gate.open();
    agent.turns(200);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_jobs_and_slow_probes_do_not_fail_probes() {
    let agent = Agent::start(sick(|jobs| {
        jobs.one_shot("patient", |cx: JobCx| async move {
            cx.cancelled().await;
            Ok(())
        })
        .add();
    }))
    .await;
    let _idle = TcpStream::connect(("127.0.0.1", agent.port)).await.unwrap();
    let begin = Instant::now();
    while begin.elapsed() < DEADLINE + 2 * Duration::from_secs(1) {
        assert_eq!(agent.probe(), 200);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(agent.hive.get::<status::Collector>().is_alive(true));
    agent.end().await;
}

#[tokio::test]
async fn deadlines_that_are_too_short_are_refused() {
    for (option, value, least) in
        [("status-collector-failure-threshold", "2s", "3s"), ("status-collector-interval", "0s", "100ms")]
    {
        let cells = [statedb::cell(), metrics::cell(), api::cell(), status::cell()];
        let error = TestHive::new(cells).set(option, value).try_start().await.unwrap_err().to_string();
        assert!(error.contains(option) && error.contains(least), "{error}");
    }
}
