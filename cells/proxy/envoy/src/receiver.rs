//! The wait of policy maps for the policies in Envoy.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proxy_ports::PolicyReceiver;
use tokio::sync::{mpsc, oneshot};

/// A request to be answered when Envoy has the policies of the tables.
pub(crate) type Waiting = oneshot::Sender<()>;

/// The side of policy.
#[derive(Debug)]
pub(crate) struct Receiver {
    requests: mpsc::UnboundedSender<Waiting>,
    is_in_use: Arc<AtomicBool>,
}

/// The side of the job.
pub(crate) struct Requests {
    pub(crate) requests: mpsc::UnboundedReceiver<Waiting>,
    is_in_use: Arc<AtomicBool>,
}

/// Returns both sides.
pub(crate) fn receiver() -> (Receiver, Requests) {
    // Bounded by its user: policy waits for one request at a time.
    let (sender, requests) = mpsc::unbounded_channel();
    let is_in_use = Arc::<AtomicBool>::default();
    (Receiver { requests: sender, is_in_use: is_in_use.clone() }, Requests { requests, is_in_use })
}

impl Requests {
    pub(crate) fn set_in_use(&self, is_in_use: bool) {
        self.is_in_use.store(is_in_use, Ordering::Release);
    }
}

impl PolicyReceiver for Receiver {
    fn is_in_use(&self) -> bool {
        self.is_in_use.load(Ordering::Acquire)
    }

    fn received(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (answer, answered) = oneshot::channel();
        let requested = self.requests.send(answer);
        Box::pin(async move {
            // A job that has ended never answers.
            if requested.is_ok() {
                drop(answered.await);
            }
        })
    }
}
