//! The loop: backends as they go, fifty milliseconds at a time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use services::{Backend, LbAddress};
use statedb::Changes;

use crate::diag::Diag;
use crate::round::{Ended, Of, Sockets, is_alive};

/// How long a change waits for others.
const BATCH_TIME: Duration = Duration::from_millis(50);

/// Changes of a round at most.
const BATCH: usize = 1000;

/// Ends sockets of backends that go, until the agent stops or the kernel turns out not to be able to.
pub(crate) async fn follow(sockets: Sockets, mut changes: Changes<Backend>, cx: JobCx) -> anyhow::Result<()> {
    let transports = sockets.transports.clone();
    let supported = hive::blocking(move || {
        let mut diag = Diag::open()?;
        transports.into_iter().try_for_each(|transport| diag.can_destroy(transport))
    });
    if let Err(error) = supported.await {
        const MESSAGE: &str = "The kernel cannot end sockets: those of backends that go stay connected";
        tracing::error!(%error, "{MESSAGE}");
        let remedy = "needs Linux with CONFIG_INET_DIAG, CONFIG_INET_UDP_DIAG and CONFIG_INET_DIAG_DESTROY";
        cx.health.degraded(MESSAGE, format!("{error}; {remedy}"));
        return Ok(());
    }
    let sockets = Arc::new(sockets);
    let mut total = 0;
    // What has gone while no agent ran is known once all sources have spoken.
    let mut is_start = true;
    loop {
        let snapshot = sockets.backends.snapshot();
        let (batch, watch) = changes.read(&snapshot, BATCH);
        let (initialized, all_spoke) = sockets.backends.initialized_watch(&snapshot);
        let lost: HashSet<LbAddress> = batch
            .iter()
            .filter(|change| change.deleted || !is_alive(&change.object))
            .map(|change| change.object.address)
            .collect();
        let of = if is_start && initialized { Of::All } else { Of::Lost(lost) };
        if !matches!(&of, Of::Lost(lost) if lost.is_empty()) {
            let _working = cx.working();
            let sockets = sockets.clone();
            let ended = hive::blocking(move || sockets.end(&of)).await;
            // A round that failed is repeated with the next change.
            is_start &= !initialized || ended.is_err();
            total += tell(&cx.health, ended, total);
        }
        if batch.len() < BATCH {
            tokio::select! {
                () = watch.changed() => {}
                () = all_spoke.changed(), if !initialized => {}
                () = cx.cancelled() => return Ok(()),
            }
            let rest = tokio::time::sleep(BATCH_TIME);
            if cx.token().run_until_cancelled(rest).await.is_none() {
                return Ok(());
            }
        }
    }
}

/// Says how a round went; gives how many sockets were ended.
fn tell(health: &Health, ended: anyhow::Result<Ended>, before: usize) -> usize {
    match ended {
        Err(error) => {
            if health.degraded_anew("Sockets of backends that are gone may stay connected", &error) {
                tracing::warn!(%error, "Sockets of backends that are gone may stay connected");
            }
            0
        }
        Ok(Ended { sockets, closed }) => {
            if sockets > 0 {
                tracing::info!(
                    count = sockets,
                    "Ended sockets that were connected to backends that are gone"
                );
            }
            match closed.first {
                None => health.ok(format!("{} sockets ended", before + sockets)),
                Some(error) => {
                    let message = format!("{} network namespaces cannot be looked into", closed.count);
                    if health.degraded_anew(&message, &error) {
                        tracing::warn!(error, "{message}");
                    }
                }
            }
            sockets
        }
    }
}
