//! The writes of a transaction to one table.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::changes::trackers::Graves;
use crate::changes::{MANY_KEPT, Tracker, Trackers};
use crate::db::{Db, Snapshot};
#[cfg(feature = "unstable")]
use crate::error::CasError;
use crate::error::Conflict;
use crate::init::{InitState, Initializer, Pending};
use crate::key::KeyBuf;
use crate::obj::Obj;
use crate::panics::Panics;
use crate::query::{AsQuery, KeyRange, Prefix};
use crate::root::Sealed;
use crate::rows::Rows;
use crate::spec::TableSpec;
use crate::table::{Table, TableMeta};
use crate::watch::{Watch, WatchCell};
use crate::work::Work;

/// One table inside a write transaction. Its reads see its earlier writes; other readers see them after the commit.
pub struct Writer<'a, T: TableSpec> {
    pub(crate) meta: &'a Arc<TableMeta<T>>,
    pub(crate) work: Work<T>,
    /// Whether rows were written.
    changed: bool,
    /// Whether to publish even without changes, for a smaller graveyard.
    touched: bool,
    /// Deleted rows with the revisions of the deletes.
    deleted: Vec<(Obj<T>, u64)>,
    handed: Handed,
    /// Whether an initializer was registered or finished.
    initializes: bool,
    /// The number of deleted rows that are kept after the commit.
    kept: usize,
    /// The slowest reader, if [`MANY_KEPT`] rows or more are kept for it and it was not logged before.
    behind: Option<Arc<Tracker>>,
}

/// Watches on rows of this transaction. An abort closes them, since these rows are never published.
#[derive(Default)]
struct Handed(Vec<Watch>);

impl Drop for Handed {
    fn drop(&mut self) {
        let mut panics = Panics::default();
        panics.each(&self.0, Watch::close);
        panics.resume();
    }
}

impl<'a, T: TableSpec> Writer<'a, T> {
    /// The caller holds the table's lock and has taken `base` after taking it.
    pub(crate) fn new(meta: &'a Arc<TableMeta<T>>, base: Snapshot) -> Self {
        let work = Work::begin(base, meta.position);
        Writer {
            meta,
            work,
            changed: false,
            touched: false,
            deleted: Vec::new(),
            handed: Handed::default(),
            initializes: false,
            kept: 0,
            behind: None,
        }
    }

    // ---- reads

    /// Returns the first row with the key.
    pub fn get(&self, query: impl AsQuery<T>) -> Option<&Obj<T>> {
        self.work.get(&self.meta.indexes, query.as_query())
    }

