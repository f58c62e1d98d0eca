//! Tables as streams, for jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use hive::prelude::*;
use parking_lot::Mutex;
use statedb::{Batch, Db, RwTable, Snapshot, Table};
use tokio::time::{Instant, sleep};

use crate::rows::*;

const SECOND: Duration = Duration::from_secs(1);

/// The times of batches with the ids of their rows, negative for deletes.
type Seen = Arc<Mutex<Vec<(u64, Vec<i32>)>>>;

/// A hive in which a job takes ten seconds for each batch of changes.
async fn slow_observer(seen: &Seen) -> (TestHive, Arc<RwTable<Pod>>) {
    let seen = seen.clone();
    let follow = move |jobs: JobGroup, pods: Arc<Table<Pod>>| {
        let (seen, begin) = (seen.clone(), Instant::now());
        jobs.observer("pods", pods.observe(), move |cx, batch: Batch<Pod>| {
            let signed = |id: u8, deleted: bool| if deleted { -i32::from(id) } else { i32::from(id) };
            let ids = batch.iter().map(|change| signed(change.object.id, change.deleted)).collect();
            seen.lock().push((begin.elapsed().as_secs(), ids));
            async move {
                let _ended_early = cx.token().run_until_cancelled(sleep(10 * SECOND)).await;
                Ok(())
            }
        })
        .add();
    };
    let fill = |pods: Arc<RwTable<Pod>>| drop(pods.transact(|w| w.insert(pod(1, "a", &[]))));
    let cells = module("pods", "Pods", [statedb::table::<Pod>(), invoke(fill), invoke(follow)]);
    let mut hive = TestHive::new([cells, statedb::cell()]);
    hive.start().await;
    let pods = hive.get::<RwTable<Pod>>();
    (hive, pods)
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_batch_are_the_next_batch() {
    let seen = Seen::default();
    let (hive, pods) = slow_observer(&seen).await;
    sleep(SECOND).await;
    for port in 0..5 {
        pods.transact(|w| drop(w.insert(pod(2, "a", &[port]))));
        sleep(SECOND).await;
    }
    pods.transact(|w| drop(w.insert(pod(3, "a", &[]))));
    pods.transact(|w| drop(w.delete(by_id(1))));
    pods.transact(|w| drop(w.insert(pod(4, "a", &[]))));
    pods.transact(|w| drop(w.delete(by_id(4))));
    sleep(60 * SECOND).await;
    pods.transact(|w| drop(w.delete(by_id(2))));
    sleep(60 * SECOND).await;
    assert_eq!(*seen.lock(), [(0, vec![1]), (10, vec![2, 3, -1, -4]), (66, vec![-2])]);
    drop(pods);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_stream_and_deleted_rows_are_removed() {
    let seen = Seen::default();
    let (mut hive, pods) = slow_observer(&seen).await;
    sleep(SECOND).await;
    pods.transact(|w| w.delete_all());
    let stats = |pods: &RwTable<Pod>| {
        let stats = pods.stats(&pods.snapshot());
        (stats.zombies, stats.trackers)
    };
    assert_eq!(stats(&pods), (1, 1), "kept for the job, which is at work");
    let begin = Instant::now();
    hive.stop().await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert_eq!(stats(&pods), (0, 0));
    drop(pods);
    hive.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn following_a_table_under_writers_ends_with_what_is_in_it() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let writers = [3_u32, 7].map(|step| {
        let pods = pods.clone();
        tokio::task::spawn_blocking(move || {
            for round in 0..3000 {
                let id = u8::try_from(round * step % 50).unwrap();
                match round % 3 {
                    0 => drop(pods.transact(|w| drop(w.delete(by_id(id))))),
                    _ => drop(
                        pods.transact(|w| drop(w.insert(pod(id, "a", &[u16::try_from(round).unwrap()])))),
                    ),
                }
            }
        })
    });
    let mut stream = std::pin::pin!(pods.observe());
    let (mut rows, mut last) = (BTreeMap::new(), 0);
    let end = async {
        for writer in writers {
            writer.await.unwrap();
        }
        done.store(true, Ordering::SeqCst);
        // Wakes the reader after the last write.
        pods.transact(|w| drop(w.insert(pod(200, "end", &[]))));
    };
    let read = async {
        while !rows.contains_key(&200) {
            for change in stream.next().await.unwrap() {
                assert!(change.revision > last, "in order, none twice");
                last = change.revision;
                match change.deleted {
                    true => drop(rows.remove(&change.object.id)),
                    false => drop(rows.insert(change.object.id, change.object)),
                }
            }
        }
    };
    tokio::join!(end, read);
    assert!(done.load(Ordering::SeqCst));
    let snapshot = db.snapshot();
    let there: Vec<(u8, u64)> = pods.all(&snapshot).map(|pod| (pod.id, pod.revision())).collect();
    assert_eq!(rows.iter().map(|(id, pod)| (*id, pod.revision())).collect::<Vec<_>>(), there);
}

#[tokio::test(start_paused = true)]
async fn snapshots_come_with_changes_of_their_table_only() {
    let db = Db::new();
    let (pods, others) = (db.table::<Pod>().unwrap(), db.table::<Service>().unwrap());
    let mut stream = std::pin::pin!(pods.snapshots());
    let count = |snapshot: Option<Snapshot>| pods.len(&snapshot.unwrap());
    assert_eq!(stream.next().now_or_never().map(count), Some(0), "first as it is");
    assert!(stream.next().now_or_never().is_none());
    others.transact(|w| w.try_insert(Service { name: "x".into(), address: None }).map(drop).unwrap());
    assert!(stream.next().now_or_never().is_none());
    for id in 0..3 {
        pods.transact(|w| drop(w.insert(pod(id, "a", &[]))));
    }
    assert_eq!(stream.next().now_or_never().map(count), Some(3), "three changes are one");
    assert!(stream.next().now_or_never().is_none());
}
