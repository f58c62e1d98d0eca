//! A table that mirrors the objects of a source: a list first, then changes.

use std::collections::BTreeMap;
use std::fmt::Display;

use futures::{Stream, StreamExt};
use hive::job::OneShotJob;
use hive::{JobCx, JobGroup};

use crate::any::{TableDisplay, label};
use crate::init::Initializer;
use crate::key::KeyBuf;
use crate::obj::Obj;
use crate::query::Query;
use crate::spec::TableSpec;
use crate::table::RwTable;
use crate::writer::Writer;

/// The maximum number of events in one transaction.
const BATCH: usize = 1000;

/// An event of a source.
#[derive(Clone, Debug)]
pub enum Event<T> {
    /// The complete list of rows.
    Replace(Vec<T>),
    /// A list begins: the rows upserted from now until [`Listed`](Event::Listed) are the complete list. An earlier list
    /// that was not completed is discarded.
    Restart,
    /// The list that began with [`Restart`](Event::Restart) is complete.
    Listed,
    /// The row is new or has changed.
    Upsert(T),
    /// The row was deleted.
    Delete(Query<T>),
    /// The row exists, but its content is unknown: the stored row, if any, is kept; within a list it counts as listed.
    Keep(Query<T>),
}

/// A job that keeps a table in step with a source, with the semantics of list and watch.
///
/// A list replaces the rows of the table in one transaction: rows that it does not contain are deleted, rows that
/// differ are written, and equal rows are not touched, so that their watches stay open. The first list marks the table
/// as initialized in the same transaction. Between lists all events that are available at a moment, up to 1,000, are
/// one transaction; the source is polled again once it is committed. Within a transaction rows are deleted first, then
/// written in the order in which they first occurred, so readers of changes see the order of arrival. The rows of a
/// list are written in order of their keys.
///
/// A list of several events is buffered until it is complete, so readers never see a part of it. For rows that are
/// equal to stored ones only handles are buffered: a repeated list of a large table costs little memory.
///
/// A row whose unique key belongs to another row is refused: it is reported in health, and retried with each
/// transaction.
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::Arc;
///
/// use futures::{StreamExt, stream};
/// use hive::prelude::*;
/// use serde::Serialize;
/// use statedb::{Event, Query, Reflector, RwTable, TableDisplay, TableSpec};
///
/// # #[derive(Clone, Debug, PartialEq, Serialize)]
/// # struct Pod { name: String }
/// # impl TableSpec for Pod {
/// #     const NAME: &'static str = "pods";
/// #     type Key<'a> = &'a str;
/// #     fn key(&self) -> &str { &self.name }
/// # }
/// # impl TableDisplay for Pod {
/// #     fn columns() -> &'static [&'static str] { &["Name"] }
/// #     fn row(&self) -> Vec<String> { vec![self.name.clone()] }
/// # }
/// fn reflect(jobs: JobGroup, pods: Arc<RwTable<Pod>>) {
///     let pod = |name: &str| Pod { name: name.into() };
///     let list = vec![pod("a"), pod("b")];
///     let events = [Event::Replace(list), Event::Delete(Query::primary("a")), Event::Upsert(pod("c"))];
///     let source = stream::iter(events).map(Ok::<_, Infallible>);
///     Reflector::new("pods", &pods).job(&jobs, source).add();
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let cells = [statedb::cell(), module("m", "Pods", [statedb::table::<Pod>(), invoke(reflect)])];
/// # let mut hive = TestHive::new(cells);
/// # hive.start().await;
/// # let pods = hive.get::<RwTable<Pod>>();
/// pods.wait_initialized().await;
/// let names: Vec<_> = pods.all(&pods.snapshot()).map(|pod| pod.name.clone()).collect();
/// assert_eq!(names, ["b", "c"]);
/// # drop(pods);
/// # hive.finish().await;
/// # }
/// ```
#[must_use = "`job(..).add()` adds the job"]
pub struct Reflector<T: TableDisplay> {
    name: String,
    table: RwTable<T>,
    initializer: Option<Initializer<T>>,
    owns: Box<dyn Fn(&T) -> bool + Send>,
    merge: Merge<T>,
    listing: Option<Listing<T>>,
    /// Rows whose unique key belongs to another row, with the error message.
    refused: BTreeMap<KeyBuf, (T, String)>,
}

