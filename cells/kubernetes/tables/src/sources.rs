//! Refreshing the sources on demand, for readers that miss an object.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Answered when all that there was at the time of the question is done.
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
    /// A source's end: its questions.
    pub(crate) fn join(&self) -> RefreshRequests {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().sources.push(sender);
        receiver
    }

    /// The end of a job that writes a table.
    pub(crate) fn join_table(&self) -> RefreshRequests {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().tables.push(sender);
        receiver
    }

    /// Waits until every folder was scanned, and the objects found are in the tables: those that existed before the
    /// call are in them after it. Other sources push their changes by themselves. Sources that have ended are not waited for.
    pub async fn refresh(&self) {
        let sources = send_to_all(&self.0.lock().sources);
        all_answered(sources).await;
        // Their events may still wait to be applied.
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
        // Dropped unanswered: it ends.
        let _ = answer.await;
    }
}
