//! Leaks: allocations that ten thousand rounds of inserts and deletes leave behind; `ROUNDS=1000000` runs more.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use serde::Serialize;
use statedb::{
    Changes, Db, Index, IndexDef, LpmIndex, Prefix, Query, RwTable, Snapshot, TableDisplay, TableSpec, Watch,
    WatchSet,
};

static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[expect(unsafe_code, reason = "an allocator")]
// JUSTIFICATION: only a global allocator sees each allocation.
// SAFETY: all calls are forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BLOCKS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Clone, Serialize)]
struct Pod {
    name: String,
    node: String,
    addresses: Vec<u32>,
}

const BY_NODE: Index<Pod, str> = Index::new("node", |pod, keys| keys.add(&pod.node));
const BY_ADDRESS: Index<Pod, u32> = Index::new("address", |pod, keys| keys.extend(&pod.addresses));
const BY_NETWORK: LpmIndex<Pod, Ipv4Addr> =
    Index::lpm("network", |pod, keys| pod.addresses.iter().for_each(|ip| keys.add(&Ipv4Addr::from(*ip))));

impl TableSpec for Pod {
    const NAME: &'static str = "pods";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_NODE.def(), BY_ADDRESS.def(), BY_NETWORK.def()]
    }
}

impl TableDisplay for Pod {
    fn columns() -> &'static [&'static str] {
        &["Name"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.name.clone()]
    }
}

/// The number of rows that are inserted, updated and deleted in a round.
const ROWS: usize = 8;
const ROUNDS: usize = 10_000;
/// The number of rounds with readers on other threads.
const SHARED: usize = 1000;
const SAMPLES: usize = 10;

fn pod(round: usize, at: usize) -> Pod {
    Pod {
        name: format!("a-namespace/a-deployment-{:x}-{at}", round.wrapping_mul(2_654_435_761) % 1_000_003),
        node: format!("node-{}", (round + at) % 50),
        addresses: vec![round as u32, at as u32],
    }
}

/// Holders of old versions, each for some rounds.
#[derive(Default)]
struct Company {
    snapshots: Vec<Snapshot>,
    watches: Vec<Watch>,
    changes: Vec<Changes<Pod>>,
    set: WatchSet<usize>,
}

impl Company {
    fn round(&mut self, round: usize, db: &Db, table: &RwTable<Pod>) {
        let snapshot = db.snapshot();
        // A watch that never closes has listeners added and dropped, as have watches that close.
        let stays = table.get_watch(&snapshot, Query::of(&pod(1, 1000))).1;
        self.set.add(round, stays);
        self.set.add(round % 7, table.all_watch(&snapshot).1);
        self.set.remove(&(round.saturating_sub(10)));
        if round.is_multiple_of(5) {
            self.set.wait(Duration::ZERO).now_or_never();
        }
        self.watches.push(table.prefix_watch(&snapshot, Prefix::primary("a-namespace/")).1);
        self.watches.push(table.get_watch(&snapshot, Query::primary("not there")).1);
        self.watches.push(table.all_watch(&snapshot).1);
        let address = BY_NETWORK.query(&Ipv4Addr::from(round as u32 % 16));
        self.watches.push(table.list_watch(&snapshot, address).1);
        self.watches
            .extend(table.all(&snapshot).next().map(|pod| table.get_watch(&snapshot, Query::of(&**pod)).1));
        if round.is_multiple_of(3) {
            self.snapshots.push(snapshot);
        }
        if round.is_multiple_of(20) {
            self.changes.push(table.changes());
            self.changes.extend(table.changes().since(table.revision(&db.snapshot())));
        }
        if let Some(changes) = self.changes.last_mut() {
            // Polled as a stream, so that it registers for the next change.
            while StreamExt::next(changes).now_or_never().is_some() {}
        }
        if let Some(changes) = self.changes.first_mut() {
            changes.try_next();
        }
        // Dropped in another order than created.
        if self.snapshots.len() > 12 {
            self.snapshots.swap_remove(round * 7 % 12);
        }
        if self.watches.len() > 60 {
            self.watches.drain(..30);
        }
        if self.changes.len() > 4 {
            drop(self.changes.swap_remove(round * 5 % 4));
        }
    }
}

fn turn(round: usize, table: &RwTable<Pod>) {
    table.transact(|w| (0..ROWS).for_each(|at| drop(w.insert(pod(round, at)))));
    let mut w = table.write();
    (0..ROWS).for_each(|at| drop(w.insert(pod(round + 1, at))));
    w.delete(Query::of(&pod(round, 0)));
    w.abort();
    table.transact(|w| {
        for at in 0..ROWS {
            w.update(Query::of(&pod(round, at)), |pod| pod.node.push('x'));
        }
    });
    table.transact(|w| (0..ROWS).for_each(|at| drop(w.delete(Query::of(&pod(round, at))))));
}

#[test]
#[expect(clippy::print_stdout, reason = "prints the samples")]
fn ten_thousand_rounds_leave_nothing() {
    let db = Db::new();
    let table = db.table::<Pod>().unwrap();
    table.transact(|w| (0..200).for_each(|at| drop(w.insert(pod(1, 1000 + at)))));
    let mut company = Company::default();
    let mut samples = Vec::new();
    let mut alone = None;
    let rounds = std::env::var("ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    for round in 0..rounds {
        turn(round, &table);
        company.round(round, &db, &table);
        if (round + 1).is_multiple_of(rounds / SAMPLES) {
            // Without readers, the memory must be that of the first sample.
            company = Company::default();
            turn(0, &table);
            let now = (BLOCKS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
            samples.push(now);
            alone.get_or_insert(now);
        }
    }
    drop(company);
    for _ in 0..SAMPLES {
        // The same with readers on other threads, which start and end at any time.
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut company = Company::default();
                    (0..SHARED / SAMPLES).for_each(|round| company.round(round, &db, &table));
                });
            }
            (0..SHARED / SAMPLES).for_each(|round| turn(round, &table));
        });
        turn(0, &table);
        samples.push((BLOCKS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed)));
        let stats = table.stats(&db.snapshot());
        assert_eq!((stats.zombies, stats.trackers), (0, 0));
    }
    println!("blocks and bytes after each {} rounds, then with threads: {samples:?}", rounds / SAMPLES);
    let (blocks, bytes) = alone.unwrap();
    for (at, sample) in samples.iter().enumerate() {
        // The slots of published roots (as many as were ever held at once) and the lists of trackers keep their
        // capacity, not their content.
        let room = if at < SAMPLES { 1 } else { 5 };
        assert!(sample.0 <= blocks + 20 * room, "blocks: {samples:?}");
        assert!(sample.1 <= bytes + 4096 * room, "bytes: {samples:?}");
    }
    // Warms up the list of retired nodes that the thread keeps for reuse, before the measurement.
    table.transact(|w| (0..500).for_each(|at| drop(w.insert(pod(2, at)))));
    table.transact(|w| w.delete_all());
    let empty = BLOCKS.load(Ordering::Relaxed);
    let before = BYTES.load(Ordering::Relaxed);
    table.transact(|w| (0..500).for_each(|at| drop(w.insert(pod(2, at)))));
    assert!(BLOCKS.load(Ordering::Relaxed) > empty + 500);
    table.transact(|w| w.delete_all());
    assert!(BLOCKS.load(Ordering::Relaxed) <= empty + 4 && BYTES.load(Ordering::Relaxed) <= before + 4096);
}
