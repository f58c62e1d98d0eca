//! Benchmarks of the tables: one row per line, `name measured unit goal met peer`, separated by tabs. Names and amounts
//! are those of cilium/statedb's benchmarks (rows with `X_` are additional).
//!
//! The peer runs the same alternately, if Go and its module are available; otherwise the row marks its time as recorded
//! on an idle machine of the same kind. Both sides have rounds of several milliseconds and two clocks: the fastest wall
//! time, and the median processor time. A row has the clock that favours the peer, followed by the other one.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

mod beside;
mod lpm;
mod measure;
mod peer;
mod rows;
mod wake_ups;

use std::hint::black_box;
use std::time::Duration;

use futures::FutureExt;
use statedb::{Db, Prefix, Query, RwTable, TableSpec, Watch, WatchSet};

use measure::Goal::{Nanos, Times};
use measure::{Begin, row, timed, wanted};
use rows::*;

const MANY: u64 = 100_000;

fn main() {
    writes();
    small_writes_to_large_tables();
    transactions();
    reads();
    beside::measure();
    lpm::measure();
    changes();
    watch_sets();
    memory();
    if wanted("DB_PropagationDelay") || wanted("X_PingPong") {
        wake_ups::measure();
    }
}

fn table<T: TableSpec>() -> RwTable<T> {
    Db::new().table().expect("a new name")
}

fn by_id<T: for<'a> TableSpec<Key<'a> = u64>>(id: u64) -> Query<T> {
    Query::primary(id)
}

/// Returns a pseudo-random permutation of `0..count`.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |at| at * 7919 % count)
}

fn writes() {
    let plain = table::<Plain>();
    for (count, peer, least) in [(1, 1245.0, 3.0), (10, 464.0, 3.0), (100, 398.0, 8.0), (1000, 514.0, 8.0)] {
        let insert = || drop(plain.transact(|w| (0..count).for_each(|id| drop(w.insert(Plain { id })))));
        row(&format!("DB_WriteTxn_{count}"), peer, Times(least), insert, count);
    }
    let with_index = table::<Tagged>();
    let insert = || drop(with_index.transact(|w| (0..100).for_each(|id| drop(w.insert(tagged(id))))));
    row("DB_WriteTxn_100_SecondaryIndex", 882.0, Times(8.0), insert, 100);

    let modify = || {
        plain.transact(|w| {
            (0..1000).for_each(|id| drop(w.modify(Plain { id }, |old, new| Plain { id: old.id | new.id })))
        });
    };
    row("DB_Modify", 566.0, Times(8.0), modify, 1000);
    let get_insert = || {
        plain.transact(|w| {
            for id in 0..1000 {
                black_box(w.get(by_id(id)).is_some());
                w.insert(Plain { id });
            }
        });
    };
    row("DB_GetInsert", 918.0, Times(8.0), get_insert, 1000);
    let replace = || drop(with_index.transact(|w| scattered(1000).for_each(|id| drop(w.insert(tagged(id))))));
    row("DB_RandomReplace", 1822.0, Times(8.0), replace, 1000);
    let empty = table::<Plain>();
    for (name, peer, random) in [("DB_RandomInsert", 767.0, true), ("DB_SequentialInsert", 516.0, false)] {
        let insert = || {
            let mut w = empty.write();
            let begin = Begin::now();
            let ids = (0..1000).map(|id| if random { id * 7919 % 1000 } else { id });
            ids.for_each(|id| drop(w.insert(Plain { id })));
            w.abort();
            begin.took()
        };
        timed(name, peer, Times(8.0), insert, 1000);
    }
    let with_prefixes = || {
        let mut w = empty.write();
        let begin = Begin::now();
        for id in 0..1000 {
            w.insert(Plain { id });
            (0..5).for_each(|_| assert!(w.prefix(Prefix::primary(&Whole(id))).next().is_some()));
        }
        w.abort();
        begin.took()
    };
    timed("DB_SequentialInsert_Prefix", 2095.0, Times(3.0), with_prefixes, 1000);
}

