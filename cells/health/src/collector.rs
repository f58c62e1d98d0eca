//! The agent's status, put together from what cells say and from the health of modules.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::StatusSource;
use api_models::{DateTime, Status, StatusResponse};
use hive::{HealthTree, Level};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{features, jobs};

/// How often the status is put together without being asked for.
pub(crate) const ROUND: Duration = Duration::from_secs(10);

/// A round that is this late says that the agent hangs.
const LATE: Duration = Duration::from_secs(60);

/// Who asks for the status, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Only the parts that probes look at.
    pub brief: bool,
    /// Whether a lost API server of Kubernetes counts.
    pub require_k8s: bool,
    /// Whether a degraded module counts. It does not for probes: a restart is no cure for what a module retries.
    pub require_modules: bool,
}

/// Puts the status together.
pub struct Collector {
    sources: Vec<StatusSource>,
    health: Arc<HealthTree>,
    rounds: Mutex<Rounds>,
}

#[derive(Default)]
struct Rounds {
    last: Option<Instant>,
    /// When each source that fails now worked last.
    failing: BTreeMap<&'static str, Option<SystemTime>>,
    worked: BTreeMap<&'static str, SystemTime>,
}

impl Collector {
    /// A collector that has had no round yet.
    pub fn new(sources: Vec<StatusSource>, health: Arc<HealthTree>) -> Self {
        Self { sources, health, rounds: Mutex::default() }
    }

    /// A round: asks all sources and notes that the agent moves.
    pub fn round(&self, now: SystemTime) {
        let mut failing = Vec::new();
        self.ask_all(&mut failing);
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
        rounds.last = Some(Instant::now());
    }

    /// The status. `None` before the first round.
    pub fn status(&self, question: Question) -> Option<StatusResponse> {
        let late = self.rounds.lock().last?.elapsed() > LATE;
        let mut status = self.ask_all(&mut Vec::new());
        if late {
            status.stale.insert("status-collector".to_owned(), DateTime::default());
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
        status.controllers = jobs::controllers(&self.health.snapshot());
        Some(status)
    }

    /// What sources say on top of what is said of features that no cell has. Of a source that panics only counts what it
    /// had filled before.
    fn ask_all(&self, failing: &mut Vec<&'static str>) -> StatusResponse {
        let mut status = features::off();
        for source in &self.sources {
            if catch_unwind(AssertUnwindSafe(|| source.fill(&mut status))).is_err() {
                failing.push(source.name());
            }
        }
        status
    }

    /// How the agent is as a whole: the first of the original's rules that applies.
    fn verdict(&self, status: &StatusResponse, question: Question) -> Status {
        let say = |state: &str, msg: String| Status { state: state.to_owned(), msg };
        let bad = |state: &str| !matches!(state, "Ok" | "Disabled");
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
        (!degraded.is_empty()).then(|| format!("{} degraded: {}", degraded.len(), named.join("; ")))
    }
}
