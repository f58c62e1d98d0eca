//! The job that keeps identities and CiliumIdentities equal.
//!
//! All objects are rows of the table, so that policy selects pods of other nodes, too. Labels that are new to the cluster get
//! an object: its id is the first free one in the order that the labels determine, so two nodes that are at it at once want the
//! same object, and one of them finds it made. An object that goes while it is in use here is created again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use hive::health::{SHOWN, summarize};
use hive::{Health, JobCx};
use identity_core::{ClusterIdentity, HEARTBEAT, manifest, number};
use k8s_tables::Row;
use k8s_tables::cilium::CiliumIdentity;
use k8s_types::{Key, Kind, decode, with_type};
use k8s_writer::{Mutation, NotWritten, Step, Target, Writer, Written};
use labels::LabelArray;
use serde_json::Value;
use statedb::{Changes, Initializer, Obj, Snapshot, Table};
use tokio::time::{Instant, sleep_until};

use crate::allocator::Identities;
use crate::cluster::Change;
use crate::config::ManagementMode;
use crate::identity::Identity;
use crate::request::{IdentityRequest, Requests};

/// How long a label set may wait for its identity until health reports it.
const SLOW: Duration = Duration::from_secs(5);

/// Why a label set has no identity where agents create none.
const WAITS_FOR_OPERATOR: &str = "the operator has not created it yet (identity-management-mode=operator): its health and its table pod-identities say why";

/// How soon the watch shows an object that was written; one that it does not show by then has been deleted meanwhile.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);

/// The row of health about objects that are left out.
const IGNORED: &str = "ignored-ciliumidentities";

/// The parameters of the job.
pub(crate) struct Backend {
    pub(crate) identities: Identities,
    pub(crate) requests: Requests,
    pub(crate) objects: Arc<Table<Row<CiliumIdentity>>>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) mode: ManagementMode,
    pub(crate) sync_interval: Duration,
    /// Done when all objects have been read.
    pub(crate) initializer: Initializer<Identity>,
    /// The parent of the row about objects that are ignored.
    pub(crate) health: Health,
}

/// The state of the job.
struct Run {
    backend: Parts,
    objects: Changes<Row<CiliumIdentity>>,
    rows: Changes<Identity>,
    /// Identities in use whose object is gone, or marked as unused.
    unprotected: BTreeSet<u32>,
    marked: BTreeSet<u32>,
    writes: FuturesUnordered<BoxFuture<'static, (u32, Result<Written, NotWritten>)>>,
    /// The ids of these writes.
    in_flight: BTreeSet<u32>,
    /// Written ids that the watch has not shown yet, with the time when they count as deleted.
    unseen: BTreeMap<u32, Instant>,
    /// Ids whose objects were found to have other labels, until the watch shows a change of them.
    taken: BTreeSet<u32>,
    /// Objects that are no identities, by name, with the reason.
    ignored: BTreeMap<String, String>,
}

struct Parts {
    identities: Identities,
    requests: Requests,
    table: Arc<Table<Row<CiliumIdentity>>>,
    writer: Arc<Writer>,
    mode: ManagementMode,
    health: Health,
}

impl Backend {
    pub(crate) async fn run(self, cx: JobCx) {
        let Backend { identities, requests, objects, writer, mode, sync_interval, initializer, health } =
            self;
        let mut run = Run {
            objects: objects.changes(),
            rows: identities.table.reader().changes(),
            backend: Parts { identities, requests, table: objects, writer, mode, health },
            unprotected: BTreeSet::new(),
            marked: BTreeSet::new(),
            writes: FuturesUnordered::new(),
            in_flight: BTreeSet::new(),
            unseen: BTreeMap::new(),
            taken: BTreeSet::new(),
            ignored: BTreeMap::new(),
        };
        // Before the first list is complete nothing is known to be missing.
        let table = run.backend.table.clone();
        tokio::select! {
            () = table.wait_initialized() => {}
            () = cx.cancelled() => return,
        }
        run.read_objects(&table.snapshot());
        run.backend.identities.complete(initializer);
        let mut sync = tokio::time::interval_at(Instant::now() + sync_interval, sync_interval);
        sync.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let snapshot = table.snapshot();
            let objects_changed = run.read_objects(&snapshot);
            let unseen = run.expire_unseen(&snapshot);
            // A later snapshot: with the rows of these objects.
            let (rows_changed, requests_changed, due) = run.write(&run.backend.identities.table.snapshot());
            let next = run.report(&cx.health).into_iter().chain(due).chain(unseen).min();
            drop(snapshot);
            tokio::select! {
                () = objects_changed.changed() => {}
                () = rows_changed.changed() => {}
                () = requests_changed.changed() => {}
                Some((id, outcome)) = run.writes.next(), if !run.writes.is_empty() => run.written(id, outcome),
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                _ = sync.tick() => run.compare(),
                () = cx.cancelled() => return,
            }
        }
    }
}

