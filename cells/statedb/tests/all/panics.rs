//! Panics in foreign code: key and index functions in a write; wakers, metrics and destructors in and after a commit.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use serde::Serialize;
use statedb::{Db, Index, IndexDef, Metrics, Query, RwTable, TableDisplay, TableSpec, Watch};

/// A row whose index function and drop panic on demand.
#[derive(Clone, Serialize)]
struct Row {
    id: u8,
    #[serde(skip)]
    fuse: Fuse,
    /// Counts the instances: rows that are never dropped are leaks.
    #[serde(skip)]
    #[expect(dead_code, reason = "only counts")]
    alive: Arc<()>,
}

/// Switches that make the code of a row panic.
#[derive(Clone, Default)]
struct Fuse {
    index: Arc<AtomicBool>,
    drop: Arc<AtomicBool>,
}

fn check(fuse: &AtomicBool) {
    assert!(!fuse.load(Ordering::Relaxed), "boom");
}

impl Drop for Row {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            check(&self.fuse.drop);
        }
    }
}

const BY_HALF: Index<Row, u8> = Index::new("half", |row, keys| {
    check(&row.fuse.index);
    keys.add(&(row.id / 2));
});

impl TableSpec for Row {
    const NAME: &'static str = "rows";
    type Key<'a> = u8;

    fn key(&self) -> u8 {
        self.id
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_HALF.def()]
    }
}

impl TableDisplay for Row {
    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }
}

/// A second table, whose rows never panic.
#[derive(Clone, Serialize, statedb::Table)]
#[table(name = "others")]
struct Other {
    #[primary]
    id: u8,
}

struct World {
    db: Db,
    rows: RwTable<Row>,
    alive: Arc<()>,
}

impl World {
    fn new() -> Self {
        let db = Db::new();
        World { rows: db.table().unwrap(), db, alive: Arc::default() }
    }

    fn row(&self, id: u8, fuse: &Fuse) -> Row {
        Row { id, fuse: fuse.clone(), alive: self.alive.clone() }
    }

    fn put(&self, ids: impl IntoIterator<Item = u8>) {
        self.rows.transact(|w| ids.into_iter().for_each(|id| drop(w.insert(self.row(id, &Fuse::default())))));
    }

    fn ids(&self) -> Vec<u8> {
        self.rows.all(&self.db.snapshot()).map(|row| row.id).collect()
    }

    /// Returns the number of rows that have not been dropped.
    fn alive(&self) -> usize {
        Arc::strong_count(&self.alive) - 1
    }
}

fn panic_of<R>(code: impl FnOnce() -> R) -> String {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(_) => panic!("no panic"),
        Err(panic) => match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => (*panic.downcast::<&str>().unwrap()).to_owned(),
        },
    }
}

const TORN: &str = "table `rows`: a write panicked, the transaction cannot be committed";