type Merge<T> = Box<dyn Fn(&T, T) -> Option<T> + Send>;

/// The outcome of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// Rows that were written: new ones, and those that have changed.
    pub upserted: usize,
    /// Rows that were deleted.
    pub deleted: usize,
}

/// The rows of an incomplete list.
type Listing<T> = BTreeMap<KeyBuf, Listed<T>>;

enum Listed<T> {
    New(T),
    /// Equal to the row in the table.
    Same(Obj<T>),
}

/// The operation to apply to a row.
enum Step<T> {
    Put(T),
    Gone,
}

/// Coalesced events: the last step of each row, in the order in which the rows arrived first.
struct Steps<T> {
    positions: BTreeMap<KeyBuf, usize>,
    steps: Vec<(KeyBuf, Step<T>)>,
}

impl<T> Steps<T> {
    fn new() -> Self {
        Steps { positions: BTreeMap::new(), steps: Vec::new() }
    }

    /// Replaces the step of a row, which keeps its position.
    fn insert(&mut self, key: KeyBuf, step: Step<T>) {
        match self.positions.get(&key) {
            Some(position) => self.steps[*position].1 = step,
            None => {
                self.positions.insert(key.clone(), self.steps.len());
                self.steps.push((key, step));
            }
        }
    }

    fn get(&self, key: &KeyBuf) -> Option<&Step<T>> {
        self.positions.get(key).map(|position| &self.steps[*position].1)
    }

    fn clear(&mut self) {
        self.positions.clear();
        self.steps.clear();
    }
}

impl<T: TableDisplay + Clone + PartialEq> Reflector<T> {
    /// Creates a reflector for a source. Registers an initializer of the same name: from now on the table is not
    /// initialized until the source's first list is complete.
    #[track_caller]
    pub fn new(name: &str, table: &RwTable<T>) -> Self {
        let (initializer, _) = table.transact(|w| w.register_initializer(name));
        Reflector {
            name: name.to_owned(),
            table: table.clone(),
            initializer: Some(initializer),
            owns: Box::new(|_| true),
            merge: Box::new(|old, new| (*old != new).then_some(new)),
            listing: None,
            refused: BTreeMap::new(),
        }
    }
}

impl<T: TableDisplay + Clone> Reflector<T> {
    /// Sets which rows belong to this source, for tables with several sources: lists and deletions do not touch rows of
    /// other sources. [`merge`](Self::merge) decides about a row of this source that another one owns.
    pub fn owns(mut self, owns: impl Fn(&T) -> bool + Send + 'static) -> Self {
        self.owns = Box::new(owns);
        self
    }

    /// Sets the function that merges a row of the source into a stored one, for sources that provide only a part of a
    /// row: `merge(stored, new)`; none leaves the stored row unchanged. By default rows that differ are replaced.
    pub fn merge(mut self, merge: impl Fn(&T, T) -> Option<T> + Send + 'static) -> Self {
        self.merge = Box::new(merge);
        self
    }