impl Run {
    /// Takes the changes of objects over into the table of identities.
    fn read_objects(&mut self, snapshot: &Snapshot) -> statedb::Watch {
        let (changes, watch) = self.objects.read(snapshot, usize::MAX);
        let mut applied = Vec::new();
        let before = self.ignored.len();
        let range = self.backend.identities.range;
        for change in &changes {
            let object = &change.object.object;
            let name = object.metadata.name.as_str();
            let known = number(name).filter(|id| range.contains(*id));
            self.ignored.remove(name);
            if let Some(id) = &known {
                self.unseen.remove(id);
                self.taken.remove(id);
            }
            match ClusterIdentity::read(object, range) {
                _ if change.deleted => applied.extend(known.map(Change::Delete)),
                Ok(identity) => applied.push(Change::Upsert(identity)),
                Err(fault) => {
                    applied.extend(known.map(Change::Delete));
                    self.ignored.insert(name.to_owned(), fault.to_string());
                }
            }
        }
        self.backend.identities.apply(applied);
        if !changes.is_empty() && (before, self.ignored.len()) != (0, 0) {
            report_ignored(&self.backend.health, &self.ignored);
        }
        watch
    }

    /// Begins the writes that are missing; also returns when the next one is due.
    fn write(&mut self, snapshot: &Snapshot) -> (statedb::Watch, statedb::Watch, Option<Instant>) {
        let (changes, rows_changed) = self.rows.read(snapshot, usize::MAX);
        for change in &changes {
            let row = &change.object;
            let set = |ids: &mut BTreeSet<u32>, is_in: bool| match is_in && !change.deleted {
                true => ids.insert(row.id),
                false => ids.remove(&row.id),
            };
            set(&mut self.unprotected, row.lacks_object() && self.backend.identities.range.contains(row.id));
            set(&mut self.marked, row.is_marked());
        }
        let requests = self.backend.requests.table();
        let (waiting, requests_changed) = requests.all_watch(snapshot);
        let waiting: Vec<_> = waiting.cloned().collect();
        let now = Instant::now();
        let due = waiting.iter().map(|request| request.due).filter(|due| now < *due).min();
        for request in waiting {
            self.serve(snapshot, &request, now);
        }
        for id in self.unprotected.clone() {
            match self.backend.mode {
                ManagementMode::Operator => self.backend.identities.yield_to_cluster(id),
                ManagementMode::Agent | ManagementMode::Both => {
                    let row = self.backend.identities.table.get(snapshot, Identity::by_id(id));
                    // One that has become an object of others is looked at again now and then.
                    let row = row.filter(|_| !self.taken.contains(&id));
                    if let Some(labels) = row.map(|row| row.labels.clone()) {
                        self.begin(id, create(self.backend.present(id), &labels));
                    }
                }
            }
        }
        if self.backend.mode != ManagementMode::Operator {
            for id in self.marked.clone() {
                self.begin(id, unmark(self.backend.present(id)));
            }
        }
        (rows_changed, requests_changed, due)
    }

    /// Ends a request whose labels have an identity, else begins to create one.
    fn serve(&mut self, snapshot: &Snapshot, request: &IdentityRequest, now: Instant) {
        let Parts { identities, requests, mode, .. } = &self.backend;
        let table = identities.table.reader();
        let mut rows = table.list(snapshot, Identity::by_labels(&request.labels));
        if rows.any(|row| row.object.is_some() || !row.users.is_empty()) {
            return requests.finish(&request.labels);
        }
        if *mode == ManagementMode::Operator {
            return requests.set(&request.labels, None, WAITS_FOR_OPERATOR);
        }
        if now < request.due {
            return;
        }
        if request.id.is_some_and(|id| self.in_flight.contains(&id)) {
            return;
        }
        let is_taken = |id| self.taken.contains(&id) || self.in_flight.contains(&id);
        match identities.free_id(&request.labels, is_taken) {
            Some(id) => {
                requests.set(&request.labels, Some(id), "");
                self.begin(id, create(self.backend.present(id), &request.labels));
            }
            None => {
                let error = identities.exhausted(table.all(snapshot).map(|row| &**row));
                requests.set(&request.labels, None, &error.to_string());
            }
        }
    }

    /// Begins a write of the object of an id, unless there is one.
    fn begin(&mut self, id: u32, mutation: Mutation) {
        if self.in_flight.insert(id) {
            let target = Target::new(Kind::CiliumIdentity, Key::new("", id.to_string()));
            let ticket = self.backend.writer.enqueue(target, mutation);
            self.writes.push(Box::pin(async move { (id, ticket.done().await) }));
        }
    }

