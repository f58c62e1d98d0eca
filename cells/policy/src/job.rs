//! The job that follows the tables: a round for each change, in the order in which no packet fares wrong.
//!
//! A round has three parts. Prefixes that new rules name get their identities, which go into the maps by the rules in
//! force - nothing changes for any packet - and only then into the ipcache. Then the rules change, in the maps alone. Then
//! prefixes that no rule names go: from the ipcache first, from the maps when their identities are gone.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hive::JobCx;
use hive::job::Backoff;
use identity::{Identity, Prefixes};
use ipcache::{Change as IpcacheChange, Claim, Entry, IpcacheWriter, Mapping, Source};
use ipnetwork::IpNetwork;
use k8s::{PolicyKind, PolicyObject};
use policy_engine::Settings;
use runtime_options::{POLICY_ENFORCEMENT, Progress as Follow, RuntimeOption};
use statedb::{Batch, Changes, Initializer, RwTable, Snapshot, Table, Watch};

use crate::config::enforcement;
use crate::core::{Core, Outcome};
use crate::endpoint::{EndpointPolicy, Progress};
use crate::metrics::Numbers;
use crate::object::{ObjectId, PolicyStatus};
use crate::repository::{Repository, Staged, id, prefixes};

/// Who says in the ipcache which identity a prefix has.
const RESOURCE: &str = "policy";
/// How long a program may take from the ipcache to the policy map: rows of an identity that the ipcache no longer gives
/// are left alone for so long.
const IN_FLIGHT: Duration = Duration::from_millis(1);
/// How long what has failed waits before it is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));

/// What rounds work on and the API reads.
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) repository: Repository,
}

/// [`State`], for the job and those who read it. Locked on threads for blocking work only.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<State>>);

impl Shared {
    pub(crate) fn new(core: Core) -> Shared {
        Shared(Arc::new(Mutex::new(State { core, repository: Repository::default() })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the state where blocking is allowed.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let shared = self.clone();
        Ok(tokio::task::spawn_blocking(move || work(&mut shared.lock())).await?)
    }
}

/// Tables that the job follows.
pub(crate) struct Inputs {
    pub(crate) objects: Arc<Table<PolicyObject>>,
    pub(crate) identities: Arc<Table<Identity>>,
    pub(crate) options: Option<Arc<Table<RuntimeOption>>>,
    /// Whether CiliumNetworkPolicies count.
    pub(crate) enable_cnp: bool,
    /// Whether CiliumClusterwideNetworkPolicies count.
    pub(crate) enable_ccnp: bool,
}

/// The job.
pub(crate) struct Job {
    pub(crate) shared: Shared,
    pub(crate) inputs: Inputs,
    pub(crate) endpoints: RwTable<EndpointPolicy>,
    pub(crate) statuses: RwTable<PolicyStatus>,
    pub(crate) prefixes: Arc<Prefixes>,
    pub(crate) ipcache: Arc<IpcacheWriter>,
    pub(crate) initializer: Option<Initializer<Entry>>,
    pub(crate) revision: Arc<AtomicU64>,
    pub(crate) settings: Settings,
    pub(crate) follow: Follow,
    pub(crate) numbers: Numbers,
    /// How often maps are compared with what they shall be; never if zero.
    pub(crate) comparison: Duration,
}

/// What goes from round to round.
struct Progressing {
    objects: Changes<PolicyObject>,
    identities: Changes<Identity>,
    /// Policies that wait for identities of their prefixes.
    staged: Staged,
    /// Objects whose status is to be written when their policies are in force, with the time they were read.
    unsettled: BTreeSet<ObjectId>,
    /// Prefixes that have identities and are in the ipcache because of rules.
    held: BTreeSet<IpNetwork>,
    first: bool,
    backoff: Backoff,
}

impl Job {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let complete = async {
            self.inputs.objects.wait_initialized().await;
            self.inputs.identities.wait_initialized().await;
        };
        tokio::select! {
            () = complete => {}
            () = cx.cancelled() => return Ok(()),
        }
        let mut progressing = Progressing {
            objects: self.inputs.objects.changes(),
            identities: self.inputs.identities.changes(),
            staged: Staged::new(),
            unsettled: BTreeSet::new(),
            held: BTreeSet::new(),
            first: true,
            backoff: Backoff::exponential(RETRY.0, RETRY.1),
        };
        let mut next_comparison = tokio::time::Instant::now() + self.comparison;
        loop {
            let snapshot = self.endpoints.snapshot();
            let (_, endpoints_watch) = self.endpoints.all_watch(&snapshot);
            let options_watch = self.inputs.options.as_ref().map(|table| table.all_watch(&snapshot).1);
            let (objects, objects_watch) = progressing.objects.take(&snapshot, usize::MAX);
            let (identities, identities_watch) = progressing.identities.take(&snapshot, usize::MAX);

            let trouble = self.round(&mut progressing, &snapshot, objects, identities).await?;
            let refused = self.shared.with(|state| refused(&state.repository)).await?;
            let retry = match (&trouble, refused) {
                (Some(trouble), _) => {
                    cx.health.degraded("Unable to bring policy into force, trying again", trouble);
                    self.follow.failed(trouble);
                    progressing.backoff.next_wait()
                }
                (None, refused) => {
                    progressing.backoff.reset();
                    match refused {
                        Some(refused) => cx.health.degraded("Policies are refused", refused),
                        None => cx.health.ok(format!("at revision {}", self.revision())),
                    }
                    None
                }
            };
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = endpoints_watch.changed() => {}
                () = objects_watch.changed() => {}
                () = identities_watch.changed() => {}
                () = changed(options_watch) => {}
                () = sleep(retry) => {}
                () = tokio::time::sleep_until(next_comparison), if !self.comparison.is_zero() => {
                    next_comparison = tokio::time::Instant::now() + self.comparison;
                    self.shared.with(|state| state.core.distrust_maps()).await?;
                }
            }
        }
    }

    fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Brings everything to where the snapshot has it. Gives what could not be done and is to be tried again.
    async fn round(
        &mut self,
        progressing: &mut Progressing,
        snapshot: &Snapshot,
        objects: Batch<PolicyObject>,
        identities: Batch<Identity>,
    ) -> anyhow::Result<Option<String>> {
        let started = Instant::now();
        let (settings, options_revision) = self.settings(snapshot);
        let rows: Vec<EndpointPolicy> = self.endpoints.all(snapshot).map(|row| (**row).clone()).collect();
        let counted = |object: &PolicyObject| match object.kind {
            PolicyKind::CiliumNetworkPolicy => self.inputs.enable_cnp,
            PolicyKind::CiliumClusterwideNetworkPolicy => self.inputs.enable_ccnp,
        };
        let objects: Vec<_> = objects.into_iter().filter(|change| counted(&change.object)).collect();
        let gone: Vec<ObjectId> =
            objects.iter().filter(|change| change.deleted).map(|change| id(&change.object)).collect();
        progressing.unsettled.extend(objects.iter().map(|change| id(&change.object)));
        let sources: BTreeSet<Arc<str>> = objects.iter().map(|change| change.object.source.clone()).collect();
        let mut staged = std::mem::take(&mut progressing.staged);
        let numbers = self.numbers.clone();
        let parsing = settings.clone();
        staged = self
            .shared
            .with(move |state| {
                read(&mut state.repository, &objects, &parsing, &mut staged, &numbers);
                learn(&mut state.core, &identities);
                state.core.set_endpoints(rows.iter());
                staged
            })
            .await?;

        let named: BTreeSet<IpNetwork> = staged.values().flatten().flat_map(prefixes).collect();
        let new: Vec<IpNetwork> = named.difference(&progressing.held).copied().collect();
        let mut trouble = None;
        let mut claims = Vec::new();
        match self.allocate(progressing, new.clone()).await? {
            Ok(allocated) => claims = allocated,
            Err(error) => {
                tracing::warn!(%error, "Unable to give identities to prefixes of policies, trying again");
                trouble = Some(error.to_string());
                progressing.staged = std::mem::take(&mut staged);
            }
        }
        // At a start nothing is known of the rules that the maps follow: they change first.
        if !claims.is_empty() && !progressing.first {
            self.shared.with(|state| state.core.round()).await?;
            self.publish(std::mem::take(&mut claims)).await?;
        }
        let (revision, waits) = (self.revision.clone(), trouble.is_some());
        let round = self
            .shared
            .with(move |state| {
                state.core.set_settings(settings);
                state.core.commit(staged);
                // Whoever asks from now on waits for these rules.
                revision.store(state.core.engine().revision(), Ordering::Release);
                state.core.round()
            })
            .await?;
        if !claims.is_empty() {
            self.publish(claims).await?;
        }
        progressing.held.extend(new.into_iter().filter(|_| !waits));
        self.numbers.round(&round, &sources, started.elapsed());
        self.record(&round.outcomes);
        let failed = round.outcomes.iter().find(|outcome| outcome.progress == Progress::Failed);
        trouble = trouble.or_else(|| {
            let failed = failed?;
            Some(format!("endpoint {}: {}", failed.endpoint, failed.error.clone().unwrap_or_default()))
        });
        if !waits {
            self.settle(std::mem::take(&mut progressing.unsettled), &gone).await?;
        }
        if let Some(error) = self.release(progressing).await? {
            trouble = trouble.or(Some(error));
        }
        if std::mem::take(&mut progressing.first) {
            let count = round.outcomes.len();
            tracing::info!(
                revision = self.revision(),
                endpoints = count,
                "Policies of all sources are in force"
            );
        }
        if let Some(initializer) = self.initializer.take_if(|_| !waits) {
            self.ipcache.complete(initializer);
        }
        if failed.is_none() && !waits {
            self.follow.applied(options_revision);
        }
        Ok(trouble)
    }

