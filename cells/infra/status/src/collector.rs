//! The agent's status, collected from the status sources of cells and the health of modules.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::SystemTime;

use api::{ControllerUuids, StatusSource};
use api_models::{DateTime, Status, StatusResponse};
use hive::job::{Jobs, Stuck};
use hive::{HealthTree, Level};
use parking_lot::Mutex;

use crate::{features, jobs};

/// The parameters of a request for the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Whether only the parts that probes evaluate are returned.
    pub brief: bool,
    /// Whether an unreachable API server of Kubernetes is a failure.
    pub require_k8s: bool,
    /// Whether a degraded module is a failure. Not for probes: a restart does not fix what the module retries already.
    pub require_modules: bool,
}

/// Collects the status.
pub struct Collector {
    sources: Vec<StatusSource>,
    health: Arc<HealthTree>,
    jobs: Arc<Jobs>,
    uuids: ControllerUuids,
    rounds: Mutex<Rounds>,
    /// Jobs without progress, with the time of their last step.
    stuck: Mutex<BTreeMap<String, SystemTime>>,
}

#[derive(Default)]
struct Rounds {
    /// The verdicts of the last round: with an unreachable API server as a failure, and without.
    verdicts: Option<[Status; 2]>,
    /// Time of the last round that found the agent healthy, disregarding the API server.
    well: Option<SystemTime>,
    /// Sources that fail now, with the time of their last success.
    failing: BTreeMap<&'static str, Option<SystemTime>>,
    worked: BTreeMap<&'static str, SystemTime>,
}

impl Collector {
    /// Returns a collector before its first round.
    pub fn new(sources: Vec<StatusSource>, health: Arc<HealthTree>, jobs: Arc<Jobs>) -> Self {
        let (uuids, rounds, stuck) = Default::default();
        Self { sources, health, jobs, uuids, rounds, stuck }
    }

    /// Runs a round: queries all sources and stores the verdicts for probes.
    pub fn round(&self, now: SystemTime) {
        let mut failing = Vec::new();
        let mut status = self.ask_all(&mut failing);
        status.stale.extend(failing.iter().map(|name| ((*name).to_owned(), DateTime::default())));
        let probe = |require_k8s| Question { brief: true, require_k8s, require_modules: false };
        let verdicts = [true, false].map(|require_k8s| self.verdict(&status, probe(require_k8s)));
        let mut rounds = self.rounds.lock();
        for source in &self.sources {
            let name = source.name();
            if failing.contains(&name) {
                let worked = rounds.worked.get(name).copied();
                rounds.failing.entry(name).or_insert(worked);
            } else {
                rounds.failing.remove(name);
                rounds.worked.insert(name, now);
            }
        }
        if is_well(&verdicts[1].state) {
            rounds.well = Some(now);
        }
        rounds.verdicts = Some(verdicts);
    }

    /// Whether the last round found the agent healthy and all jobs make progress: the answer to probes. Waits for no
    /// cell, so that probes are answered even when cells hang.
    pub fn is_alive(&self, require_k8s: bool) -> bool {
        let rounds = self.rounds.lock();
        let verdict =
            rounds.verdicts.as_ref().map(|[with, without]| if require_k8s { with } else { without });
        verdict.is_some_and(|verdict| is_well(&verdict.state)) && self.stuck.lock().is_empty()
    }

    /// Returns the time of the last round that found the agent healthy, disregarding the API server.
    pub fn last_well(&self) -> Option<SystemTime> {
        self.rounds.lock().well
    }

    /// Records the jobs that the watchdog has found stuck at this time.
    pub fn observed(&self, stuck: &[Stuck], now: SystemTime) {
        let mut known = self.stuck.lock();
        known.retain(|job, _| stuck.iter().any(|stuck| stuck.job == *job));
        for stuck in stuck {
            let since = || now.checked_sub(stuck.since).unwrap_or(now);
            known.entry(stuck.job.clone()).or_insert_with(since);
        }
    }

