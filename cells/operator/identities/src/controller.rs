//! The job that follows pods, namespaces and CiliumIdentities, and creates the identities that are missing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use hive::JobCx;
use hive::health::{SHOWN, summarize};
use identity_core::{ClusterIdentity, manifest, number};
use k8s_tables::Row;
use k8s_types::cilium::CiliumIdentity;
use k8s_types::core::Namespace;
use k8s_types::{Key, Kind, SmolStr, decode, with_type};
use k8s_writer::{Mutation, NotWritten, Target, Writer, Written};
use operator_election::Leadership;
use operator_objects::PodRow;
use statedb::{Batch, Initializer, RwTable, Table};
use token_bucket::Bucket;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::label_sets::{LabelSets, SetKey};
use crate::metrics::Numbers;
use crate::mutations::{create, unmark};
use crate::objects::Objects;
use crate::row::PodIdentity;

/// Creations a second: half of the requests that the operator sends by default, so that others are not held up.
pub const CREATIONS_PER_SECOND: f64 = 50.0;
/// Creations at once before the rate counts.
const BURST: u64 = 100;
/// How long a label set may wait for its identity until health reports it.
const SLOW: Duration = Duration::from_secs(5);
/// How often objects are compared with the table: one that came and went while the watch was away is missing there.
const COMPARE_INTERVAL: Duration = Duration::from_secs(300);

/// The tables that the job follows.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) pods: Arc<Table<PodRow>>,
    pub(crate) namespaces: Arc<Table<Row<Namespace>>>,
    pub(crate) identities: Arc<Table<Row<CiliumIdentity>>>,
}

/// Creates identities of the label sets of pods.
pub(crate) struct Controller {
    pub(crate) tables: Tables,
    pub(crate) sets: LabelSets,
    pub(crate) objects: Objects,
    pub(crate) rows: RwTable<PodIdentity>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) leadership: Leadership,
    pub(crate) numbers: Numbers,
}

/// A write in flight.
struct InFlight {
    set: SetKey,
    /// Since when the labels had waited.
    since: Instant,
    begun: Instant,
    is_creation: bool,
}

type Outcome = (u32, Result<Written, NotWritten>);

struct Run {
    controller: Controller,
    /// Label sets without an identity, in the order in which they came.
    queue: VecDeque<SetKey>,
    bucket: Bucket,
    /// When the next creation is permitted.
    next_creation: Instant,
    in_flight: BTreeMap<u32, InFlight>,
    writes: FuturesUnordered<BoxFuture<'static, Outcome>>,
    /// Ids that other labels were found to have before the watch has shown it.
    taken: BTreeSet<u32>,
    /// Since when label sets wait that have no identity yet.
    waiting: BTreeMap<SetKey, Instant>,
    /// Label sets for which no id was left, in the order in which they came.
    exhausted: Vec<SetKey>,
    /// Whether no id was left at the last search, and none was freed since.
    is_exhausted: bool,
}

impl Controller {
    pub(crate) async fn run(self, initializer: Initializer<PodIdentity>, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Waits for the lists of pods, namespaces and CiliumIdentities");
        let tables = self.tables.clone();
        let listed = async {
            tables.identities.wait_initialized().await;
            tables.namespaces.wait_initialized().await;
            tables.pods.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let now = Instant::now();
        let mut run = Run {
            bucket: Bucket::new(CREATIONS_PER_SECOND, BURST, now.into_std()),
            controller: self,
            queue: VecDeque::new(),
            next_creation: now,
            in_flight: BTreeMap::new(),
            writes: FuturesUnordered::new(),
            taken: BTreeSet::new(),
            waiting: BTreeMap::new(),
            exhausted: Vec::new(),
            is_exhausted: false,
        };
        let (mut pods, mut namespaces, mut identities) =
            (tables.pods.changes(), tables.namespaces.changes(), tables.identities.changes());
        // Identities before pods: their labels have most of them already.
        run.read_identities(&identities.try_next());
        drop(namespaces.try_next());
        run.read_pods(&pods.try_next());
        run.controller.rows.transact(|w| initializer.done(w));
        let mut compare = interval_at(now + COMPARE_INTERVAL, COMPARE_INTERVAL);
        compare.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            run.create();
            let slow = run.report(&cx);
            let due = (!run.queue.is_empty()).then_some(run.next_creation);
            let next = slow.into_iter().chain(due).chain(run.next_release()).min();
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                batch = identities.next() => run.read_identities(&batch),
                batch = namespaces.next() => run.read_namespaces(&batch),
                batch = pods.next() => run.read_pods(&batch),
                Some((id, outcome)) = run.writes.next(), if !run.writes.is_empty() => run.written(id, outcome),
                () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
                _ = compare.tick() => run.compare(),
            }
        }
    }
}

