//! The job that keeps a table in step with a source.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

use futures::{Stream, StreamExt};
use hive::JobCx;
use statedb::{Applied, Event, KeyBuf, Query, Reflector, RwTable, Watch};
use tokio::time::Instant;

use k8s_types::{Key, Kind, Selection, Source, SourceError};

use crate::events::{ObjectEvent, Origin, decode_events};
use crate::faults::Faults;
use crate::numbers::{Action, Numbers, Outcome};
use crate::pool::Pool;
use crate::row::Reflected;
use crate::sources::RefreshRequests;

/// The maximum number of events in one transaction.
const BATCH: usize = 1000;

/// A source's rows of a table.
///
/// A row that two sources have belongs to the one that had it first, until that one deletes it: a source never changes
/// or deletes rows of another one. After the delete the other source writes its own row.
pub(crate) struct Reflection<R: Reflected> {
    source: Arc<dyn Source>,
    selection: Selection,
    table: RwTable<R>,
    reflector: Reflector<R>,
    faults: Faults,
    numbers: Numbers,
    /// The current error of the source.
    failed: Option<SourceError>,
    /// Rows of other sources that this one has, too: new ones, and all of them.
    conflicts: mpsc::Receiver<KeyBuf>,
    foreign: BTreeSet<KeyBuf>,
    last: Applied,
    prune: Prune<R>,
    /// When the current list was requested.
    listing_since: Instant,
}

/// Removes the parts of a row that no reader of the table needs.
pub(crate) type Prune<R> = Arc<dyn Fn(&mut R) + Send + Sync>;

impl<R: Reflected> Reflection<R> {
    /// Registers an initializer: from now on the table is not initialized until the source is complete.
    pub(crate) fn new(
        source: Arc<dyn Source>,
        selection: Selection,
        table: RwTable<R>,
        numbers: Numbers,
    ) -> Self {
        let (kind, name) = (selection.kind, source.name().to_owned());
        let (conflict, conflicts) = mpsc::channel();
        let (own, owner) = (name.clone(), name.clone());
        let merge = move |stored: &R, row: R| match stored.is_of(kind, &own) {
            true => (*stored != row).then_some(row),
            false => {
                // Fails if the job has ended.
                _ = conflict.send(KeyBuf::of(&row.key()));
                None
            }
        };
        let reflector = Reflector::new(&format!("{name}-{}", kind.plural()), &table)
            .owns(move |row: &R| row.is_of(kind, &owner))
            .merge(merge);
        let (foreign, last) = (BTreeSet::new(), Applied::default());
        let faults = Faults::new(kind, source.name(), &numbers);
        Reflection {
            source,
            selection,
            table,
            reflector,
            faults,
            numbers,
            failed: None,
            conflicts,
            foreign,
            last,
            prune: Arc::new(|_| ()),
            listing_since: Instant::now(),
        }
    }

    /// Removes parts of the rows before they are compared and stored.
    pub(crate) fn prune(self, prune: Prune<R>) -> Self {
        Reflection { prune, ..self }
    }

    /// Follows the source until the job ends. A refresh request is answered when all objects that the source had at
    /// that time are in the table.
    pub(crate) async fn run(mut self, mut requests: RefreshRequests, cx: JobCx) -> anyhow::Result<()> {
        loop {
            self.listing_since = Instant::now();
            let mut events = self.watch().ready_chunks(BATCH).fuse();
            loop {
                tokio::select! {
                    biased;
                    () = cx.cancelled() => return Ok(()),
                    // Before the requests: one is answered only after all available events are applied.
                    Some(events) = events.next() => {
                    let working = cx.working();
                        if self.apply(events) {
                            match self.status() {
                                (message, None) => cx.health.ok(message),
                                (message, Some(error)) => cx.health.degraded(message, error),
                            }
                        }
                        drop(working);
                        // A source that is always ready must not starve other tasks.
                        tokio::task::yield_now().await;
                    }
                    // Fails if the requester no longer waits.
                    Some(request) = requests.recv() => drop(request.send(())),
                    // A new watch lists all objects again, among them those of the released rows.
                    () = freed(&self.table, &mut self.foreign, self.selection.kind, self.source.name()) => break,
                }
            }
        }
    }

    /// Returns the source's events from now on.
    fn watch(&self) -> impl Stream<Item = Result<ObjectEvent<R>, SourceError>> + Send + Unpin + use<R> {
        let (table, numbers, mut pool) = (self.table.clone(), self.numbers.clone(), Pool::default());
        let prune = self.prune.clone();
        decode_events(&*self.source, self.selection.clone(), move |json, from: &Origin| {
            let mut row = R::read(json, from)?;
            prune(&mut row);
            let snapshot = table.snapshot();
            let before = table.get(&snapshot, Query::raw_primary(KeyBuf::of(&row.key())));
            let outcome = match before {
                Some(before) if !before.is_of(from.kind, &from.source) => Outcome::Foreign,
                // The common case in a repeated list.
                Some(before) if **before == row => Outcome::Equal,
                _ => Outcome::Written,
            };
            if outcome != Outcome::Equal {
                row.share(before.map(|before| &**before), &mut pool);
            }
            numbers.events(from.kind, Action::of(before.is_some()), outcome, 1);
            Ok(row)
        })
    }

