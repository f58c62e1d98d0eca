//! The job that follows CiliumEndpoints and writes slices of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use hive::JobCx;
use k8s_tables::Row;
use k8s_types::cilium::{CiliumEndpointSlice, CiliumNode};
use k8s_types::core::Namespace;
use k8s_types::{Key, Kind, SmolStr};
use k8s_writer::{Mutation, Step, Target, Writer};
use operator_election::Leadership;
use operator_objects::EndpointRow;
use statedb::{Change, Obj, ReadSource, Table};
use token_bucket::Bucket;
use tokio::time::{Instant, sleep_until};

use crate::assignment::Assignment;
use crate::config::RateLimit;
use crate::contents;
use crate::queue::Queue;

/// The annotation of namespaces of which the slices are written first.
const PRIORITY: (&str, &str) = ("cilium.io/ces-namespace", "priority");

/// The tables that slices are made of, and their own.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) endpoints: Arc<Table<EndpointRow>>,
    pub(crate) slices: Arc<Table<Row<CiliumEndpointSlice>>>,
    pub(crate) namespaces: Arc<Table<Row<Namespace>>>,
    pub(crate) nodes: Arc<Table<Row<CiliumNode>>>,
}

impl Tables {
    fn slice(&self, source: &impl ReadSource, name: &str) -> Option<Obj<Row<CiliumEndpointSlice>>> {
        self.slices.get(source, Row::by_name("", name)).cloned()
    }

    /// The endpoints of a slice that count, by name.
    fn counting(&self, source: &impl ReadSource, slice: &CiliumEndpointSlice) -> BTreeSet<SmolStr> {
        let counts = |name: &&SmolStr| {
            let endpoint = self.endpoints.get(source, EndpointRow::by_name(&slice.namespace, name));
            endpoint.is_some_and(|row| row.core.is_some())
        };
        slice.endpoints.iter().map(|endpoint| &endpoint.name).filter(counts).cloned().collect()
    }

    fn has_priority(&self, namespace: &str) -> bool {
        let snapshot = self.namespaces.snapshot();
        let row = self.namespaces.get(&snapshot, Row::<Namespace>::by_name("", namespace));
        row.is_some_and(|row| {
            row.metadata.annotations.get(PRIORITY.0).is_some_and(|value| value == PRIORITY.1)
        })
    }
}

/// Keeps the slices equal to the endpoints.
pub(crate) struct Slicer {
    pub(crate) tables: Tables,
    pub(crate) writer: Arc<Writer>,
    pub(crate) leadership: Leadership,
    /// Endpoints of a slice at most.
    pub(crate) max: usize,
    /// Rates by nodes.
    pub(crate) limits: Vec<RateLimit>,
}

struct State {
    assignment: Assignment,
    queue: Queue,
    bucket: Bucket,
    /// When the next write is permitted.
    next_write: Instant,
}

impl State {
    /// Reserves the next write.
    fn reserve(&mut self, now: Instant) {
        self.next_write = self.bucket.reserve(now.into_std()).map_or(now, |token| token.at.into());
    }
}

