//! The job that follows the tables: a round for each change, in the order in which no packet fares wrong.
//!
//! A round has three parts. Prefixes that new rules name get their identities, which go into the maps by the rules in
//! force - nothing changes for any packet - and only then into the ipcache. Then the rules change, in the maps alone. Then
//! prefixes that no rule names go: from the ipcache first, from the maps when their identities are gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::OptionFuture;
use hive::job::Backoff;
use hive::{ConfigWatch, JobCx};
use identity::{Identity, Prefixes};
use ipcache::{Change as IpcacheChange, Claim, Entry, IpcacheWriter, Mapping, Source};
use ipnetwork::IpNetwork;
use k8s_tables::{PolicyKind, PolicyObject};
use policy_engine::Settings;
use runtime_options::{POLICY_ENFORCEMENT, Progress as Follow, RuntimeOption};
use statedb::{Batch, Change, Changes, Initializer, Obj, RwTable, Snapshot, Table, Watch};

use crate::computation::core::{Outcome, Round};
use crate::computation::repository::{Staged, id};
use crate::config::{PolicyConfig, enforcement};
use crate::model::endpoint::{EndpointPolicy, Progress};
use crate::model::object::{ObjectId, ObjectState, PolicyStatus};
use crate::model::selectors::{PeerSelector, SubjectSelector, bring};
use crate::rounds::metrics::Numbers;
use crate::rounds::state::{Shared, State};

/// The resource of this cell's claims in the ipcache.
const RESOURCE: &str = "policy";
/// How long a program may take from the ipcache to the policy map: rows of an identity that the ipcache no longer gives
/// are left alone for so long.
const IN_FLIGHT: Duration = Duration::from_millis(1);
/// How long the job waits for endpoints of the previous run. They are announced when the programs are loaded; those that do
/// not go on are removed from the kernel soon after.
const ANNOUNCEMENT: Duration = Duration::from_secs(10);
/// How often is looked which endpoints the kernel still has.
const LOOK: Duration = Duration::from_millis(500);
/// How long what has failed waits before it is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));

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
    pub(crate) selectors: RwTable<PeerSelector>,
    pub(crate) subject_selectors: RwTable<SubjectSelector>,
    pub(crate) prefixes: Arc<Prefixes>,
    pub(crate) ipcache: Arc<IpcacheWriter>,
    pub(crate) initializer: Option<Initializer<Entry>>,
    pub(crate) revision: Arc<AtomicU64>,
    pub(crate) settings: Settings,
    pub(crate) follow: Follow,
    pub(crate) numbers: Numbers,
    /// Has how often maps are compared with what they shall be.
    pub(crate) config: ConfigWatch<PolicyConfig>,
}

/// State that is kept from round to round.
struct RoundState {
    objects: Changes<PolicyObject>,
    identities: IdentityChanges,
    /// Policies that wait for identities of their prefixes.
    staged: Staged,
    /// Objects whose status is to be written when their policies are in force, with the time they were read.
    unsettled: BTreeSet<ObjectId>,
    first: bool,
    /// Whether maps are being compared with what they shall be.
    comparing: bool,
    /// Whether the last round is to be repeated.
    failed: bool,
    backoff: Backoff,
    /// The endpoints of the last round, and the revision of its options.
    known: (Vec<EndpointVersion>, u64),
}

/// The changes of identities that matter to policy: users of an identity do not, and change with every endpoint.
struct IdentityChanges {
    changes: Changes<Identity>,
    /// The identities as they were read last.
    known: HashMap<u32, Obj<Identity>>,
}

impl IdentityChanges {
    fn read(&mut self, snapshot: &Snapshot) -> (Vec<Change<Identity>>, Watch) {
        let (batch, watch) = self.changes.read(snapshot, usize::MAX);
        let known = &mut self.known;
        let matters = |change: &Change<Identity>| {
            let row = &change.object;
            if change.deleted {
                known.remove(&row.id);
                return true;
            }
            let old = known.insert(row.id, row.clone());
            old.is_none_or(|old| old.labels != row.labels || old.named_ports() != row.named_ports())
        };
        (batch.into_iter().filter(matters).collect(), watch)
    }
}

