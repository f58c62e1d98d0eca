//! Guarantees one by one: order of wake-ups, initializers, locking, conflicts, names.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::rows::*;
use statedb::{CasError, Db, Error, Query, RwTable, Snapshot, TableDisplay, TableSpec, Writer};

#[test]
fn a_failed_compare_and_swap_changes_and_wakes_nothing() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let mut w = pods.write();
    w.insert(pod(1, "a", &[]));
    let snapshot = w.commit();
    let (found, watch) = pods.get_watch(&snapshot, by_id(1));
    let revision = found.unwrap().revision();
    let mut w = pods.write();
    assert!(
        matches!(w.compare_and_swap(revision + 1, pod(1, "b", &[])), Err(CasError::Changed(now)) if now.node == "a")
    );
    assert!(matches!(w.compare_and_swap(0, pod(2, "b", &[])), Err(CasError::NotFound)));
    assert!(matches!(w.compare_and_delete(revision + 1, by_id(1)), Err(CasError::Changed(_))));
    w.commit();
    assert!(!watch.is_closed() && !pods.watch(&snapshot).is_closed());
    let mut w = pods.write();
    w.compare_and_swap(revision, pod(1, "b", &[])).unwrap();
    w.compare_and_delete(revision + 1, by_id(1)).unwrap();
    w.commit();
    assert!(watch.is_closed() && pods.is_empty(&db.snapshot()));
}

#[test]
fn previous_versions_are_those_that_snapshots_hold() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let (first, again) = (db.snapshot(), db.snapshot());
    assert!(db.previous_versions().is_empty());
    drop(pods.transact(|w| w.insert(pod(1, "a", &[]))));
    let second = db.snapshot();
    drop(pods.transact(|w| w.insert(pod(2, "a", &[]))));
    let held = db.previous_versions();
    assert_eq!((held.len(), held.is_sorted()), (2, true), "{held:?}");
    drop(first);
    assert_eq!(db.previous_versions(), held, "one holder of two");
    drop(again);
    assert_eq!(db.previous_versions(), held[1..]);
    drop(second);
    assert!(db.previous_versions().is_empty());
}

#[test]
fn a_unique_conflict_is_refused_before_any_change() {
    let db = Db::new();
    let services = db.table::<Service>().unwrap();
    let mut w = services.write();
    w.try_insert(service("a", Some(1))).unwrap();
    let conflict = w.try_insert(service("b", Some(1))).unwrap_err();
    assert_eq!((conflict.index, conflict.existing.name.as_str()), ("address", "a"));
    assert_eq!(
        conflict.to_string(),
        "table `services`: another object has the same key of unique index `address`"
    );
    w.try_insert(service("a", Some(1))).unwrap(); // the same row may keep its key
    let revision = w.revision();
    w.try_insert(service("b", None)).unwrap();
    assert!(matches!(w.compare_and_swap(revision + 1, service("b", Some(1))), Err(CasError::Conflict(_))));
    w.delete(Query::primary("a"));
    w.try_insert(service("b", Some(1))).unwrap();
    let snapshot = w.commit();
    assert_eq!(services.get(&snapshot, BY_ADDRESS.query(&1)).unwrap().name, "b");
}

#[tokio::test]
async fn insert_watch_closes_with_the_next_write_and_with_an_abort() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let mut w = pods.write();
    let (_, watch) = w.insert_watch(pod(1, "a", &[]));
    w.commit();
    assert!(!watch.is_closed());
    let mut w = pods.write();
    w.insert(pod(2, "a", &[]));
    w.commit();
    assert!(!watch.is_closed(), "another row");
    let mut w = pods.write();
    let (_, aborted) = w.insert_watch(pod(1, "b", &[]));
    w.abort();
    assert!(aborted.is_closed() && !watch.is_closed());
    let mut w = pods.write();
    w.delete(by_id(1));
    w.commit();
    watch.changed().await;
}

#[test]
fn a_stale_snapshot_returns_closed_watches() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let mut w = pods.write();
    w.insert(pod(1, "a", &[]));
    let old = w.commit();
    let mut w = pods.write();
    w.insert(pod(1, "b", &[]));
    w.commit();
    assert!(pods.get_watch(&old, by_id(1)).1.is_closed());
    assert!(pods.all_watch(&old).1.is_closed());
}

