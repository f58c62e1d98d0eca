//! The loop around the rounds: waits, rate limits, prunes, publishes progress.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
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
pub struct Reconciler<T: TableSpec> {
    pub(crate) rounds: Rounds<T>,
    /// None if nothing is refreshed.
    pub(crate) refresher: Option<Refresher<T>>,
}

/// The loop without the refreshing.
pub(crate) struct Rounds<T: TableSpec> {
    pub(crate) core: Core<T>,
    pub(crate) name: Arc<str>,
    pub(crate) options: Options,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) prune: Arc<Notify>,
    pub(crate) prunes: watch::Sender<Prunes>,
    pub(crate) report: Box<dyn FnMut(Report) + Send>,
    pub(crate) prune_error: Option<String>,
    /// The job that it is, for its watchdog.
    pub(crate) job: Option<JobCx>,
}

impl<T: TableSpec + Clone> Reconciler<T> {
    /// Reconciles as a job until that is to end. Its rounds have the job's deadline, as has the time until it begins with
    /// a change of the table.
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

async fn refreshing<T: TableSpec + Clone>(refresher: Option<Refresher<T>>, tell: impl Fn(Until)) {
    match refresher {
        Some(refresher) => refresher.run(tell).await,
        None => std::future::pending().await,
    }
}

impl<T: TableSpec + Clone> Rounds<T> {
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
        // The table's revision when it was known to be complete: nothing is pruned before all of it has had its turn.
        let mut complete = None;
        // Objects whose watches have closed.
        let mut woken = Vec::new();
        loop {
            let working = self.job.as_ref().map(JobCx::working);
            limit.wait().await;
            let mut initialized = Watch::closed();
            if complete.is_none() {
                (complete, initialized) = self.core.complete();
            }
            let round = self.core.round(std::mem::take(&mut woken)).await;
            if round.worked {
                limit.used();
                self.core.metrics.rounds.add(1);
            }
            let progress = self.core.progress();
            self.progress.send_if_modified(|last| std::mem::replace(last, progress) != progress);

            let now = Instant::now();
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
        // Requests made by now are served by this prune.
        self.prune.notified().now_or_never();
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

/// So many rounds a second, some of them at once after a pause: a lone change does not wait, a flood is grouped.
struct Limit {
    interval: Duration,
    burst: Duration,
    /// When the next round would be due without any saved up.
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
            // Other tasks get their turn between rounds that follow each other.
            tokio::task::yield_now().await;
        }
    }

    fn used(&mut self) {
        self.next += self.interval;
    }
}