impl Run {
    fn read_pods(&mut self, batch: &Batch<PodRow>) {
        let snapshot = self.controller.tables.namespaces.snapshot();
        let mut changed = BTreeSet::new();
        for change in batch {
            let pod = &change.object;
            let (namespace, name) = (&pod.namespace, &pod.name);
            changed.extend(match change.deleted {
                true => self.controller.sets.remove(&Key::new(namespace.clone(), name.clone())),
                false => {
                    let row = self.controller.tables.namespaces.get(&snapshot, Row::by_name("", namespace));
                    self.controller.sets.update(pod, row.map(|row| &row.object))
                }
            });
            self.controller.numbers.pod();
        }
        self.sync(changed);
    }

    /// Reads the pods of namespaces that have changed: labels of theirs are labels of the pods.
    fn read_namespaces(&mut self, batch: &Batch<Row<Namespace>>) {
        let names: BTreeSet<SmolStr> = batch
            .iter()
            .filter(|change| !change.deleted)
            .map(|change| change.object.metadata.name.clone())
            .collect();
        let tables = self.controller.tables.clone();
        let (namespaces, pods) = (tables.namespaces.snapshot(), tables.pods.snapshot());
        let mut changed = BTreeSet::new();
        for name in names {
            let Some(namespace) = tables.namespaces.get(&namespaces, Row::by_name("", &name)) else {
                continue;
            };
            for pod in tables.pods.prefix(&pods, PodRow::in_namespace(&name)) {
                changed.extend(self.controller.sets.update(pod, Some(&namespace.object)));
            }
        }
        self.sync(changed);
    }

    fn read_identities(&mut self, batch: &Batch<Row<CiliumIdentity>>) {
        let (range, now) = (self.controller.objects.range(), Instant::now());
        let mut changed = BTreeSet::new();
        for change in batch {
            let object = &change.object.object;
            match ClusterIdentity::read(object, range) {
                Ok(identity) if !change.deleted => {
                    self.taken.remove(&identity.id);
                    changed.extend(self.controller.objects.upsert(&identity, now));
                }
                // One that is no identity is one less; agents name it in their health.
                _ => {
                    let id = number(&object.metadata.name);
                    changed.extend(id.into_iter().flat_map(|id| self.controller.objects.remove(id, now)));
                }
            }
        }
        self.sync(changed);
    }

    /// Brings queue, marks and rows of label sets up to date.
    fn sync(&mut self, sets: BTreeSet<SetKey>) {
        let now = Instant::now();
        for set in &sets {
            let found = self.controller.objects.of(set);
            let has_pods = self.controller.sets.get(set).is_some();
            match (has_pods, found) {
                (false, _) => {
                    self.waiting.remove(set);
                    self.withdraw(set);
                }
                (true, Some((id, is_marked))) => {
                    self.waiting.remove(set);
                    if is_marked {
                        let mutation = unmark(self.controller.leadership.clone());
                        self.begin(id, InFlight::of(set, false, now), mutation);
                    }
                }
                (true, None) if !self.waiting.contains_key(set) => {
                    self.waiting.insert(set.clone(), now);
                    self.queue.push_back(set.clone());
                }
                (true, None) => {}
            }
        }
        self.write_rows(sets.iter().map(|set| (set, "")));
    }

