//! Reads from the kernel that are retried with backoff.

use std::fmt;
use std::time::Duration;

use hive::{Backoff, Health};

/// First delay between attempts to read from the kernel at a start; it grows.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Returns the delays between attempts to read from the kernel.
pub(crate) fn backoff() -> Backoff {
    Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL)
}

/// Reads from the kernel on a blocking thread. Retries with the delays of `backoff` and returns an error only when
/// these are used up. Each error is reported once in health and log.
pub(crate) async fn read<T, E>(
    action: &str,
    health: Option<&Health>,
    mut backoff: Backoff,
    read: impl Fn() -> Result<T, E> + Clone + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: fmt::Display + Send + 'static,
{
    loop {
        let error = match hive::blocking(read.clone()).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let Some(wait) = backoff.next_wait() else { return Err(error) };
        let is_new = health.is_none_or(|health| {
            health.degraded_anew(format_args!("Unable to {action}, trying again"), &error)
        });
        if is_new {
            tracing::warn!(%error, "Unable to {action}, trying again");
        }
        tokio::time::sleep(wait).await;
    }
}