    /// The settings with the enforcement that the table of options has, and the revision of that.
    fn settings(&self, snapshot: &Snapshot) -> (Settings, u64) {
        let Some(options) = &self.inputs.options else { return (self.settings.clone(), 0) };
        let mode = options.all(snapshot).find(|option| option.name == POLICY_ENFORCEMENT);
        let enforcement = mode.map_or(self.settings.enforcement, |option| enforcement(&option.value));
        (Settings { enforcement, ..self.settings.clone() }, options.revision(snapshot))
    }

    /// Identities for prefixes, known to the engine; what the ipcache is to be told of them.
    async fn allocate(
        &self,
        progressing: &mut Progressing,
        new: Vec<IpNetwork>,
    ) -> anyhow::Result<Result<Vec<(IpNetwork, u32)>, identity::Error>> {
        if new.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let allocator = self.prefixes.clone();
        let allocated = tokio::task::spawn_blocking(move || allocator.allocate(&new)).await?;
        let (identities, _) = progressing.identities.take(&self.inputs.identities.snapshot(), usize::MAX);
        self.shared.with(move |state| learn(&mut state.core, &identities)).await?;
        Ok(allocated.map(|numbers| numbers.into_iter().collect()))
    }

    /// Tells the ipcache of prefixes and waits until the kernel has them.
    async fn publish(&self, claims: Vec<(IpNetwork, u32)>) -> anyhow::Result<()> {
        let prefixes: Vec<IpNetwork> = claims.iter().map(|(prefix, _)| *prefix).collect();
        let claim = |identity| Claim {
            source: Source::Generated,
            resource: RESOURCE.into(),
            mapping: Mapping::identity(identity),
        };
        let changes = claims.into_iter().map(|(prefix, id)| IpcacheChange::Upsert(prefix, claim(id)));
        let revision = self.ipcache.apply(changes);
        match self.ipcache.applied(revision, &prefixes).await {
            // The ipcache goes on trying, and tells of it.
            Err(error @ ipcache::NotApplied::Refused { .. }) => {
                tracing::warn!(%error, "Prefixes of policies do not take effect yet");
            }
            other => other?,
        }
        tokio::time::sleep(IN_FLIGHT).await;
        Ok(())
    }

    /// Lets prefixes go that no rule names any more.
    async fn release(&self, progressing: &mut Progressing) -> anyhow::Result<Option<String>> {
        let wanted = self.shared.with(|state| state.core.engine().prefixes()).await?;
        let kept: BTreeSet<IpNetwork> = progressing.staged.values().flatten().flat_map(prefixes).collect();
        let gone: Vec<IpNetwork> = progressing
            .held
            .iter()
            .filter(|held| !wanted.contains(held) && !kept.contains(held))
            .copied()
            .collect();
        if gone.is_empty() {
            return Ok(None);
        }
        let delete = |prefix: &IpNetwork| IpcacheChange::Delete(*prefix, Source::Generated, RESOURCE.into());
        let revision = self.ipcache.apply(gone.iter().map(delete));
        self.ipcache.applied(revision, &[]).await?;
        tokio::time::sleep(IN_FLIGHT).await;
        progressing.held.retain(|held| !gone.contains(held));
        let allocator = self.prefixes.clone();
        let released = tokio::task::spawn_blocking(move || allocator.release(&gone)).await?;
        Ok(released.err().map(|error| {
            tracing::warn!(%error, "Unable to release identities of prefixes");
            error.to_string()
        }))
    }