    /// Returns the job, to be added, under the source's name. An error of the source degrades its health until the next event; a source
    /// that has lost its position in the stream sends [`Event::Restart`]. When a source ends, its rows stay.
    #[track_caller]
    pub fn job<S, E>(self, jobs: &JobGroup, source: S) -> OneShotJob
    where
        S: Stream<Item = Result<Event<T>, E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        jobs.one_shot(self.name.clone(), move |cx| async move {
            self.run(cx, source).await;
            Ok(())
        })
    }

    async fn run<E: Display>(mut self, cx: JobCx, source: impl Stream<Item = Result<Event<T>, E>>) {
        let mut source = std::pin::pin!(source.ready_chunks(BATCH));
        while let Some(Some(events)) = cx.token().run_until_cancelled(source.next()).await {
            let working = cx.working();
            let mut failed = None;
            let events = events.into_iter().filter_map(|event| match event {
                Ok(event) => {
                    failed = None;
                    Some(event)
                }
                Err(error) => {
                    failed = Some(error.to_string());
                    None
                }
            });
            let events = events.collect();
            self.apply(events);
            match (failed, self.refused.values().next()) {
                (Some(error), _) => cx.health.degraded("The source fails", error),
                (None, Some((_, error))) => {
                    cx.health.degraded(format_args!("{} rows are refused", self.refused.len()), error);
                }
                (None, None) if self.initializer.is_some() => cx.health.ok("Listing"),
                (None, None) => cx.health.ok("Following"),
            }
            drop(working);
            // A source that is always ready must not starve other tasks of the thread.
            tokio::task::yield_now().await;
        }
        if cx.is_cancelled()
            && let Some(initializer) = self.initializer
        {
            initializer.abandon();
        }
    }

    /// Writes events in one transaction, except complete lists, each of which is a transaction of its own.
    pub fn apply(&mut self, events: Vec<Event<T>>) -> Applied {
        let mut applied = Applied::default();
        let mut steps = Steps::new();
        for event in events {
            match event {
                Event::Replace(rows) => {
                    self.listing = None;
                    // The list supersedes all earlier events.
                    steps.clear();
                    self.refused.clear();
                    let rows = rows.into_iter().map(|row| (key(&row), Listed::New(row))).collect();
                    self.replace(rows, &mut applied);
                }
                Event::Restart => self.listing = Some(BTreeMap::new()),
                Event::Listed => {
                    if let Some(rows) = self.listing.take() {
                        steps.clear();
                        self.refused.clear();
                        self.replace(rows, &mut applied);
                    }
                }
                Event::Upsert(row) => match &mut self.listing {
                    Some(_) => self.list(row, &steps),
                    None => steps.insert(key(&row), Step::Put(row)),
                },
                Event::Keep(query) => {
                    let Some(key) = self.primary(query).filter(|_| self.listing.is_some()) else { continue };
                    self.keep(key, &steps);
                }
                Event::Delete(query) => {
                    let Some(key) = self.primary(query) else { continue };
                    match &mut self.listing {
                        Some(listing) => drop(listing.remove(&key)),
                        None => steps.insert(key, Step::Gone),
                    }
                }
            }
        }
        if !steps.steps.is_empty() {
            self.write(steps.steps, &mut applied);
        }
        applied
    }

    /// Returns the primary key of the row that a query by any index finds.
    fn primary(&self, query: Query<T>) -> Option<KeyBuf> {
        match query.index {
            None => Some(query.key),
            Some(_) => self.table.get(&self.table.snapshot(), query).map(|row| key(&**row)),
        }
    }

    /// Adds a row to the list. `unwritten` are earlier events of the same batch: a stored row that they change must not
    /// be kept as equal.
    fn list(&mut self, row: T, unwritten: &Steps<T>) {
        let snapshot = self.table.snapshot();
        let key = key(&row);
        let stored = self.table.get(&snapshot, Query::raw_primary(key.clone()));
        let own = |stored: &&Obj<T>| unwritten.get(&key).is_none() && (self.owns)(stored);
        let listed = match stored.filter(own) {
            Some(stored) => match (self.merge)(stored, row.clone()) {
                None => Listed::Same(stored.clone()),
                Some(_) => Listed::New(row),
            },
            None => Listed::New(row),
        };
        self.listing.get_or_insert_default().insert(key, listed);
    }

    /// Adds a row of unknown content to the list, as an earlier event or the table has it.
    fn keep(&mut self, key: KeyBuf, unwritten: &Steps<T>) {
        let listed = match unwritten.get(&key) {
            Some(Step::Put(row)) => Some(Listed::New(row.clone())),
            Some(Step::Gone) => None,
            None => {
                let snapshot = self.table.snapshot();
                let stored = self.table.get(&snapshot, Query::raw_primary(key.clone()));
                stored.filter(|stored| (self.owns)(stored)).cloned().map(Listed::Same)
            }
        };
        if let Some(listed) = listed {
            self.listing.get_or_insert_default().entry(key).or_insert(listed);
        }
    }

    fn replace(&mut self, rows: Listing<T>, applied: &mut Applied) {
        let Reflector { table, initializer, owns, merge, refused, .. } = self;
        table.transact(|w| {
            let gone: Vec<KeyBuf> = w
                .all()
                .filter(|row| owns(row))
                .map(|row| key(&**row))
                .filter(|key| !rows.contains_key(key))
                .collect();
            for key in gone {
                applied.deleted += usize::from(w.delete(Query::raw_primary(key)).is_some());
            }
            for (key, row) in rows {
                match row {
                    Listed::New(row) => applied.upserted += put(w, merge, refused, key, row),
                    // Another writer may have deleted the row since it was listed: restore it. If it was changed, the
                    // change stays, since the source's row was equal to the stored one.
                    Listed::Same(row) if w.get(Query::raw_primary(key.clone())).is_none() => {
                        applied.upserted += put(w, merge, refused, key, (*row).clone());
                    }
                    Listed::Same(_) => {}
                }
            }
            applied.upserted += retry(w, merge, refused);
            if let Some(initializer) = initializer.take() {
                initializer.done(w);
            }
        });
    }

    fn write(&mut self, steps: Vec<(KeyBuf, Step<T>)>, applied: &mut Applied) {
        let Reflector { table, owns, merge, refused, .. } = self;
        table.transact(|w| {
            let mut puts = Vec::new();
            for (key, step) in steps {
                refused.remove(&key);
                match step {
                    Step::Gone => {
                        let query = Query::raw_primary(key);
                        let own = w.get(&query).is_some_and(|row| owns(row));
                        applied.deleted += usize::from(own && w.delete(query).is_some());
                    }
                    Step::Put(row) => puts.push((key, row)),
                }
            }
            for (key, row) in puts {
                applied.upserted += put(w, merge, refused, key, row);
            }
            applied.upserted += retry(w, merge, refused);
        });
    }
}

