//! Times of the tables: one row a line, `name measured unit goal met peer` with tabs between. The peer is cilium/statedb
//! on a quiet machine of the same kind.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::Serialize;
use statedb::{Db, Index, IndexDef, Prefix, Query, RwTable, TableSpec};

#[derive(Clone, Serialize)]
struct Object {
    id: u64,
    tag: String,
}

const BY_TAG: Index<Object, str> = Index::new("tag", |object, keys| keys.add(&object.tag));

impl TableSpec for Object {
    const NAME: &'static str = "objects";
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        self.id
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_TAG.def()]
    }

    fn columns() -> &'static [&'static str] {
        &["ID", "Tag"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.tag.clone()]
    }
}

/// The same without a secondary index.
#[derive(Clone, Serialize)]
struct Plain {
    id: u64,
}

impl TableSpec for Plain {
    const NAME: &'static str = "plain";
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        self.id
    }

    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }
}

fn main() {
    let db = Db::new();
    let (plain, objects) =
        (db.table::<Plain>().expect("a new name"), db.table::<Object>().expect("a new name"));

    row("statedb: insert, 1000 a transaction", 514.0, 514.0, || insert_plain(&plain, 1000), 1000);
    row("statedb: insert with a secondary index", 882.0, 882.0, || insert_objects(&objects, 100), 100);
    row("statedb: write 1 of 1000", 7100.0, 7100.0, || insert_plain(&plain, 1), 1);
    fill(&objects, 100_000);
    row("statedb: write 1 of 100000 with an index", 13_400.0, 13_400.0, one_of(&objects, 100_000), 1);
    row("statedb: empty commit", 587.0, 587.0, || drop(plain.write().commit()), 1);
    row("statedb: snapshot", 0.5, 50.0, || drop(black_box(db.snapshot())), 1);

    let snapshot = db.snapshot();
    let mut id = 0;
    let get = || {
        id = (id + 7919) % 100_000;
        black_box(objects.get(&snapshot, Query::primary(black_box(id))).map(|object| object.id));
    };
    row("statedb: get of 100000", 38.0, 100.0, get, 1);
    let all =
        || assert_eq!(black_box(objects.all(&snapshot).map(|object| object.id & 1).sum::<u64>()), 50_000);
    row("statedb: iterate, an object", 16.0, 16.0, all, 100_000);
    let prefix: Prefix<Object> = BY_TAG.prefix("tag-1");
    let scan = || assert_eq!(black_box(objects.prefix(&snapshot, prefix.clone()).count()), 10_000);
    row("statedb: prefix scan, an object", 111.0, 111.0, scan, 10_000);
    wake_ups();
    changes(&plain);
}

/// Runs for about a quarter of a second and prints the median of ten parts, in nanoseconds an item.
fn row(name: &str, peer: f64, goal: f64, mut f: impl FnMut(), items: u64) {
    let begin = Instant::now();
    let mut rounds = 0u64;
    while begin.elapsed() < Duration::from_millis(50) {
        f();
        rounds += 1;
    }
    let rounds = (rounds / 2).max(1);
    let mut parts: Vec<f64> = (0..10)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| f());
            start.elapsed().as_nanos() as f64 / (rounds * items) as f64
        })
        .collect();
    parts.sort_by(f64::total_cmp);
    print(name, parts[5], goal, peer);
}

fn print(name: &str, measured: f64, goal: f64, peer: f64) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("{name}\t{measured:.1}\tns\t{goal}\t{met}\tcilium/statedb {peer} ns");
}

fn insert_plain(table: &RwTable<Plain>, count: u64) {
    let mut w = table.write();
    (0..count).for_each(|id| drop(w.insert(Plain { id })));
    w.commit();
}

fn insert_objects(table: &RwTable<Object>, count: u64) {
    let mut w = table.write();
    (0..count).for_each(|id| drop(w.insert(object(id))));
    w.commit();
}

fn object(id: u64) -> Object {
    Object { id, tag: format!("tag-{}", id % 10) }
}

fn fill(table: &RwTable<Object>, count: u64) {
    table.transact(|w| (0..count).for_each(|id| drop(w.insert(object(id)))));
}

fn one_of(table: &RwTable<Object>, count: u64) -> impl FnMut() {
    let mut id = 0;
    move || {
        id = (id + 7919) % count;
        table.transact(|w| w.insert(object(id)));
    }
}

/// Ping-pong through two tables: two commits and two wake-ups a round.
fn wake_ups() {
    const ROUNDS: u64 = 20_000;
    for (name, workers, peer) in [("1 thread", 1, 3900.0), ("2 threads", 2, 5900.0)] {
        let runtime = match workers {
            1 => tokio::runtime::Builder::new_current_thread().build(),
            _ => tokio::runtime::Builder::new_multi_thread().worker_threads(workers).build(),
        };
        let runtime = runtime.expect("a runtime");
        let (ping, pong) = (Db::new().table::<Plain>(), Db::new().table::<Plain>());
        let (ping, pong) = (ping.expect("a new name"), pong.expect("a new name"));
        async fn follow(from: RwTable<Plain>, to: RwTable<Plain>, rounds: u64) {
            for id in 1..=rounds {
                loop {
                    let snapshot = from.snapshot();
                    let (row, watch) = from.get_watch(&snapshot, Query::primary(0));
                    if row.is_some_and(|row| row.revision() >= id) {
                        break;
                    }
                    drop(snapshot);
                    watch.changed().await;
                }
                to.transact(|w| w.insert(Plain { id: 0 }));
            }
        }
        let start = Instant::now();
        let answer = follow(ping.clone(), pong.clone(), ROUNDS);
        let there = runtime.spawn(answer);
        ping.transact(|w| w.insert(Plain { id: 0 }));
        let back = runtime.spawn(follow(pong, ping, ROUNDS));
        let joined = runtime.block_on(async { (there.await, back.await) });
        assert!(joined.0.is_ok() && joined.1.is_ok());
        let measured = start.elapsed().as_nanos() as f64 / ROUNDS as f64;
        print(&format!("statedb: commit and wake-up, there and back, {name}"), measured, peer, peer);
    }
}

/// Insert and delete of 1000 objects, both seen by an iterator.
fn changes(table: &RwTable<Plain>) {
    let mut changes = table.changes();
    let turnover = || {
        insert_plain(table, 1000);
        assert_eq!(changes.try_next().len(), 1000);
        table.transact(|w| w.delete_all());
        assert_eq!(changes.try_next().len(), 1000);
    };
    row("statedb: insert and delete with changes, an object", 917.0, 917.0, turnover, 1000);
}
