//! The fence that holds back requests that change endpoints until those of the previous run and queued deletions are
//! known.

use std::time::Duration;

use tokio::sync::watch;

/// Limit of a request's wait.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The side of requests. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Fence(watch::Receiver<bool>);

/// Opens the fence. If it is dropped before, requests are refused.
#[derive(Debug)]
pub(crate) struct Gate(watch::Sender<bool>);

/// The agent does not accept requests for endpoints yet, or any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "endpoints cannot be changed before those of the previous run are restored and queued CNI deletions are done"
)]
pub struct NotOpen;

/// Returns a closed fence and its gate.
pub(crate) fn fence() -> (Gate, Fence) {
    let (gate, fence) = watch::channel(false);
    (Gate(gate), Fence(fence))
}

impl Gate {
    /// Opens the fence for all requests from now on.
    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }
}

impl Fence {
    /// Waits for the fence to open.
    pub(crate) async fn wait(&self) -> Result<(), NotOpen> {
        if *self.0.borrow() {
            return Ok(());
        }
        let mut fence = self.0.clone();
        let opened = tokio::time::timeout(WAIT_LIMIT, fence.wait_for(|open| *open)).await;
        opened.ok().and_then(Result::ok).map(drop).ok_or(NotOpen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_wait_and_are_refused_in_the_end() {
        let (gate, fence) = fence();
        assert_eq!(fence.wait().await, Err(NotOpen), "after the limit");
        gate.open();
        assert_eq!(fence.wait().await, Ok(()));
        let (gate, closed) = super::fence();
        drop(gate);
        assert_eq!(closed.wait().await, Err(NotOpen), "nothing can open it");
    }
}
