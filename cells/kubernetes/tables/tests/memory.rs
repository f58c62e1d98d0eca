//! The memory of objects in tables, counted by the allocator: a tenth of a large cluster must take at most a tenth of
//! the limit.

#[path = "../benches/objects/cluster.rs"]
mod cluster;

use std::sync::Arc;

use hive::prelude::*;
use k8s_tables::Row;
use k8s_tables::core::Pod;
use statedb::Table;

use cluster::{Cluster, LARGE, Size, cells, complete};

#[global_allocator]
static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

/// The limit for a large cluster in bytes; 115 MB were measured.
const LIMIT: u64 = 120_000_000;

#[tokio::test]
async fn a_tenth_of_a_large_cluster_takes_a_tenth_and_does_not_grow_in_an_hour() {
    let Size { pods, services, endpoints, identities } = LARGE;
    let size = Size {
        pods: pods / 10,
        services: services / 10,
        endpoints: endpoints / 10,
        identities: identities / 10,
    };
    let cluster = Arc::new(Cluster::new(size));
    let mut hive = TestHive::new(cells(cluster.clone()));
    let allocated = || memory_limit::allocated().unwrap();
    let before = allocated();
    hive.start().await;
    complete(&hive).await;
    let held = allocated() - before;
    assert!(held <= LIMIT / 10, "{held} bytes");

    // An hour of 100 changes a second in this tenth, after all pods have changed several times. The small increase is
    // the revision index, in which the remaining revisions are sparser than after a list.
    let pods = hive.get::<Table<Row<Pod>>>();
    cluster.change(20, &pods).await;
    let settled = allocated() - before;
    assert!(settled <= held + LIMIT / 1000, "from {held} to {settled} bytes");
    cluster.change(36, &pods).await;
    let grown = (allocated() - before).saturating_sub(settled);
    assert!(grown <= LIMIT / 10_000, "from {settled} bytes by {grown}");
    hive.stop().await;
}
