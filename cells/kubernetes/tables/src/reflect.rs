//! The job that keeps a table equal to what one source says.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

use futures::{Stream, StreamExt};
use hive::JobCx;
use statedb::{Applied, Event, KeyBuf, Query, Reflector, RwTable, Watch};

use k8s_types::{Key, Kind, Selection, Source, SourceError};

use crate::events::{Origin, Said, said};
use crate::faults::Faults;
use crate::numbers::{Action, Numbers, Outcome};
use crate::pool::Pool;
use crate::row::Reflected;
use crate::sources::Questions;

/// Events that are one transaction at most.
const BATCH: usize = 1000;

/// A source's rows of a table.
///
/// A row that two sources have is the one's that had it first, as long as it has it: one source never changes or deletes
/// what another one wrote. When it goes, the other one is asked again for what it has.
pub(crate) struct Reflection<R: Reflected> {
    source: Arc<dyn Source>,
    what: Selection,
    table: RwTable<R>,
    reflector: Reflector<R>,
    faults: Faults,
    numbers: Numbers,
    /// Why the source says nothing.
    failed: Option<SourceError>,
    /// Rows of other sources that this one has, too: as they come, and all.
    met: mpsc::Receiver<KeyBuf>,
    foreign: BTreeSet<KeyBuf>,
    last: Applied,
}

impl<R: Reflected> Reflection<R> {
    /// From now on the table waits for it to be complete.
    pub(crate) fn new(source: Arc<dyn Source>, what: Selection, table: RwTable<R>, numbers: Numbers) -> Self {
        let (kind, name) = (what.kind, source.name().to_owned());
        let (meet, met) = mpsc::channel();
        let (own, owner) = (name.clone(), name.clone());
        let merge = move |stored: &R, said: R| match stored.is_of(kind, &own) {
            true => (*stored != said).then_some(said),
            false => {
                // Whoever reads it may be gone with the job.
                _ = meet.send(KeyBuf::of(&said.key()));
                None
            }
        };
        let reflector = Reflector::new(&format!("{name}-{}", kind.plural()), &table)
            .owns(move |row: &R| row.is_of(kind, &owner))
            .merge(merge);
        let (foreign, last) = (BTreeSet::new(), Applied::default());
        let faults = Faults::new(kind, source.name(), &numbers);
        Reflection { source, what, table, reflector, faults, numbers, failed: None, met, foreign, last }
    }

    /// Follows the source until the job ends. Whoever asks gets an answer when all that the source had to say at that time
    /// is in the table.
    pub(crate) async fn run(mut self, mut questions: Questions, cx: JobCx) -> anyhow::Result<()> {
        loop {
            let mut events = self.watch().ready_chunks(BATCH).fuse();
            loop {
                tokio::select! {
                    biased;
                    () = cx.cancelled() => return Ok(()),
                    Some(events) = events.next() => {
                        let working = cx.working();
                        if self.take(events) {
                            match self.status() {
                                (message, None) => cx.health.ok(message),
                                (message, Some(error)) => cx.health.degraded(message, error),
                            }
                        }
                        drop(working);
                        // A source that always has something to say lets others run.
                        tokio::task::yield_now().await;
                    }
                    // Who has asked may have gone.
                    Some(question) = questions.recv() => drop(question.send(())),
                    () = freed(&self.table, &mut self.foreign, self.what.kind, self.source.name()) => break,
                }
            }
        }
    }

    /// What the source says from now on.
    fn watch(&self) -> impl Stream<Item = Result<Said<R>, SourceError>> + Send + Unpin + use<R> {
        let (table, numbers, mut pool) = (self.table.clone(), self.numbers.clone(), Pool::default());
        said(&*self.source, self.what.clone(), move |json, from: &Origin| {
            let mut row = R::read(json, from)?;
            let snapshot = table.snapshot();
            let before = table.get(&snapshot, Query::raw_primary(KeyBuf::of(&row.key())));
            let outcome = match before {
                Some(before) if !before.is_of(from.kind, &from.source) => Outcome::Foreign,
                // As most are when a list comes again.
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

    /// Writes what was said. Whether there is something to tell of it.
    fn take(&mut self, said: Vec<Result<Said<R>, SourceError>>) -> bool {
        let mut events = Vec::with_capacity(said.len());
        let mut listing = self.faults.is_listing();
        let mut news = self.failed.is_some();
        for said in said {
            match said {
                Ok(said) => {
                    self.failed = None;
                    listing = match said {
                        Said::Restart => true,
                        Said::Listed => false,
                        _ => listing,
                    };
                    // A list has something to tell at its end.
                    news |= !listing && !matches!(said, Said::Progress);
                    events.extend(self.event(said));
                }
                Err(_) if self.source.tells_troubles() => {}
                Err(error) => self.failed = Some(error),
            }
        }
        let applied = self.reflector.apply(events);
        if applied.deleted > 0 {
            self.numbers.events(self.what.kind, Action::Delete, Outcome::Written, applied.deleted);
        }
        if news {
            self.last = applied;
        }
        for key in self.met.try_iter() {
            if self.foreign.insert(key.clone()) {
                let object = String::from_utf8_lossy(key.as_bytes()).trim_end_matches('\0').to_owned();
                let source = self.source.name();
                tracing::warn!(source, kind = %self.what.kind, object, "Object of another source, ignored here");
            }
        }
        news || self.failed.is_some()
    }

    fn event(&mut self, said: Said<R>) -> Option<Event<R>> {
        let (kind, source) = (self.what.kind, self.source.name());
        let query = |key: &Key| Query::raw_primary(R::key_of(kind, source, key));
        match said {
            Said::Restart => {
                self.faults.restart();
                Some(Event::Restart)
            }
            Said::Listed => {
                self.faults.listed();
                Some(Event::Listed)
            }
            Said::Applied(row) => {
                self.faults.right(&KeyBuf::of(&row.key()));
                Some(Event::Upsert(row))
            }
            Said::Wrong(wrong) => {
                let key = wrong.key.clone();
                let snapshot = self.table.snapshot();
                let before = key.as_ref().is_some_and(|key| self.table.get(&snapshot, query(key)).is_some());
                self.numbers.events(kind, Action::of(before), Outcome::Wrong, 1);
                self.faults.wrong(key.as_ref().map(|key| R::key_of(kind, source, key)), &wrong);
                key.map(|key| Event::Keep(query(&key)))
            }
            Said::Deleted(key) => {
                let raw = R::key_of(kind, source, &key);
                self.faults.right(&raw);
                self.foreign.remove(&raw);
                Some(Event::Delete(query(&key)))
            }
            Said::Progress => None,
        }
    }

    /// What came of it last, and what is wrong.
    fn status(&self) -> (String, Option<String>) {
        let Applied { upserted, deleted } = self.last;
        let total = self.table.len(&self.table.snapshot());
        let message = format!("{upserted} upserted, {deleted} deleted, {total} total objects");
        let error = self.failed.as_ref().map(ToString::to_string).or_else(|| self.faults.summary());
        (message, error)
    }
}

/// Waits until one of these rows has no owner any more.
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
        if foreign.is_empty() {
            return std::future::pending().await;
        }
        watch.changed().await;
    }
}

#[cfg(test)]
mod tests;
