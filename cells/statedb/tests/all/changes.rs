//! Change iterators: whatever is read when, replaying the changes gives the table, and nothing is kept for nobody.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::rows::*;
use proptest::prelude::*;
use statedb::{Changes, Db, Find};

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u16),
    Delete(u8),
    /// Reads at most so many changes with one of the iterators.
    Take(usize, usize),
    Open(bool),
    Close(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6u8, any::<u16>()).prop_map(|(id, port)| Step::Put(id, port)),
        3 => (0..6u8).prop_map(Step::Delete),
        3 => (0..3usize, 1..6usize).prop_map(|(which, limit)| Step::Take(which, limit)),
        1 => any::<bool>().prop_map(Step::Open),
        1 => (0..3usize).prop_map(Step::Close),
    ]
}

/// An iterator and what its reader knows: the rows by replay, and the last state it has not seen yet.
struct Reader {
    changes: Changes<Pod>,
    seen: BTreeMap<u8, Pod>,
    last: u64,
}

fn take(reader: &mut Reader, db: &Db, limit: usize) -> usize {
    let (batch, more) = reader.changes.take(&db.snapshot(), limit);
    assert!(batch.len() <= limit);
    let count = batch.len();
    for change in batch {
        assert!(change.revision > reader.last, "revisions grow");
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
    #![proptest_config(ProptestConfig::with_cases(256))]

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
                Step::Open(from_now) => {
                    let changes = if from_now { pods.changes_from_now() } else { pods.changes() };
                    let last = if from_now { pods.revision(&db.snapshot()) } else { 0 };
                    let seen = if from_now { rows.clone() } else { BTreeMap::new() };
                    readers.push(Reader { changes, seen, last });
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
        let stats = db.table_by_name("pods").unwrap().stats(&db.snapshot());
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
    commit(&|w| drop(w.delete(by_id(2)))); // never seen, comes as a delete
    let batch = changes.try_next();
    let seen: Vec<_> = batch.iter().map(|c| (c.object.id, c.object.node.as_str(), c.deleted)).collect();
    assert_eq!(seen, [(1, "b", false), (2, "a", true)]);
    commit(&|w| drop(w.delete(by_id(1))));
    commit(&|w| drop(w.insert(pod(1, "c", &[])))); // back again: the delete is not seen
    let batch = changes.try_next();
    assert_eq!(batch.iter().map(|c| c.deleted).collect::<Vec<_>>(), [false]);
    assert!(changes.try_next().is_empty());
}

#[test]
fn deletes_are_kept_only_for_those_who_have_not_seen_them() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let zombies = || db.table_by_name("pods").unwrap().stats(&db.snapshot()).zombies;
    let turnover = || {
        let mut w = pods.write();
        w.insert(pod(1, "a", &[]));
        w.commit();
        let mut w = pods.write();
        w.delete_all();
        w.commit();
    };
    turnover();
    assert_eq!(zombies(), 0, "nobody looks");
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

#[test]
fn untyped_tables_answer_by_text() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
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
fn untyped_tables_answer_by_bytes() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
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
fn untyped_changes_come_in_portions_and_with_deletes() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
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