fn small_writes_to_large_tables() {
    for (count, peer, goal) in [(1000, 7100.0, Times(3.0)), (MANY, 13_400.0, Nanos(1500.0))] {
        let plain = table::<Plain>();
        plain.transact(|w| (0..count).for_each(|id| drop(w.insert(Plain { id }))));
        let mut id = 0;
        let one = || {
            id = (id + 7919) % count;
            plain.transact(|w| w.insert(Plain { id }));
        };
        row(&format!("X_WriteTxn_1_in_{}k_table", count / 1000), peer, goal, one, 1);
    }
    let with_index = table::<Tagged>();
    with_index.transact(|w| (0..MANY).for_each(|id| drop(w.insert(tagged(id)))));
    let mut id = 0;
    let one = || {
        id = (id + 7919) % MANY;
        with_index.transact(|w| w.insert(tagged(id)));
    };
    row("X_WriteTxn_1_in_100k_table_SecondaryIndex", 20_000.0, Times(3.0), one, 1);
}

fn transactions() {
    let plain = table::<Plain>();
    row("DB_WriteTxn_CommitOnly_1Table", 587.0, Times(3.0), || drop(plain.write().commit()), 1);
    let db = Db::new();
    let last = last_of_ten(&db);
    row("X_WriteTxn_CommitOnly_10Tables", f64::NAN, Times(3.0), || drop(last.write().commit()), 1);
    row("DB_NewWriteTxn", 524.0, Times(3.0), || plain.write().abort(), 1);
    let db = Db::new();
    row("DB_NewReadTxn", 0.47, Nanos(12.0), || drop(black_box(db.snapshot())), 1);
    let mut reader = db.reader();
    let latest = || {
        (0..1000).for_each(|_| {
            black_box(black_box(&mut reader).latest());
        })
    };
    row("X_Reader_Latest", 0.47, Nanos(2.0), latest, 1000);
}

fn reads() {
    let db = Db::new();
    let (plain, with_index, named) = (db.table::<Plain>(), db.table::<Tagged>(), db.table::<Named>());
    let (plain, with_index, named) =
        (plain.expect("a new name"), with_index.expect("a new name"), named.expect("a new name"));
    plain.transact(|w| (0..1000).for_each(|id| drop(w.insert(Plain { id }))));
    let snapshot = db.snapshot();
    let random = || {
        scattered(1000).for_each(|id| assert!(plain.get(&snapshot, by_id(black_box(id))).is_some()));
    };
    row("DB_RandomLookup", 35.8, Times(3.0), random, 1000);
    let sequential =
        || (0..1000).for_each(|id| assert!(plain.get(&snapshot, by_id(black_box(id))).is_some()));
    row("DB_SequentialLookup", 26.0, Times(3.0), sequential, 1000);
    let watched = || {
        (0..1000).for_each(|id| assert!(!plain.get_watch(&snapshot, by_id(black_box(id))).1.is_closed()));
    };
    row("X_GetWatch", 30.0, Times(3.0), watched, 1000);

    plain.transact(|w| (0..MANY).for_each(|id| drop(w.insert(Plain { id }))));
    with_index.transact(|w| (0..1000).for_each(|id| drop(w.insert(Tagged { id, tag: TAGS[0] }))));
    named.transact(|w| {
        (0..MANY).for_each(|id| drop(w.try_insert(Named { id, name: format!("name-{id}") }).expect("unique")))
    });
    let snapshot = db.snapshot();
    let prefix: Prefix<Tagged> = BY_TAG.prefix("tag");
    let scan = || assert_eq!(black_box(with_index.prefix(&snapshot, prefix.clone()).count()), 1000);
    row("DB_Prefix_SecondaryIndex", 111.0, Times(3.0), scan, 1000);

    let half = MANY / 2;
    let odd = |sum: u64, row: &statedb::Obj<Plain>| sum + (row.id & 1);
    let all = || assert_eq!(plain.all(&snapshot).fold(0, odd), half);
    row("DB_FullIteration_All", 15.5, Times(3.0), all, MANY);
    let any: Prefix<Plain> = Prefix::primary(&Nothing);
    let prefix = || assert_eq!(plain.prefix(&snapshot, any.clone()).fold(0, odd), half);
    row("DB_FullIteration_Prefix", 14.1, Times(3.0), prefix, MANY);
    let get = || (0..MANY).for_each(|id| assert!(plain.get(&snapshot, by_id(id)).is_some()));
    row("DB_FullIteration_Get", 38.1, Times(3.0), get, MANY);
    let names: Vec<Query<Named>> = (0..MANY).map(|id| BY_NAME.query(format!("name-{id}").as_str())).collect();
    let by_name = || names.iter().for_each(|name| assert!(named.get(&snapshot, name).is_some()));
    row("DB_FullIteration_Get_Secondary", 91.8, Times(3.0), by_name, MANY);
    let fresh = || (0..MANY).for_each(|id| assert!(plain.get(&db.snapshot(), by_id(id)).is_some()));
    row("DB_FullIteration_ReadTxnGet", 40.9, Times(3.0), fresh, MANY);
    let lower = || assert_eq!(plain.lower_bound(&snapshot, by_id(half)).fold(0, odd), half / 2);
    row("X_LowerBound_half", 8.5, Times(3.0), lower, half);
    let revisions = || assert_eq!(plain.by_revision(&snapshot, 0).fold(0, odd), half);
    row("X_ByRevision", 26.5, Times(3.0), revisions, MANY);
    let backwards = || assert_eq!(plain.all(&snapshot).rev().fold(0, odd), half);
    row("X_FullIteration_Descending", f64::NAN, Nanos(5.0), backwards, MANY);
}