    /// Takes the outcome of a write over, before the watch shows it.
    fn written(&mut self, id: u32, outcome: Result<Written, NotWritten>) {
        let object = match outcome {
            Ok(Written { object }) => object,
            Err(NotWritten::GaveUp { .. }) => {
                // If the object is gone by now, the watch may have shown that already.
                if !self.is_missing(&self.backend.table.snapshot(), id) {
                    self.taken.insert(id);
                }
                None
            }
            // Stopped, as nothing else replaces these mutations: the id stays in flight, lest it is tried again.
            Err(_) => return,
        };
        self.in_flight.remove(&id);
        let Some(object) = object else { return };
        let identity = decode::<CiliumIdentity>(&object)
            .ok()
            .and_then(|object| ClusterIdentity::read(&object, self.backend.identities.range).ok());
        if let Some(identity) = identity {
            tracing::info!(identity = id, labels = ?identity.labels.texts(), "CiliumIdentity written");
            self.backend.identities.apply([Change::Upsert(identity)]);
            // The watch may have shown its deletion already.
            self.unseen.insert(id, Instant::now() + SHOWN_WITHIN);
        }
    }

    /// Takes objects away that were written and are not among those of the watch in time. Returns when the next are due.
    fn expire_unseen(&mut self, snapshot: &Snapshot) -> Option<Instant> {
        let now = Instant::now();
        let mut expired = Vec::new();
        self.unseen.retain(|id, due| {
            let is_due = *due <= now;
            expired.extend(is_due.then_some(*id));
            !is_due
        });
        let gone = expired.into_iter().filter(|id| self.is_missing(snapshot, *id)).map(Change::Delete);
        self.backend.identities.apply(gone);
        self.unseen.values().min().copied()
    }

    fn is_missing(&self, snapshot: &Snapshot, id: u32) -> bool {
        self.backend.table.get(snapshot, Row::by_name("", &id.to_string())).is_none()
    }

    /// Compares all identities with the objects: one that was written and deleted while the watch was away is missing.
    fn compare(&mut self) {
        self.taken.clear();
        let table = self.backend.identities.table.reader();
        let snapshot = table.snapshot();
        let is_gone = |row: &&Obj<Identity>| row.object.is_some() && self.is_missing(&snapshot, row.id);
        let with_object = table.all(&snapshot).filter(is_gone);
        let gone: Vec<Change> = with_object.map(|row| Change::Delete(row.id)).collect();
        self.backend.identities.apply(gone);
    }

    /// Reports label sets that have waited for too long. Returns when the next one will have.
    fn report(&self, health: &Health) -> Option<Instant> {
        let table = self.backend.requests.table();
        let snapshot = table.snapshot();
        let oldest = table.all(&snapshot).map(|row| row.since.max(row.due)).min();
        match oldest.map(|since| since + SLOW) {
            Some(slow) if slow <= Instant::now() => {
                let count = table.len(&snapshot);
                let label = |row: &statedb::Obj<IdentityRequest>| match row.error.as_str() {
                    "" => row.labels.texts().join(","),
                    error => format!("{}: {error}", row.labels.texts().join(",")),
                };
                let first = table.all(&snapshot).map(label);
                health.degraded(
                    format_args!("{count} label sets wait for an identity of the cluster"),
                    summarize(first, SHOWN, "; "),
                );
                None
            }
            next => {
                health.ok("Running");
                next
            }
        }
    }
}

impl Parts {
    /// Returns a function that reads an object as the watch has it: the agent's role has no `get` for identities.
    fn present(&self, id: u32) -> impl Fn() -> Option<Value> + Send + Sync + 'static {
        let (table, name) = (self.table.clone(), id.to_string());
        move || table.get(&table.snapshot(), Row::by_name("", &name)).map(|row| with_type(&row.object))
    }
}

/// Reports objects that are left out, by name, with the reason.
pub(crate) fn report_ignored(health: &Health, ignored: &BTreeMap<String, String>) {
    // A new reporter each time: one that was closed remembers its last report.
    let health = health.child(IGNORED);
    match ignored.len() {
        0 => health.close(),
        count => {
            let lines = ignored.iter().map(|(name, reason)| format!("{name}: {reason}"));
            let error = format!("{}; delete them", summarize(lines, SHOWN, "; "));
            health.degraded(format_args!("Ignoring {count} CiliumIdentities"), error);
        }
    }
}

/// Creates the object of an identity. One of the same labels that is there already is as good.
fn create(present: impl Fn() -> Option<Value> + Send + Sync + 'static, labels: &LabelArray) -> Mutation {
    let object = manifest(labels);
    let first = Step::Create(object.clone());
    let decide = move |present: Option<&Value>| match present {
        None => Step::Create(object.clone()),
        Some(present) if present["security-labels"] == object["security-labels"] => Step::Done,
        Some(_) => Step::GiveUp("the id belongs to other labels".to_owned()),
    };
    Mutation::new(decide).read_from_cache(present).at_first(first)
}

/// Removes the mark of the garbage collection.
fn unmark(present: impl Fn() -> Option<Value> + Send + Sync + 'static) -> Mutation {
    let decide = |present: Option<&Value>| {
        let Some(present) = present else { return Step::GiveUp("the identity is gone".to_owned()) };
        let mut object = present.clone();
        let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        match annotations.and_then(|annotations| annotations.remove(HEARTBEAT)) {
            Some(_) => Step::Update(object),
            None => Step::Done,
        }
    };
    Mutation::new(decide).read_from_cache(present)
}