#[tokio::test]
async fn tables_are_initialized_when_the_last_source_is_done() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    assert!(pods.initialized(&db.snapshot()), "no initializer was registered");
    let mut w = pods.write();
    let (first, second) = (w.register_initializer("first"), w.register_initializer("second"));
    w.commit();
    let rows = pods.watch(&db.snapshot());
    let mut w = pods.write();
    first.done(&mut w);
    let snapshot = w.commit();
    assert_eq!(pods.pending_initializers(&snapshot), [Arc::from("second")]);
    assert!(!rows.is_closed(), "no row has changed");
    let (_, watch) = pods.initialized_watch(&snapshot);
    let waiting = pods.reader();
    let done = async {
        tokio::task::yield_now().await;
        let mut w = pods.write();
        second.done(&mut w);
        assert!(pods.initialized(&w), "in the transaction itself it is");
        assert!(!pods.initialized(&db.snapshot()));
        w.insert(pod(1, "a", &[]));
        w.commit();
    };
    tokio::join!(waiting.wait_initialized(), done);
    assert!(watch.is_closed() && rows.is_closed());
    let mut w = pods.write();
    let again = w.register_initializer("first");
    assert!(!pods.initialized(&w.commit()), "a later source makes it incomplete again");
    let mut w = pods.write();
    again.done(&mut w);
    assert!(pods.initialized(&w.commit()));
}

#[test]
#[should_panic(expected = "initializer `x` is pending already")]
fn an_initializer_name_is_pending_once() {
    let pods = Db::new().table::<Pod>().unwrap();
    let mut w = pods.write();
    let _first = w.register_initializer("x");
    let _second = w.register_initializer("x");
}

#[test]
fn nested_transactions_panic_naming_both_locations() {
    let db = Db::new();
    let (pods, services) = (db.table::<Pod>().unwrap(), db.table::<Service>().unwrap());
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _outer = pods.write();
        let _inner = services.write();
    }));
    let text = *panic.unwrap_err().downcast::<String>().unwrap();
    assert!(
        text.contains("transaction on services at") && text.contains("inside the one on pods at"),
        "{text}"
    );
    assert_eq!(text.matches("promises.rs:").count(), 2, "{text}");
    pods.write().commit(); // the failed attempt holds no lock
    let other = Db::new().table::<Pod>().unwrap();
    let _outer = pods.write();
    other.write().commit(); // nor does it affect the other database
}

#[test]
fn an_update_that_moves_a_row_replaces_no_other_one() {
    let pods = Db::new().table::<Pod>().unwrap();
    pods.transact(|w| [1, 2].map(|id| w.insert(pod(id, "n1", &[]))));
    let moved = |to: u8| pods.transact(|w| w.update(by_id(1), |pod| pod.id = to).is_some()).0;
    let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| moved(2)));
    let text = *taken.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(text, "table `pods`: update moved a row to the primary key of another one");
    let ids = || pods.all(&pods.snapshot()).map(|pod| pod.id).collect::<Vec<_>>();
    assert_eq!(ids(), [1, 2], "the transaction was aborted");
    assert!(moved(3));
    assert_eq!(ids(), [2, 3]);
}

#[test]
#[should_panic(expected = "table `pods` is named twice in a transaction")]
fn a_table_is_named_once_in_a_transaction() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let _txn = db.write((&pods, &pods));
}

#[test]
#[should_panic(expected = "table `pods` belongs to another database")]
fn a_snapshot_of_another_database_is_refused() {
    let pods = Db::new().table::<Pod>().unwrap();
    pods.len(&Db::new().snapshot());
}

#[derive(Clone, serde::Serialize)]
struct Odd<const N: usize>;

impl<const N: usize> TableSpec for Odd<N> {
    const NAME: &'static str = ["Upper", "", "pods", "a-name-that-is-longer-than-31-chars"][N];
    type Key<'a> = u8;

    fn key(&self) -> u8 {
        0
    }
}

impl<const N: usize> TableDisplay for Odd<N> {
    fn columns() -> &'static [&'static str] {
        &[]
    }

    fn row(&self) -> Vec<String> {
        Vec::new()
    }
}

