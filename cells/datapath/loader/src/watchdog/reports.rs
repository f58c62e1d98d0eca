//! Reports comparisons: counts repairs, logs them without repetition, sets the watchdog's health.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath_api::DatapathError;
use hive::Health;
use maps::DriftChecks;

use crate::watchdog::repairs::{Kind, Repair, Repairs, repair};
use crate::watchdog::schedule::Comparison;

/// Minimum interval between log lines about the same repairs.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of repairs named in one log line.
const MAX_LOGGED_REPAIRS: usize = 8;
/// The consequence of a failed comparison.
const FAILED: &str = "Parts of the datapath may have been removed and cannot be put back, trying again; pods go on as \
    long as the agent runs";

/// Reports of comparisons.
pub(crate) struct Reports {
    health: Health,
    repairs: Repairs,
    /// Repairs by owners of other map entries.
    drift_checks: Arc<DriftChecks>,
    /// The repairs that were logged last, and when.
    logged: Option<(Instant, String)>,
}

impl Reports {
    pub(crate) fn new(health: Health, repairs: Repairs, drift_checks: Arc<DriftChecks>) -> Reports {
        Reports { health, repairs, drift_checks, logged: None }
    }

    /// Reports what a comparison has repaired, and map entries that other owners have repaired since the last one.
    /// Returns the outcome.
    pub(crate) fn report(&mut self, found: Result<Vec<Repair>, DatapathError>, now: Instant) -> Comparison {
        let mut found = match found {
            Ok(found) => found,
            Err(error) => {
                if self.health.degraded_anew(FAILED, &error) {
                    tracing::warn!(%error, "{FAILED}");
                }
                return Comparison::Failed;
            }
        };
        found.extend(self.drift_checks.take().into_iter().map(|entry| repair(Kind::Row, entry)));
        found.iter().for_each(|repair| self.repairs.count(repair.kind));
        if !found.is_empty() {
            let count = found.len();
            let names: Vec<&str> =
                found.iter().take(MAX_LOGGED_REPAIRS).map(|repair| &*repair.what).collect();
            let names = names.join(", ");
            // If two processes keep replacing each other's filter, log one line per minute.
            let logged = |(at, before): &(Instant, String)| {
                *before == names && now.saturating_duration_since(*at) < LOG_INTERVAL
            };
            if !self.logged.as_ref().is_some_and(logged) {
                tracing::warn!(
                    count,
                    what = names,
                    "Parts of the datapath were removed or changed by another process, they are put back"
                );
                self.logged = Some((now, names));
            }
        }
        match &self.logged {
            Some((_, last)) => self.health.ok(format!("{} repairs, last of: {last}", self.repairs.total())),
            None => self.health.ok("nothing was missing"),
        }
        if found.iter().any(|repair| matches!(repair.kind, Kind::Program | Kind::Network)) {
            Comparison::HostSideLost
        } else {
            Comparison::Done
        }
    }
}
