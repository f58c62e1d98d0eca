//! The loop: removed backends, in batches of fifty milliseconds.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use loadbalancer::{Backend, LbAddress};
use statedb::Changes;

use crate::diag::Diag;
use crate::round::{Ended, Of, Sockets, is_alive};

/// The delay of a change, to coalesce it with others.
const BATCH_TIME: Duration = Duration::from_millis(50);

/// The maximum number of changes in a round.
const BATCH: usize = 1000;

/// Delays between probes of the kernel while it lacks resources.
const PROBE_DELAY_MIN: Duration = Duration::from_millis(200);
const PROBE_DELAY_MAX: Duration = Duration::from_secs(30);

/// Terminates sockets of removed backends, until the agent stops or the kernel turns out not to support it.
pub(crate) async fn follow(sockets: Sockets, mut changes: Changes<Backend>, cx: JobCx) -> anyhow::Result<()> {
    let transports = sockets.transports.clone();
    let probe = move || {
        let mut diag = Diag::open()?;
        transports.iter().try_for_each(|&transport| diag.can_destroy(transport))
    };
    let report = |error: &netlink::Error| {
        const MESSAGE: &str = "Could not ask whether the kernel can end sockets, trying again";
        if cx.health.degraded_anew(MESSAGE, error) {
            tracing::warn!(%error, "{MESSAGE}");
        }
    };
    let Some(supported) = cx.token().run_until_cancelled(supported(probe, report)).await else {
        return Ok(());
    };
    if let Err(error) = supported {
        const MESSAGE: &str = "The kernel cannot end sockets: those of backends that go stay connected";
        tracing::error!(%error, "{MESSAGE}");
        let remedy = "needs Linux with CONFIG_INET_DIAG, CONFIG_INET_UDP_DIAG and CONFIG_INET_DIAG_DESTROY";
        cx.health.degraded(MESSAGE, format!("{error}; {remedy}"));
        return Ok(());
    }
    let sockets = Arc::new(sockets);
    let mut total = 0;
    // Objects deleted while no agent ran are known once all sources are complete.
    let mut is_start = true;
    loop {
        let snapshot = sockets.backends.snapshot();
        let (batch, watch) = changes.read(&snapshot, BATCH);
        let (initialized, all_spoke) = sockets.backends.initialized_watch(&snapshot);
        drop(snapshot);
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
            total += report_round(&cx.health, ended, total);
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

/// Probes whether the kernel can terminate sockets, until the result is permanent: a lack of descriptors or memory is
/// transient.
async fn supported(
    probe: impl Fn() -> Result<(), netlink::Error> + Clone + Send + 'static,
    report: impl Fn(&netlink::Error),
) -> Result<(), netlink::Error> {
    let mut backoff = Backoff::exponential(PROBE_DELAY_MIN, PROBE_DELAY_MAX);
    loop {
        match hive::blocking(probe.clone()).await {
            Err(error) if error.is_retryable() => report(&error),
            answer => return answer,
        }
        tokio::time::sleep(backoff.next_wait().unwrap_or(PROBE_DELAY_MAX)).await;
    }
}

/// Reports the result of a round; returns the number of terminated sockets.
fn report_round(health: &Health, ended: anyhow::Result<Ended>, before: usize) -> usize {
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::io::Errno;

    use super::*;

    /// Probes a kernel with these results; returns the number of probes, and the final result.
    async fn probed(answers: &'static [Result<(), Errno>]) -> (usize, Result<(), netlink::Error>) {
        let probes = Arc::new(AtomicUsize::new(0));
        let count = probes.clone();
        let probe = move || Ok(answers[count.fetch_add(1, Ordering::Relaxed)].map_err(io::Error::from)?);
        let result = supported(probe, |_| {}).await;
        (probes.load(Ordering::Relaxed), result)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lack_of_descriptors_at_the_start_does_not_end_the_job() {
        let (probes, result) =
            probed(&[Err(Errno::MFILE), Err(Errno::NOBUFS), Err(Errno::MFILE), Ok(())]).await;
        assert_eq!(probes, 4);
        result.unwrap();
        let (probes, result) = probed(&[Err(Errno::NOMEM), Err(Errno::OPNOTSUPP), Ok(())]).await;
        assert_eq!((probes, result.unwrap_err().errno()), (2, Some(Errno::OPNOTSUPP.raw_os_error())));
    }
}