/// A prefix query of one complete key.
struct Whole(u64);

impl statedb::PrefixOf<u64> for Whole {
    fn encode_prefix(&self, key: &mut statedb::KeyBuf) {
        statedb::IndexKey::encode(&self.0, key);
    }
}

/// A prefix query of all keys.
struct Nothing;

impl statedb::PrefixOf<u64> for Nothing {
    fn encode_prefix(&self, _: &mut statedb::KeyBuf) {}
}

fn changes() {
    let plain = table::<Plain>();
    let turnover = || {
        plain.transact(|w| (0..1000).for_each(|id| drop(w.insert(Plain { id }))));
        plain.transact(|w| (0..1000).for_each(|id| drop(w.delete(by_id(id)))));
    };
    row("DB_Changes_Baseline", 521.0, Times(3.0), turnover, 1000);
    let mut changes = plain.changes();
    let seen = || {
        plain.transact(|w| (0..1000).for_each(|id| drop(w.insert(Plain { id }))));
        assert_eq!(changes.try_next().len(), 1000);
        plain.transact(|w| (0..1000).for_each(|id| drop(w.delete(by_id(id)))));
        assert_eq!(changes.try_next().len(), 1000);
    };
    row("DB_Changes", 918.0, Times(3.0), seen, 1000);
}

/// Measures watch sets of different sizes: one watch closes, is returned and replaced.
fn watch_sets() {
    for (count, peer) in [(4, 332.0), (16, 1192.0), (128, 11_980.0), (1024, 118_667.0), (MANY, f64::NAN)] {
        let name = format!("{}WatchSet_{count}", if count == MANY { "X_" } else { "" });
        if !wanted(&name) {
            continue;
        }
        let plain = table::<Plain>();
        plain.transact(|w| (0..count).for_each(|id| drop(w.insert(Plain { id }))));
        let mut set = WatchSet::new();
        let snapshot = plain.snapshot();
        set.extend((1..count).map(|id| (id, plain.get_watch(&snapshot, by_id(id)).1)));
        let one = || {
            set.add(0, Watch::closed());
            assert_eq!(set.wait(Duration::ZERO).now_or_never().map(|keys| keys.len()), Some(1));
        };
        row(&name, peer, if peer.is_nan() { Nanos(100.0) } else { Times(3.0) }, one, 1);
    }
}

/// Measures the memory of a row with two indexes, besides its content.
fn memory() {
    const NAME: &str = "X_Memory, a row with two indexes";
    const ROWS: u64 = 1_000_000;
    if !wanted(NAME) {
        return;
    }
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let line =
            status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a count of the kernel");
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
    };
    let before = resident();
    let table = table::<Tagged>();
    for start in (0..ROWS).step_by(1000) {
        table.transact(|w| (start..start + 1000).for_each(|id| drop(w.insert(tagged(id)))));
    }
    let bytes = (resident() - before) as f64 / ROWS as f64 - size_of::<Tagged>() as f64;
    let met = if bytes <= 150.0 { "yes" } else { "no" };
    println!("statedb: {NAME}\t{bytes:.0}\tbytes\t150\t{met}\t{ROWS} rows of {} bytes", size_of::<Tagged>());
}
