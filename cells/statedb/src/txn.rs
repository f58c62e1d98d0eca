//! Write transactions: lock, work on private versions, publish, wake.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use smallvec::{SmallVec, smallvec};

use crate::changes::Trackers;
use crate::db::{Db, ReadSource, Snapshot, Versioned};
use crate::engine::{Working, keep_list};
use crate::locks::{self, Held};
use crate::metrics::{self, Handle, Metrics, UNNAMED};
use crate::panics::Panics;
use crate::root::{AnyVersionRef, Sealed, Versions};
use crate::spec::TableSpec;
use crate::table::{RwTable, Table};
use crate::writer::Writer;

/// A write transaction on the tables of `W`. Dropping it without [`commit`](Txn::commit) aborts it.
///
/// It cannot be sent to another thread, hence not be held across an `await` of a spawned task:
/// ```compile_fail
/// # use statedb::*;
/// fn held_across_await<T: TableSpec>(table: RwTable<T>) -> impl Send {
///     async move {
///         let w = table.write();
///         std::future::ready(()).await;
///         w.commit();
///     }
/// }
/// ```
#[must_use = "a transaction that is not committed changes nothing"]
pub struct Txn<'a, W> {
    writers: W,
    guards: Few<MutexGuard<'a, ()>>,
    db: &'a Db,
    started: Instant,
    place: &'static Location<'static>,
    handle: Handle,
    held: Option<Held>,
    /// Releases roots that readers have handed over. Fields are dropped in order: this one after snapshots and locks.
    _working: Working<'a, Versions>,
    not_send: PhantomData<*const ()>,
}

/// A list with one item for each table of a transaction; most transactions have one table.
pub(crate) type Few<I> = SmallVec<[I; 1]>;

/// A transaction on one table: has the operations of [`Writer`].
pub type TableTxn<'a, T> = Txn<'a, (Writer<'a, T>,)>;

/// The tables of a transaction: a tuple of up to six `&RwTable`. Sealed: locks and writers must belong together.
pub trait WriteSet<'a>: sealed::LockSet<'a> {}

/// The writers of a transaction. Sealed, as [`WriteSet`].
pub trait Writers: sealed::WriterSet {
    /// A mutable reference to each writer.
    type Split<'s>
    where
        Self: 's;

    #[doc(hidden)]
    fn split_mut(&mut self) -> Self::Split<'_>;
}

/// The halves of the public traits that only this crate may call or implement.
mod sealed {
    use super::{AnyVersionRef, AnyWriter, Db, Few, Snapshot, TableLock, Writers};

    pub trait LockSet<'a> {
        /// A writer for each table.
        type Writers: Writers;

        fn db(&self) -> &'a Db;

        fn locks(&self) -> Few<TableLock<'a>>;

        fn writers(self, base: Snapshot) -> Self::Writers;
    }

    pub trait WriterSet {
        fn each_mut(&mut self) -> Few<&mut dyn AnyWriter>;

        fn base(&self) -> &Snapshot;

        fn work(&self, position: usize) -> Option<AnyVersionRef<'_>>;
    }
}
use sealed::{LockSet, WriterSet};

#[derive(Clone, Copy, Debug)]
pub struct TableLock<'a> {
    db: u64,
    position: usize,
    name: &'static str,
    /// The database handle that registered the table.
    handle: Handle,
    lock: &'a Mutex<()>,
}

/// The circumstances of a table's last write, for statistics.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub(crate) at: Instant,
    pub(crate) held: Duration,
    pub(crate) place: &'static Location<'static>,
    pub(crate) handle: Handle,
}

/// A writer without its row type, as the commit uses it.
pub trait AnyWriter {
    fn position(&self) -> usize;
    fn name(&self) -> &'static str;
    fn dirty(&self) -> bool;
    fn trackers(&self) -> Arc<Mutex<Trackers>>;
    fn is_torn(&self) -> bool;
    fn prepare(&mut self, trackers: &mut Trackers, cleaned: Option<&mut Duration>);
    fn seal(&mut self) -> Sealed;
    fn wake(&mut self);
    fn wake_initialized(&self);
    fn after(&mut self, db: &Db);
    fn wrote(&self, write: Written);
    fn took_long(&self, place: &'static Location<'static>, took: Duration);
}

impl<T: TableSpec> AnyWriter for Writer<'_, T> {
    fn position(&self) -> usize {
        self.meta.position
    }

    fn name(&self) -> &'static str {
        T::NAME
    }

    fn dirty(&self) -> bool {
        Writer::dirty(self)
    }

    fn trackers(&self) -> Arc<Mutex<Trackers>> {
        self.meta.trackers.clone()
    }

    fn is_torn(&self) -> bool {
        Writer::is_torn(self)
    }

    fn prepare(&mut self, trackers: &mut Trackers, cleaned: Option<&mut Duration>) {
        Writer::prepare(self, trackers, cleaned);
    }

    fn seal(&mut self) -> Sealed {
        Writer::seal(self)
    }

    fn wake(&mut self) {
        Writer::wake(self);
    }

    fn wake_initialized(&self) {
        Writer::wake_initialized(self);
    }

    fn after(&mut self, db: &Db) {
        Writer::after(self, db);
    }

    fn wrote(&self, write: Written) {
        if self.changed() || self.initializes() {
            *self.meta.last_write.lock() = Some(write);
        }
    }

    fn took_long(&self, place: &'static Location<'static>, took: Duration) {
        self.meta.long_writes.count(place, took);
    }
}

