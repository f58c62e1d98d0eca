//! Followers, by which `PATCH /config` waits until an option is in force.

use std::time::Duration;

use tokio::sync::watch;

/// The progress of a follower.
#[derive(Clone, Debug, Default)]
struct State {
    applied: u64,
    error: Option<String>,
}

/// The cell's end of a follower, by which it reports the revision that is in force.
#[derive(Debug)]
pub struct Progress(watch::Sender<State>);

/// The waiter's end: the progress of a cell that applies options.
#[derive(Clone, Debug)]
pub struct Follower {
    name: &'static str,
    state: watch::Receiver<State>,
}

/// A timeout before a change was in force. The change stays in the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {follower} has not applied the change: {reason}")]
pub struct NotApplied {
    /// The follower that has not applied it.
    pub follower: &'static str,
    /// The last error.
    pub reason: String,
}

/// Creates both ends; the name is for messages.
pub fn follower(name: &'static str) -> (Progress, Follower) {
    let (sender, state) = watch::channel(State::default());
    (Progress(sender), Follower { name, state })
}

impl Progress {
    /// Reports that the rows up to this revision of the table are in force.
    pub fn applied(&self, revision: u64) {
        self.0.send_if_modified(|state| {
            let is_new = state.applied < revision || state.error.is_some();
            *state = State { applied: revision.max(state.applied), error: None };
            is_new
        });
    }

    /// Reports an error in applying the newest rows.
    pub fn failed(&self, error: impl ToString) {
        self.0.send_modify(|state| state.error = Some(error.to_string()));
    }
}

impl Follower {
    /// Whether rows of this revision of the table, or of a later one, are in force.
    pub fn has_applied(&self, revision: u64) -> bool {
        self.state.borrow().applied >= revision
    }

    /// Waits until they are, at most for `limit`.
    pub async fn wait_for(&self, revision: u64, limit: Duration) -> Result<(), NotApplied> {
        let mut state = self.state.clone();
        let applied = state.wait_for(|state| state.applied >= revision);
        let reason = match tokio::time::timeout(limit, applied).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(_)) => "it has ended".to_owned(),
            Err(_) => match &self.state.borrow().error {
                Some(error) => format!("it retries: {error}"),
                None => format!("it is still busy after {limit:?}"),
            },
        };
        Err(NotApplied { follower: self.name, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    #[tokio::test]
    async fn waits_end_with_the_revision_the_limit_or_the_follower() {
        let (progress, follower) = follower("datapath");
        progress.applied(3);
        assert_eq!(follower.wait_for(3, LIMIT).await, Ok(()));
        let apply = async {
            progress.applied(4);
            tokio::task::yield_now().await;
            progress.applied(5);
        };
        assert_eq!(tokio::join!(follower.wait_for(5, LIMIT), apply).0, Ok(()));
        let refused = async |limit| follower.wait_for(6, limit).await.unwrap_err().reason;
        let short = Duration::from_millis(1);
        assert_eq!(refused(short).await, "it is still busy after 1ms");
        progress.failed("no memory");
        assert_eq!(refused(short).await, "it retries: no memory");
        drop(progress);
        assert_eq!(refused(LIMIT).await, "it has ended");
        assert_eq!(follower.wait_for(5, LIMIT).await, Ok(()));
    }
}
