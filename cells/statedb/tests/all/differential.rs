//! The same operations on the tables and on the previous engine return the same results, revisions, changes and
//! watches; held snapshots do not change; nothing leaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use statedb::{Changes, Db, KeyRange, Prefix, ReadSource, RwTable, Snapshot, Table, Watch};

use crate::blobs::{BY_TAG, Blob, Counted, Raw, a_key, by_key, some_tags};
use crate::reference::{Reference, Seen};

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u8>, Vec<Vec<u8>>),
    /// A row for each byte appended to the key.
    Fan(Vec<u8>, u8),
    Delete(Vec<u8>),
    DeleteFrom(Vec<u8>),
    DeleteAll,
}

#[derive(Clone, Debug)]
enum Step {
    Txn(Vec<Op>, bool),
    Hold,
    LetGo(usize),
    Take(usize),
    WatchKey(Vec<u8>),
    WatchPrefix(Vec<u8>),
    WatchTag(Vec<u8>),
    WatchRange(Vec<u8>, Vec<u8>),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (a_key(), some_tags()).prop_map(|(key, tags)| Op::Insert(key, tags)),
        1 => (a_key(), any::<u8>()).prop_map(|(key, count)| Op::Fan(key, count)),
        8 => a_key().prop_map(Op::Delete),
        2 => a_key().prop_map(Op::DeleteFrom),
        1 => Just(Op::DeleteAll),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (vec(op(), 0..12), prop::bool::weighted(0.8)).prop_map(|(ops, commit)| Step::Txn(ops, commit)),
        2 => Just(Step::Hold),
        2 => any::<usize>().prop_map(Step::LetGo),
        2 => (1..20usize).prop_map(Step::Take),
        2 => a_key().prop_map(Step::WatchKey),
        1 => a_key().prop_map(Step::WatchPrefix),
        1 => some_tags().prop_map(|tags| Step::WatchTag(tags.concat())),
        1 => (a_key(), a_key()).prop_map(|(start, end)| Step::WatchRange(start, end)),
    ]
}

enum Asked {
    Key(Vec<u8>),
    Prefix(Vec<u8>),
    Tag(Vec<u8>),
    Range(Vec<u8>, Vec<u8>),
}

/// The rows that a watch covers, with their revisions.
fn answer(reference: &Reference, asked: &Asked) -> Vec<(Vec<u8>, u64)> {
    let row = |(blob, revision): &(Blob, u64)| (blob.key.clone(), *revision);
    match asked {
        Asked::Key(key) => reference.get(key).map(row).into_iter().collect(),
        Asked::Prefix(start) => reference.prefix(start).map(row).collect(),
        Asked::Range(start, end) => reference.between(start, end).map(row).collect(),
        Asked::Tag(tag) => {
            let row = |key: Vec<u8>| reference.get(&key).map(row).expect("a tagged row");
            reference.tagged(tag).into_iter().map(row).collect()
        }
    }
}

struct World {
    db: Db,
    table: RwTable<Blob>,
    changes: Changes<Blob>,
    seen: u64,
    reference: Reference,
    held: Vec<(Snapshot, Reference)>,
    watches: Vec<(Asked, Reference, Watch)>,
    rows: Arc<AtomicUsize>,
    value: u64,
}

impl World {
    fn new() -> Self {
        let db = Db::new();
        let table = db.table::<Blob>().unwrap();
        World {
            changes: table.changes(),
            db,
            table,
            seen: 0,
            reference: Reference::default(),
            held: Vec::new(),
            watches: Vec::new(),
            rows: Arc::default(),
            value: 0,
        }
    }

