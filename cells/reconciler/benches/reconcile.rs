//! Times of the reconciler: one row a line, `name measured unit goal met peer` with tabs between. The peer is the
//! reconciler of cilium/statedb on a quiet machine of the same kind.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::time::{Duration, Instant};

use reconciler::{Handle, OpCx, OpResult, Ops, Reconciler, Status};
use serde::Serialize;
use statedb::{Db, Rows, RwTable, TableSpec};

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

    fn columns() -> &'static [&'static str] {
        &["ID", "Status"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.status.to_string()]
    }
}

struct Nothing;

impl Ops<Object> for Nothing {
    fn update(&mut self, _: &OpCx<'_>, _: &mut Object) -> OpResult {
        Ok(())
    }

    fn delete(&mut self, _: &OpCx<'_>, _: &Object) -> OpResult {
        Ok(())
    }

    fn prune(&mut self, _: &OpCx<'_>, _: Rows<'_, Object>) -> OpResult {
        Ok(())
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        #[expect(clippy::disallowed_methods, reason = "a benchmark without a hive")]
        let measure = tokio::spawn(async {
            latency(10_000, "among 10000 objects").await;
            latency(0, "in an empty table").await;
            throughput().await;
        });
        measure.await.expect("the benchmark runs to its end");
    });
}

fn start(table: &RwTable<Object>) -> (Handle, impl Future<Output = ()> + use<>) {
    let builder = Reconciler::builder(table.clone())
        .status(|object: &Object| &object.status, |object, status| object.status = status)
        .ops(Nothing)
        .round(1000, 1_000_000, 1000)
        .prune(Duration::ZERO);
    let (handle, reconciler) = builder.build();
    (handle, reconciler.run())
}

fn put(table: &RwTable<Object>, ids: std::ops::Range<u64>) -> u64 {
    let (_, snapshot) =
        table.transact(|w| ids.for_each(|id| drop(w.insert(Object { id, status: Status::pending() }))));
    table.revision(&snapshot)
}

/// One object at a time: write, operation, status committed, waiter woken.
async fn latency(others: u64, what: &str) {
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
        // Mostly there is a pause between two objects, in which the runtime's threads go to sleep.
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    task.abort();
    times.sort();
    for (name, at, goal) in [("p50", times.len() / 2, 300.0), ("p99", times.len() * 99 / 100, 1000.0)] {
        let measured = times[at].as_secs_f64() * 1e6;
        let met = if measured <= goal { "yes" } else { "no" };
        println!("reconciler: write to reconciled, {what}, {name}\t{measured:.1}\tus\t{goal}\t{met}\t");
    }
}

/// Many objects at once.
async fn throughput() {
    const OBJECTS: u64 = 200_000;
    let table = Db::new().table::<Object>().expect("a new name");
    let (handle, run) = start(&table);
    #[expect(clippy::disallowed_methods, reason = "a benchmark without a hive")]
    let task = tokio::spawn(run);
    let begin = Instant::now();
    let mut revision = 0;
    for batch in 0..OBJECTS / 1000 {
        revision = put(&table, batch * 1000..(batch + 1) * 1000);
        tokio::task::yield_now().await;
    }
    handle.wait_until_ok(revision).await.expect("it runs");
    let rate = OBJECTS as f64 / begin.elapsed().as_secs_f64();
    task.abort();
    let met = if rate >= 590_000.0 { "yes" } else { "no" };
    println!("reconciler: objects a second\t{rate:.0}\t1/s\t590000\t{met}\tcilium/statedb 592000");
}
