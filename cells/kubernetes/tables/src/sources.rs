//! Asking the sources to look at once, for those who miss an object.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Answered when all that there was at the time of the question is done.
type Question = oneshot::Sender<()>;

/// Requests to a source or a table.
pub(crate) type Questions = mpsc::UnboundedReceiver<Question>;

type Asked = Vec<mpsc::UnboundedSender<Question>>;

/// The sources of cluster objects that can be asked to look. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Sources(Arc<Mutex<Joined>>);

#[derive(Debug, Default)]
struct Joined {
    sources: Asked,
    tables: Asked,
}

impl Sources {
    /// A source's end: its questions.
    pub(crate) fn join(&self) -> Questions {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().sources.push(sender);
        receiver
    }

    /// The end of a job that writes a table.
    pub(crate) fn join_table(&self) -> Questions {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().tables.push(sender);
        receiver
    }

    /// Waits until every folder was looked through, and all that it said then is in the tables: what was there before the
    /// call is in them after it. Other sources say what they know by themselves. Those that have ended are not waited for.
    pub async fn look(&self) {
        let sources = ask(&self.0.lock().sources);
        answered(sources).await;
        // What they said waits to be taken.
        let tables = ask(&self.0.lock().tables);
        answered(tables).await;
    }
}

fn ask(asked: &Asked) -> Vec<oneshot::Receiver<()>> {
    let ask = |one: &mpsc::UnboundedSender<Question>| {
        let (question, answer) = oneshot::channel();
        one.send(question).ok().map(|()| answer)
    };
    asked.iter().filter_map(ask).collect()
}

async fn answered(answers: Vec<oneshot::Receiver<()>>) {
    for answer in answers {
        // Dropped unanswered: it ends.
        let _ = answer.await;
    }
}
