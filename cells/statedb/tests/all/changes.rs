//! Readers of changes: replaying the changes reproduces the table, and no delete is kept without a reader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::rows::*;
use futures::{FutureExt, StreamExt};
use hive::prelude::*;
use proptest::prelude::*;
use statedb::{Changes, Db, Find, RwTable, SinceError, TableStats};

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u16),
    Delete(u8),
    /// Reads with one of the readers, up to a limit.
    Take(usize, usize),
    /// One of the readers writes two rows itself, and skips its own writes.
    Own(usize, u8, u16),
    Open(bool),
    /// Opens a reader that continues at the position of another one.
    Since(usize),
    Close(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6u8, any::<u16>()).prop_map(|(id, port)| Step::Put(id, port)),
        3 => (0..6u8).prop_map(Step::Delete),
        3 => (0..3usize, 1..6usize).prop_map(|(which, limit)| Step::Take(which, limit)),
        2 => (0..3usize, 0..6u8, any::<u16>()).prop_map(|(which, id, port)| Step::Own(which, id, port)),
        1 => any::<bool>().prop_map(Step::Open),
        1 => (0..3usize).prop_map(Step::Since),
        1 => (0..3usize).prop_map(Step::Close),
    ]
}

/// A reader, the rows that it has replayed, and the snapshot that it has not finished yet.
struct Reader {
    changes: Changes<Pod>,
    seen: BTreeMap<u8, Pod>,
    last: u64,
    /// The table's revision when the reader was opened: later deletes are kept for it.
    began: u64,
    /// Its own writes.
    own: Vec<std::ops::RangeInclusive<u64>>,
}

fn take(reader: &mut Reader, db: &Db, limit: usize) -> usize {
    let (batch, more) = reader.changes.read(&db.snapshot(), limit);
    assert!(batch.len() <= limit);
    let count = batch.len();
    for change in batch {
        assert!(change.revision > reader.last, "revisions grow");
        assert!(!reader.own.iter().any(|own| own.contains(&change.revision)), "its own write");
        reader.last = change.revision;
        if change.deleted {
            reader.seen.remove(&change.object.id);
        } else {
            assert_eq!(change.object.revision(), change.revision);
            reader.seen.insert(change.object.id, (*change.object).clone());
        }
    }
    assert!(more.is_closed() || count < limit || reader.changes.try_next().is_empty());
    count
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(256)))]

    #[test]
    fn replaying_the_changes_gives_the_table(steps in prop::collection::vec(step(), 1..60)) {
        let db = Db::new();
        let pods = db.table::<Pod>().unwrap();
        let mut rows: BTreeMap<u8, Pod> = BTreeMap::new();
        let mut readers: Vec<Reader> = Vec::new();
        for step in steps {
            match step {
                Step::Put(id, port) => {
                    let mut w = pods.write();
                    w.insert(pod(id, "a", &[port]));
                    w.commit();
                    rows.insert(id, pod(id, "a", &[port]));
                }
                Step::Delete(id) => {
                    let mut w = pods.write();
                    w.delete(by_id(id));
                    w.commit();
                    rows.remove(&id);
                }
                Step::Take(which, limit) => {
                    if let Some(reader) = readers.get_mut(which) {
                        take(reader, &db, limit);
                    }
                }
                Step::Own(which, id, port) => {
                    if let Some(reader) = readers.get_mut(which) {
                        let mut w = pods.write();
                        let before = w.revision();
                        for id in [id, id + 1] {
                            w.insert(pod(id, "own", &[port]));
                            reader.seen.insert(id, pod(id, "own", &[port]));
                            rows.insert(id, pod(id, "own", &[port]));
                        }
                        let written = before + 1..=w.revision();
                        w.commit();
                        reader.own.push(written.clone());
                        reader.changes.leave_out(written);
                    }
                }
                Step::Open(from_now) => {
                    let changes = if from_now { pods.changes().from_now() } else { pods.changes() };
                    let last = if from_now { pods.revision(&db.snapshot()) } else { 0 };
                    let seen = if from_now { rows.clone() } else { BTreeMap::new() };
                    let began = pods.revision(&db.snapshot());
                    readers.push(Reader { changes, seen, last, began, own: Vec::new() });
                }
                Step::Since(which) => {
                    let Some(other) = readers.get(which) else { continue };
                    let (since, seen, last) = (other.changes.seen(), other.seen.clone(), other.last);
                    if other.own.iter().any(|own| *own.end() > since) {
                        continue; // it also knows its own writes
                    }
                    let changes = match pods.changes().since(since) {
                        Ok(changes) => changes,
                        // Deletes after it was opened that it has not seen yet are kept for it.
                        Err(error) => {
                            prop_assert!(since > 0 && since < other.began, "{}", error);
                            continue;
                        }
                    };
                    let began = if since > 0 { since } else { pods.revision(&db.snapshot()) };
                    readers.push(Reader { changes, seen, last, began, own: Vec::new() });
                }
                Step::Close(which) => {
                    if which < readers.len() {
                        readers.remove(which);
                    }
                }
            }
        }
        for reader in &mut readers {
            while take(reader, &db, 2) > 0 {}
            prop_assert_eq!(&reader.seen, &rows);
        }
        readers.clear();
        let stats = pods.stats(&db.snapshot());
        prop_assert_eq!((stats.zombies, stats.trackers), (0, 0));
    }
}

