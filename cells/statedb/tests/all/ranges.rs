//! Ranges and their watches, and `Reader`.

use std::ops::Bound;

use crate::blobs::{Blob, Counted, Raw};
use crate::rows::*;
use statedb::{Db, KeyRange};

#[test]
fn ranges_take_all_kinds_of_bounds() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let nodes = ["a", "ab", "b", "b\0", "c"];
    pods.transact(|w| (0..).zip(nodes).for_each(|(id, node)| drop(w.insert(pod(id, node, &[u16::MAX])))));
    let snapshot = db.snapshot();
    let ids = |range: KeyRange<Pod>| pods.range(&snapshot, range).map(|pod| pod.id).collect::<Vec<_>>();
    assert_eq!(ids(BY_NODE.range("a".."b")), [0, 1]);
    assert_eq!(ids(BY_NODE.range("a"..="b")), [0, 1, 2]);
    assert_eq!(ids(BY_NODE.range("ab"..)), [1, 2, 3, 4]);
    assert_eq!(ids(BY_NODE.range(.."ab")), [0]);
    assert_eq!(ids(BY_NODE.range::<str>((Bound::Excluded("b"), Bound::Unbounded))), [3, 4]);
    assert_eq!(ids(KeyRange::primary(1..=3)), [1, 2, 3]);
    let (greater, smaller) = (3, 1);
    assert!(ids(KeyRange::primary(greater..smaller)).is_empty());
    // No key is greater than the last one.
    assert_eq!(ids(BY_PORT.range(u16::MAX..=u16::MAX)).len(), nodes.len());
    assert!(ids(BY_PORT.range((Bound::Excluded(u16::MAX), Bound::Unbounded))).is_empty());
    pods.transact(|w| assert_eq!(w.range(BY_NODE.range("b"..)).next_back().map(|pod| pod.id), Some(4)));
}

#[test]
fn the_watch_of_a_range_stays_open_on_changes_elsewhere() {
    let db = Db::new();
    let table = db.table::<Blob>().unwrap();
    let write = |key: [u8; 2]| {
        table.transact(|w| {
            w.insert(Blob { key: key.to_vec(), tags: Vec::new(), value: 0, counted: Counted::default() });
        })
    };
    (0..3).for_each(|first| (0..9).for_each(|second| drop(write([first, second]))));
    let (rows, watch) = {
        let snapshot = db.snapshot();
        let (rows, watch) = table.range_watch(&snapshot, KeyRange::primary(Raw(&[1, 2])..Raw(&[1, 5])));
        (rows.count(), watch)
    };
    assert_eq!(rows, 3);
    write([0, 3]);
    write([2, 3]);
    assert!(!watch.is_closed());
    write([1, 3]);
    assert!(watch.is_closed());
}

#[test]
fn a_reader_takes_another_snapshot_when_there_is_one() {
    let db = Db::new();
    let pods = db.table::<Pod>().unwrap();
    let mut reader = db.reader();
    let mut other = reader.clone();
    let first = reader.latest().clone();
    assert_eq!(pods.len(reader.latest()), 0);
    pods.transact(|w| w.insert(pod(1, "a", &[])));
    assert_eq!(pods.len(&first), 0);
    assert_eq!(pods.len(reader.latest()), 1);
    std::thread::scope(|scope| {
        scope.spawn(move || assert_eq!(pods.len(other.latest()), 1));
    });
    drop(db);
    assert_eq!(format!("{:?}", reader.latest()), "Snapshot(1 tables)");
}
