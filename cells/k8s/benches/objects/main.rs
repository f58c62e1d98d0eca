//! What cluster objects cost in tables: one row a line, `name measured unit goal met peer` with tabs between.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

mod cluster;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hive::prelude::*;
use k8s::Row;
use k8s::core::Pod;
use statedb::Table;

use cluster::{Cluster, LARGE, cells, complete, followed};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const MB: f64 = 1e6;

fn row(name: &str, measured: f64, unit: &str, goal: f64, met: bool) {
    println!("{name}\t{measured:.1}\t{unit}\t{goal}\t{}\t-", if met { "yes" } else { "no" });
}

fn allocated() -> f64 {
    memory::allocated().unwrap_or_default() as f64
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let cluster = Arc::new(Cluster::new(LARGE));
    let mut hive = TestHive::new(cells(cluster.clone()));
    let (before, begin) = (allocated(), Instant::now());
    hive.start().await;
    complete(&hive).await;
    let (took, held) = (begin.elapsed().as_secs_f64(), allocated() - before);
    let read = cluster.bytes.load(Ordering::Relaxed) as f64;
    row("k8s 50k pods 10k services 100k endpoints, memory", held / MB, "MB", 120.0, held <= 120.0 * MB);
    row("k8s the same, in the tables", took, "s", 6.0, took <= 6.0);
    row("k8s the same, JSON made and decoded", read / MB / took, "MB/s", 150.0, read / MB / took >= 150.0);

    // Half an hour of 100 changes a second.
    let pods = hive.get::<Table<Row<Pod>>>();
    let held = allocated();
    for round in 1..=180 {
        for n in 0..1000 {
            cluster.change((n * 37 + round) % LARGE.pods, round);
        }
        followed(&pods, (999 * 37 + round) % LARGE.pods, round).await;
    }
    let grown = (allocated() - held) / MB;
    row("k8s growth over 180,000 changes", grown, "MB", 1.0, grown <= 1.0);
    hive.stop().await;
}
