//! The job that finishes the restore once the datapath is ready: regenerates endpoints, serves queued deletions, and
//! opens the fence for requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use datapath_api::Datapath;
use hive::JobCx;
use ipcache::{Entry, IpcacheWriter};
use reconciler::StatusKind;
use statedb::{Initializer, RwTable};
use tokio::sync::oneshot;

use crate::links::LinkSource;
use crate::metrics::Counts;
use crate::model::endpoint::Endpoint;
use crate::model::error::StateError;
use crate::model::id::{EndpointId, Name};
use crate::model::options::Defaults;
use crate::model::state::State;
use crate::pod_metadata::Objects;
use crate::requests::fence::Gate;
use crate::requests::service::Endpoints;
use crate::restore::host;
use crate::restore::queue::{Deletion, DeletionQueue, LOCK_WAIT_LIMIT};
use crate::restore::retry::{backoff, read};
use crate::restore::unfinished::{self, UnfinishedLink};

/// Limit of the regeneration of restored endpoints before the job counts as stuck; its steps have their own limits.
const REGENERATION_LIMIT: Duration = Duration::from_secs(300);
/// Limit of the wait for cluster objects after a start.
const OBJECTS_WAIT_LIMIT: Duration = Duration::from_secs(20);
/// Interval of attempts to lock the deletion queue.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// The job `finish-endpoint-restore`.
pub(crate) struct FinishRestore {
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) table: Arc<RwTable<Endpoint>>,
    pub(crate) datapath: Arc<dyn Datapath>,
    pub(crate) ipcache: Arc<IpcacheWriter>,
    pub(crate) links: Arc<LinkSource>,
    pub(crate) defaults: Defaults,
    pub(crate) objects: Option<Objects>,
    pub(crate) queue: DeletionQueue,
    pub(crate) counts: Counts,
    /// Done when every endpoint of the previous run has been tried once: from then on state without a row may be
    /// pruned.
    pub(crate) initializer: Initializer<Endpoint>,
    pub(crate) ipcache_initializer: Initializer<Entry>,
    /// Opened at the end.
    pub(crate) gate: Gate,
    /// Unfinished veths that the start has found.
    pub(crate) unfinished: oneshot::Receiver<Vec<UnfinishedLink>>,
}

impl FinishRestore {
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let token = cx.token().clone();
        token.run_until_cancelled(self.finish(&cx)).await.unwrap_or(Ok(()))
    }

    async fn finish(self, cx: &JobCx) -> anyhow::Result<()> {
        self.datapath.ready().await;
        // Requests wait for the end of this job, so it retries until it succeeds.
        let links = self.links.clone();
        let links = read("list links", Some(&cx.health), backoff(), move || links.list()).await?;
        let datapath = self.datapath.clone();
        let known = move || datapath.restored();
        let known = read("list the datapath's endpoints", Some(&cx.health), backoff(), known).await?;

        let working = cx.working_within(REGENERATION_LIMIT);
        host::upsert(&self.endpoints, &links, &self.defaults.now());
        let begin = Instant::now();
        let applied = known.into_iter().map(|known| (known.id, known.identity)).collect();
        let (total, failed) = regenerate(&self.endpoints, &applied).await;
        self.counts.phase("regeneration", begin.elapsed(), total - failed, failed, 0);
        // The reconciler prunes from now on: kernel state without a row belongs to deleted endpoints.
        self.table.transact(|txn| self.initializer.done(txn));
        self.ipcache.complete(self.ipcache_initializer);
        match drain(&self.endpoints, &self.queue).await {
            Ok(0) => {}
            Ok(served) => tracing::info!(served, "Served queued CNI deletions"),
            Err(error) => tracing::warn!(%error, "Unable to read the CNI deletion queue"),
        }
        drop(working);

        // A pod created before its object is known would start as `reserved:init` and change its identity at once.
        if let Some(objects) = &self.objects
            && tokio::time::timeout(OBJECTS_WAIT_LIMIT, objects.complete()).await.is_err()
        {
            tracing::warn!("Cluster objects are not complete; new pods begin as reserved:init");
        }
        self.gate.open();
        unfinished::remove(self.unfinished.await.unwrap_or_default()).await;
        match failed {
            0 => cx.health.ok("Endpoints restored"),
            failed => cx.health.degraded("Endpoints restored", format!("{failed} not regenerated yet")),
        }
        Ok(())
    }
}

/// Regenerates all restored endpoints and waits until each was tried once. Returns how many there were and how many
/// failed. `applied`: the identity that the kernel has for each.
pub(crate) async fn regenerate(endpoints: &Endpoints, applied: &BTreeMap<u16, u32>) -> (usize, usize) {
    let table = endpoints.table();
    let snapshot = table.snapshot();
    let now = SystemTime::now();
    let waiting: Vec<EndpointId> =
        table.all(&snapshot).filter(|e| e.state == State::Restoring).map(|e| e.id()).collect();
    endpoints.change_all(&waiting, |endpoint| {
        let applied_identity = applied.get(&endpoint.record.id).copied().unwrap_or(0);
        let endpoint = Endpoint { applied_identity, ..endpoint.clone() };
        endpoint.triggered("syncing state to host", "syncing state to host", now)
    });
    drop(snapshot);
    let (total, mut failed) = (waiting.len(), 0);
    for id in waiting {
        let tried = table.wait_for(Endpoint::by_id(id), |endpoint| !endpoint.status.is_pending()).await;
        failed += usize::from(tried.status.kind() == StatusKind::Error);
    }
    (total, failed)
}

/// Serves the deletions that plugins have queued. The wait for the queue's lock is limited: a plugin that holds it too
/// long must not block all other requests.
pub(crate) async fn drain(endpoints: &Endpoints, queue: &DeletionQueue) -> Result<usize, StateError> {
    let deadline = tokio::time::Instant::now() + LOCK_WAIT_LIMIT;
    let lock = loop {
        let locked = queue.clone();
        match hive::blocking(move || locked.try_lock()).await {
            Ok(Some(lock)) => break Some(lock),
            Ok(None) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(LOCK_INTERVAL).await;
            }
            Ok(None) => {
                tracing::warn!(
                    "A CNI plugin holds the lock of the deletion queue; reading the queue without it"
                );
                break None;
            }
            Err(error) => {
                tracing::warn!(%error, "Unable to lock the CNI deletion queue; reading it without the lock");
                break None;
            }
        }
    };
    let mut served = 0;
    let files = queue.clone();
    for queued in hive::blocking(move || files.read()).await? {
        match &queued.deletion {
            Some(Deletion::Container(container)) => drop(endpoints.drain(container).await),
            Some(Deletion::Endpoint(name)) => {
                let row = name.parse::<Name>().ok().and_then(|name| endpoints.find(&name));
                if let Some(row) = row.filter(|row| !row.record.op_labels.is_reserved()) {
                    endpoints.remove(row.id()).await;
                }
            }
            None => {
                tracing::warn!(path = %queued.path.display(), "Unreadable file in the CNI deletion queue")
            }
        }
        hive::blocking(move || queued.served()).await?;
        served += 1;
    }
    drop(lock);
    Ok(served)
}