impl<'a, W: Writers> Txn<'a, W> {
    #[track_caller]
    pub(crate) fn begin<S: WriteSet<'a, Writers = W>>(db: &Db, tables: S) -> Self {
        let place = Location::caller();
        // Lock order: tables are locked in order of registration, so that transactions cannot deadlock each other.
        let mut locks = tables.locks();
        locks.sort_by_key(|lock| lock.position);
        for (at, lock) in locks.iter().enumerate() {
            assert_eq!(lock.db, db.0.id, "table `{}` belongs to another database", lock.name);
            assert!(
                at == 0 || locks[at - 1].position != lock.position,
                "table `{}` is named twice in a transaction",
                lock.name
            );
        }
        let held = locks::enter(db.0.id, locks.iter().map(|lock| lock.name), place);
        let named = if db.1 == UNNAMED { locks.first().map_or(UNNAMED, |lock| lock.handle) } else { db.1 };
        let guards = match db.0.listener.get() {
            None => locks.iter().map(|lock| lock.lock.lock()).collect(),
            Some(metrics) => {
                let (guards, waited) = metrics::timed(&locks, |lock| lock.lock.lock(), |lock| lock.name);
                metrics.acquired(&db.0.handles.name(named), &waited);
                guards.collect()
            }
        };
        Self::locked(tables, guards, Some(held), place, named)
    }

    /// As `begin`, for a caller that holds the locks already.
    fn locked<S: WriteSet<'a, Writers = W>>(
        tables: S,
        guards: Few<MutexGuard<'a, ()>>,
        held: Option<Held>,
        place: &'static Location<'static>,
        handle: Handle,
    ) -> Self {
        let db = tables.db();
        Txn {
            _working: db.0.states.work(),
            writers: tables.writers(db.snapshot()),
            guards,
            db,
            started: Instant::now(),
            place,
            handle,
            held,
            not_send: PhantomData,
        }
    }

    /// Returns the writers, one for each table, borrowed separately.
    pub fn split(&mut self) -> W::Split<'_> {
        self.writers.split_mut()
    }

    /// Returns all tables as they were when the transaction began.
    pub fn base(&self) -> &Snapshot {
        self.writers.base()
    }

    /// Publishes the writes atomically and closes watches. Returns exactly the committed state.
    ///
    /// In this order: new snapshots see the writes, watches close, the tables are unlocked for the next writer,
    /// watches of initialization close. A transaction without writes publishes nothing and closes no watch.
    ///
    /// # Panics
    /// If a write of the transaction panicked, in a key or index function of the row's type, and the panic was caught:
    /// the row may be in some indexes and not in others. The transaction is aborted.
    ///
    /// After the writes are visible, a panic of foreign code - a waker, [`Metrics`], the drop of a replaced row - is
    /// resumed only after the commit is complete: watches closed, metrics reported, tables unlocked, replaced rows
    /// freed.
    pub fn commit(mut self) -> Snapshot {
        let metrics = self.db.0.listener.get();
        let mut writers = self.writers.each_mut();
        let names: Few<_> = metrics.iter().flat_map(|_| &writers).map(|writer| writer.name()).collect();
        let (db, handle, started) = (self.db, self.handle, self.started);
        let committed = || {
            let report = |metrics: &Arc<dyn Metrics>| {
                metrics.committed(&db.0.handles.name(handle), &names, started.elapsed());
            };
            metrics.iter().copied().for_each(report);
        };
        for writer in &writers {
            assert!(
                !writer.is_torn(),
                "table `{}`: a write panicked, the transaction cannot be committed",
                writer.name()
            );
        }
        writers.retain(|writer| writer.dirty());
        if writers.is_empty() {
            committed();
            return self.db.snapshot();
        }
        // The trackers stay locked until the versions are published. A reader that registered meanwhile would start
        // from the old version and miss the deletes, which `prepare` would not keep for it.
        let trackers: Few<_> = writers.iter().map(|writer| writer.trackers()).collect();
        let mut locked: Few<_> = trackers.iter().map(|trackers| trackers.lock()).collect();
        for (writer, trackers) in writers.iter_mut().zip(&mut locked) {
            let mut cleaned = metrics.map(|_| Duration::ZERO);
            writer.prepare(trackers, cleaned.as_mut());
            if let (Some(metrics), Some(took)) = (metrics, cleaned.filter(|took| !took.is_zero())) {
                metrics.cleaned(writer.name(), took);
            }
        }
        let mut sealed: Few<_> = writers.iter_mut().map(|writer| writer.seal()).collect();
        let mut edits = Few::new();
        let (snapshot, before) = self.db.0.states.publish(|versions| edits = versions.replace(&mut sealed));
        drop(locked);
        // The writes are visible from here on: each remaining step is executed even if another one panics.
        let mut panics = Panics::default();
        edits.iter().for_each(|edit| edit.close_watches(&mut panics));
        let now = Instant::now();
        panics.each(&mut writers, |writer| writer.wake());
        for writer in &writers {
            writer.wrote(Written { at: now, held: now - started, place: self.place, handle: self.handle });
        }
        // Unlocked before the watches of initialization close: the woken tasks need not wait for this transaction.
        self.guards.clear();
        self.held = None;
        if now - started > locks::LONG && locks::on_executor() {
            writers.iter().for_each(|writer| writer.took_long(self.place, now - started));
        }
        panics.each(&writers, |writer| writer.wake_initialized());
        if metrics.is_some() {
            panics.run(committed);
        }
        let mut retired = Vec::new();
        for edit in &mut edits {
            match edit.take_retired() {
                first if retired.is_empty() => retired = first,
                more => retired.extend(more),
            }
        }
        panics.each(&mut writers, |writer| writer.after(self.db));
        // The writers hold snapshots of the previous root. They are released first, so that `before` is its last
        // holder, unless a reader holds it, and frees the retired memory here.
        drop(writers);
        panics.run(|| drop(self.writers));
        panics.run(|| keep_list(before.retire(retired)));
        panics.resume();
        Snapshot::of(snapshot)
    }

    /// Aborts the transaction. Equivalent to dropping it, but explicit.
    pub fn abort(self) {}
}

