//! The job that follows the tables: a round for each change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::OptionFuture;
use hive::{ConfigWatch, JobCx};
use ipnetwork::IpNetwork;
use policy_engine::Settings;
use runtime_options::Progress as AppliedOptions;
use tokio::sync::Notify;

use crate::computation::core::MapWrites;
use crate::computation::repository::{Staged, id};
use crate::config::PolicyConfig;
use crate::model::computation::PolicyComputation;
use crate::model::logs::PolicyLog;
use crate::model::object::{ObjectId, PolicyStatus};
use crate::rounds::inputs::{Cursor, Input, Inputs, Versions};
use crate::rounds::metrics::Counters;
use crate::rounds::outputs::Outputs;
use crate::rounds::phases::{Mode, NewPrefixes, Phase, Schedule};
use crate::rounds::prefixes::PolicyPrefixes;
use crate::rounds::report::{Report, RoundError};
use crate::rounds::state::{Shared, State};

/// The maximum time that the job waits for endpoints of the previous run. They are announced when the programs are
/// loaded; endpoints that are not restored are removed from the kernel soon after.
const ANNOUNCEMENT_LIMIT: Duration = Duration::from_secs(10);
/// The maximum number of changed policies of a table in one round while rules are in force: a new endpoint waits for the
/// round in progress.
const ROUND_LIMIT: usize = 32;
/// The interval between checks which endpoints the kernel still has.
const ATTACHED_INTERVAL: Duration = Duration::from_millis(500);

/// The maximum time that maps wait for a proxy that gets policies before them.
const RECEIVE_LIMIT: Duration = Duration::from_secs(1);

/// The job.
pub(crate) struct Job {
    pub(crate) shared: Shared,
    pub(crate) inputs: Inputs,
    pub(crate) outputs: Outputs,
    pub(crate) prefixes: PolicyPrefixes,
    /// The revision of the desired policies, which callers of [`Policies`](crate::Policies) wait for.
    pub(crate) revision: Arc<AtomicU64>,
    pub(crate) applied_options: AppliedOptions,
    pub(crate) counters: Counters,
    /// Wakes the job after a change of the computation by a command.
    pub(crate) recompute: Arc<Notify>,
    /// The configuration with the interval of resyncs, a live option.
    pub(crate) config: ConfigWatch<PolicyConfig>,
}

/// The state that rounds pass to later ones.
struct Rounds {
    cursor: Cursor,
    schedule: Schedule<Versions>,
    /// Policies whose prefixes have no identities yet.
    staged: Staged,
    /// Objects whose status is written when their policies are in force.
    unreported: BTreeSet<ObjectId>,
}

/// Policies to be committed, and the new prefixes that they name.
struct Staging {
    staged: Staged,
    new_prefixes: Vec<IpNetwork>,
    /// Objects whose status may differ, as other proxies listen than before, or other secrets can be used.
    affected: Vec<ObjectId>,
    /// Whether policies have peers by service.
    uses_services: bool,
}

/// The remaining work of a round, after its phases.
struct Completion {
    computations: Vec<(u32, Option<PolicyComputation>)>,
    statuses: Vec<(ObjectId, Option<PolicyStatus>)>,
    /// Prefixes that no policy names any more.
    unnamed: Vec<IpNetwork>,
    /// Objects that are refused.
    refused: Option<String>,
}

