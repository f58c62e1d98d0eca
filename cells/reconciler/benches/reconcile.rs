//! Benchmarks of the reconciler: one row per line, `name measured unit goal met peer`, separated by tabs. The peer is
//! the reconciler of cilium/statedb, measured on the same machine if Go and its module are available, otherwise as
//! recorded on an idle machine of the same kind.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

#[path = "../../statedb/benches/tables/peer/mod.rs"]
mod peer;

use std::time::{Duration, Instant};

use reconciler::{Handle, OpCx, OpResult, Ops, Reconciler, Status};
use serde::Serialize;
use statedb::{Db, Index, IndexDef, Rows, RwTable, TableDisplay, TableSpec};

#[derive(Clone, Serialize)]
struct Object {
    id: u64,
    status: Status,
}

impl TableSpec for Object {
    const NAME: &'static str = "objects";
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        self.id
    }
}

impl TableDisplay for Object {
    fn columns() -> &'static [&'static str] {
        &["ID", "Status"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.status.to_string()]
    }
}

/// An object with a secondary index, by groups of a thousand.
#[derive(Clone, Serialize)]
struct Grouped(Object);

impl TableSpec for Grouped {
    const NAME: &'static str = "grouped";
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        self.0.id
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        const BY_GROUP: Index<Grouped, u32> =
            Index::new("group", |grouped, keys| keys.add(&((grouped.0.id / 1000) as u32)));
        vec![BY_GROUP.def()]
    }
}

impl TableDisplay for Grouped {
    fn columns() -> &'static [&'static str] {
        &["ID", "Status"]
    }

    fn row(&self) -> Vec<String> {
        self.0.row()
    }
}

/// A row to reconcile.
trait Row: TableSpec + Clone {
    fn new(id: u64) -> Self;
    fn status(&self) -> &Status;
    fn set(&mut self, status: Status);
}

impl Row for Object {
    fn new(id: u64) -> Self {
        Object { id, status: Status::pending() }
    }

    fn status(&self) -> &Status {
        &self.status
    }

    fn set(&mut self, status: Status) {
        self.status = status;
    }
}

impl Row for Grouped {
    fn new(id: u64) -> Self {
        Grouped(Object::new(id))
    }

    fn status(&self) -> &Status {
        &self.0.status
    }

    fn set(&mut self, status: Status) {
        self.0.status = status;
    }
}

struct Nothing;

impl<T: Row> Ops<T> for Nothing {
    fn update(&mut self, _: &OpCx<'_>, _: &mut T) -> OpResult {
        Ok(())
    }

    fn delete(&mut self, _: &OpCx<'_>, _: &T) -> OpResult {
        Ok(())
    }

    fn prune(&mut self, _: &OpCx<'_>, _: Rows<'_, T>) -> OpResult {
        Ok(())
    }
}