impl Slicer {
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Waits for the lists of CiliumEndpoints, CiliumEndpointSlices and namespaces");
        let listed = async {
            self.tables.endpoints.wait_initialized().await;
            self.tables.slices.wait_initialized().await;
            self.tables.namespaces.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let (now, RateLimit { limit, burst, .. }) = (Instant::now(), self.limit());
        let mut state = State {
            assignment: Assignment::new(self.max),
            queue: Queue::default(),
            bucket: Bucket::new(limit, burst, now.into_std()),
            next_write: now,
        };
        state.reserve(now);
        let (mut endpoints, mut slices) = (self.tables.endpoints.changes(), self.tables.slices.changes());
        self.adopt_all(&mut state);
        loop {
            let due = state.queue.next().map(|at| at.max(state.next_write));
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                batch = endpoints.next() => batch.iter().for_each(|change| self.endpoint(&mut state, change)),
                batch = slices.next() => batch.iter().for_each(|change| self.slice(&mut state, change)),
                () = sleep_until(due.unwrap_or(now)), if due.is_some() => self.write_next(&mut state),
            }
            let (endpoints, slices) = state.assignment.counts();
            cx.health.ok(format_args!("{endpoints} endpoints in {slices} slices"));
        }
    }

    /// Takes over the slices of the previous leader.
    fn adopt_all(&self, state: &mut State) {
        let snapshot = self.tables.slices.snapshot();
        for row in self.tables.slices.all(&snapshot) {
            self.adopt(state, row, &snapshot);
        }
    }

    fn adopt(&self, state: &mut State, row: &Row<CiliumEndpointSlice>, source: &impl ReadSource) {
        let name = &row.metadata.name;
        state.assignment.adopt(name, &row.namespace, self.tables.counting(source, row));
        if !self.is_current(state, name, source) {
            self.enqueue(state, name);
        }
    }

    /// Follows an endpoint.
    fn endpoint(&self, state: &mut State, change: &Change<EndpointRow>) {
        let key = Key::new(change.object.namespace.clone(), change.object.name.clone());
        let desired = if change.deleted { None } else { change.object.core.as_deref() };
        let Some(desired) = desired else {
            if let Some(slice) = state.assignment.remove(&key) {
                self.enqueue(state, &slice);
            }
            return;
        };
        let slice = state.assignment.assign(&key);
        let snapshot = self.tables.slices.snapshot();
        let is_written =
            self.tables.slice(&snapshot, &slice).is_some_and(|row| row.endpoints.contains(desired));
        if !is_written {
            self.enqueue(state, &slice);
        }
    }

    /// Follows a slice: own writes, and those of others.
    fn slice(&self, state: &mut State, change: &Change<Row<CiliumEndpointSlice>>) {
        let (name, snapshot) = (&change.object.metadata.name, self.tables.slices.snapshot());
        if !change.deleted && !state.assignment.has(name) {
            self.adopt(state, &change.object, &snapshot);
        } else if !self.is_current(state, name, &snapshot) {
            self.enqueue(state, name);
        }
    }

    fn enqueue(&self, state: &mut State, slice: &SmolStr) {
        let namespace = state.assignment.contents(slice).map(|(namespace, _)| namespace);
        let has_priority = namespace.is_some_and(|namespace| self.tables.has_priority(namespace));
        state.queue.add(slice, has_priority, Instant::now());
    }

    /// Whether the object of a slice is what it should be.
    fn is_current(&self, state: &State, slice: &str, source: &impl ReadSource) -> bool {
        let present = self.tables.slice(source, slice);
        match (state.assignment.contents(slice), present) {
            (Some((namespace, names)), Some(present)) => {
                let desired = contents::desired(namespace, names, &self.tables.endpoints, source);
                !names.is_empty() && contents::is_equal(&present, namespace, &desired)
            }
            (desired, present) => desired.is_none() && present.is_none(),
        }
    }

    /// Writes the first slice that is due and differs.
    fn write_next(&self, state: &mut State) {
        let now = Instant::now();
        while let Some(slice) = state.queue.take(now) {
            if state.assignment.forget_empty(&slice) {
                self.delete(&slice);
            } else if self.is_current(state, &slice, &self.tables.slices.snapshot()) {
                continue;
            } else if let Some((namespace, names)) = state.assignment.contents(&slice) {
                self.write(&slice, namespace.clone(), names.clone());
            }
            let RateLimit { limit, burst, .. } = self.limit();
            state.bucket.adjust(limit, burst as f64, now.into_std());
            state.reserve(now);
            return;
        }
    }

    /// Returns the rate for as many nodes as there are.
    fn limit(&self) -> RateLimit {
        let nodes = self.tables.nodes.len(&self.tables.nodes.snapshot());
        let limit = self.limits.iter().rfind(|limit| limit.nodes <= nodes);
        *limit.unwrap_or(&self.limits[0])
    }

    /// Writes a slice with the states that its endpoints have then.
    fn write(&self, slice: &SmolStr, namespace: SmolStr, names: BTreeSet<SmolStr>) {
        let (tables, name, leadership) = (self.tables.clone(), slice.clone(), self.leadership.clone());
        self.mutate(slice, move || {
            let snapshot = tables.slices.snapshot();
            let present = tables.slice(&snapshot, &name);
            let present = present.as_ref().map(|row| &row.object);
            let desired = contents::desired(&namespace, &names, &tables.endpoints, &snapshot);
            if desired.is_empty()
                || present.is_some_and(|found| contents::is_equal(found, &namespace, &desired))
            {
                // If all its endpoints are gone, the job gets to know and deletes it.
                return Step::Done;
            }
            if !leadership.holds() {
                return Step::GiveUp("this process does not lead any more".to_owned());
            }
            let object = contents::object(present, &namespace, &desired);
            if present.is_some() { Step::Update(object) } else { Step::Create(object) }
        });
    }

    fn delete(&self, slice: &SmolStr) {
        let (tables, name, leadership) = (self.tables.clone(), slice.clone(), self.leadership.clone());
        self.mutate(slice, move || match tables.slice(&tables.slices.snapshot(), &name) {
            None => Step::Done,
            Some(_) if !leadership.holds() => Step::GiveUp("this process does not lead any more".to_owned()),
            Some(row) => Step::delete(row.metadata.uid.clone()),
        });
    }

    fn mutate(&self, slice: &SmolStr, decide: impl Fn() -> Step + Send + Sync + 'static) {
        let target = Target::new(Kind::CiliumEndpointSlice, Key::new("", slice.clone()));
        // The object is the table's, which the function reads itself.
        let mutation = Mutation::new(move |_| decide()).read_from_cache(|| None);
        // Dropped: the next change of the object shows how it went.
        drop(self.writer.enqueue(target, mutation));
    }
}
