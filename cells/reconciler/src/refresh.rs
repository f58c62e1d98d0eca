//! The periodic refresh of reconciled objects, which repairs drift of the target.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use statedb::{KeyBuf, Obj, Query, RwTable, TableSpec};
use tokio::time::{Instant, sleep};

use crate::builder::{Clock, StatusField};
use crate::status::{Status, StatusKind};

/// A job that marks objects as refreshing when their last reconciliation is too old, at a limited rate.
pub(crate) struct Refresher<T: TableSpec> {
    pub(crate) table: RwTable<T>,
    pub(crate) status: Arc<StatusField<T>>,
    pub(crate) clock: Clock,
    /// The time from an object's reconciliation to its refresh.
    pub(crate) age: Duration,
    pub(crate) per_second: usize,
    /// The revision up to which all rows have been checked: those that still have such a revision were not `Done`.
    pub(crate) seen: u64,
}

/// A duration in hours, minutes and seconds without units of zero in front: `30m0s`.
pub(crate) struct Until(Duration);

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64().round() as u64;
        match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
            (0, 0, seconds) => write!(f, "{seconds}s"),
            (0, minutes, seconds) => write!(f, "{minutes}m{seconds}s"),
            (hours, minutes, seconds) => write!(f, "{hours}h{minutes}m{seconds}s"),
        }
    }
}

impl<T: TableSpec + Clone> Refresher<T> {
    /// Runs until it is dropped; reports each wait before it begins.
    pub(crate) async fn run(mut self, report: impl Fn(Until)) {
        loop {
            let wait = self.refresh().max(Duration::from_secs(1));
            report(Until(wait));
            sleep(wait).await;
        }
    }

    /// Marks the oldest objects that are due, at most those of one second. Returns the time until the next one is due,
    /// zero if more are due now.
    fn refresh(&mut self) -> Duration {
        let now = self.clock.at(Instant::now());
        let snapshot = self.table.snapshot();
        let mut due: Vec<Obj<T>> = Vec::new();
        let mut wait = self.age;
        for object in self.table.by_revision(&snapshot, self.seen + 1) {
            let status = match self.status.get(object) {
                Ok(status) => status,
                Err(error) => {
                    self.skip(object, &error);
                    self.seen = object.revision();
                    continue;
                }
            };
            // A time in the future was written before the system clock was set back: such an object is due now.
            let since = status.updated_at();
            let at = if since > now { now } else { since + self.age };
            if status.is_done() {
                if at > now {
                    wait = at.duration_since(now).unwrap_or_default();
                    break;
                }
                if due.len() == self.per_second {
                    wait = Duration::ZERO;
                    break;
                }
                due.push(object.clone());
            }
            self.seen = object.revision();
        }
        if !due.is_empty() {
            self.mark(&due, now);
        }
        wait
    }

    /// Logs that an object is skipped until its next write, because its status cannot be read or written.
    fn skip(&self, object: &Obj<T>, error: &str) {
        tracing::warn!(
            table = self.table.name(),
            revision = object.revision(),
            error,
            "Object not refreshed"
        );
    }

    fn mark(&self, objects: &[Obj<T>], now: SystemTime) {
        let mut w = self.table.write();
        for object in objects {
            match self.status.set((**object).clone(), Status::new(StatusKind::Refreshing, now)) {
                Ok(refreshed) => {
                    // An object that was written meanwhile is reconciled because of that write.
                    let current = w.get(Query::raw_primary(KeyBuf::of(&object.key())));
                    if current.is_some_and(|current| current.same(object)) {
                        drop(w.try_insert(refreshed));
                    }
                }
                Err(error) => self.skip(object, &error),
            }
        }
        w.commit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_as_in_cilium() {
        let shown = |seconds| Until(Duration::from_secs(seconds)).to_string();
        assert_eq!([1800, 599, 5, 3600].map(shown), ["30m0s", "9m59s", "5s", "1h0m0s"]);
    }
}
