//! Background jobs of the endpoints: refilling the pool of policy maps, purging connections.

use std::sync::Arc;
use std::time::Duration;

use datapath_api::Datapath;
use futures::future::OptionFuture;
use hive::JobCx;
use hive::job::Backoff;
use maps::Maps;

use crate::endpoints::kernel::KernelDatapath;
use crate::endpoints::slots::QUARANTINE;

/// The first wait after a failure; it doubles.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The longest wait after a failure.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// How long deletions are batched before one scan purges the connections of all of them: pods are deleted in groups.
const PURGE_DEBOUNCE: Duration = Duration::from_millis(100);

/// Purges entries of deleted endpoints, many endpoints in one scan.
pub(crate) async fn purge_deleted_endpoints(
    datapath: Arc<KernelDatapath>,
    maps: Arc<Maps>,
    cx: JobCx,
) -> anyhow::Result<()> {
    const FAILED: &str = "Could not forget what is left of former endpoints";
    let mut backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = datapath.conntrack_purge().scheduled() => {}
        }
        let mut wait = Some(PURGE_DEBOUNCE);
        while wait.is_some() {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                Some(()) = OptionFuture::from(wait.map(tokio::time::sleep)) => {}
            }
            let _working = cx.working();
            let (purging, shared) = (datapath.clone(), maps.clone());
            match hive::blocking(move || purging.conntrack_purge().purge(&shared)).await {
                Ok(count) => {
                    cx.health.ok(format!("forgot {count} connections and counts"));
                    backoff.reset();
                    wait = None;
                }
                Err(error) => {
                    if cx.health.degraded_anew(FAILED, &error) {
                        tracing::warn!(%error, "{FAILED}, trying again");
                    }
                    wait = backoff.next_wait();
                }
            }
        }
    }
}

/// Keeps policy maps ready, and empties those of deleted endpoints.
pub(crate) async fn keep_pool(datapath: Arc<KernelDatapath>, cx: JobCx) -> anyhow::Result<()> {
    // No endpoint takes a map before.
    tokio::select! {
        () = datapath.ready() => {}
        () = cx.cancelled() => return Ok(()),
    }
    let mut backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
    loop {
        let mut retry = None;
        let working = cx.working();
        let tended = datapath.clone();
        match hive::blocking(move || tended.pool().tend()).await {
            Ok(ready) => {
                cx.health.ok(format!("{ready} policy maps ready"));
                backoff.reset();
            }
            Err(error) => {
                if cx.health.degraded_anew("Could not make policy maps ready", &error) {
                    tracing::warn!(%error, "Could not make policy maps ready, trying again");
                }
                retry = backoff.next_wait();
            }
        }
        drop(working);
        let wait = datapath.pool().any_quarantined().then_some(QUARANTINE);
        let wait = wait.or(retry).or_else(|| datapath.pool().next_shrink());
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = datapath.pool().wanted() => {}
            Some(()) = OptionFuture::from(wait.map(tokio::time::sleep)) => {}
        }
    }
}
