//! Refresh of the sources on demand, for readers that miss an object.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// A request that is answered when everything that existed at its time is processed.
type RefreshRequest = oneshot::Sender<()>;

/// Requests to a source or a table.
pub(crate) type RefreshRequests = mpsc::UnboundedReceiver<RefreshRequest>;

type Senders = Vec<mpsc::UnboundedSender<RefreshRequest>>;

/// The sources of cluster objects that can be refreshed. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Sources(Arc<Mutex<Joined>>);

#[derive(Debug, Default)]
struct Joined {
    sources: Senders,
    tables: Senders,
}

impl Sources {
    /// Registers a source; returns the receiver of its requests.
    pub(crate) fn join(&self) -> RefreshRequests {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().sources.push(sender);
        receiver
    }

    /// Registers a job that writes a table; returns the receiver of its requests.
    pub(crate) fn join_table(&self) -> RefreshRequests {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().tables.push(sender);
        receiver
    }

    /// Waits until every folder was scanned and the objects found are in the tables, so that all objects that existed
    /// before the call are. Other sources push their changes. Sources that have ended are skipped.
    pub async fn refresh(&self) {
        let sources = send_to_all(&self.0.lock().sources);
        all_answered(sources).await;
        // Only after the sources: their events may still be queued for the tables.
        let tables = send_to_all(&self.0.lock().tables);
        all_answered(tables).await;
    }
}

fn send_to_all(senders: &Senders) -> Vec<oneshot::Receiver<()>> {
    let send = |one: &mpsc::UnboundedSender<RefreshRequest>| {
        let (request, answer) = oneshot::channel();
        one.send(request).ok().map(|()| answer)
    };
    senders.iter().filter_map(send).collect()
}

async fn all_answered(answers: Vec<oneshot::Receiver<()>>) {
    for answer in answers {
        // An error means that the receiver has ended.
        let _ = answer.await;
    }
}
