//! The place where operations run.

#[cfg(feature = "hive")]
use hive::blocking;

/// Runs a closure on this task, or where it may block.
pub(crate) async fn run<R: Send + 'static>(
    may_block: bool,
    closure: impl FnOnce() -> R + Send + 'static,
) -> R {
    if may_block { blocking(closure).await } else { closure() }
}

/// Runs a closure on a blocking thread of tokio. A panic is resumed in the caller.
#[cfg(not(feature = "hive"))]
async fn blocking<R: Send + 'static>(closure: impl FnOnce() -> R + Send + 'static) -> R {
    match tokio::task::spawn_blocking(closure).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime stops, and the caller with it.
            Err(_) => std::future::pending().await,
        },
    }
}
