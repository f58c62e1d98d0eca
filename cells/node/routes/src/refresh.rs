//! Finds routes that the kernel has lost, by its live tables: those that another process has deleted or changed, and
//! those that went with an address or a link.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use devices::{Device, Route};
use hive::JobCx;
use reconciler::{Status, StatusKind};
use statedb::{RwTable, Snapshot, Table};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{DesiredRoute, FibKey};

/// Minimum interval of comparisons.
const INTERVAL: Duration = Duration::from_millis(900);
/// Interval of the next attempts of routes that the kernel has refused, as their device or source address appears in
/// steps: this many times, then at [`INTERVAL`] until there was none for as many intervals.
const SHORT_INTERVAL: Duration = Duration::from_millis(20);
const MAX_SHORT_INTERVALS: u32 = 10;
/// The age of a written row from which the live tables are known to have it. A younger one is compared later.
const LIVE_AFTER: Duration = Duration::from_millis(500);
/// The number of attempts after which the interval between repairs of a route that stays different is doubled.
const ATTEMPTS_UNTIL_BACKOFF: u32 = 4;
/// The interval is doubled this many times at most, to half an hour.
const MAX_DOUBLINGS: u32 = 11;

/// The job that marks lost routes as refreshing.
pub(crate) struct Refresher {
    pub(crate) desired: Arc<RwTable<DesiredRoute>>,
    pub(crate) devices: Arc<Table<Device>>,
    pub(crate) live: Arc<Table<Route>>,
}

/// Attempts to repair the route of a key that stays different, as when another process contends for it.
#[derive(Clone, Copy, Debug)]
struct Attempts {
    count: u32,
    /// The next attempt.
    due: Instant,
}

/// The outcome of a comparison.
#[derive(Debug, Default)]
struct Lost {
    /// Rows to reconcile again.
    rows: Vec<DesiredRoute>,
    /// Whether the kernel has refused some of them.
    has_errors: bool,
    /// Whether rows are too young to be compared.
    has_young: bool,
    /// The earliest time at which a row that differs is written again.
    due: Option<Instant>,
}

impl Refresher {
    /// Compares after each change of the kernel's routes and devices, as long as the hive runs.
    pub(crate) async fn run(self, cx: JobCx) {
        let mut attempts = HashMap::new();
        // Rows up to this revision were written before the last pause.
        let mut old_enough = 0;
        let mut short = MAX_SHORT_INTERVALS;
        loop {
            let snapshot = self.desired.snapshot();
            let (_, devices) = self.devices.all_watch(&snapshot);
            let (_, routes) = self.live.all_watch(&snapshot);
            let revision = self.desired.revision(&snapshot);
            let now = Instant::now();
            let lost = self.compare(&snapshot, old_enough, now, &mut attempts);
            self.mark(&lost.rows);
            let pause = if lost.has_errors && short > 0 {
                short -= 1;
                SHORT_INTERVAL
            } else {
                short = (short + 1).min(MAX_SHORT_INTERVALS);
                if lost.has_young { LIVE_AFTER } else { INTERVAL }
            };
            drop(snapshot);
            tokio::select! {
                biased;
                () = cx.cancelled() => return,
                () = sleep(pause) => {}
            }
            if pause >= LIVE_AFTER {
                old_enough = revision;
            }
            if lost.has_young {
                continue;
            }
            tokio::select! {
                biased;
                () = cx.cancelled() => return,
                _ = devices.changed() => {}
                _ = routes.changed() => {}
                () = sleep_until(lost.due.unwrap_or(now)), if lost.due.is_some() => {}
            }
        }
    }

    fn compare(
        &self,
        snapshot: &Snapshot,
        old_enough: u64,
        now: Instant,
        attempts: &mut HashMap<FibKey, Attempts>,
    ) -> Lost {
        let mut lost = Lost::default();
        for row in self.desired.all(snapshot).filter(|row| row.selected) {
            match row.status.kind() {
                // Its device or its next hop may be there now.
                StatusKind::Error => {
                    lost.has_errors = true;
                    lost.rows.push(DesiredRoute::clone(row));
                }
                StatusKind::Done => {
                    let find = |key| self.live.get(snapshot, Route::by_key(key)).map(|row| &**row);
                    if row.entry().is_live(find) {
                        attempts.remove(&row.key);
                    } else if row.revision() > old_enough {
                        lost.has_young = true;
                    } else {
                        let tried = attempts.entry(row.key).or_insert(Attempts { count: 0, due: now });
                        if tried.due <= now {
                            tried.count += 1;
                            let doublings = (tried.count / ATTEMPTS_UNTIL_BACKOFF).min(MAX_DOUBLINGS);
                            tried.due = now + INTERVAL * ((1 << doublings) - 1);
                            tracing::info!(route = %row.key, owner = %row.owner, "Route was lost, write it again");
                            lost.rows.push(DesiredRoute::clone(row));
                        } else {
                            lost.due = Some(lost.due.map_or(tried.due, |due| due.min(tried.due)));
                        }
                    }
                }
                _ => {}
            }
        }
        attempts.retain(|key, _| self.desired.get(snapshot, DesiredRoute::by_key(*key)).is_some());
        lost
    }

    fn mark(&self, rows: &[DesiredRoute]) {
        if rows.is_empty() {
            return;
        }
        let mut txn = self.desired.write();
        for row in rows {
            let current = txn.get(DesiredRoute::by_id(&row.owner, row.key));
            // A row that was written meanwhile is reconciled because of that write.
            if current.is_some_and(|current| current.status.id() == row.status.id()) {
                txn.insert(DesiredRoute { status: Status::refreshing(), ..row.clone() });
            }
        }
        txn.commit();
    }
}
