//! How much memory objects take in tables, counted by the allocator: of a tenth of a large cluster a tenth of what that one
//! may take.

#[path = "../benches/objects/cluster.rs"]
mod cluster;

use std::sync::Arc;

use hive::prelude::*;
use k8s::Row;
use k8s::core::Pod;
use statedb::Table;

use cluster::{Cluster, LARGE, Size, cells, complete, followed};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// Bytes that a large cluster may take: 115 MB were measured.
const LIMIT: u64 = 120_000_000;

#[tokio::test]
async fn a_tenth_of_a_large_cluster_takes_a_tenth_and_does_not_grow() {
    let Size { pods, services, endpoints, identities } = LARGE;
    let size = Size {
        pods: pods / 10,
        services: services / 10,
        endpoints: endpoints / 10,
        identities: identities / 10,
    };
    let cluster = Arc::new(Cluster::new(size));
    let mut hive = TestHive::new(cells(cluster.clone()));
    let allocated = || memory::allocated().unwrap();
    let before = allocated();
    hive.start().await;
    complete(&hive).await;
    let held = allocated() - before;
    assert!(held <= LIMIT / 10, "{held} bytes");

    let pods = hive.get::<Table<Row<Pod>>>();
    let change = async |version: usize| {
        (0..size.pods).for_each(|pod| cluster.change(pod, version));
        followed(&pods, size.pods - 1, version).await;
        allocated()
    };
    let first = change(1).await;
    for version in 2..5 {
        let now = change(version).await;
        assert!(now <= first + LIMIT / 500, "from {first} to {now} bytes");
    }
    assert!(first <= before + held + LIMIT / 100, "from {held} to {} bytes", first - before);
    hive.stop().await;
}