/// Runs the part that the first argument names, or all parts, each in its own process.
fn main() {
    let part = std::env::args().nth(1).filter(|part| !part.starts_with('-'));
    match part.as_deref() {
        Some("latency") => block_on(async {
            latency(10_000, "among 10000 objects", "latency among others").await;
            latency(0, "in an empty table", "latency in an empty table").await;
        }),
        Some("throughput") => throughput(),
        Some("memory") => memory(),
        _ => {
            let this = std::env::current_exe().expect("a program has a path");
            for part in ["latency", "throughput", "memory"] {
                // One arena, as in the agent.
                let status =
                    std::process::Command::new(&this).arg(part).env("MALLOC_ARENA_MAX", "1").status();
                assert!(status.is_ok_and(|status| status.success()), "{part}");
            }
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime")
}

fn block_on(future: impl Future<Output = ()> + Send + 'static) {
    runtime().block_on(async {
        #[expect(clippy::disallowed_methods, reason = "a benchmark without a hive")]
        tokio::spawn(future).await.expect("the benchmark runs to its end");
    });
}

fn start<T: Row>(table: &RwTable<T>) -> (Handle, impl Future<Output = ()> + use<T>) {
    let builder = Reconciler::builder(table.clone())
        .status(T::status, T::set)
        .ops(Nothing)
        .round(1000, 1_000_000, 1000)
        .prune(Duration::ZERO);
    let (handle, reconciler) = builder.build();
    (handle, reconciler.run())
}

fn put<T: Row>(table: &RwTable<T>, ids: std::ops::Range<u64>) -> u64 {
    let (_, snapshot) = table.transact(|w| ids.for_each(|id| drop(w.try_insert(T::new(id)))));
    table.revision(&snapshot)
}

/// One object at a time: write, operation, status committed, waiter woken.
async fn latency(others: u64, what: &str, name: &str) {
    const ROUNDS: u64 = 2000;
    let table = Db::new().table::<Object>().expect("a new name");
    let (handle, run) = start(&table);
    #[expect(clippy::disallowed_methods, reason = "a benchmark without a hive")]
    let task = tokio::spawn(run);
    let ready = put(&table, 0..others);
    handle.wait_until_ok(ready).await.expect("it runs");
    let mut times = Vec::new();
    for id in 0..ROUNDS {
        let start = Instant::now();
        let revision = put(&table, id..id + 1);
        handle.wait_until_ok(revision).await.expect("it runs");
        times.push(start.elapsed());
        // In production there is usually a pause between two objects, in which the runtime's threads park.
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    task.abort();
    times.sort();
    let [p50, p99] = beside(name, ["", ""]);
    let parts = [("p50", times.len() / 2, 300.0, p50), ("p99", times.len() * 99 / 100, 1000.0, p99)];
    for (part, at, goal, peer) in parts {
        let measured = times[at].as_secs_f64() * 1e6;
        row(&format!("write to reconciled, {what}, {part}"), measured, "us", goal, measured <= goal, &peer);
    }
}

const MANY: u64 = 1_000_000;

/// Measures a million objects, written by one thread in transactions of a thousand and reconciled on another, until the
/// last one is done: the peer's own benchmark.
fn fill<T: Row>() -> (RwTable<T>, f64, f64) {
    let runtime = runtime();
    let table = Db::new().table::<T>().expect("a new name");
    let (handle, run) = start(&table);
    let (begin, cpu) = (Instant::now(), cpu_time());
    let task = runtime.spawn(run);
    let mut revision = 0;
    for batch in 0..MANY / 1000 {
        revision = put(&table, batch * 1000..(batch + 1) * 1000);
    }
    runtime.block_on(handle.wait_until_ok(revision)).expect("it runs");
    let (took, used) = (begin.elapsed().as_secs_f64(), cpu_time() - cpu);
    assert_eq!(handle.metrics().objects.value(), MANY, "each of them once");
    let snapshot = table.snapshot();
    assert!(table.all(&snapshot).all(|object| object.status().is_done()));
    task.abort();
    (table, took, used)
}

fn throughput() {
    let (_table, took, used) = fill::<Object>();
    let [peer_rate, peer_each] = beside("throughput", ["592000", "3500"]);
    let rate = MANY as f64 / took;
    row("objects a second", rate, "1/s", 3_000_000.0, rate >= 3_000_000.0, &peer_rate);
    let each = used * 1e9 / MANY as f64;
    row("time of all processors an object", each, "ns", 600.0, each <= 600.0, &peer_each);
}

/// Measures the memory of a process with a million reconciled objects with two indexes.
fn memory() {
    let before = resident("VmRSS");
    let (_table, ..) = fill::<Grouped>();
    let (peak, live) = (resident("VmHWM"), resident("VmRSS"));
    let [peer_live, peer_peak, peer_each] = beside("memory", ["655", "", ""]);
    row("memory of 1,000,000 objects with two indexes", live, "MB", 150.0, live <= 150.0, &peer_live);
    row("its peak", peak, "MB", 150.0, peak <= 150.0, &peer_peak);
    let each = (live - before) * 1e6 / MANY as f64;
    row("bytes an object with two indexes", each, "B", 150.0, each <= 150.0, &peer_each);
}

/// Returns the peer's values for these, else the recorded ones, if there are any.
fn beside<const N: usize>(name: &str, recorded: [&str; N]) -> [String; N] {
    let measured: Option<[f64; N]> = peer::ask(name).and_then(|numbers| numbers.try_into().ok());
    match measured {
        Some(numbers) => numbers.map(|number| format!("cilium/statedb {number:.0}")),
        None => recorded.map(|number| match number {
            "" => "-".to_owned(),
            _ => format!("cilium/statedb {number}, recorded"),
        }),
    }
}

fn row(name: &str, measured: f64, unit: &str, goal: f64, met: bool, peer: &str) {
    let met = if met { "yes" } else { "no" };
    println!("reconciler: {name}\t{measured:.1}\t{unit}\t{goal}\t{met}\t{peer}");
}

/// Returns the processor time of all threads of this process in seconds.
fn cpu_time() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<u64>().ok()
    });
    nanos.sum::<u64>() as f64 / 1e9
}

/// Returns a field of `/proc/self/status` in megabytes.
fn resident(word: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(':')?.strip_suffix("kB"));
    line.and_then(|number| number.trim().parse::<f64>().ok()).map_or(f64::NAN, |kb| kb * 1024.0 / 1e6)
}