#[test]
fn changes_are_coalesced_by_key() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let mut changes = pods.changes();
    let commit = |f: &dyn Fn(&mut statedb::Writer<'_, Pod>)| {
        let mut w = pods.write();
        f(&mut w);
        w.commit();
    };
    commit(&|w| drop(w.insert(pod(1, "a", &[]))));
    commit(&|w| drop(w.insert(pod(1, "b", &[]))));
    commit(&|w| drop(w.insert(pod(2, "a", &[]))));
    commit(&|w| drop(w.delete(by_id(2)))); // inserted and deleted between two batches: a delete
    let batch = changes.try_next();
    let seen: Vec<_> = batch.iter().map(|c| (c.object.id, c.object.node.as_str(), c.deleted)).collect();
    assert_eq!(seen, [(1, "b", false), (2, "a", true)]);
    commit(&|w| drop(w.delete(by_id(1))));
    commit(&|w| drop(w.insert(pod(1, "c", &[])))); // deleted and inserted again: an update
    let batch = changes.try_next();
    assert_eq!(batch.iter().map(|c| c.deleted).collect::<Vec<_>>(), [false]);
    assert!(changes.try_next().is_empty());
}

#[test]
fn deletes_are_kept_only_for_readers_that_have_not_seen_them() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let zombies = || pods.stats(&db.snapshot()).zombies;
    let turnover = || {
        let mut w = pods.write();
        w.insert(pod(1, "a", &[]));
        w.commit();
        let mut w = pods.write();
        w.delete_all();
        w.commit();
    };
    turnover();
    assert_eq!(zombies(), 0, "no reader");
    let (mut quick, slow) = (pods.changes(), pods.changes());
    turnover();
    quick.try_next();
    turnover();
    assert_eq!(zombies(), 1, "the slow one has yet to see it");
    drop(slow);
    assert_eq!(zombies(), 1, "the quick one has seen the first delete only");
    quick.try_next();
    drop(quick);
    assert_eq!(zombies(), 0);
}

#[tokio::test]
async fn next_waits_for_the_first_change_and_survives_being_cancelled() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let mut changes = pods.changes();
    let early = tokio::time::timeout(Duration::from_millis(1), changes.next()).await;
    assert!(early.is_err());
    let writer = async {
        tokio::task::yield_now().await;
        let mut w = pods.write();
        w.insert(pod(7, "a", &[]));
        w.commit();
    };
    let (batch, ()) = tokio::join!(changes.next(), writer);
    assert_eq!(batch.iter().map(|c| c.object.id).collect::<Vec<_>>(), [7]);
}

fn stats(pods: &RwTable<Pod>) -> TableStats {
    pods.stats(&pods.snapshot())
}