    /// Returns the status; `None` before the first round.
    pub fn status(&self, question: Question) -> Option<StatusResponse> {
        self.rounds.lock().verdicts.as_ref()?;
        let mut status = self.ask_all(&mut Vec::new());
        for (job, since) in self.stuck.lock().iter() {
            status.stale.insert(job.clone(), DateTime::from(*since));
        }
        for (name, worked) in &self.rounds.lock().failing {
            let worked = worked.map(DateTime::from).unwrap_or_default();
            status.stale.insert((*name).to_owned(), worked);
        }
        status.cilium = Some(self.verdict(&status, question));
        if question.brief {
            let cluster = status.cluster.map(|cluster| api_models::ClusterStatus {
                cilium_health: cluster.cilium_health,
                ..Default::default()
            });
            let StatusResponse { cilium, stale, .. } = status;
            return Some(StatusResponse { cilium, cluster, stale, ..Default::default() });
        }
        status.controllers = jobs::controllers(&self.health.snapshot(), &self.jobs.schedules(), &self.uuids);
        Some(status)
    }

    /// Queries all sources; features without a cell have their disabled state. A source that panics keeps the fields
    /// that it has filled before, and is added to `failing`.
    fn ask_all(&self, failing: &mut Vec<&'static str>) -> StatusResponse {
        let mut status = features::off();
        for source in &self.sources {
            if catch_unwind(AssertUnwindSafe(|| source.fill(&mut status))).is_err() {
                failing.push(source.name());
            }
        }
        status
    }

    /// Returns the state of the agent as a whole: the first of Cilium's rules that applies.
    fn verdict(&self, status: &StatusResponse, question: Question) -> Status {
        let say = |state: &str, msg: String| Status { state: state.to_owned(), msg };
        let bad = |state: &str| !is_well(state);
        if !status.stale.is_empty() {
            return say("Warning", "Stale status data".to_owned());
        }
        if let Some(kvstore) = status.kvstore.as_ref().filter(|kvstore| bad(&kvstore.state)) {
            return say(&kvstore.state, format!("Kvstore service is not ready: {}", kvstore.msg));
        }
        let kubernetes = status.kubernetes.as_ref().filter(|_| question.require_k8s);
        if let Some(kubernetes) = kubernetes.filter(|kubernetes| bad(&kubernetes.state)) {
            return say(&kubernetes.state, format!("Kubernetes service is not ready: {}", kubernetes.msg));
        }
        if let Some(cni) = status.cni_file.as_ref().filter(|cni| cni.state == "Failure") {
            return say("Failure", format!("Could not write CNI config file: {}", cni.msg));
        }
        // A source that knows that this node cannot serve pods yet has filled in the state of the whole.
        if let Some(whole) = status.cilium.as_ref().filter(|whole| bad(&whole.state)) {
            return whole.clone();
        }
        if question.require_modules
            && let Some(degraded) = self.degraded()
        {
            return say("Warning", degraded);
        }
        say("Ok", format!("{version} (v{version})", version = metrics::VERSION))
    }

    /// The degraded modules with their errors, at most three of them.
    fn degraded(&self) -> Option<String> {
        let all = self.health.snapshot();
        let degraded: Vec<_> = all.iter().filter(|report| report.level == Level::Degraded).collect();
        let named: Vec<_> = degraded
            .iter()
            .take(3)
            .map(|report| {
                format!(
                    "{}: {}",
                    report.path(),
                    if report.error.is_empty() { &report.message } else { &report.error }
                )
            })
            .collect();
        let first = degraded.first()?.path();
        Some(format!("{} degraded: {} (apiary explain {first})", degraded.len(), named.join("; ")))
    }
}

/// Whether a state of Cilium's is one of health.
fn is_well(state: &str) -> bool {
    matches!(state, "Ok" | "Disabled")
}
