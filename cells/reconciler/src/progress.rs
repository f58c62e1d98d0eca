//! The progress of a reconciler, and the handle that reports it.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::metrics::Metrics;

/// The progress of a reconciler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Every change of the table up to this revision was tried at least once.
    pub attempted: u64,
    /// The lowest revision that still fails or waits; none if no object does.
    pub failing_since: Option<u64>,
}

impl Progress {
    /// Whether every change up to the revision has reached the target.
    pub fn is_ok(&self, revision: u64) -> bool {
        self.attempted >= revision && self.failing_since.is_none_or(|failing| failing > revision)
    }
}

/// The error of a wait for a reconciler that has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reconciler has stopped")]
pub struct Stopped;

/// Counts of the prunes that have begun and that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prunes {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
}

/// A handle to a running reconciler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) name: Arc<str>,
    pub(crate) progress: watch::Receiver<Progress>,
    pub(crate) prune: Arc<Notify>,
    pub(crate) prunes: watch::Receiver<Prunes>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Handle {
    /// Waits until every change up to the table's revision was tried once, and returns whether some still fail:
    ///
    /// ```
    /// # async fn example<T: statedb::TableSpec>(table: statedb::RwTable<T>, object: T, handle: reconciler::Handle)
    /// # -> Result<(), reconciler::Stopped> {
    /// let mut w = table.write();
    /// w.insert(object);
    /// let revision = table.revision(&w.commit());
    /// let progress = handle.wait_until(revision).await?;
    /// # Ok(()) }
    /// ```
    pub async fn wait_until(&self, revision: u64) -> Result<Progress, Stopped> {
        self.wait(|progress| progress.attempted >= revision).await
    }

    /// Waits until every change up to the table's revision, deletes too, has reached the target.
    pub async fn wait_until_ok(&self, revision: u64) -> Result<Progress, Stopped> {
        self.wait(|progress| progress.is_ok(revision)).await
    }

    async fn wait(&self, reached: impl Fn(&Progress) -> bool) -> Result<Progress, Stopped> {
        let mut progress = self.progress.clone();
        progress.wait_for(|progress| reached(progress)).await.map(|progress| *progress).map_err(|_| Stopped)
    }

    /// Returns the current progress.
    pub fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Requests a prune as soon as the table is initialized and every object that it had then has been tried. Several
    /// requests before that are coalesced.
    pub fn prune(&self) {
        self.prune.notify_one();
    }

    /// Requests a prune and waits until one that begins after the request has ended, successfully or not.
    pub async fn pruned(&self) -> Result<(), Stopped> {
        let mut prunes = self.prunes.clone();
        let wanted = prunes.borrow().begun + 1;
        self.prune();
        prunes.wait_for(|prunes| prunes.ended >= wanted).await.map(drop).map_err(|_| Stopped)
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the reconciler's name, empty if it has none.
    pub fn name(&self) -> &str {
        &self.name
    }
}