    /// Writes what has become of endpoints; only what is news, as the table wakes the job.
    fn record(&self, outcomes: &[Outcome]) {
        let snapshot = self.endpoints.snapshot();
        let news = |outcome: &&Outcome| {
            let row = self.endpoints.get(&snapshot, EndpointPolicy::by_endpoint(outcome.endpoint));
            row.is_some_and(|row| outcome.row(row).is_some_and(|new| new != **row))
        };
        let news: Vec<&Outcome> = outcomes.iter().filter(news).collect();
        if news.is_empty() {
            return;
        }
        self.endpoints.transact(|txn| {
            for outcome in news {
                let row = txn.get(EndpointPolicy::by_endpoint(outcome.endpoint));
                let Some((row, new)) = row.and_then(|row| Some((row, outcome.row(row)?))) else { continue };
                tell(row, &new);
                txn.insert(new);
            }
        });
    }

    /// Writes what has become of objects.
    async fn settle(&self, objects: BTreeSet<ObjectId>, gone: &[ObjectId]) -> anyhow::Result<()> {
        if objects.is_empty() {
            return Ok(());
        }
        let revision = self.revision();
        let statuses = self
            .shared
            .with(move |state| {
                let status = |object: &ObjectId| state.repository.status(object, revision);
                objects.iter().filter_map(status).collect::<Vec<_>>()
            })
            .await?;
        self.statuses.transact(|txn| {
            for object in gone {
                txn.delete(PolicyStatus::by_object(object));
            }
            for mut status in statuses {
                // A refused version leaves the one before as it is.
                if !status.problems.is_empty() {
                    let old = txn.get(PolicyStatus::by_object(&status.object));
                    status.revision = old.map_or(0, |old| old.revision);
                }
                txn.insert(status);
            }
        });
        Ok(())
    }
}

/// Checks objects that have changed.
fn read(
    repository: &mut Repository,
    objects: &[statedb::Change<PolicyObject>],
    settings: &Settings,
    staged: &mut Staged,
    numbers: &Numbers,
) {
    for change in objects {
        let object = &*change.object;
        if change.deleted {
            repository.remove(object, staged);
            numbers.changed("delete", &object.source, true);
            tracing::info!(policy = %id(object).text(), file = %object.origin, "Policy is gone");
            continue;
        }
        let refusal = repository.upsert(object, settings, staged);
        numbers.changed("update", &object.source, refusal.is_none());
        let (policy, file) = (id(object).text(), &object.origin);
        match refusal {
            None => tracing::info!(%policy, %file, "Policy read"),
            Some(refusal) => {
                tracing::warn!(
                    %policy, %file, %refusal,
                    "Policy refused; what was in force of it before stays. Correct the fields and write the file again"
                );
            }
        }
    }
}

/// Tells the engine which identities there are.
fn learn(core: &mut Core, identities: &Batch<Identity>) {
    for change in identities {
        match change.deleted {
            true => core.remove_identity(change.object.id),
            false => core.add_identity(&change.object),
        }
    }
}

/// Objects that are refused, for health: the first ones by name.
fn refused(repository: &Repository) -> Option<String> {
    const SHOWN: usize = 5;
    let all: Vec<String> =
        repository.refused().map(|(_, origin, refusal)| format!("{origin}: {refusal}")).collect();
    let more = all.len().saturating_sub(SHOWN);
    let text = all.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
    match (all.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(text),
        (false, more) => Some(format!("{text}; and {more} more")),
    }
}

/// Logs an endpoint's change of state.
fn tell(row: &EndpointPolicy, new: &EndpointPolicy) {
    let endpoint = row.subject.endpoint;
    let error = new.error.as_deref().unwrap_or_default();
    match (row.progress, new.progress) {
        (old, new) if old == new => {}
        (_, Progress::Full) => {
            tracing::warn!(endpointID = endpoint, %error, "The policy map of an endpoint is full: it is denied wholly");
        }
        (_, Progress::Failed) => {
            tracing::warn!(endpointID = endpoint, %error, "Unable to write the policy map of an endpoint, trying again");
        }
        (Progress::Full | Progress::Failed, _) => {
            tracing::info!(endpointID = endpoint, "The policy map of an endpoint is right again");
        }
        _ => {}
    }
}

impl Outcome {
    /// The endpoint's row with this outcome; none if the row is about another subject by now.
    fn row(&self, row: &EndpointPolicy) -> Option<EndpointPolicy> {
        if row.generation != self.generation {
            return None;
        }
        let realized = if self.progress == Progress::Realized { self.revision } else { row.realized };
        Some(EndpointPolicy {
            revision: self.revision,
            realized,
            ingress_enforced: self.enforced[0],
            egress_enforced: self.enforced[1],
            ingress: self.counts[0],
            egress: self.counts[1],
            progress: self.progress,
            error: self.error.clone(),
            ..row.clone()
        })
    }
}

/// Waits for a change; for ever without a table.
async fn changed(watch: Option<Watch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