type Refused<T> = BTreeMap<KeyBuf, (T, String)>;

/// Stores a row if it differs from the stored one; adds it to `refused` if its unique key belongs to another row.
/// Returns the number of rows written.
fn put<T: TableDisplay + Clone>(
    w: &mut Writer<'_, T>,
    merge: &Merge<T>,
    refused: &mut Refused<T>,
    key: KeyBuf,
    row: T,
) -> usize {
    let kept = T::UNIQUE_SECONDARY.then(|| row.clone());
    let merged = match w.get(Query::raw_primary(key.clone())) {
        Some(stored) => merge(stored, row),
        None => Some(row),
    };
    let Some(merged) = merged else { return 0 };
    match w.try_insert(merged) {
        Ok(_) => 1,
        Err(conflict) => {
            if let Some(row) = kept {
                let error = format!("{} `{}`: {conflict}", T::NAME, label(&row));
                refused.insert(key, (row, error));
            }
            0
        }
    }
}

/// Retries refused rows until no more can be written: one row may free the unique key of another. Returns the number of
/// rows written.
fn retry<T: TableDisplay + Clone>(
    w: &mut Writer<'_, T>,
    merge: &Merge<T>,
    refused: &mut Refused<T>,
) -> usize {
    let mut written = 0;
    loop {
        let before = refused.len();
        for (key, (row, _)) in std::mem::take(refused) {
            written += put(w, merge, refused, key, row);
        }
        if refused.len() == before {
            return written;
        }
    }
}

fn key<T: TableSpec>(row: &T) -> KeyBuf {
    KeyBuf::of(&row.key())
}