/// Id, announcement and generation of an endpoint's row: a row with the same ones has the same subject.
type EndpointVersion = (u16, u64, u64);

/// How far a round came at once.
enum Step {
    Brought(Round, Finished),
    /// Policies name prefixes that have no identities.
    Prefixes {
        staged: Staged,
        settings: Settings,
        new: Vec<IpNetwork>,
    },
}

/// The outcome of [`Job::finish`].
struct Finished {
    /// Objects with their statuses; without one if they are gone.
    statuses: Vec<(Option<PolicyStatus>, ObjectId)>,
    /// Prefixes that no policy names any more.
    unnamed: Vec<IpNetwork>,
    /// Objects that are refused.
    refused: Option<String>,
}

/// The outcome of a round, for health.
struct End {
    /// An error that is retried.
    trouble: Option<String>,
    /// An endpoint whose rows do not fit.
    full: Option<String>,
    /// Objects that are refused.
    refused: Option<String>,
}

impl Job {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let complete = async {
            self.inputs.objects.wait_initialized().await;
            self.inputs.identities.wait_initialized().await;
            // The first round is theirs, too: prefixes change for nobody whose map stays behind.
            let _ = tokio::time::timeout(ANNOUNCEMENT, self.restored_are_announced()).await;
        };
        tokio::select! {
            () = complete => {}
            () = cx.cancelled() => return Ok(()),
        }
        let mut rounds = RoundState {
            objects: self.inputs.objects.changes(),
            identities: IdentityChanges { changes: self.inputs.identities.changes(), known: HashMap::new() },
            staged: Staged::new(),
            unsettled: BTreeSet::new(),
            first: true,
            comparing: false,
            failed: false,
            backoff: Backoff::exponential(RETRY.0, RETRY.1),
            known: Default::default(),
        };
        let mut last_comparison = tokio::time::Instant::now();
        loop {
            let working = cx.working();
            let snapshot = self.endpoints.snapshot();
            let (_, endpoints_watch) = self.endpoints.all_watch(&snapshot);
            let options_watch = self.inputs.options.as_ref().map(|table| table.all_watch(&snapshot).1);
            let (objects, objects_watch) = rounds.objects.read(&snapshot, usize::MAX);
            let (identities, identities_watch) = rounds.identities.read(&snapshot);

            let known = self.known(&snapshot);
            // The job's own writes of how far endpoints have come wake it, too.
            let is_same = objects.is_empty() && identities.is_empty() && known == rounds.known;
            let mut retry = None;
            if !is_same || rounds.first || rounds.comparing || rounds.failed {
                rounds.known = known;
                let end = self.round(&mut rounds, &snapshot, objects, identities).await?;
                rounds.failed = end.trouble.is_some();
                match &end.trouble {
                    Some(trouble) => {
                        self.follow.failed(trouble);
                        retry = rounds.backoff.next_wait();
                    }
                    None => rounds.backoff.reset(),
                }
                match (end.trouble, end.full, end.refused) {
                    (Some(trouble), ..) => {
                        cx.health.degraded("Unable to bring policy into force, trying again", trouble);
                    }
                    (None, Some(full), _) => cx.health.degraded("Endpoints are denied wholly", full),
                    (None, None, Some(refused)) => cx.health.degraded("Policies are refused", refused),
                    (None, None, None) => cx.health.ok(format!("at revision {}", self.revision())),
                }
            }
            drop(working);
            let comparison = self.config.get().bpf_policy_map_full_reconciliation_interval;
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = endpoints_watch.changed() => {}
                () = objects_watch.changed() => {}
                () = identities_watch.changed() => {}
                Some(()) = OptionFuture::from(options_watch.as_ref().map(Watch::changed)) => {}
                Some(()) = OptionFuture::from(retry.map(tokio::time::sleep)) => {}
                () = self.config.changed() => {}
                () = tokio::time::sleep_until(last_comparison + comparison), if !comparison.is_zero() => {
                    last_comparison = tokio::time::Instant::now();
                    self.shared.with(|state| state.core.invalidate_map_cache()).await;
                    rounds.comparing = true;
                }
            }
        }
    }

    /// Returns the endpoints that the snapshot has, and the revision of its options.
    fn known(&self, snapshot: &Snapshot) -> (Vec<EndpointVersion>, u64) {
        let rows = self.endpoints.all(snapshot);
        let versions = rows.map(|row| (row.subject.endpoint, row.announced, row.generation)).collect();
        let options = self.inputs.options.as_ref().map_or(0, |options| options.revision(snapshot));
        (versions, options)
    }

    /// Waits until the endpoints of the previous run have been announced, or have gone.
    async fn restored_are_announced(&self) -> anyhow::Result<()> {
        let mut waiting = self.shared.with(|state| state.core.attached()).await;
        loop {
            let snapshot = self.endpoints.snapshot();
            let (rows, watch) = self.endpoints.all_watch(&snapshot);
            let announced: BTreeSet<u16> = rows.map(|row| row.subject.endpoint).collect();
            if waiting.is_subset(&announced) {
                return Ok(());
            }
            drop(snapshot);
            tokio::select! {
                () = watch.changed() => {}
                () = tokio::time::sleep(LOOK) => {
                    waiting = self.shared.with(|state| state.core.attached()).await;
                }
            }
        }
    }

    fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Makes policy maps, ipcache and tables equal to the snapshot.
    async fn round(
        &mut self,
        rounds: &mut RoundState,
        snapshot: &Snapshot,
        objects: Batch<PolicyObject>,
        identities: Vec<Change<Identity>>,
    ) -> anyhow::Result<End> {
        let started = Instant::now();
        let (settings, options_revision) = self.settings(snapshot);
        let rows: Vec<EndpointPolicy> = self.endpoints.all(snapshot).map(|row| (**row).clone()).collect();
        let counted = |object: &PolicyObject| match object.kind {
            PolicyKind::CiliumNetworkPolicy => self.inputs.enable_cnp,
            PolicyKind::CiliumClusterwideNetworkPolicy => self.inputs.enable_ccnp,
        };
        let objects: Vec<_> = objects.into_iter().filter(|change| counted(&change.object)).collect();
        rounds.unsettled.extend(objects.iter().map(|change| id(&change.object)));
        let sources: BTreeSet<Arc<str>> = objects.iter().map(|change| change.object.source.clone()).collect();
        let mut staged = std::mem::take(&mut rounds.staged);
        let (numbers, revision) = (self.numbers.clone(), self.revision.clone());
        let (first, finish) = (rounds.first, self.finish());
        let unsettled = rounds.unsettled.clone();
        let step = self
            .shared
            .with(move |state| {
                state.read(&objects, &settings, &mut staged, &numbers);
                if first {
                    state.repository.begun();
                }
                state.apply_identity_changes(&identities);
                state.core.set_endpoints(rows.iter());
                let new = state.repository.missing(&staged);
                match new.is_empty() {
                    true => {
                        let round = state.bring(settings, staged, &revision);
                        Step::Brought(round, finish(state, unsettled, &Staged::new()))
                    }
                    false => Step::Prefixes { staged, settings, new },
                }
            })
            .await;
        let (round, finished, trouble) = match step {
            Step::Brought(round, finished) => (round, Some(finished), None),
            Step::Prefixes { staged, settings, new } => {
                let (round, trouble) = self.bring_with_prefixes(rounds, staged, settings, new).await?;
                (round, None, trouble)
            }
        };
        let waits = trouble.is_some();
        self.numbers.round(&round, self.revision(), &sources, started.elapsed());
        if std::mem::take(&mut rounds.comparing) && round.in_place + round.swapped > 0 {
            let (in_place, swapped) = (round.in_place, round.swapped);
            tracing::warn!(in_place, swapped, "Policy maps were not as written; somebody else changes them");
        }
        self.record(&round.outcomes);
        let of = |progress| round.outcomes.iter().filter(move |outcome| outcome.progress == progress);
        let text = |outcome: &Outcome| {
            format!("endpoint {}: {}", outcome.endpoint, outcome.error.as_deref().unwrap_or_default())
        };
        let trouble = trouble.or_else(|| of(Progress::Failed).next().map(text));
        let full = of(Progress::Full).next().map(text);

        let settled = if waits { BTreeSet::new() } else { std::mem::take(&mut rounds.unsettled) };
        let Finished { statuses, unnamed, refused } = match finished {
            Some(finished) => finished,
            None => {
                let (finish, waiting) = (self.finish(), rounds.staged.clone());
                self.shared.with(move |state| finish(state, settled, &waiting)).await
            }
        };
        self.settle(statuses);
        self.release(unnamed).await?;
        // Nothing is in force before the first policies are.
        if !waits {
            if std::mem::take(&mut rounds.first) {
                let (revision, endpoints) = (self.revision(), round.outcomes.len());
                tracing::info!(revision, endpoints, "Policies of all sources are in force");
            }
            if let Some(initializer) = self.initializer.take() {
                self.ipcache.complete(initializer);
            }
            if trouble.is_none() {
                self.follow.applied(options_revision);
            }
        }
        Ok(End { trouble, full, refused })
    }

    /// Returns the last step of a round, which is for the thread that has the state: the tables of selectors, and what
    /// has become of `settled` objects. `waiting`: policies that wait for identities of their prefixes.
    fn finish(&self) -> impl FnOnce(&mut State, BTreeSet<ObjectId>, &Staged) -> Finished + Send + use<> {
        let (revision, numbers) = (self.revision.clone(), self.numbers.clone());
        let (peers, subjects) = (self.selectors.clone(), self.subject_selectors.clone());
        move |state, settled, waiting| {
            let at = revision.load(Ordering::Acquire);
            let [of_peers, of_subjects] = state.core.take_selector_changes();
            bring(&peers, of_peers, PeerSelector::by_text);
            bring(&subjects, of_subjects, SubjectSelector::by_text);
            let changed = !settled.is_empty();
            let status = |object: ObjectId| (state.repository.status(&object, at), object);
            let statuses = settled.into_iter().map(status).collect();
            if changed {
                numbers.repository(state.core.engine());
            }
            let named = state.core.engine().prefixes();
            Finished {
                statuses,
                unnamed: state.repository.drop_unnamed(named, waiting),
                refused: state.refused(),
            }
        }
    }

    /// Applies policies that name new prefixes: identities first. Returns the error that the policies wait for, if
    /// they do.
    async fn bring_with_prefixes(
        &self,
        rounds: &mut RoundState,
        staged: Staged,
        settings: Settings,
        new: Vec<IpNetwork>,
    ) -> anyhow::Result<(Round, Option<String>)> {
        let (allocator, prefixes) = (self.prefixes.clone(), new.clone());
        let allocated = hive::blocking(move || allocator.allocate(&prefixes)).await;
        let (identities, _) = rounds.identities.read(&self.inputs.identities.snapshot());
        let numbers = match allocated {
            Ok(numbers) => numbers,
            Err(error) => {
                tracing::warn!(%error, "Unable to give identities to prefixes of policies, trying again");
                rounds.staged = staged;
                // Rules that are in force stay so for endpoints that come; at a start there are none, and maps stay.
                let (first, revision) = (rounds.first, self.revision.clone());
                let go_on = move |state: &mut State| {
                    state.apply_identity_changes(&identities);
                    match first {
                        true => Round::default(),
                        false => state.bring(settings, Staged::new(), &revision),
                    }
                };
                return Ok((self.shared.with(go_on).await, Some(error.to_string())));
            }
        };
        // At a start nothing is known of the rules that the maps follow: they get the new rows first and lose the old
        // ones last, as packets carry the old numbers until the ipcache has the new ones.
        let first = rounds.first;
        self.shared
            .with(move |state| {
                state.apply_identity_changes(&identities);
                if !first {
                    state.core.round();
                }
            })
            .await;
        if !first {
            self.publish(&numbers).await?;
        }
        let revision = self.revision.clone();
        let bring = move |state: &mut State| {
            state.repository.hold(new);
            match first {
                true => state.bring_first(settings, staged, &revision),
                false => state.bring(settings, staged, &revision),
            }
        };
        let mut round = self.shared.with(bring).await;
        if first {
            self.publish(&numbers).await?;
            let last = self.shared.with(|state| state.core.round()).await;
            let (in_place, swapped) = (round.in_place + last.in_place, round.swapped + last.swapped);
            round = Round { in_place, swapped, ..last };
        }
        Ok((round, None))
    }

    /// The settings with the enforcement that the table of options has, and the revision of that.
    fn settings(&self, snapshot: &Snapshot) -> (Settings, u64) {
        let Some(options) = &self.inputs.options else { return (self.settings.clone(), 0) };
        let mode = options.all(snapshot).find(|option| option.name == POLICY_ENFORCEMENT);
        let enforcement = mode.map_or(self.settings.enforcement, |option| enforcement(&option.value));
        (Settings { enforcement, ..self.settings.clone() }, options.revision(snapshot))
    }

    /// Upserts prefixes into the ipcache and waits until the kernel has them.
    async fn publish(&self, numbers: &BTreeMap<IpNetwork, u32>) -> anyhow::Result<()> {
        let prefixes: Vec<IpNetwork> = numbers.keys().copied().collect();
        let claim = |identity| Claim {
            source: Source::Generated,
            resource: RESOURCE.into(),
            mapping: Mapping::identity(identity),
        };
        let changes = numbers.iter().map(|(prefix, id)| IpcacheChange::Upsert(*prefix, claim(*id)));
        let revision = self.ipcache.apply(changes);
        match self.ipcache.applied(revision, &prefixes).await {
            // The ipcache retries, and reports it.
            Err(error @ ipcache::NotApplied::Refused { .. }) => {
                tracing::warn!(%error, "Prefixes of policies do not take effect yet");
            }
            other => other?,
        }
        tokio::time::sleep(IN_FLIGHT).await;
        Ok(())
    }

    /// Lets prefixes go: from the ipcache, then their identities.
    async fn release(&self, unnamed: Vec<IpNetwork>) -> anyhow::Result<()> {
        if unnamed.is_empty() {
            return Ok(());
        }
        let delete = |prefix: &IpNetwork| IpcacheChange::Delete(*prefix, Source::Generated, RESOURCE.into());
        let revision = self.ipcache.apply(unnamed.iter().map(delete));
        self.ipcache.applied(revision, &[]).await?;
        tokio::time::sleep(IN_FLIGHT).await;
        let allocator = self.prefixes.clone();
        hive::blocking(move || allocator.release(&unnamed)).await;
        Ok(())
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

    /// Writes what has become of objects; those without a status are gone.
    fn settle(&self, statuses: Vec<(Option<PolicyStatus>, ObjectId)>) {
        if statuses.is_empty() {
            return;
        }
        self.statuses.transact(|txn| {
            for (status, object) in statuses {
                let Some(mut status) = status else {
                    txn.delete(PolicyStatus::by_object(&object));
                    continue;
                };
                // A refused version leaves the one before as it is.
                if status.state != ObjectState::Applied {
                    let old = txn.get(PolicyStatus::by_object(&object));
                    status.revision = old.map_or(0, |old| old.revision);
                }
                txn.insert(status);
            }
        });
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
        let (realized, realized_filters) = match self.progress {
            Progress::Realized => (self.revision, self.filters.clone()),
            _ => (row.realized, row.realized_filters.clone()),
        };
        Some(EndpointPolicy {
            revision: self.revision,
            realized,
            ingress_enforced: self.enforced[0],
            egress_enforced: self.enforced[1],
            ingress: self.counts[0],
            egress: self.counts[1],
            filters: self.filters.clone(),
            realized_filters,
            progress: self.progress,
            error: self.error.clone(),
            ..row.clone()
        })
    }
}