fn ids(batch: &statedb::Batch<Pod>) -> Vec<i32> {
    batch.iter().map(|c| if c.deleted { -i32::from(c.object.id) } else { i32::from(c.object.id) }).collect()
}

#[test]
fn a_new_reader_gets_no_earlier_deletes() {
    let pods = Db::new().table::<Pod>().unwrap();
    let slow = pods.changes();
    pods.transact(|w| (1..=3).for_each(|id| drop(w.insert(pod(id, "a", &[])))));
    pods.transact(|w| w.delete(by_id(2)));
    let mut new = pods.changes();
    pods.transact(|w| w.delete(by_id(1)));
    assert_eq!(ids(&new.try_next()), [3, -1], "the delete of 2 is kept for the other, that of 1 for both");
    drop(slow);
    assert_eq!(stats(&pods).zombies, 0);
}

#[test]
fn since_continues_from_a_revision_if_all_later_deletes_are_kept() {
    let pods = Db::new().table::<Pod>().unwrap();
    let now = || pods.revision(&pods.snapshot());
    pods.transact(|w| (1..=4).for_each(|id| drop(w.insert(pod(id, "a", &[])))));
    assert_eq!(ids(&pods.changes().since(2).unwrap().try_next()), [3, 4]);
    let error = pods.changes().since(5).err().unwrap();
    assert!(matches!(error, SinceError::Ahead { table: "pods", revision: 5, now: 4, .. }), "{error}");
    pods.transact(|w| w.delete(by_id(1)));
    let error = pods.changes().since(4).err().unwrap();
    assert!(
        matches!(error, SinceError::Forgotten { table: "pods", revision: 4, forgotten: 5, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("deletes up to 5 are forgotten"), "{error}");
    assert!(pods.changes().since(5).unwrap().try_next().is_empty());

    // A delete that is kept for one reader is available to others, until that reader has seen it.
    let mut reader = pods.changes();
    reader.try_next();
    let from = now();
    pods.transact(|w| w.delete(by_id(2)));
    pods.transact(|w| w.insert(pod(9, "a", &[])));
    let mut other = pods.changes().since(from).unwrap();
    reader.try_next();
    assert_eq!(stats(&pods).zombies, 1, "kept for the other");
    assert_eq!(ids(&other.try_next()), [-2, 9]);
    assert!(matches!(pods.changes().since(from), Err(SinceError::Forgotten { forgotten: 6, .. })));
    assert_eq!((stats(&pods).zombies, stats(&pods).trackers), (0, 2), "a refused reader is not registered");
}

#[tokio::test]
async fn batches_have_a_limit_and_the_reader_is_a_stream() {
    let pods = Db::new().table::<Pod>().unwrap();
    pods.transact(|w| (1..=5).for_each(|id| drop(w.insert(pod(id, "a", &[])))));
    let mut changes = pods.changes().limit(2);
    assert_eq!(ids(&changes.next().await), [1, 2]);
    pods.transact(|w| w.delete(by_id(3)));
    assert_eq!(ids(&changes.try_next()), [4, 5]);
    let streamed = |changes: &mut Changes<Pod>| {
        StreamExt::next(changes).now_or_never().map(|batch| ids(&batch.expect("it never ends")))
    };
    assert_eq!(streamed(&mut changes), Some(vec![-3]));
    assert_eq!(streamed(&mut changes), None);
    assert_eq!(streamed(&mut changes), None);
    pods.transact(|w| w.insert(pod(6, "a", &[])));
    assert_eq!(streamed(&mut changes), Some(vec![6]), "available changes are returned without a wake-up");
    let write = async {
        tokio::task::yield_now().await;
        pods.transact(|w| (1..=3).for_each(|id| drop(w.insert(pod(id, "b", &[])))));
    };
    let first_two = changes.take(2).map(|batch| ids(&batch)).collect::<Vec<_>>();
    let (batches, ()) = tokio::join!(first_two, write);
    assert_eq!(batches, [[1, 2].to_vec(), vec![3]]);
}

#[test]
fn deletes_are_removed_when_the_slowest_reader_has_seen_them_without_a_commit() {
    let pods = Db::new().table::<Pod>().unwrap();
    let (mut quick, mut slow) = (pods.changes(), pods.changes());
    pods.transact(|w| (0..20).for_each(|id| drop(w.insert(pod(id, "a", &[])))));
    pods.transact(|w| w.delete_all());
    quick.try_next();
    assert_eq!(stats(&pods).zombies, 20);
    slow.read(&pods.snapshot(), 19);
    assert_eq!(stats(&pods).zombies, 20, "not worth a commit before the end");
    slow.read(&pods.snapshot(), 19);
    assert_eq!(stats(&pods).zombies, 0);
}

#[test]
fn statistics_name_the_reader_for_which_deleted_rows_are_kept() {
    let pods = Db::new().table::<Pod>().unwrap();
    let mut first = pods.changes().named("policy");
    pods.transact(|w| (0..10).for_each(|id| drop(w.insert(pod(id, "a", &[])))));
    pods.transact(|w| (0..4).for_each(|id| drop(w.delete(by_id(id)))));
    let second = pods.changes();
    pods.transact(|w| (4..7).for_each(|id| drop(w.delete(by_id(id)))));
    let third = pods.changes();
    let readers = || {
        let readers = stats(&pods).readers.into_iter();
        readers.map(|reader| (reader.owner, reader.seen, reader.kept)).collect::<Vec<_>>()
    };
    let here = |readers: &[(String, u64, usize)], at: usize| readers[at].0.contains("changes.rs:");
    let now = readers();
    assert_eq!((&*now[0].0, now[0].1, now[0].2), ("policy", 0, 7));
    assert!(here(&now, 1) && here(&now, 2));
    assert_eq!((now[1].1, now[1].2, now[2].1, now[2].2), (14, 3, 17, 0));
    first.read(&pods.snapshot(), 5);
    assert_eq!(readers().iter().map(|reader| reader.2).collect::<Vec<_>>(), [5, 3, 0]);
    drop(first);
    assert_eq!((stats(&pods).zombies, readers()[0].2), (3, 3));
    drop((second, third));
    assert_eq!((stats(&pods).zombies, readers().len()), (0, 0));
}

#[tokio::test]
async fn a_reader_that_is_too_far_behind_is_logged_once() {
    let keep = |pods: Arc<RwTable<Numbered>>| {
        let sleeper = pods.changes().named("sleeper");
        let mut reader = pods.changes().named("reader");
        for round in 0..4 {
            pods.transact(|w| (0..6000).for_each(|id| drop(w.insert(Numbered(round * 6000 + id)))));
            pods.transact(|w| w.delete_all());
            reader.try_next();
        }
        drop((sleeper, reader));
    };
    let cells = module("pods", "Pods", [statedb::table::<Numbered>(), invoke(keep)]);
    let mut hive = TestHive::new([cells, statedb::cell()]);
    hive.start().await;
    let lines: Vec<String> = hive.logs().into_iter().map(|record| record.to_string()).collect();
    let logged: Vec<_> = lines.iter().filter(|line| line.contains("fallen behind")).collect();
    assert_eq!(logged.len(), 1, "{lines:?}");
    assert!(logged[0].contains("table=numbered reader=sleeper rows=12000"), "{logged:?}");
    hive.finish().await;
}

/// Deleted rows are removed after the last reader has seen them, even if a writer holds the table at that moment.
#[test]
fn nothing_is_kept_once_writers_and_readers_have_ended() {
    for _ in 0..200 {
        let pods = Db::new().table::<Pod>().unwrap();
        let mut readers = [pods.changes(), pods.changes()];
        std::thread::scope(|scope| {
            for changes in &mut readers {
                scope.spawn(move || {
                    while changes.seen() < 40 {
                        changes.try_next();
                    }
                });
            }
            scope.spawn(|| {
                for id in 0..20 {
                    pods.transact(|w| w.insert(pod(id, "a", &[])));
                    pods.transact(|w| w.delete(by_id(id)));
                }
            });
        });
        assert_eq!((stats(&pods).zombies, stats(&pods).trackers), (0, 2));
    }
}

#[test]
fn untyped_tables_are_queried_by_text() {
    let db = Db::new();
    let pods = db.table_with_display::<Pod>().unwrap();
    let mut w = pods.write();
    w.insert(pod(1, "node-a", &[80]));
    w.insert(pod(2, "node-b", &[80, 443]));
    let snapshot = w.commit();
    let table = db.table_by_name("pods").unwrap();
    assert_eq!(table.indexes(), ["primary", "node", "port"]);
    let ids = |find, index, key| {
        let rows = table.find(&snapshot, find, index, key).unwrap();
        rows.iter().map(|row| row.row()[0].clone()).collect::<Vec<_>>().join(",")
    };
    assert_eq!(ids(Find::Get, "primary", "2"), "2");
    assert_eq!(ids(Find::List, "port", "80"), "1,2");
    assert_eq!(ids(Find::Prefix, "node", "node-"), "1,2");
    assert_eq!(ids(Find::List, "node", "node-"), "");
    assert_eq!(ids(Find::LowerBound, "node", "node-b"), "2");
    let error = table.find(&snapshot, Find::Get, "nod", "x").err().unwrap();
    assert_eq!(error.to_string(), "table `pods` has no index `nod`, it has: primary, node, port");
    let error = table.find(&snapshot, Find::Get, "port", "http").err().unwrap();
    assert_eq!(error.to_string(), "table `pods`, index `port`: `http` is not a number (u16)");
    let mut json = Vec::new();
    db.write_json(&snapshot, &mut json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["pods"][1]["ports"], serde_json::json!([80, 443]));
}

#[test]
fn untyped_tables_are_queried_by_bytes() {
    let db = Db::new();
    let pods = db.table_with_display::<Pod>().unwrap();
    let ((), snapshot) = pods.transact(|w| {
        w.insert(pod(1, "a", &[80]));
        w.insert(pod(2, "ab", &[80, 443]));
        w.insert(pod(3, "b", &[443]));
    });
    let table = db.table_by_name("pods").unwrap();
    let ids = |from, index, key: &[u8]| {
        let rows = table.find_raw(&snapshot, from, index, key).unwrap();
        rows.iter().map(|row| row.row()[0].clone()).collect::<Vec<_>>().join(",")
    };
    assert_eq!(ids(false, "node", b"a"), "1");
    assert_eq!(ids(true, "node", b"aa"), "2,3");
    assert_eq!(ids(true, "node", b"c"), "");
    assert_eq!(ids(false, "port", &[0, 80]), "1,2");
    assert_eq!(ids(false, "port", &[0]), "");
    assert_eq!(ids(true, "port", &[0, 81]), "2,3");
    assert_eq!(ids(true, "port", &[]), "1,2,3");
    assert_eq!(ids(true, "", &[]), "1,2,3");
    assert!(table.find_raw(&snapshot, false, "nod", b"a").is_err());
}

#[test]
fn untyped_changes_come_in_batches_and_with_deletes() {
    let db = Db::new();
    let pods = db.table_with_display::<Pod>().unwrap();
    pods.transact(|w| (1..=3).for_each(|id| drop(w.insert(pod(id, "a", &[])))));
    let mut changes = db.table_by_name("pods").unwrap().changes(&db);
    let mut take = |limit| {
        let (changes, more) = changes.take(limit);
        let text = |c: &statedb::AnyChange| {
            format!("{}{}@{}", if c.deleted { "-" } else { "" }, c.object.row()[0], c.revision)
        };
        (changes.iter().map(text).collect::<Vec<_>>().join(" "), more.is_closed())
    };
    assert_eq!(take(2), ("1@1 2@2".to_owned(), true));
    assert_eq!(take(2), ("3@3".to_owned(), false));
    pods.transact(|w| w.delete(by_id(2)));
    assert_eq!(take(2), ("-2@4".to_owned(), false));
    assert_eq!(take(2), (String::new(), false));
}
