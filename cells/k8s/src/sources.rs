//! Asking the sources to look at once, for whoever misses an object.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Answered when the source has written all that there was at the time of the question.
type Question = oneshot::Sender<()>;

/// What a source is asked.
pub(crate) type Questions = mpsc::UnboundedReceiver<Question>;

/// The sources of cluster objects that can be asked to look. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Sources(Arc<Mutex<Vec<mpsc::UnboundedSender<Question>>>>);

impl Sources {
    /// A source's end: its questions.
    pub(crate) fn join(&self) -> Questions {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().push(sender);
        receiver
    }

    /// Waits until every source has looked: what was there before the call is in the tables after it. Sources that
    /// have ended are not waited for.
    pub async fn look(&self) {
        let answers: Vec<oneshot::Receiver<()>> = self
            .0
            .lock()
            .iter()
            .filter_map(|source| {
                let (question, answer) = oneshot::channel();
                source.send(question).ok().map(|()| answer)
            })
            .collect();
        for answer in answers {
            // Dropped unanswered: the source ends.
            let _ = answer.await;
        }
    }
}