#[test]
fn names_are_checked_and_unique() {
    let db = Db::new();
    db.table::<Pod>().unwrap();
    let invalid = |error| match error {
        Some(Error::InvalidTableName { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(invalid(db.table::<Odd<0>>().err()), "Upper");
    assert_eq!(invalid(db.table::<Odd<1>>().err()), "");
    let error = db.table::<Odd<2>>().err().unwrap();
    assert!(matches!(error, Error::DuplicateTable { name: "pods", .. }), "{error}");
    assert_eq!(invalid(db.table::<Odd<3>>().err()), "a-name-that-is-longer-than-31-chars");
    assert_eq!(db.table_by_name("nodes").err().unwrap().to_string(), "no table `nodes`");
}

#[test]
fn a_snapshot_from_before_a_table_has_no_rows_of_it() {
    let db = Db::new();
    let before = db.snapshot();
    let pods = db.table::<Pod>().unwrap();
    assert!(pods.get(&before, by_id(1)).is_none() && pods.all(&before).count() == 0);
    assert!(pods.watch(&before).is_closed(), "look again");
    assert!(!pods.initialized(&before));
}

/// A woken task finds the change in a new snapshot, under contention of writers and readers on real threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost_under_contention() {
    const ROUNDS: u64 = 2000;
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for by_row in [false, true] {
        let (table, seen) = (pods.reader(), seen.clone());
        tasks.spawn(async move {
            let mut last = 0;
            while last < ROUNDS {
                let (revision, watch) = {
                    let snapshot: Snapshot = table.snapshot();
                    let (row, watch) = table.get_watch(&snapshot, by_id(1));
                    let revision = row.map_or(0, |row| row.revision());
                    (revision, if by_row { watch } else { table.watch(&snapshot) })
                };
                assert!(revision >= last);
                last = revision;
                seen.fetch_max(last, Ordering::Relaxed);
                if last < ROUNDS {
                    let woken = tokio::time::timeout(Duration::from_secs(20), watch.changed()).await;
                    woken.expect("a lost wake-up");
                }
            }
        });
    }
    for _ in 0..2 {
        let pods = pods.clone();
        tasks.spawn(async move {
            for at in 0..ROUNDS / 2 {
                pods.transact(|w| w.insert(pod(1, "a", &[at as u16])));
                if at % 7 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    assert_eq!(seen.load(Ordering::Relaxed), ROUNDS);
}

#[test]
fn a_thread_can_block_on_a_watch() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let watch = pods.watch(&db.snapshot());
    assert!(!watch.blocking_wait(Duration::from_millis(5)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut w = pods.write();
            w.insert(pod(1, "a", &[]));
            w.commit();
        });
        assert!(watch.blocking_wait(Duration::from_secs(20)));
    });
}

#[test]
fn the_last_write_names_its_location_and_handle() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    pods.write().commit();
    let stats = || pods.stats(&db.snapshot());
    assert!(stats().last_write.is_none(), "an empty commit writes nothing");
    let mut w = pods.write();
    w.insert(pod(1, "a", &[]));
    w.commit();
    let write = stats().last_write.unwrap();
    assert!(write.place.file().ends_with("promises.rs"));
    assert_eq!(&*write.handle, "DB");
    assert_eq!((stats().objects, stats().revision), (1, 1));
    let services = db.handle("owner").table::<Service>().unwrap();
    let writer_of = |table: &str| {
        let stats = db.stats(&db.snapshot());
        stats.into_iter().find(|stats| stats.table == table).unwrap().last_write.unwrap().handle
    };
    let source = services.write().register_initializer("aborted");
    drop(source);
    let source = services.transact(|w| w.register_initializer("source")).0;
    assert_eq!(&*writer_of("services"), "owner", "an initializer is written, too");
    let visitor = db.handle("visitor");
    let mut w = visitor.write((&pods, &services));
    w.split().0.insert(pod(2, "b", &[]));
    source.done(w.split().1);
    w.commit();
    assert_eq!((&*writer_of("pods"), &*writer_of("services")), ("visitor", "visitor"));
    let mut w = db.write((&services, &pods));
    w.split().1.insert(pod(3, "b", &[]));
    w.commit();
    assert_eq!(&*writer_of("pods"), "DB", "the first table's, by registration");
}

#[tokio::test]
async fn wait_for_returns_the_row_once_it_is_accepted() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let reader = pods.reader();
    let writer = async {
        for node in ["a", "b"] {
            tokio::task::yield_now().await;
            let mut w = pods.write();
            w.insert(pod(1, node, &[]));
            w.commit();
        }
    };
    let (found, ()) = tokio::join!(reader.wait_for(by_id(1), |pod| pod.node == "b"), writer);
    assert_eq!(found.revision(), 2);
}

#[test]
fn a_watch_of_a_part_is_not_closed_by_the_others() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let nodes = ["aaa", "aab", "baa", "bab", "zzz"];
    pods.transact(|w| {
        for (id, node) in nodes.iter().enumerate() {
            w.insert(pod(id as u8, node, &[]));
        }
    });
    let snapshot = db.snapshot();
    let part = pods.prefix_watch(&snapshot, node_prefix("aa")).1;
    let list = pods.list_watch(&snapshot, by_node("aab")).1;
    let miss = pods.list_watch(&snapshot, by_node("aac")).1;
    let all = pods.all_watch(&snapshot).1;
    pods.transact(|w| w.insert(pod(2, "bac", &[])));
    assert!(!part.is_closed() && !list.is_closed() && !miss.is_closed() && all.is_closed());
    pods.transact(|w| w.insert(pod(9, "aac", &[])));
    assert!(part.is_closed() && miss.is_closed());
}