    fn blob(&mut self, key: Vec<u8>, tags: Vec<Vec<u8>>) -> Blob {
        self.value += 1;
        Blob { key, tags, value: self.value, counted: Counted::new(&self.rows) }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Txn(ops, commit) => self.txn(ops, commit),
            Step::Hold => self.held.push((self.db.snapshot(), self.reference.clone())),
            Step::LetGo(at) => {
                if !self.held.is_empty() {
                    let (snapshot, reference) = self.held.swap_remove(at % self.held.len());
                    compare(&reference, &snapshot, &self.table);
                }
            }
            Step::Take(limit) => {
                let (batch, watch) = self.changes.read(&self.db.snapshot(), limit);
                let read: Vec<Seen> =
                    batch.iter().map(|c| (c.object.key.clone(), c.revision, c.deleted)).collect();
                assert_eq!(read, self.reference.changes(self.seen, limit));
                self.seen = self.changes.seen();
                assert_eq!(watch.is_closed(), !self.reference.changes(self.seen, 1).is_empty());
            }
            Step::WatchKey(key) => {
                let watch = self.table.get_watch(&self.db.snapshot(), by_key(&key)).1;
                self.watch(Asked::Key(key), watch);
            }
            Step::WatchPrefix(start) => {
                let prefix = Prefix::primary(&Raw(&start));
                let watch = self.table.prefix_watch(&self.db.snapshot(), prefix).1;
                self.watch(Asked::Prefix(start), watch);
            }
            Step::WatchTag(tag) => {
                let watch = self.table.list_watch(&self.db.snapshot(), BY_TAG.query(&tag)).1;
                self.watch(Asked::Tag(tag), watch);
            }
            Step::WatchRange(start, end) => {
                let range = KeyRange::primary(Raw(&start)..Raw(&end));
                let watch = self.table.range_watch(&self.db.snapshot(), range).1;
                self.watch(Asked::Range(start, end), watch);
            }
        }
    }

    fn watch(&mut self, asked: Asked, watch: Watch) {
        assert!(!watch.is_closed());
        self.watches.push((asked, self.reference.clone(), watch));
    }

    fn txn(&mut self, ops: Vec<Op>, commit: bool) {
        let table = self.table.clone();
        let mut reference = self.reference.clone();
        let mut w = table.write();
        for op in ops {
            match op {
                Op::Insert(key, tags) => {
                    let blob = self.blob(key, tags);
                    let before = reference.insert(blob.clone());
                    assert_eq!(w.insert(blob).as_deref(), before.as_ref());
                }
                Op::Fan(key, count) => {
                    for byte in 0..=count {
                        let blob = self.blob([&key[..], &[byte]].concat(), Vec::new());
                        reference.insert(blob.clone());
                        w.insert(blob);
                    }
                }
                Op::Delete(key) => {
                    assert_eq!(w.delete(by_key(&key)).as_deref(), reference.delete(&key).as_ref());
                }
                Op::DeleteFrom(from) => {
                    let gone: Vec<_> = reference.from(&from).map(|(blob, _)| blob.key.clone()).collect();
                    assert_eq!(w.retain(|blob| blob.key < from), gone.len());
                    gone.iter().for_each(|key| drop(reference.delete(key)));
                }
                Op::DeleteAll => {
                    let all: Vec<_> = reference.all().map(|(blob, _)| blob.key.clone()).collect();
                    assert_eq!(w.delete_all(), all.len());
                    all.iter().for_each(|key| drop(reference.delete(key)));
                }
            }
        }
        compare(&reference, &w, &self.table);
        if commit {
            let snapshot = w.commit();
            compare(&reference, &snapshot, &self.table);
            self.reference = reference;
        } else {
            w.abort();
            compare(&self.reference, &self.db.snapshot(), &self.table);
        }
        self.watches.retain(|(asked, before, watch)| {
            let (was, is) = (answer(before, asked), answer(&self.reference, asked));
            let exact = matches!(asked, Asked::Key(key) if before.get(key).is_some());
            if was != is || exact {
                assert_eq!(watch.is_closed(), was != is);
            }
            if before.revision == self.reference.revision {
                assert!(!watch.is_closed(), "woken by nothing");
            }
            !watch.is_closed()
        });
    }

    /// Drops everything and asserts that no row is left.
    fn end(self) {
        for (snapshot, reference) in &self.held {
            compare(reference, snapshot, &self.table);
        }
        let World { db, table, changes, held, rows, reference, .. } = self;
        drop((changes, held));
        table.transact(|w| w.update(by_key(b"no such key"), |_| ()));
        drop(reference);
        let live = rows.load(Ordering::SeqCst);
        assert_eq!(live, table.len(&db.snapshot()), "rows that are in no version");
        let kept = db.snapshot();
        drop((db, table));
        assert_eq!(rows.load(Ordering::SeqCst), live, "a snapshot outlives its database");
        drop(kept);
        assert_eq!(rows.load(Ordering::SeqCst), 0);
    }
}