#[test]
fn a_transaction_whose_write_panicked_cannot_be_committed() {
    let world = World::new();
    let others = world.db.table::<Other>().unwrap();
    world.put([1, 2]);
    let mut changes = world.rows.changes();
    let mut seen = || {
        let snapshot = world.db.snapshot();
        let (batch, _) = changes.read(&snapshot, usize::MAX);
        batch.into_iter().map(|change| (change.object.id, change.deleted)).collect::<Vec<_>>()
    };
    assert_eq!(seen(), [(1, false), (2, false)]);

    // A panicking insert, caught in the middle of a transaction on two tables.
    let fuse = Fuse::default();
    let mut w = world.db.write((&world.rows, &others));
    let (rows, other) = w.split();
    other.insert(Other { id: 1 });
    rows.insert(world.row(3, &Fuse::default()));
    fuse.index.store(true, Ordering::Relaxed);
    let caught = panic_of(|| rows.insert(world.row(4, &fuse)));
    fuse.index.store(false, Ordering::Relaxed);
    rows.insert(world.row(5, &Fuse::default()));
    assert_eq!((caught.as_str(), panic_of(|| w.commit())), ("boom", TORN.to_owned()));
    assert_eq!((world.ids(), seen()), (vec![1, 2], vec![]), "all of it, or nothing");
    assert!(others.is_empty(&world.db.snapshot()));

    // A delete, and a replacement, by `transact` as well.
    for replaces in [false, true] {
        world.rows.transact(|w| drop(w.insert(world.row(2, &fuse))));
        assert_eq!(seen(), [(2, false)]);
        let panic = panic_of(|| {
            world.rows.transact(|w| {
                fuse.index.store(true, Ordering::Relaxed);
                catch_unwind(AssertUnwindSafe(|| match replaces {
                    true => w.insert(world.row(2, &fuse)),
                    false => w.delete(Query::primary(2u8)),
                }))
                .err()
                .expect("the index function panicked");
                fuse.index.store(false, Ordering::Relaxed);
            });
        });
        assert_eq!((panic, world.ids(), seen()), (TORN.to_owned(), vec![1, 2], vec![]));
    }

    // The table is unlocked, and the aborted writes are discarded.
    world.put([6]);
    assert_eq!((world.ids(), seen()), (vec![1, 2, 6], vec![(6, false)]));
    // A write that finds no row, and a panic outside of the row's code, do not make the transaction invalid.
    world.rows.transact(|w| {
        w.delete(Query::primary(99u8));
        panic_of(|| w.retain(|_| panic!("none of the row's")));
        w.delete(Query::primary(6u8));
    });
    assert_eq!(seen(), [(6, true)]);
    drop(changes);
    world.put([1]);
    assert_eq!(world.alive(), 2);
}

/// A waker that panics or counts.
enum Woken {
    Panics,
    Counts(AtomicUsize),
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        match &*self {
            Woken::Panics => panic!("no wake-up"),
            Woken::Counts(count) => drop(count.fetch_add(1, Ordering::SeqCst)),
        }
    }
}

/// Registers a waker with a watch; returns the future that keeps it registered.
fn register(watch: &Watch, woken: &Arc<Woken>) -> impl Future<Output = ()> + use<> {
    let watch = watch.clone();
    let mut changed = Box::pin(async move { watch.changed().await });
    let waker = Waker::from(woken.clone());
    assert!(pin!(&mut changed).poll(&mut Context::from_waker(&waker)).is_pending());
    changed
}

#[test]
fn a_panicking_waker_does_not_prevent_other_wake_ups() {
    let world = World::new();
    world.put(1..=3);
    let snapshot = world.db.snapshot();
    let (panics, counts) = (Arc::new(Woken::Panics), Arc::new(Woken::Counts(AtomicUsize::new(0))));
    let mut registered = Vec::new();
    // On each row and on the table: first a waker that panics, then one that counts.
    let mut watches: Vec<Watch> =
        (1..=3).map(|id| world.rows.get_watch(&snapshot, Query::primary(id)).1).collect();
    watches.push(world.rows.watch(&snapshot));
    for watch in &watches {
        for woken in [&panics, &counts, &panics, &counts] {
            registered.push(register(watch, woken));
        }
    }
    drop(snapshot);
    let panic = panic_of(|| {
        world.rows.transact(|w| (1..=4).for_each(|id| drop(w.insert(world.row(id, &Fuse::default())))))
    });
    assert_eq!(panic, "no wake-up");
    let Woken::Counts(count) = &*counts else { unreachable!() };
    assert_eq!(count.load(Ordering::SeqCst), 2 * watches.len());
    assert!(watches.iter().all(Watch::is_closed));
    assert_eq!(
        (world.ids(), world.alive()),
        (vec![1, 2, 3, 4], 4),
        "visible, and the replaced rows are freed"
    );
    world.put([5]);
    assert_eq!(world.alive(), 5);
}