impl Job {
    /// Waits until all sources are complete, then runs a round for each change until the job ends.
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        // The maps have the cookies of the previous run until the first write.
        let restored = self.shared.with(|state| state.core.take_log_changes()).await;
        PolicyLog::apply(&self.outputs.logs, restored);
        let complete = async {
            self.inputs.complete().await;
            // The first round includes these endpoints: prefixes must not change before all maps have their rows.
            let _ = tokio::time::timeout(ANNOUNCEMENT_LIMIT, self.restored_are_announced()).await;
        };
        tokio::select! {
            () = complete => {}
            () = cx.cancelled() => return Ok(()),
        }
        let mut rounds = Rounds {
            cursor: self.inputs.cursor(),
            schedule: Schedule::new(),
            staged: Staged::new(),
            unreported: BTreeSet::new(),
        };
        let mut last_resync = tokio::time::Instant::now();
        loop {
            let working = cx.working();
            let limit = match rounds.schedule.mode() {
                Mode::Startup => usize::MAX,
                Mode::Running => ROUND_LIMIT,
            };
            let (input, input_watch) = self.inputs.read(&mut rounds.cursor, limit);
            let (mut retry, mut failed) = (None, false);
            let identities_revision = input.identities_revision;
            if rounds.schedule.is_due(input.has_changes(), input.versions()) {
                let report = self.round(&mut rounds, input).await?;
                failed = report.error.is_some();
                retry = rounds.schedule.end(failed);
                if let Some(error) = &report.error {
                    self.applied_options.failed(error);
                }
                report.set_health(&cx.health, self.revision());
            }
            if !failed && rounds.schedule.mode() == Mode::Running {
                self.prefixes.allocator.policy_follows(identities_revision);
            }
            drop(working);
            let resync_interval = self.config.get().bpf_policy_map_full_reconciliation_interval;
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = input_watch.changed() => {}
                Some(()) = OptionFuture::from(retry.map(tokio::time::sleep)) => {}
                () = self.config.changed() => {}
                () = self.recompute.notified() => rounds.schedule.request_round(),
                () = tokio::time::sleep_until(last_resync + resync_interval), if !resync_interval.is_zero() => {
                    last_resync = tokio::time::Instant::now();
                    self.shared.with(|state| state.core.invalidate_map_cache()).await;
                    rounds.schedule.request_resync();
                }
            }
        }
    }

    /// Waits until the endpoints of the previous run have been announced or removed.
    async fn restored_are_announced(&self) {
        let mut attached = self.shared.with(|state| state.core.attached()).await;
        let endpoints = &self.inputs.endpoints;
        loop {
            let snapshot = endpoints.snapshot();
            let (rows, watch) = endpoints.all_watch(&snapshot);
            let announced: BTreeSet<u16> = rows.map(|row| row.subject.endpoint).collect();
            if attached.is_subset(&announced) {
                return;
            }
            drop(snapshot);
            tokio::select! {
                () = watch.changed() => {}
                () = tokio::time::sleep(ATTACHED_INTERVAL) => {
                    attached = self.shared.with(|state| state.core.attached()).await;
                }
            }
        }
    }

    fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Reconciles policy maps, ipcache and tables with the input.
    async fn round(&mut self, rounds: &mut Rounds, input: Input) -> anyhow::Result<Report> {
        let started = Instant::now();
        let (sources, options_revision) = (input.sources(), input.options_revision);
        let has_new_identities = !input.identities.is_empty();
        let settings = input.settings.clone();
        let dns_bypass = settings.dns_bypass;
        let is_resync = rounds.schedule.begin();
        let mode = rounds.schedule.mode();

        let staging = self.stage(rounds, input).await;
        self.inputs.services_in_use = staging.uses_services;
        rounds.unreported.extend(staging.affected.iter().cloned());
        let (writes, error) = self.apply(rounds, mode, staging, settings).await?;
        self.counters.round(&writes, self.revision(), &sources, started.elapsed());
        if has_new_identities {
            self.counters.identities_in_maps(started.elapsed());
        }
        let MapWrites { in_place, swapped, .. } = writes;
        if is_resync && in_place + swapped > 0 {
            tracing::warn!(
                in_place,
                swapped,
                "Policy maps were not as written; another process changes them"
            );
        }
        // Proxies decide by selectors on the traffic that the maps lead to them.
        let selectors = self.shared.with(|state| state.core.take_selector_changes()).await;
        self.outputs.write_selectors(selectors);
        // Creations of endpoints wait for these rows, so they are written before the statuses, which are only for
        // users.
        self.outputs.write_outcomes(&writes.outcomes);

        let is_committed = error.is_none();
        let Completion { computations, statuses, unnamed, refused } =
            self.complete(rounds, is_committed).await;
        self.outputs.write_computations(computations);
        self.outputs.write_statuses(statuses);
        self.prefixes.release(unnamed).await?;
        let report = Report::new(&writes, error, refused);
        if is_committed {
            if rounds.schedule.rules_in_force() {
                let (revision, endpoints) = (self.revision(), writes.outcomes.len());
                tracing::info!(revision, endpoints, "Policies of all sources are in force");
            }
            self.prefixes.complete();
            if report.error.is_none() {
                self.applied_options.applied(options_revision);
                if let Some(proxies) = self.inputs.proxies.as_ref().filter(|_| dns_bypass) {
                    proxies.set_dns_bypassed();
                }
            }
        }
        Ok(report)
    }

    /// Validates changed objects and updates identities and endpoints of the computation; nothing is written yet.
    async fn stage(&self, rounds: &mut Rounds, input: Input) -> Staging {
        rounds.unreported.extend(input.objects.iter().map(|change| id(&change.object)));
        let mut staged = std::mem::take(&mut rounds.staged);
        let counters = self.counters.clone();
        let services = self.inputs.services.clone();
        let at_startup = rounds.schedule.mode() == Mode::Startup;
        let stage = move |state: &mut State, waited| {
            state.stage_objects(&input.objects, &input.settings, &mut staged, &counters);
            state.stage_groups(&input.cidr_groups);
            state.stage_services(services.as_ref(), &mut staged);
            if at_startup {
                state.repository.sources_complete();
            }
            state.apply_identity_changes(&input.identities, &counters, waited);
            state.core.set_endpoints(input.endpoints.iter().map(|row| &**row));
            let affected = match state.core.set_proxies(input.ready) {
                true => {
                    state.set_secret_faults(input.secret_faults.clone());
                    state.repository.objects().cloned().collect()
                }
                false => state.set_secret_faults(input.secret_faults.clone()),
            };
            let new_prefixes = state.repository.missing(&staged);
            Staging { staged, new_prefixes, affected, uses_services: state.repository.uses_services() }
        };
        self.shared.with_waited(stage).await
    }

    /// Executes the phases of the round. Returns the map writes, and the error for which policies stay staged.
    async fn apply(
        &self,
        rounds: &mut Rounds,
        mode: Mode,
        staging: Staging,
        settings: Settings,
    ) -> anyhow::Result<(MapWrites, Option<RoundError>)> {
        let Staging { mut staged, new_prefixes, .. } = staging;
        let (mut prefixes, mut identities, mut error) = (NewPrefixes::None, None, None);
        if !new_prefixes.is_empty() {
            let allocated = self.prefixes.allocate(new_prefixes.clone()).await;
            // The allocation has written the table of identities: the rows of this round need the new ones now, not
            // with the next input.
            let changes = self.inputs.read_identities(&mut rounds.cursor);
            let counters = self.counters.clone();
            let apply =
                move |state: &mut State, waited| state.apply_identity_changes(&changes, &counters, waited);
            self.shared.with_waited(apply).await;
            match allocated {
                Ok(allocated) => (prefixes, identities) = (NewPrefixes::Allocated, Some(allocated)),
                Err(cause) => {
                    tracing::warn!(error = %cause, "Unable to give identities to prefixes of policies, trying again");
                    rounds.staged = std::mem::take(&mut staged);
                    (prefixes, error) = (NewPrefixes::Unavailable, Some(cause.into()));
                }
            }
        }
        // Each phase may block on the kernel; the state is unlocked in between, so that readers are not delayed.
        let mut commit = Some((settings, staged));
        let mut writes = MapWrites::default();
        for phase in mode.phases(prefixes) {
            match phase {
                Phase::WriteMaps => {
                    self.inform_proxies().await;
                    writes.merge(self.write_maps(false).await);
                }
                Phase::PublishPrefixes => {
                    if let Some(identities) = &identities {
                        self.prefixes.publish(identities).await?;
                    }
                }
                Phase::CommitRules | Phase::CommitRulesKeepPrefixes => {
                    let Some((settings, staged)) = commit.take() else { continue };
                    let held = if identities.is_some() { new_prefixes.clone() } else { Vec::new() };
                    // Without identities for the prefixes of groups the previous groups stay in force.
                    let are_groups_ready = error.is_none();
                    let (revision, keep) = (self.revision.clone(), *phase == Phase::CommitRulesKeepPrefixes);
                    let counters = self.counters.clone();
                    let commit = move |state: &mut State| {
                        state.repository.hold(held);
                        if are_groups_ready {
                            state.commit_groups();
                        }
                        state.commit(settings, staged, &revision, &counters);
                    };
                    self.shared.with(commit).await;
                    self.inform_proxies().await;
                    writes.merge(self.write_maps(keep).await);
                }
            }
        }
        Ok((writes, error))
    }

    /// Writes the maps. Texts for the log of verdicts are in their table before events name them, and until none does.
    async fn write_maps(&self, keep_prefixes: bool) -> MapWrites {
        let logs = self.outputs.logs.clone();
        let write = move |state: &mut State| {
            PolicyLog::apply(&logs, state.core.take_log_changes());
            let writes = state.core.write_maps(keep_prefixes);
            PolicyLog::apply(&logs, state.core.take_log_changes());
            writes
        };
        self.shared.with(write).await
    }

    /// Waits until a proxy with policies of its own has those that the maps are about to get, for a limited time: maps
    /// must not lead traffic to it that it does not know to be allowed, and must not wait for one that hangs.
    async fn inform_proxies(&self) {
        let Some(proxies) = &self.inputs.proxies else { return };
        let Some(receiver) = proxies.policy_receiver() else { return };
        let prepare = |state: &mut State| (state.core.prepare(), state.core.take_selector_changes());
        let (prepared, selectors) = self.shared.with(prepare).await;
        self.outputs.write_selectors(selectors);
        self.outputs.write_prepared(&prepared);
        if tokio::time::timeout(RECEIVE_LIMIT, receiver.received()).await.is_err() {
            tracing::warn!("A proxy does not take the policies that maps get now; it denies what they add");
        }
    }

    /// Collects the remaining results: the status of objects whose policies are
    /// committed, prefixes that no rule names, refused objects.
    async fn complete(&self, rounds: &mut Rounds, is_committed: bool) -> Completion {
        let unreported = if is_committed { std::mem::take(&mut rounds.unreported) } else { BTreeSet::new() };
        let (staged, counters, revision) = (rounds.staged.clone(), self.counters.clone(), self.revision());
        let complete = move |state: &mut State| {
            match unreported.is_empty() {
                true => counters.identities(state.core.engine()),
                false => counters.repository(state.core.engine()),
            }
            let status = |object: ObjectId| {
                let status = state.status(&object, revision);
                (object, status)
            };
            let statuses = unreported.into_iter().map(status).collect();
            let unnamed = state.repository.drop_unnamed(state.core.engine_mut(), &staged, is_committed);
            let computations = state.core.take_computations();
            Completion { computations, statuses, unnamed, refused: state.refused() }
        };
        self.shared.with(complete).await
    }
}