    /// Withdraws the creation of an identity that no pod needs any more.
    fn withdraw(&self, set: &SetKey) {
        if let Some(id) = self.created_id(set) {
            self.controller.writer.forget(&target(id));
        }
    }

    /// Returns the id that is being created for a label set.
    fn created_id(&self, set: &SetKey) -> Option<u32> {
        let creation = self.in_flight.iter().find(|(_, write)| write.is_creation && write.set == *set);
        creation.map(|(id, _)| *id)
    }

    /// Begins the creations that the rate permits.
    fn create(&mut self) {
        let now = Instant::now();
        if self.controller.objects.release(now) {
            self.retry_exhausted();
        }
        while self.next_creation <= now
            && let Some(set) = self.queue.pop_front()
        {
            let Some(since) = self.waiting.get(&set).copied().filter(|_| self.created_id(&set).is_none())
            else {
                continue;
            };
            let Some((labels, _)) = self.controller.sets.get(&set) else { continue };
            let (taken, in_flight) = (&self.taken, &self.in_flight);
            let is_taken = |id| taken.contains(&id) || in_flight.contains_key(&id);
            let objects = &self.controller.objects;
            let free = || if self.is_exhausted { None } else { objects.free_id(labels, is_taken) };
            let Some(id) = objects.former_id(&set, is_taken).or_else(free) else {
                self.is_exhausted = true;
                let error = format!("no identity is left in {}", objects.range());
                self.write_rows([(&set, error.as_str())]);
                self.exhausted.push(set);
                continue;
            };
            let mutation = create(manifest(labels), self.controller.leadership.clone());
            let reserved = self.bucket.reserve(now.into_std());
            self.next_creation = reserved.map_or(now, |token| token.at.into());
            self.begin(id, InFlight::of(&set, true, since), mutation);
            self.write_rows([(&set, "")]);
        }
    }

    /// Puts label sets into the queue again after an id was freed.
    fn retry_exhausted(&mut self) {
        self.is_exhausted = false;
        self.queue.extend(self.exhausted.drain(..));
    }

    /// Returns when an id is freed for which label sets wait.
    fn next_release(&mut self) -> Option<Instant> {
        if self.exhausted.is_empty() { None } else { self.controller.objects.next_release() }
    }

    /// Begins a write of the object of an id, unless there is one.
    fn begin(&mut self, id: u32, write: InFlight, mutation: Mutation) {
        if self.in_flight.contains_key(&id) {
            return;
        }
        let (table, name) = (self.controller.tables.identities.clone(), id.to_string());
        // The object as the watch has it: operators may not `get` identities.
        let present =
            move || table.get(&table.snapshot(), Row::by_name("", &name)).map(|row| with_type(&row.object));
        let ticket = self.controller.writer.enqueue(target(id), mutation.read_from_cache(present));
        self.in_flight.insert(id, write);
        self.writes.push(Box::pin(async move { (id, ticket.done().await) }));
    }

    /// Takes the outcome of a write over, before the watch shows it.
    fn written(&mut self, id: u32, outcome: Result<Written, NotWritten>) {
        let object = match outcome {
            Ok(Written { object }) => object,
            Err(NotWritten::Superseded { .. }) => None,
            Err(NotWritten::GaveUp { .. }) if self.controller.leadership.holds() => {
                self.taken.insert(id);
                None
            }
            // This process stops or has lost the lease: the id stays in flight, lest it is tried again.
            Err(_) => return,
        };
        let Some(write) = self.in_flight.remove(&id) else { return };
        let identity = object
            .and_then(|object| decode::<CiliumIdentity>(&object).ok())
            .and_then(|object| ClusterIdentity::read(&object, self.controller.objects.range()).ok());
        let now = Instant::now();
        if write.is_creation {
            let waited = write.begun.saturating_duration_since(write.since);
            self.controller.numbers.identity(
                identity.is_some(),
                waited,
                now.saturating_duration_since(write.begun),
            );
        }
        let mut changed = BTreeSet::from([write.set.clone()]);
        match identity {
            Some(identity) => {
                if write.is_creation {
                    tracing::info!(identity = id, labels = ?identity.labels.texts(), "CiliumIdentity created");
                }
                changed.extend(self.controller.objects.upsert(&identity, now));
            }
            None => {
                // The id of a withdrawn creation is free for others.
                if !self.taken.contains(&id) {
                    self.retry_exhausted();
                }
                // Another id, if there are pods with these labels again or still.
                if self.waiting.contains_key(&write.set) {
                    self.queue.push_back(write.set);
                }
            }
        }
        self.sync(changed);
    }