#[test]
fn a_panicking_waker_of_the_initialization_does_not_leak_replaced_rows() {
    let world = World::new();
    let mut w = world.rows.write();
    let initializer = w.register_initializer("source");
    w.insert(world.row(1, &Fuse::default()));
    let snapshot = w.commit();
    let (_, watch) = world.rows.initialized_watch(&snapshot);
    drop(snapshot);
    let registered = register(&watch, &Arc::new(Woken::Panics));
    let panic = panic_of(|| {
        world.rows.transact(|w| {
            initializer.done(w);
            w.insert(world.row(1, &Fuse::default()));
        })
    });
    assert_eq!(panic, "no wake-up");
    assert!(world.rows.initialized(&world.db.snapshot()));
    assert_eq!(world.alive(), 1);
    drop(registered);
}

struct Panicking;

impl Metrics for Panicking {
    fn listens(&self) -> bool {
        true
    }

    fn acquired(&self, _: &str, _: &[(&'static str, Duration)]) {}

    fn committed(&self, _: &str, _: &[&'static str], _: Duration) {
        panic!("no metrics");
    }

    fn cleaned(&self, _: &'static str, _: Duration) {}
}

#[test]
fn panicking_metrics_do_not_leak_replaced_rows() {
    let world = World::new();
    world.put([1]);
    assert!(world.db.measure(Arc::new(Panicking)));
    for _ in 0..3 {
        assert_eq!(panic_of(|| world.put([1])), "no metrics");
    }
    assert_eq!((world.ids(), world.alive()), (vec![1], 1));
}

#[test]
fn a_panicking_destructor_does_not_prevent_other_frees() {
    let world = World::new();
    let fuse = Fuse::default();
    let put_fused = |ids: [u8; 2]| {
        world.rows.transact(|w| {
            w.insert(world.row(ids[0], &fuse));
            w.insert(world.row(ids[1], &Fuse::default()));
        })
    };
    let lit = |code: &mut dyn FnMut()| {
        fuse.drop.store(true, Ordering::Relaxed);
        let panic = panic_of(code);
        fuse.drop.store(false, Ordering::Relaxed);
        assert_eq!(panic, "boom");
    };

    // Replaced by a commit.
    put_fused([1, 2]);
    lit(&mut || world.put([1, 2]));
    assert_eq!((world.ids(), world.alive()), (vec![1, 2], 2));

    // Retained by a snapshot that is dropped while no transaction is in flight.
    drop(put_fused([1, 2]));
    let mut held = Some(world.db.snapshot());
    world.put([1, 2]);
    lit(&mut || held = None);
    assert_eq!(world.alive(), 2);

    // Handed over to a writer, which unregisters in spite of the panic: roots that are released afterwards are freed by
    // their last holder.
    drop(put_fused([1, 2]));
    let held = world.db.snapshot();
    world.put([1, 2]);
    let mut writing = Some(world.rows.write());
    std::thread::scope(|scope| scope.spawn(move || drop(held)).join()).unwrap();
    assert_eq!(world.alive(), 4);
    lit(&mut || writing = None);
    assert_eq!(world.alive(), 2);
    let held = world.db.snapshot();
    world.put([1, 2]);
    drop(held);
    assert_eq!(world.alive(), 2, "no writer is at work");

    // Aborted.
    let mut w = world.rows.write();
    w.insert(world.row(7, &fuse));
    w.insert(world.row(8, &Fuse::default()));
    w.insert(world.row(7, &Fuse::default()));
    w.insert(world.row(9, &fuse));
    let mut writing = Some(w);
    lit(&mut || writing = None);
    assert_eq!((world.ids(), world.alive()), (vec![1, 2], 2));
}

#[test]
fn a_panicking_destructor_does_not_leak_the_database() {
    let world = World::new();
    let fuse = Fuse::default();
    world.rows.transact(|w| drop(w.insert(world.row(1, &fuse))));
    world.put([2, 3]);
    let World { db, rows, alive } = world;
    fuse.drop.store(true, Ordering::Relaxed);
    let end = move || drop((db, rows));
    assert_eq!(panic_of(end), "boom");
    assert_eq!(Arc::strong_count(&alive), 1);
}