    /// Applies events. Returns whether the status has to be reported.
    fn apply(&mut self, batch: Vec<Result<ObjectEvent<R>, SourceError>>) -> bool {
        let mut events = Vec::with_capacity(batch.len());
        let mut listing = self.faults.is_listing();
        let mut must_report = self.failed.is_some();
        for event in batch {
            match event {
                Ok(event) => {
                    self.failed = None;
                    listing = match event {
                        ObjectEvent::Restart => true,
                        ObjectEvent::Listed => false,
                        _ => listing,
                    };
                    // During a list the status is reported only at its end.
                    must_report |= !listing && !matches!(event, ObjectEvent::Progress);
                    events.extend(self.event(event));
                }
                Err(_) if self.source.reports_errors() => {}
                Err(error) => self.failed = Some(error),
            }
        }
        let applied = self.reflector.apply(events);
        if applied.deleted > 0 {
            self.numbers.events(self.selection.kind, Action::Delete, Outcome::Written, applied.deleted);
        }
        if must_report {
            self.last = applied;
        }
        for key in self.conflicts.try_iter() {
            if self.foreign.insert(key.clone()) {
                let object = String::from_utf8_lossy(key.as_bytes()).trim_end_matches('\0').to_owned();
                let source = self.source.name();
                tracing::warn!(source, kind = %self.selection.kind, object, "Object of another source, ignored here");
            }
        }
        must_report || self.failed.is_some()
    }

    fn event(&mut self, event: ObjectEvent<R>) -> Option<Event<R>> {
        let (kind, source) = (self.selection.kind, self.source.name());
        let query = |key: &Key| Query::raw_primary(R::key_of(kind, source, key));
        match event {
            ObjectEvent::Restart => {
                self.faults.restart();
                self.listing_since = Instant::now();
                Some(Event::Restart)
            }
            ObjectEvent::Listed => {
                self.faults.listed();
                self.numbers.listed(kind, self.listing_since.elapsed());
                Some(Event::Listed)
            }
            ObjectEvent::Applied(row) => {
                self.faults.valid(&KeyBuf::of(&row.key()));
                Some(Event::Upsert(row))
            }
            ObjectEvent::Invalid(invalid) => {
                let key = invalid.key.clone();
                let snapshot = self.table.snapshot();
                let before = key.as_ref().is_some_and(|key| self.table.get(&snapshot, query(key)).is_some());
                self.numbers.events(kind, Action::of(before), Outcome::Invalid, 1);
                self.faults.invalid(key.as_ref().map(|key| R::key_of(kind, source, key)), &invalid);
                key.map(|key| Event::Keep(query(&key)))
            }
            ObjectEvent::Deleted(key) => {
                let raw = R::key_of(kind, source, &key);
                self.faults.valid(&raw);
                self.foreign.remove(&raw);
                Some(Event::Delete(query(&key)))
            }
            ObjectEvent::Progress => None,
        }
    }

    /// Returns the status message, and the problems.
    fn status(&self) -> (String, Option<String>) {
        let Applied { upserted, deleted, .. } = self.last;
        let total = self.table.len(&self.table.snapshot());
        let message = format!("{upserted} upserted, {deleted} deleted, {total} total objects");
        let error = self.failed.as_ref().map(ToString::to_string).or_else(|| self.faults.summary());
        (message, error)
    }
}

/// Waits until another source has released one of these rows.
async fn freed<R: Reflected>(table: &RwTable<R>, foreign: &mut BTreeSet<KeyBuf>, kind: Kind, source: &str) {
    if foreign.is_empty() {
        return std::future::pending().await;
    }
    loop {
        let snapshot = table.snapshot();
        let watch: Watch = table.watch(&snapshot);
        let before = foreign.len();
        foreign.retain(|key| table.get(&snapshot, Query::raw_primary(key.clone())).is_some());
        if foreign.len() < before {
            foreign.clear();
            return;
        }
        foreign.retain(|key| {
            let row = table.get(&snapshot, Query::raw_primary(key.clone()));
            row.is_some_and(|row| !row.is_of(kind, source))
        });
        drop(snapshot);
        if foreign.is_empty() {
            return std::future::pending().await;
        }
        watch.changed().await;
    }
}

#[cfg(test)]
mod tests;
