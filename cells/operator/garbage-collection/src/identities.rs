//! The collection of identities that no endpoint uses.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hive::JobCx;
use identity_core::HEARTBEAT;
use jiff::Timestamp;
use k8s_tables::Row;
use k8s_types::cilium::{CiliumEndpointSlice, CiliumIdentity};
use k8s_types::{Key, Kind, SmolStr};
use operator_identities::PodIdentity;
use operator_objects::EndpointRow;
use serde_json::{Value, json};
use statedb::{Changes, Obj, Table};
use token_bucket::Bucket;
use tokio::time::{Instant, sleep_until};

use crate::life_signs::{Action, LifeSigns};
use crate::metrics::Numbers;
use crate::requests::{Outcome, Requests, Run};

/// The tables that show which identities there are, and which are used.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) identities: Arc<Table<Row<CiliumIdentity>>>,
    pub(crate) endpoints: Arc<Table<EndpointRow>>,
    pub(crate) slices: Arc<Table<Row<CiliumEndpointSlice>>>,
    /// Empty unless the operator creates identities: then those of pods without an endpoint are used, too.
    pub(crate) pods: Arc<Table<PodIdentity>>,
}

/// Marks and deletes unused identities.
pub(crate) struct IdentityCollector {
    pub(crate) tables: Tables,
    pub(crate) requests: Requests,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    /// Marks within a time, and deletions.
    pub(crate) limit: (u64, Duration),
    pub(crate) numbers: Numbers,
}

impl IdentityCollector {
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Waits for the lists of CiliumIdentities and CiliumEndpoints");
        let listed = async {
            self.tables.identities.wait_initialized().await;
            self.tables.endpoints.wait_initialized().await;
            self.tables.slices.wait_initialized().await;
            self.tables.pods.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let mut state = State {
            changes: self.tables.identities.changes(),
            signs: LifeSigns::new(self.timeout, Instant::now()),
            marks: self.bucket(),
            deletions: self.bucket(),
            used: Used::default(),
        };
        cx.health.ok(format_args!("The first run is after {:?}", self.interval));
        let mut next = Instant::now() + self.interval;
        loop {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                batch = state.changes.next() => {
                    for change in &batch {
                        state.note(&change.object.metadata.name, change.deleted);
                    }
                }
                () = sleep_until(next) => {
                    if cx.token().run_until_cancelled(self.collect(&mut state, &cx)).await.is_none() {
                        return Ok(());
                    }
                    next = Instant::now().max(next) + self.interval;
                }
            }
        }
    }

    /// Returns a full bucket of the tokens of a second. A larger one would send all its requests at once after a quiet time.
    fn bucket(&self) -> Bucket {
        let (count, time) = self.limit;
        let rate = count as f64 / time.as_secs_f64();
        Bucket::new(rate, rate.ceil() as u64, Instant::now().into_std())
    }

    async fn collect(&self, state: &mut State, cx: &JobCx) {
        let begun = Instant::now();
        let (mut run, mut alive, mut marked, mut deleted) = (Run::default(), 0, 0, 0);
        state.used = Used::default();
        let snapshot = self.tables.identities.snapshot();
        let names: Vec<SmolStr> =
            self.tables.identities.all(&snapshot).map(|row| row.metadata.name.clone()).collect();
        drop(snapshot);
        for name in names {
            let mut decision = self.decide(state, &name);
            let bucket = match decision {
                Some((Action::Mark, _)) => Some(&mut state.marks),
                Some((Action::Delete, _)) => Some(&mut state.deletions),
                Some((Action::Keep, _)) | None => None,
            };
            if let Some(token) = bucket.and_then(|bucket| bucket.reserve(Instant::now().into_std())) {
                sleep_until(token.at.into()).await;
                // The identity may have been taken up again in the meantime.
                decision = self.decide(state, &name);
            }
            let Some((action, identity)) = decision else { continue };
            let (key, metadata) = (Key::new("", name.clone()), &identity.metadata);
            let answer = match action {
                Action::Keep => {
                    alive += 1;
                    continue;
                }
                Action::Mark => {
                    let object = marked_object(&identity, Timestamp::now());
                    self.requests.update(Kind::CiliumIdentity, &key, object.to_string().into()).await
                }
                Action::Delete => {
                    let version = Some(&metadata.resource_version);
                    self.requests.delete(Kind::CiliumIdentity, &key, &metadata.uid, version).await
                }
            };
            match (action, &answer) {
                (Action::Delete, Ok(Outcome::Done)) => {
                    tracing::info!(identity = %name, "Deleted an unused identity");
                    deleted += 1;
                }
                (_, Ok(Outcome::Done)) => {
                    marked += 1;
                    alive += 1;
                }
                _ => alive += 1,
            }
            if !run.count(answer) {
                break;
            }
        }
        state.used = Used::default();
        self.numbers.identities(&run, alive, deleted, begun);
        let changed = run.changed;
        let summary = format!(
            "{alive} identities are alive, {marked} were marked, {deleted} deleted, {changed} had changed meanwhile"
        );
        run.report(&cx.health, &summary);
    }

    /// Decides about an identity by the tables as they are now. None if there is no such identity.
    fn decide(&self, state: &mut State, name: &SmolStr) -> Option<(Action, Obj<Row<CiliumIdentity>>)> {
        for change in &state.changes.try_next() {
            state.note(&change.object.metadata.name, change.deleted);
        }
        state.used.refresh(&self.tables);
        let snapshot = self.tables.identities.snapshot();
        let row = self.tables.identities.get(&snapshot, Row::by_name("", name))?;
        // A name that is no id is not an identity of Cilium.
        let id: i64 = name.parse().ok()?;
        let is_marked = row.metadata.annotations.get(HEARTBEAT).is_some();
        let action = state.signs.action(name, is_marked, state.used.ids.contains(&id), Instant::now());
        Some((action, row.clone()))
    }
}