fn compare(reference: &Reference, source: &impl ReadSource, table: &Table<Blob>) {
    assert_eq!(table.len(source), reference.len());
    assert_eq!(table.revision(source), reference.revision);
    let row = |row: &statedb::Obj<Blob>| ((**row).clone(), row.revision());
    let all: Vec<_> = table.all(source).map(row).collect();
    assert!(all.iter().eq(reference.all()));
    assert!(table.all(source).rev().map(row).eq(reference.all().rev().cloned()));
    let revisions: Vec<_> =
        table.by_revision(source, 0).map(|row| (row.revision(), row.key.clone())).collect();
    assert!(revisions.iter().map(|(revision, key)| (*revision, key)).eq(reference.by_revision(0)));
    let half = reference.revision / 2;
    assert_eq!(table.by_revision(source, half).count(), reference.by_revision(half).count());
    // Existing keys, their prefixes, and adjacent keys.
    let mut keys: Vec<Vec<u8>> = vec![Vec::new(), vec![7; 60], vec![255]];
    for (blob, _) in all.iter().step_by(1 + all.len() / 12) {
        keys.push(blob.key.clone());
        keys.push(blob.key[..blob.key.len() / 2].to_vec());
        keys.push([&blob.key[..], &[0]].concat());
        if let Some((last, start)) = blob.key.split_last() {
            keys.push([start, &[last.wrapping_add(1)]].concat());
        }
    }
    for (at, key) in keys.iter().enumerate() {
        let found = table.get(source, by_key(key)).map(row);
        assert_eq!(found.as_ref(), reference.get(key), "{key:?}");
        let prefix: Vec<_> = table.prefix(source, Prefix::primary(&Raw(key))).map(row).collect();
        assert!(prefix.iter().eq(reference.prefix(key)), "prefix {key:?}");
        let mut from = table.lower_bound(source, by_key(key)).map(row);
        let mut wanted = reference.from(key).cloned();
        both_ends(&mut from, &mut wanted, &format!("from {key:?}"));
        for end in keys.iter().cycle().skip(at + 1).take(3) {
            let range = KeyRange::primary(Raw(key)..Raw(end));
            let mut found = table.range(source, range.clone()).map(row);
            let mut wanted = reference.between(key, end).cloned();
            both_ends(&mut found, &mut wanted, &format!("from {key:?} to {end:?}"));
        }
    }
    for tag in [&[][..], &[0], &[1], &[255], &[0, 0], &[0, 255], &[255, 255], &[1, 0, 255]] {
        let listed: Vec<_> = table.list(source, BY_TAG.query(tag)).map(|blob| blob.key.clone()).collect();
        assert_eq!(listed, reference.tagged(tag), "tag {tag:?}");
        let prefix: Vec<_> = table.prefix(source, BY_TAG.prefix(tag)).map(|blob| blob.key.clone()).collect();
        assert_eq!(prefix, reference.tag_prefix(tag), "tags from {tag:?}");
        assert_eq!(table.get(source, BY_TAG.query(tag)).map(|blob| &blob.key), listed.first());
    }
}

/// Asserts that two iterators return the same items, taken from both ends in turn.
fn both_ends(
    found: &mut dyn DoubleEndedIterator<Item = (Blob, u64)>,
    wanted: &mut dyn DoubleEndedIterator<Item = (Blob, u64)>,
    what: &str,
) {
    for turn in 0.. {
        let (a, b) = if turn % 3 == 0 {
            (found.next_back(), wanted.next_back())
        } else {
            (found.next(), wanted.next())
        };
        assert_eq!(a, b, "{what}");
        if a.is_none() {
            break;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(96)))]

    #[test]
    fn both_engines_return_the_same(steps in vec(step(), 1..40)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.end();
    }
}