    /// Removes objects that the table does not have, and searches again for ids where there was none.
    fn compare(&mut self) {
        self.taken.clear();
        self.retry_exhausted();
        let table = &self.controller.tables.identities;
        let (snapshot, now) = (table.snapshot(), Instant::now());
        let is_missing = |id: &u32| table.get(&snapshot, Row::by_name("", &id.to_string())).is_none();
        let gone: Vec<u32> = self.controller.objects.ids().filter(is_missing).collect();
        let changed = gone.into_iter().flat_map(|id| self.controller.objects.remove(id, now)).collect();
        self.sync(changed);
        let queued: BTreeSet<SetKey> = self.queue.iter().cloned().collect();
        self.queue.extend(self.waiting.keys().filter(|set| !queued.contains(*set)).cloned());
    }

    /// Writes the rows of label sets, with the reason why none is being created.
    fn write_rows<'a>(&self, sets: impl IntoIterator<Item = (&'a SetKey, &'a str)>) {
        let now = Instant::now();
        let rows: Vec<_> = sets
            .into_iter()
            .map(|(set, error)| {
                let (found, creating) = (self.controller.objects.of(set), self.created_id(set));
                let row = self.controller.sets.get(set).map(|(labels, pods)| PodIdentity {
                    labels: labels.clone(),
                    pods,
                    id: found.map(|(id, _)| id).or(creating),
                    is_created: found.is_some(),
                    error: error.to_owned(),
                    since: now,
                });
                (set, row)
            })
            .collect();
        if rows.is_empty() {
            return;
        }
        self.controller.rows.transact(|w| {
            for (set, row) in rows {
                let known = w.get(PodIdentity::by_key(set)).map(|row| row.since);
                match row {
                    Some(row) => drop(w.insert(PodIdentity { since: known.unwrap_or(now), ..row })),
                    None => drop(w.delete(PodIdentity::by_key(set))),
                }
            }
        });
    }

    /// Reports label sets that have waited for too long. Returns when the next one will have.
    fn report(&self, cx: &JobCx) -> Option<Instant> {
        let now = Instant::now();
        let slow: Vec<&SetKey> =
            self.waiting.iter().filter(|(_, since)| **since + SLOW <= now).map(|(set, _)| set).collect();
        let (sets, pods) = self.controller.sets.counts();
        match slow.is_empty() {
            true => cx.health.ok(format_args!(
                "{sets} label sets of {pods} pods, {} without identity",
                self.waiting.len()
            )),
            false => {
                let snapshot = self.controller.rows.snapshot();
                let line = |set: &&SetKey| {
                    let row = self.controller.rows.get(&snapshot, PodIdentity::by_key(set));
                    match row.map(|row| row.error.clone()).filter(|error| !error.is_empty()) {
                        Some(error) => format!("{set}: {error}"),
                        None => set.to_string(),
                    }
                };
                let message = format_args!("{} of {sets} label sets wait for their identity", slow.len());
                cx.health.degraded(message, summarize(slow.iter().map(line), SHOWN, "; "));
            }
        }
        self.waiting.values().map(|since| *since + SLOW).filter(|due| *due > now).min()
    }
}

impl InFlight {
    fn of(set: &SetKey, is_creation: bool, since: Instant) -> InFlight {
        InFlight { set: set.clone(), since, begun: Instant::now(), is_creation }
    }
}

fn target(id: u32) -> Target {
    Target::new(Kind::CiliumIdentity, Key::new("", id.to_string()))
}