#[tokio::test(start_paused = true)]
async fn wait_for_within_times_out_and_lists_pending_initializers() {
    let pods = Db::new().table::<Pod>().unwrap();
    let (source, _) = pods.transact(|w| w.register_initializer("source"));
    let second = Duration::from_secs(1);
    let error = pods.wait_for_within(second, by_id(1), |_| true).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "table `pods`: no row as wanted within 1s, it is not complete and waits for source"
    );
    let write = async {
        tokio::time::sleep(second / 2).await;
        pods.transact(|w| {
            w.insert(pod(1, "a", &[]));
            source.done(w);
        });
        tokio::time::sleep(second / 2).await;
        pods.transact(|w| w.insert(pod(2, "a", &[])));
    };
    let two = pods.wait_until(|pods, snapshot| {
        let found: Vec<u8> = pods.all(snapshot).map(|pod| pod.id).collect();
        (found.len() == 2).then_some(found)
    });
    let (found, two, ()) =
        tokio::join!(pods.wait_for_within(second, by_id(1), |pod| pod.node == "a"), two, write);
    assert_eq!((found.unwrap().revision(), two), (1, vec![1, 2]));
    let error = pods.wait_for_within(second, by_id(3), |_| true).await.unwrap_err();
    assert_eq!(error.to_string(), "table `pods`: no row as wanted within 1s");
}

/// Transactions on an executor's threads are counted, those on blocking threads are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_that_hold_an_executor_are_counted_and_named() {
    let pods = Db::new().table::<Pod>().unwrap();
    let slow = |w: &mut Writer<'_, Pod>| {
        w.insert(pod(1, "a", &[]));
        std::thread::sleep(Duration::from_millis(2));
    };
    let [task, block_on] = [line!() + 1, line!() + 5];
    let in_a_task = |pods: RwTable<Pod>| async move { drop(pods.transact(slow)) };
    let mut tasks = tokio::task::JoinSet::new();
    (0..2).for_each(|_| drop(tasks.spawn(in_a_task(pods.clone()))));
    tasks.join_all().await;
    pods.transact(slow);
    let others = pods.clone();
    tokio::task::spawn_blocking(move || drop(others.transact(slow))).await.unwrap();
    tokio::task::block_in_place(|| pods.transact(slow));
    std::thread::scope(|scope| drop(scope.spawn(|| pods.transact(slow))));
    let mut long = pods.stats(&pods.snapshot()).long_writes;
    long.sort_by_key(|write| write.place.line());
    let counted: Vec<_> = long.iter().map(|write| (write.place.line(), write.count)).collect();
    assert_eq!(counted, [(task, 2), (block_on, 1)]);
    assert!(long.iter().all(|write| write.longest >= Duration::from_millis(2)));
    // The coop budget that the check consumed was restored.
    assert!(tokio::task::coop::has_budget_remaining());
}

#[test]
fn databases_are_locked_in_one_order() {
    let (first, second) = (Db::new().table::<Pod>().unwrap(), Db::new().table::<Pod>().unwrap());
    for _ in 0..2 {
        let _outer = first.write();
        second.write().abort();
    }
    let _outer = second.write();
    let inner = catch_unwind(AssertUnwindSafe(|| first.write().abort())).unwrap_err();
    let message = inner.downcast_ref::<String>().unwrap();
    assert_eq!(message.matches("promises.rs").count(), 4, "{message}");
}

#[test]
fn queries_and_readers_show_what_they_are_about() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let shown = format!("{:?}", by_id(1));
    assert!(shown.starts_with("Query { index: \"primary\", key: "), "{shown}");
    assert_eq!(format!("{:?}", pods.changes()), "Changes { table: \"pods\", seen: 0, .. }");
    let mut w = pods.write();
    w.insert(pod(1, "a", &[]));
    assert_eq!(format!("{w:?}"), "Txn { .. }");
    assert_eq!(format!("{:?}", &*w), "Writer { table: \"pods\", revision: 1, .. }");
    w.abort();
}