/// The state between and within runs.
struct State {
    changes: Changes<Row<CiliumIdentity>>,
    signs: LifeSigns,
    /// Each mark is an event for every agent, as each deletion is.
    marks: Bucket,
    deletions: Bucket,
    used: Used,
}

impl State {
    fn note(&mut self, name: &SmolStr, is_deleted: bool) {
        match is_deleted {
            true => self.signs.gone(name),
            false => self.signs.alive(name, Instant::now()),
        }
    }
}

/// The identities that were used at any time of a run.
#[derive(Debug, Default)]
struct Used {
    ids: HashSet<i64>,
    /// The first revision of each table that was not read yet.
    endpoints_from: u64,
    slices_from: u64,
    pods_from: u64,
}

impl Used {
    /// Adds those of objects that are new or have changed.
    fn refresh(&mut self, tables: &Tables) {
        let snapshot = tables.endpoints.snapshot();
        for row in tables.endpoints.by_revision(&snapshot, self.endpoints_from) {
            self.ids.extend(row.identity);
        }
        self.endpoints_from = tables.endpoints.revision(&snapshot) + 1;
        let snapshot = tables.slices.snapshot();
        for row in tables.slices.by_revision(&snapshot, self.slices_from) {
            self.ids.extend(row.endpoints.iter().map(|endpoint| endpoint.identity_id));
        }
        self.slices_from = tables.slices.revision(&snapshot) + 1;
        let snapshot = tables.pods.snapshot();
        for row in tables.pods.by_revision(&snapshot, self.pods_from) {
            self.ids.extend(row.id.map(i64::from));
        }
        self.pods_from = tables.pods.revision(&snapshot) + 1;
    }
}

/// Returns the object with the annotation; it has the version that was read.
fn marked_object(identity: &CiliumIdentity, now: Timestamp) -> Value {
    let mut object = json!(identity);
    object["apiVersion"] = Kind::CiliumIdentity.api_version().into();
    object["kind"] = Kind::CiliumIdentity.name().into();
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    object["metadata"]["annotations"][HEARTBEAT] = format!("{now:.9}").into();
    object
}
