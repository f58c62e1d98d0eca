//! The states of an endpoint and their valid transitions.

use std::fmt;

/// The state of an endpoint, by its name in the REST API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Its labels have no identity yet.
    WaitingForIdentity,
    /// Its datapath is to be regenerated.
    WaitingToRegenerate,
    /// Its datapath is being regenerated.
    Regenerating,
    /// Its datapath is realized, or the last regeneration has failed and is retried.
    Ready,
    /// It is being removed.
    Disconnecting,
    /// It is removed.
    Disconnected,
    /// It was read from disk and waits for its datapath to be confirmed.
    Restoring,
    /// Its creation failed.
    Invalid,
}

impl State {
    /// All states, in the order in which a life first enters them.
    pub const ALL: [State; 8] = [
        State::WaitingForIdentity,
        State::WaitingToRegenerate,
        State::Regenerating,
        State::Ready,
        State::Disconnecting,
        State::Disconnected,
        State::Restoring,
        State::Invalid,
    ];

    /// Returns the name in the API, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            State::WaitingForIdentity => "waiting-for-identity",
            State::WaitingToRegenerate => "waiting-to-regenerate",
            State::Regenerating => "regenerating",
            State::Ready => "ready",
            State::Disconnecting => "disconnecting",
            State::Disconnected => "disconnected",
            State::Restoring => "restoring",
            State::Invalid => "invalid",
        }
    }

    /// Whether the endpoint may go from this state to `next`.
    pub fn may_become(self, next: State) -> bool {
        use State::*;
        match self {
            WaitingForIdentity => matches!(next, Ready | Disconnecting | Invalid),
            Ready => matches!(next, WaitingForIdentity | WaitingToRegenerate | Disconnecting | Restoring),
            WaitingToRegenerate => {
                matches!(next, WaitingForIdentity | Regenerating | Disconnecting | Restoring)
            }
            Regenerating => {
                matches!(next, WaitingForIdentity | WaitingToRegenerate | Ready | Disconnecting | Restoring)
            }
            Restoring => matches!(next, Restoring | WaitingToRegenerate | Disconnecting),
            Disconnecting => matches!(next, Disconnected),
            Disconnected | Invalid => false,
        }
    }

    /// Whether the endpoint is being removed, is removed or has failed.
    pub fn is_leaving(self) -> bool {
        matches!(self, State::Disconnecting | State::Disconnected | State::Invalid)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
