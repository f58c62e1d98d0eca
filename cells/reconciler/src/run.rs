//! The loop around the rounds: waits, rate limits, prunes, publishes progress.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "hive")]
use hive::JobCx;
use statedb::{TableSpec, Watch};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::builder::Options;
use crate::ops::guarded;
use crate::progress::{Progress, Prunes};
use crate::refresh::{Refresher, Until};
use crate::report::Report;
use crate::round::Core;

/// A reconciler that is ready to [`run`](Reconciler::run).
#[must_use = "nothing is reconciled until it runs"]
pub struct Reconciler<T: TableSpec> {
    pub(crate) rounds: Rounds<T>,
    /// None if the refresh is disabled or runs in a separate job.
    pub(crate) refresher: Option<Refresher<T>>,
}

impl<T: TableSpec> fmt::Debug for Reconciler<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler").field("table", &T::NAME).finish_non_exhaustive()
    }
}

/// The loop of a reconciler, without the refresh.
pub(crate) struct Rounds<T: TableSpec> {
    pub(crate) core: Core<T>,
    pub(crate) name: Arc<str>,
    pub(crate) options: Options,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) prune: Arc<Notify>,
    pub(crate) prunes: watch::Sender<Prunes>,
    pub(crate) report: Box<dyn FnMut(Report) + Send>,
    pub(crate) prune_error: Option<String>,
    /// The job that runs the loop, for its watchdog.
    #[cfg(feature = "hive")]
    pub(crate) job: Option<JobCx>,
}

impl<T: TableSpec + Clone> Reconciler<T> {
    /// Reconciles as a job until the job is cancelled. The job's watchdog limits the time of a round and the time
    /// until a change of the table is picked up.
    #[cfg(feature = "hive")]
    pub async fn run_job(self, cx: &JobCx) {
        let Reconciler { rounds, refresher } = self;
        tokio::select! {
            biased;
            () = rounds.run_job(cx) => {}
            () = refreshing(refresher, |_| ()) => {}
        }
    }

    /// Reconciles until `stop` is ready.
    pub async fn run_until(self, stop: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = stop => {}
            () = self.run() => {}
        }
    }

    /// Reconciles until it is dropped.
    pub async fn run(self) {
        let Reconciler { rounds, refresher } = self;
        tokio::select! {
            biased;
            () = rounds.run() => {}
            () = refreshing(refresher, |_| ()) => {}
        }
    }
}

async fn refreshing<T: TableSpec + Clone>(refresher: Option<Refresher<T>>, report: impl Fn(Until)) {
    match refresher {
        Some(refresher) => refresher.run(report).await,
        None => std::future::pending().await,
    }
}

impl<T: TableSpec + Clone> Rounds<T> {
    #[cfg(feature = "hive")]
    pub(crate) async fn run_job(mut self, cx: &JobCx) {
        let (table, progress) = (self.core.table.reader(), self.progress.subscribe());
        cx.backlog(move || table.revision(&table.snapshot()) > progress.borrow().attempted);
        self.core.metrics.runs_in(cx.health.module());
        self.job = Some(cx.clone());
        tokio::select! {
            biased;
            () = cx.cancelled() => {}
            () = self.run() => {}
        }
    }

    async fn run(mut self) {
        let start = Instant::now();
        let mut limit = Limit::new(self.options.rounds_per_second, self.options.rounds_burst, start);
        let prune_every = Some(self.options.prune).filter(|interval| !interval.is_zero());
        let mut prune_wanted = prune_every.is_some();
        let mut next_prune = prune_every.map(|interval| start + interval);
        let mut first = true;
        // The table's revision when it was first known to be complete: no prune runs before every change up to it was
        // tried, because a prune removes objects that the table lacks only for now.
        let mut complete = None;
        // Keys of objects whose watches have closed.
        let mut woken = Vec::new();
        loop {
            #[cfg(feature = "hive")]
            let working = self.job.as_ref().map(JobCx::working);
            limit.wait().await;
            let mut initialized = Watch::closed();
            if complete.is_none() {
                (complete, initialized) = self.core.complete();
            }
            let begin = Instant::now();
            let round = self.core.round(std::mem::take(&mut woken)).await;
            let now = Instant::now();
            if round.worked {
                limit.used();
                self.core.metrics.round(now - begin, round.failed);
            }
            let progress = self.core.progress();
            self.progress.send_if_modified(|last| std::mem::replace(last, progress) != progress);

            if next_prune.is_some_and(|at| at <= now) {
                prune_wanted = true;
                next_prune = prune_every.map(|interval| now + interval);
            }
            let pruned = prune_wanted && complete.is_some_and(|revision| progress.attempted >= revision);
            if pruned {
                prune_wanted = false;
                self.prune_now().await;
            }
            if std::mem::take(&mut first) || round.worked || round.changed || pruned {
                self.report_now();
            }

            #[cfg(feature = "hive")]
            drop(working);
            let due = self.core.retries.next_due().into_iter();
            let due = due.chain(self.core.waits.next_deadline()).chain(next_prune).min();
            tokio::select! {
                biased;
                () = round.more.changed() => {}
                () = initialized.changed(), if prune_wanted && complete.is_none() => {}
                keys = self.core.waits.closed() => woken = keys,
                () = self.prune.notified() => prune_wanted = true,
                () = sleep_until(due.unwrap_or(now)), if due.is_some() => {}
            }
        }
    }

    fn report_now(&mut self) {
        let report = self.core.report(self.prune_error.as_deref());
        if let Err(error) = guarded("the report", || (self.report)(report)) {
            let table = self.core.table.name();
            tracing::error!(table, reconciler = %self.name, error, "Report not delivered");
        }
    }

    async fn prune_now(&mut self) {
        // Consume the pending notification: this prune serves all requests made so far.
        pin!(self.prune.notified()).enable();
        // Counted before the prune reads the table: `pruned` waits for a prune that begins after its request.
        self.prunes.send_modify(|prunes| prunes.begun += 1);
        self.prune_error = match self.core.prune().await {
            Ok(()) => None,
            Err(error) => {
                let table = self.core.table.name();
                tracing::warn!(table, reconciler = %self.name, error, "Pruning failed");
                Some(format!("prune: {error}"))
            }
        };
        self.prunes.send_modify(|prunes| prunes.ended = prunes.begun);
    }
}

/// A rate limit of rounds with a burst: a single change is reconciled without delay, a stream of changes is batched.
struct Limit {
    interval: Duration,
    burst: Duration,
    /// The time of the next round if there were no burst.
    next: Instant,
}

impl Limit {
    fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / per_second;
        Limit { interval, burst: interval * (burst - 1), next: now }
    }

    async fn wait(&mut self) {
        let now = Instant::now();
        self.next = self.next.max(now.checked_sub(self.burst).unwrap_or(self.next));
        if self.next > now {
            sleep_until(self.next).await;
        } else {
            // Consecutive rounds must not starve other tasks on this thread.
            tokio::task::yield_now().await;
        }
    }

    fn used(&mut self) {
        self.next += self.interval;
    }
}