    /// Returns all rows with the key.
    pub fn list(&self, query: impl AsQuery<T>) -> Rows<'_, T> {
        self.work.list(&self.meta.indexes, query.as_query())
    }

    /// Returns all rows whose key starts with the prefix.
    pub fn prefix(&self, prefix: Prefix<T>) -> Rows<'_, T> {
        self.work.prefix(&self.meta.indexes, &prefix)
    }

    /// Returns all rows whose key is equal or greater.
    pub fn lower_bound(&self, query: impl AsQuery<T>) -> Rows<'_, T> {
        self.work.lower_bound(&self.meta.indexes, query.as_query())
    }

    /// Returns all rows whose key is in the range.
    pub fn range(&self, range: KeyRange<T>) -> Rows<'_, T> {
        self.work.range(&self.meta.indexes, &range)
    }

    /// Returns all rows in order of their primary keys.
    pub fn all(&self) -> Rows<'_, T> {
        self.work.all()
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.work.primary.len()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.work.primary.is_empty()
    }

    /// Returns the revision of the last write.
    pub fn revision(&self) -> u64 {
        self.work.revision
    }

    // ---- writes that cannot fail

    /// Stores an object; replaces and returns the one with the same primary key.
    pub fn insert(&mut self, object: T) -> Option<Obj<T>> {
        const { infallible::<T>() };
        let key = primary(&object);
        self.put(key, object)
    }

    /// As [`insert`](Self::insert), with a watch that closes when the stored object is next replaced or deleted.
    #[cfg(feature = "unstable")]
    pub fn insert_watch(&mut self, object: T) -> (Option<Obj<T>>, Watch) {
        const { infallible::<T>() };
        let key = primary(&object);
        let old = self.put(key.clone(), object);
        let new = self.work.primary.get(key.as_bytes()).expect("a row that was just stored");
        let watch = new.watch();
        self.handed.0.push(watch.clone());
        (old, watch)
    }

    /// Stores `merge(old, new)` if there is an object with the primary key of `new`, else `new` as it is. Returns the
    /// old object.
    ///
    /// # Panics
    /// If the merged object has another primary key.
    pub fn modify(&mut self, new: T, merge: impl FnOnce(&T, T) -> T) -> Option<Obj<T>> {
        const { infallible::<T>() };
        let key = primary(&new);
        let object = match self.work.primary.get(key.as_bytes()) {
            Some(old) => merge(old, new),
            None => new,
        };
        assert_eq!(primary(&object), key, "table `{}`: merge changed the primary key", T::NAME);
        self.put(key, object)
    }

    /// Changes a copy of the first row with the key and stores it; returns the old object, none if no row has the key.
    /// A changed primary key moves the row.
    ///
    /// # Panics
    /// If the row is moved to the primary key of another one, which would silently replace that row.
    pub fn update(&mut self, query: impl AsQuery<T>, change: impl FnOnce(&mut T)) -> Option<Obj<T>>
    where
        T: Clone,
    {
        const { infallible::<T>() };
        let old = self.get(query)?.clone();
        let mut object = (*old).clone();
        change(&mut object);
        let (before, after) = (primary(&*old), primary(&object));
        if before != after {
            let is_free = self.work.primary.get(after.as_bytes()).is_none();
            assert!(is_free, "table `{}`: update moved a row to the primary key of another one", T::NAME);
            self.remove(&before);
        }
        self.put(after, object);
        Some(old)
    }

    /// Deletes the first row with the key and returns it.
    pub fn delete(&mut self, query: impl AsQuery<T>) -> Option<Obj<T>> {
        let key = primary(&**self.get(query)?);
        self.remove(&key)
    }

    /// Deletes all rows; returns their number.
    pub fn delete_all(&mut self) -> usize {
        self.retain(|_| false)
    }

    /// Deletes the rows for which `keep` returns false; returns their number.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) -> usize {
        let gone: Vec<KeyBuf> =
            self.all().filter(|object| !keep(object)).map(|object| primary(&**object)).collect();
        gone.iter().for_each(|key| drop(self.remove(key)));
        gone.len()
    }

    // ---- writes that can fail, before anything is changed

    /// As [`insert`](Self::insert), for tables with unique secondary indexes.
    pub fn try_insert(&mut self, object: T) -> Result<Option<Obj<T>>, Conflict<T>> {
        let key = primary(&object);
        match self.work.conflict(&self.meta.indexes, &key, &object) {
            Some(conflict) => Err(conflict),
            None => Ok(self.put(key, object)),
        }
    }

    /// Replaces the object with the same primary key if its revision is still `revision`; returns the old object.
    #[cfg(feature = "unstable")]
    pub fn compare_and_swap(&mut self, revision: u64, object: T) -> Result<Obj<T>, CasError<T>> {
        let key = primary(&object);
        let old = self.expect(revision, &key)?;
        if let Some(conflict) = self.work.conflict(&self.meta.indexes, &key, &object) {
            return Err(CasError::Conflict(conflict));
        }
        self.put(key, object);
        Ok(old)
    }

    /// Deletes the first row with the key if its revision is still `revision`; returns the deleted object.
    #[cfg(feature = "unstable")]
    pub fn compare_and_delete(
        &mut self,
        revision: u64,
        query: impl AsQuery<T>,
    ) -> Result<Obj<T>, CasError<T>> {
        let key = self.get(query).map(|object| primary(&**object)).ok_or(CasError::NotFound)?;
        let old = self.expect(revision, &key)?;
        self.remove(&key);
        Ok(old)
    }

    #[cfg(feature = "unstable")]
    fn expect(&self, revision: u64, key: &KeyBuf) -> Result<Obj<T>, CasError<T>> {
        match self.work.primary.get(key.as_bytes()) {
            None => Err(CasError::NotFound),
            Some(old) if old.revision() != revision => Err(CasError::Changed(old.clone())),
            Some(old) => Ok(old.clone()),
        }
    }

    fn put(&mut self, key: KeyBuf, object: T) -> Option<Obj<T>> {
        self.changed = true;
        self.work.put(&self.meta.indexes, &key, object)
    }

    fn remove(&mut self, key: &KeyBuf) -> Option<Obj<T>> {
        let old = self.work.remove(&self.meta.indexes, key)?;
        self.changed = true;
        self.deleted.push((old.clone(), self.work.revision));
        Some(old)
    }

    // ---- initializers

    /// Registers a source that is to fill the table, which counts as initialized once all sources are done.
    ///
    /// # Panics
    /// If a source of this name is pending already.
    pub fn register_initializer(&mut self, name: &str) -> Initializer<T> {
        let mut pending = self.work.init.pending.clone();
        assert!(
            pending.iter().all(|pending| &*pending.name != name),
            "table `{}`: initializer `{name}` is pending already",
            T::NAME
        );
        let (name, id) = (Arc::<str>::from(name), self.meta.next_initializer.fetch_add(1, Ordering::Relaxed));
        pending.push(Pending { name: name.clone(), id });
        // The new state has a new watch and the commit closes the old one: waiting tasks wake, read again, wait on.
        self.work.set_init(InitState { pending, watch: WatchCell::default() });
        self.initializes = true;
        Initializer { table: T::NAME, name, id, finished: false, marker: PhantomData }
    }

    pub(crate) fn finish_initializer(&mut self, id: u64) {
        let mut pending = self.work.init.pending.clone();
        pending.retain(|pending| pending.id != id);
        self.work.set_init(InitState { pending, watch: WatchCell::default() });
        self.initializes = true;
    }

    /// Makes the commit publish even without changes, so that seen deletes are removed from the graveyard.
    pub(crate) fn touch(&mut self) {
        self.touched = true;
    }

    // ---- the steps of a commit, in order

    pub(crate) fn changed(&self) -> bool {
        self.changed
    }

    /// Returns whether an initializer was registered or finished.
    pub(crate) fn initializes(&self) -> bool {
        self.initializes
    }

    pub(crate) fn dirty(&self) -> bool {
        self.changed || self.initializes || self.touched
    }

    pub(crate) fn is_torn(&self) -> bool {
        self.work.is_torn()
    }

    /// Completes the version to publish. The caller keeps the trackers locked until it is published, so that a new
    /// tracker either registers before, and the deletes are kept for it, or after, and starts from the new version.
    /// Measures the time spent on a non-empty graveyard, if `cleaned` is given.
    pub(crate) fn prepare(&mut self, trackers: &mut Trackers, cleaned: Option<&mut Duration>) {
        let begin = cleaned.as_ref().filter(|_| !self.work.graveyard.is_empty()).map(|_| Instant::now());
        trackers.keep(&mut Deletes { work: &mut self.work, deleted: &mut self.deleted });
        self.kept = self.work.graveyard.len();
        if self.kept >= MANY_KEPT {
            self.behind = trackers.slowest().filter(|tracker| tracker.owner.first_time()).cloned();
        }
        if let (Some(begin), Some(cleaned)) = (begin, cleaned) {
            *cleaned = begin.elapsed();
        }
        if self.changed {
            self.work.renew_watch();
        }
    }

    /// Takes the version to publish. Calls no code of the row's type, so it cannot panic halfway through several
    /// tables: all of them are sealed or none.
    pub(crate) fn seal(&mut self) -> Sealed {
        self.work.seal()
    }

    pub(crate) fn wake(&mut self) {
        // Taken out, so that only an abort closes them by the drop of `Handed`: these rows are published.
        let _handed = std::mem::take(&mut self.handed.0);
        if self.changed {
            self.work.before().watch.close();
        }
    }

    /// Runs after the table is unlocked: logs a reader that is too far behind, and removes deletes that were seen
    /// during the transaction, since the readers that saw them last found the table locked.
    pub(crate) fn after(&mut self, db: &Db) {
        #[cfg(feature = "tracing")]
        if let Some(tracker) = self.behind.take() {
            tracing::warn!(
                table = T::NAME,
                reader = tracker.owner.name(),
                rows = self.kept,
                "Deleted rows are kept for a reader of changes that has fallen behind"
            );
        }
        if self.kept > 0 {
            let table = Table { db: db.clone(), meta: self.meta.clone() };
            if let Some(version) = table.meta.version(&db.snapshot()) {
                table.collect_seen(version);
            }
        }
    }

    pub(crate) fn wake_initialized(&self) {
        if self.initializes() {
            self.work.before().init.watch.close();
        }
    }
}

/// The deletes of a transaction, and those that its table keeps.
struct Deletes<'w, T: TableSpec> {
    work: &'w mut Work<T>,
    deleted: &'w mut Vec<(Obj<T>, u64)>,
}

impl<T: TableSpec> Graves for Deletes<'_, T> {
    fn bury(&mut self) {
        for (object, revision) in self.deleted.drain(..) {
            self.work.bury(object, revision);
        }
    }

    fn newest(&self) -> Option<u64> {
        self.deleted.last().map(|(_, revision)| *revision)
    }

    fn forget(&mut self, upto: u64) -> Option<u64> {
        self.work.forget_deletes(upto)
    }
}

fn primary<T: TableSpec>(object: &T) -> KeyBuf {
    KeyBuf::of(&object.key())
}

/// Stops the compilation of inserts that ignore conflicts.
const fn infallible<T: TableSpec>() {
    assert!(!T::UNIQUE_SECONDARY, "the table has a unique secondary index: use try_insert");
}
