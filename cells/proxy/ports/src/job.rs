//! The jobs: whether the kernel has the rules of redirected packets; the file of ports and the release of ports without a proxy.

use std::sync::Arc;
use std::time::Duration;

use hive::JobCx;
use routes::Rules;
use state_file::StateFile;
use tokio::time::{Instant, sleep};

use crate::file;
use crate::handle::Proxies;
use crate::routing;

/// The time between a change and its write, as in Cilium.
const WRITE_DELAY: Duration = Duration::from_secs(10);
/// The interval of writes without a change, which keep the file young, and of waits for rules.
const INTERVAL: Duration = Duration::from_secs(60);
/// The time for which the port of a proxy that is gone is kept for it, as in Cilium.
pub(crate) const KEEP: Duration = Duration::from_secs(5 * 60);

/// Writes the file. Blocks.
pub(crate) fn write(proxies: &Proxies, file: &StateFile) -> Result<(), state_file::Error> {
    let table = proxies.ports();
    match file::content(table.all(&table.snapshot()).map(|row| &**row)) {
        Some(content) => file.write(content.as_bytes()),
        None => file.remove(),
    }
}

/// Writes the file after changes and at intervals, and releases ports.
pub(crate) async fn keep(proxies: Arc<Proxies>, file: Option<StateFile>, cx: JobCx) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let watch = {
            let table = proxies.ports();
            table.watch(&table.snapshot())
        };
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = sleep(INTERVAL) => {}
            () = watch.changed() => {
                tokio::select! {
                    () = cx.cancelled() => return Ok(()),
                    () = sleep(WRITE_DELAY) => {}
                }
            }
        }
        proxies.release(started, KEEP);
        let Some(file) = file.clone() else { continue };
        let proxies = proxies.clone();
        match hive::blocking(move || write(&proxies, &file)).await {
            Ok(()) => cx.health.ok("ports of proxies are stored"),
            Err(error) => {
                if cx.health.degraded_anew("Ports of proxies are not stored", &error) {
                    tracing::warn!(%error, "Ports of proxies are not stored, trying again");
                }
            }
        }
    }
}

/// Declares, after each change of the rules, whether the kernel has them.
pub(crate) async fn route(proxies: Arc<Proxies>, rules: Arc<Rules>, cx: JobCx) -> anyhow::Result<()> {
    let table = rules.table();
    loop {
        let watch = table.watch(&table.snapshot());
        match rules.wait(routing::OWNER).await {
            Ok(()) => {
                proxies.set_routed(true);
                cx.health.ok("rules of routing are in place");
            }
            Err(error) => {
                // Without the rules marked packets would pass by the proxy.
                proxies.set_routed(false);
                if cx.health.degraded_anew("Redirected packets are not routed to proxies", &error) {
                    tracing::warn!(%error, "Redirected packets are not routed to proxies, trying again");
                }
            }
        }
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = watch.changed() => {}
            () = sleep(INTERVAL) => {}
        }
    }
}
