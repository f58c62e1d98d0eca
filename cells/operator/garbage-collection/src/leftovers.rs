//! The collection of objects whose owner is gone, once they have been left for an interval.

use std::sync::Arc;
use std::time::Duration;

use hive::JobCx;
use k8s_types::{Key, SmolStr};
use statedb::{Snapshot, Table};
use tokio::time::{Instant, sleep};

use crate::candidates::Candidates;
use crate::object::Object;
use crate::requests::{Requests, Run};

/// Deletes objects of a kind after their owner is gone.
pub(crate) struct LeftoverCollector<T: Object, O: Object> {
    pub(crate) objects: Arc<Table<T>>,
    pub(crate) owners: Arc<Table<O>>,
    /// Whether the owner of an object is gone.
    pub(crate) is_left: fn(&T, &Table<O>, &Snapshot) -> bool,
    pub(crate) requests: Requests,
    pub(crate) interval: Duration,
    /// Counts a run.
    pub(crate) count: Box<dyn Fn(&Run) + Send + Sync>,
}

impl<T: Object, O: Object> LeftoverCollector<T, O> {
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let (kinds, owners) = (T::KIND.plural(), O::KIND.plural());
        cx.health.ok(format_args!("Waits for the lists of {kinds} and {owners}"));
        let rounds = async {
            self.objects.wait_initialized().await;
            self.owners.wait_initialized().await;
            let mut candidates = Candidates::default();
            loop {
                self.collect(&mut candidates, &cx).await;
                sleep(self.interval).await;
            }
        };
        cx.token().run_until_cancelled(rounds).await;
        Ok(())
    }

    async fn collect(&self, candidates: &mut Candidates, cx: &JobCx) {
        let (kind, owner) = (T::KIND.name(), O::KIND.name());
        let mut run = Run::default();
        for (key, uid) in candidates.update(self.left(), Instant::now(), self.interval) {
            if !self.is_still_left(&key, &uid) {
                continue;
            }
            let answer = self.requests.delete(T::KIND, &key, &uid, None).await;
            if answer.is_ok() {
                tracing::info!(object = %key, "Deleted a {kind} without its {owner}");
            }
            if !run.count(answer) {
                break;
            }
        }
        (self.count)(&run);
        let (done, waiting) = (run.done, candidates.len().saturating_sub(run.done));
        let kinds = T::KIND.plural();
        run.report(&cx.health, &format!("{done} {kinds} were deleted, {waiting} have no {owner}"));
    }

    fn left(&self) -> Vec<(Key, SmolStr)> {
        let snapshot = self.objects.snapshot();
        let left = self.objects.all(&snapshot).filter(|row| (self.is_left)(row, &self.owners, &snapshot));
        left.map(|row| row.key_and_uid()).collect()
    }

    fn is_still_left(&self, key: &Key, uid: &SmolStr) -> bool {
        let snapshot = self.objects.snapshot();
        let row = self.objects.get(&snapshot, T::by_key(key));
        row.is_some_and(|row| row.key_and_uid().1 == *uid && (self.is_left)(row, &self.owners, &snapshot))
    }
}