impl<W: Writers> ReadSource for Txn<'_, W> {}

impl<W: Writers> Versioned for Txn<'_, W> {
    fn database(&self) -> u64 {
        self.base().database()
    }

    fn any_version(&self, position: usize) -> Option<AnyVersionRef<'_>> {
        self.writers.work(position).or_else(|| self.base().any_version(position))
    }
}

impl<'a, T: TableSpec> Deref for TableTxn<'a, T> {
    type Target = Writer<'a, T>;

    fn deref(&self) -> &Writer<'a, T> {
        &self.writers.0
    }
}

impl<T: TableSpec> DerefMut for TableTxn<'_, T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.writers.0
    }
}

impl<T: TableSpec> Table<T> {
    /// Removes deletes that all trackers have seen from the graveyard. Does nothing while a transaction holds the
    /// table: its commit removes them.
    pub(crate) fn collect_garbage(&self) {
        let Some(guard) = self.meta.lock.try_lock() else { return };
        let table = RwTable(self.clone());
        let mut txn: TableTxn<'_, T> =
            Txn::locked((&table,), smallvec![guard], None, Location::caller(), UNNAMED);
        txn.touch();
        txn.commit();
    }
}

macro_rules! write_sets {
    ($($name:ident $field:tt),+) => {
        impl<'a, $($name: TableSpec),+> WriteSet<'a> for ($(&'a RwTable<$name>,)+) {}

        impl<'a, $($name: TableSpec),+> LockSet<'a> for ($(&'a RwTable<$name>,)+) {
            type Writers = ($(Writer<'a, $name>,)+);

            fn locks(&self) -> Few<TableLock<'a>> {
                smallvec![$({
                    let meta = &self.$field.0.meta;
                    TableLock {
                        db: meta.db,
                        position: meta.position,
                        name: $name::NAME,
                        handle: self.$field.0.db.1,
                        lock: &meta.lock,
                    }
                }),+]
            }

            fn db(&self) -> &'a Db {
                &self.0.0.db
            }

            fn writers(self, base: Snapshot) -> Self::Writers {
                // Each writer but the last gets a clone (one count); the last one gets the snapshot itself.
                let mut bases = std::iter::repeat_n(base, [$($name::NAME),+].len());
                ($(Writer::new(&self.$field.0.meta, bases.next().expect("one for each")),)+)
            }
        }

        impl<'a, $($name: TableSpec),+> Writers for ($(Writer<'a, $name>,)+) {
            type Split<'s> = ($(&'s mut Writer<'a, $name>,)+) where Self: 's;

            fn split_mut(&mut self) -> Self::Split<'_> {
                ($(&mut self.$field,)+)
            }

        }

        impl<'a, $($name: TableSpec),+> WriterSet for ($(Writer<'a, $name>,)+) {
            fn each_mut(&mut self) -> Few<&mut dyn AnyWriter> {
                smallvec![$(&mut self.$field as &mut dyn AnyWriter),+]
            }

            fn base(&self) -> &Snapshot {
                self.0.work.base()
            }

            fn work(&self, position: usize) -> Option<AnyVersionRef<'_>> {
                $(if self.$field.meta.position == position {
                    return Some(AnyVersionRef::new(&*self.$field.work));
                })+
                None
            }
        }
    };
}
write_sets!(A 0);
write_sets!(A 0, B 1);
write_sets!(A 0, B 1, C 2);
write_sets!(A 0, B 1, C 2, D 3);
write_sets!(A 0, B 1, C 2, D 3, E 4);
write_sets!(A 0, B 1, C 2, D 3, E 4, F 5);
