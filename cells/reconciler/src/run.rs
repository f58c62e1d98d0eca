//! The loop around the rounds: waits, limits, prunes, refreshes, tells how far it is.

use std::future::Future;
use std::time::Duration;

use hive::JobCx;
use statedb::{TableSpec, Watch};
use tokio::time::{Instant, sleep_until};

use crate::reconciler::Reconciler;

impl<T: TableSpec + Clone> Reconciler<T> {
    /// Reconciles as a job until that is to end. Its rounds have the job's deadline, as has the time until it begins with
    /// a change of the table.
    pub async fn run_job(mut self, cx: &JobCx) {
        let (table, progress) = (self.core.table.reader(), self.progress.subscribe());
        cx.backlog(move || table.revision(&table.snapshot()) > progress.borrow().attempted);
        self.job = Some(cx.clone());
        self.run_until(cx.cancelled()).await;
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
    pub async fn run(mut self) {
        let start = Instant::now();
        let mut rounds = Rounds::new(self.options.rounds_per_second, self.options.rounds_burst, start);
        let every = |interval: Duration| (!interval.is_zero()).then_some(interval);
        let (prune_every, refresh_every) = (every(self.options.prune), every(self.options.refresh));
        let mut prune_wanted = prune_every.is_some();
        let mut next_prune = prune_every.map(|interval| start + interval);
        let mut next_refresh = refresh_every.map(|interval| start + interval);
        loop {
            let working = self.job.as_ref().map(JobCx::working);
            rounds.wait().await;
            let round = self.core.round().await;
            if round.worked {
                rounds.used();
                self.core.metrics.rounds.add(1);
            }
            let progress = self.core.progress();
            self.progress.send_if_modified(|last| std::mem::replace(last, progress) != progress);

            let now = Instant::now();
            if next_prune.is_some_and(|at| at <= now) {
                prune_wanted = true;
                next_prune = prune_every.map(|interval| now + interval);
            }
            let mut initialized = Watch::closed();
            let mut pruned = false;
            if prune_wanted {
                let (ready, watch) = self.core.table.initialized_watch(&self.core.table.snapshot());
                initialized = watch;
                if ready {
                    (prune_wanted, pruned) = (false, true);
                    self.prune_now().await;
                }
            }
            if next_refresh.is_some_and(|at| at <= now) {
                let wait = self.core.refresh(self.options.refresh, self.options.refreshes_per_second);
                next_refresh = Some(now + wait.max(Duration::from_secs(1)));
            }
            if round.worked || pruned {
                (self.report)(self.core.report(self.prune_error.as_deref()));
            }

            drop(working);
            let due = [self.core.retries.next_due(), next_prune, next_refresh].into_iter().flatten().min();
            tokio::select! {
                biased;
                () = round.more.changed() => {}
                () = initialized.changed(), if prune_wanted => {}
                () = self.prune.notified() => prune_wanted = true,
                () = sleep_until(due.unwrap_or(now)), if due.is_some() => {}
            }
        }
    }

    async fn prune_now(&mut self) {
        self.prune_error = match self.core.prune().await {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(reconciler = %self.name, error, "Pruning failed");
                Some(format!("prune: {error}"))
            }
        };
    }
}

/// So many rounds a second, some of them at once after a pause: a lone change does not wait, a flood is grouped.
struct Rounds {
    interval: Duration,
    burst: Duration,
    /// When the next round would be due without any saved up.
    next: Instant,
}

impl Rounds {
    fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / per_second;
        Rounds { interval, burst: interval * (burst - 1), next: now }
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
