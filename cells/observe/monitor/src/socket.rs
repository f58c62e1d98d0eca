//! The socket `monitor1_2.sock`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::Socket;
use hive::JobCx;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::client;
use crate::hub::Monitor;

/// The name of the socket in the run folder.
pub(crate) const SOCKET: &str = "monitor1_2.sock";

/// The maximum number of open connections.
const CLIENTS: usize = 64;

/// The pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves the socket until the job is cancelled; an error if it cannot be made.
pub(crate) async fn serve(path: PathBuf, monitor: Arc<Monitor>, cx: JobCx) -> anyhow::Result<()> {
    let socket = hive::blocking(move || Socket::bind(&path, "state-dir")).await?;
    cx.health.ok("Serving");
    let tasks = TaskTracker::new();
    while let Some(accepted) = cx.token().run_until_cancelled(socket.listener().accept()).await {
        match accepted {
            Ok(_) if tasks.len() >= CLIENTS => {
                tracing::info!(clients = CLIENTS, "Monitor client refused: too many are connected");
            }
            Ok((stream, _)) => {
                cx.health.ok("Serving");
                // Subscribed before the next connection: no event after this one is accepted is missed.
                let (events, stop) = (monitor.subscribe(), cx.token().clone());
                // The end of a client, also by an error, needs no report.
                tasks.spawn(
                    async move { drop(stop.run_until_cancelled(client::serve(stream, events)).await) },
                );
            }
            Err(error) => {
                cx.health.degraded("Cannot accept connections on monitor1_2.sock", &error);
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
    hive::blocking(move || drop(socket)).await;
    tasks.close();
    tasks.wait().await;
    Ok(())
}
