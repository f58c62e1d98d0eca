//! The job that reads changed files.

use std::sync::Arc;
use std::time::Duration;

use file_watch::FileWatch;
use futures::future::select_all;
use hive::JobCx;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::files::TlsFiles;

/// How long files must not change before they are read: certificate and key are two writes.
const SETTLE: Duration = Duration::from_millis(100);

/// After this time without valid files, a line is logged.
const PATIENCE: Duration = Duration::from_secs(30);

/// The configuration of the latest valid files; none before all of them are valid for the first time.
pub type CurrentTls = watch::Sender<Option<Arc<ServerConfig>>>;

/// Publishes the configuration of the files, and again after each change, until the job is cancelled. With invalid files
/// the previous configuration stays.
///
/// # Errors
/// Files cannot be watched.
pub async fn follow_certificates(files: TlsFiles, current: Arc<CurrentTls>, cx: JobCx) -> anyhow::Result<()> {
    let mut watches = Vec::new();
    for _ in files.all() {
        watches.push(FileWatch::new()?.with_writes());
    }
    let overdue_at = Instant::now() + PATIENCE;
    let mut is_reported = false;
    loop {
        for (watch, path) in watches.iter_mut().zip(files.all()) {
            watch.follow(path)?;
        }
        let loading = files.clone();
        let has_previous = current.borrow().is_some();
        match hive::blocking(move || loading.load()).await {
            Ok(config) => {
                current.send_replace(Some(Arc::new(config)));
                cx.health.ok("Certificates are read");
                if has_previous {
                    tracing::info!(server = files.server, "Changed certificates are read");
                }
            }
            Err(error) if has_previous => {
                cx.health.degraded("Changed certificates are invalid: the previous ones stay in use", &error);
            }
            Err(error) => cx.health.degraded("Not served: waits for certificates", &error),
        }
        let is_waiting = !is_reported && current.borrow().is_none();
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            result = changed(&mut watches) => {
                result?;
                // Until there is no change for a while.
                while let Ok(result) = tokio::time::timeout(SETTLE, changed(&mut watches)).await {
                    result?;
                }
            }
            () = sleep_until(overdue_at), if is_waiting => {
                is_reported = true;
                tracing::info!(server = files.server, "The server waits for its certificates");
            }
        }
    }
}

/// Waits until one of the files may have changed.
async fn changed(watches: &mut [FileWatch]) -> std::io::Result<()> {
    select_all(watches.iter_mut().map(|watch| Box::pin(watch.changed()))).await.0
}
