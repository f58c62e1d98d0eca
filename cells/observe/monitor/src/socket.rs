//! The socket `monitor1_2.sock`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::Socket;
use hive::JobCx;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use crate::client;
use crate::hub::Monitor;

/// The name of the socket in the run folder.
pub(crate) const SOCKET: &str = "monitor1_2.sock";

/// The maximum number of open connections.
const CLIENTS: usize = 64;

/// The pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The shortest time between two lines of the log about refused clients: any process with access may connect again and
/// again.
const REFUSED_INTERVAL: Duration = Duration::from_secs(60);

/// Clients that are refused, which the log has at intervals.
#[derive(Debug, Default)]
struct Refused {
    /// Those without a line of the log.
    count: u64,
    logged: Option<Instant>,
}

impl Refused {
    fn add(&mut self) {
        self.count += 1;
        if self.logged.is_none_or(|logged| logged.elapsed() >= REFUSED_INTERVAL) {
            let refused = std::mem::take(&mut self.count);
            tracing::info!(clients = CLIENTS, refused, "Monitor clients refused: too many are connected");
            self.logged = Some(Instant::now());
        }
    }
}

/// Serves the socket until the job is cancelled; an error if it cannot be made.
pub(crate) async fn serve(path: PathBuf, monitor: Arc<Monitor>, cx: JobCx) -> anyhow::Result<()> {
    let socket = hive::blocking(move || Socket::bind(&path, "state-dir")).await?;
    cx.health.ok("Serving");
    let tasks = TaskTracker::new();
    let mut refused = Refused::default();
    while let Some(accepted) = cx.token().run_until_cancelled(socket.listener().accept()).await {
        match accepted {
            Ok(_) if tasks.len() >= CLIENTS => refused.add(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refused_clients_are_one_line_an_interval_with_their_number() {
        let mut refused = Refused::default();
        (0..100).for_each(|_| refused.add());
        assert_eq!(refused.count, 99, "the first one is logged at once");
        tokio::time::advance(REFUSED_INTERVAL).await;
        refused.add();
        assert_eq!(refused.count, 0, "all of them are in the second line");
        refused.add();
        assert_eq!(refused.count, 1);
    }
}
