//! The cost of cluster objects in tables: one row per line, `name measured unit goal met peer`, separated by tabs.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

mod cluster;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hive::prelude::*;
use k8s_tables::Row;
use k8s_tables::core::Pod;
use statedb::Table;

use cluster::{Cluster, LARGE, cells, complete};

#[global_allocator]
static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

const MB: f64 = 1e6;

fn row(name: &str, measured: f64, unit: &str, goal: f64, met: bool) {
    println!("{name}\t{measured:.1}\t{unit}\t{goal}\t{}\t-", if met { "yes" } else { "no" });
}

fn allocated() -> f64 {
    memory_limit::allocated().unwrap_or_default() as f64
}

/// Returns the anonymous resident memory of this process in bytes.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    field.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
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

    // Change random pods until all have changed: from then on memory is stable. Revisions are sparser than after a
    // list.
    let pods = hive.get::<Table<Row<Pod>>>();
    cluster.change(200, &pods).await;
    let settled = allocated() - before;
    row("k8s the same after 200,000 changes, memory", settled / MB, "MB", 120.0, settled <= 120.0 * MB);
    let pages = resident();
    // An hour at 100 changes a second.
    cluster.change(360, &pods).await;
    let grown = (allocated() - before - settled) / MB;
    row("k8s growth over 360,000 changes more", grown, "MB", 0.05, grown <= 0.05);
    let grown = (resident() - pages) / MB;
    row("k8s the same, resident memory", grown, "MB", 5.0, grown <= 5.0);
    hive.stop().await;
}
