//! The protocol of one stream: requests, what they acknowledge, what has been sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The highest version that a client may report: versions continue after it.
const MAX_VERSION: u64 = u64::MAX / 2;

/// A request of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The version that the client holds; empty if it holds none.
    pub version: String,
    /// The nonce of the response that it answers; empty in the first request of a stream.
    pub nonce: String,
    /// The resources that it subscribes to; empty for all.
    pub names: BTreeSet<Arc<str>>,
    /// The reason why it refuses the response.
    pub error: String,
}

/// The meaning of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The first request of the stream; the version that the client holds from an earlier process, 0 for none.
    First(u64),
    /// The client has accepted the response of this version.
    Ack(u64),
    /// The client has refused the response.
    Nack {
        /// The version of the response.
        version: u64,
        /// Its reason.
        error: String,
    },
    /// The client has changed its subscription, before it has seen the last response.
    Subscription,
}

/// A request that breaks the protocol: the stream ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The nonce is not that of a response.
    #[error("nonce {nonce:?} was never sent on this stream")]
    UnknownNonce {
        /// The nonce.
        nonce: String,
    },
    /// The version is not a version of this server.
    #[error("version {version:?} is not one up to {limit}")]
    BadVersion {
        /// The version.
        version: String,
        /// The highest possible one.
        limit: u64,
    },
    /// The stream has no such id, or has ended.
    #[error("the stream has ended")]
    Ended,
}

/// A stream of a client.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Whether its answers do not count.
    pub(crate) is_observer: bool,
    /// The subscription: all resources, or those with these names. `None` before the first request.
    pub(crate) names: Option<BTreeSet<Arc<str>>>,
    /// The version of the last response; 0 before the first one.
    pub(crate) sent: u64,
    /// The resources of the last response, with the versions at which they were changed.
    pub(crate) content: BTreeMap<Arc<str>, u64>,
    /// Whether the last response is unanswered.
    pub(crate) in_flight: bool,
    /// The last version that was accepted.
    pub(crate) acked: u64,
    /// The names of the subscription with which it was accepted.
    pub(crate) acked_names: BTreeSet<Arc<str>>,
    /// The last refusal, unless a later version was accepted.
    pub(crate) nacked: Option<(u64, String)>,
}

impl Stream {
    /// Returns the meaning of a request.
    pub(crate) fn request(&mut self, request: Request) -> Result<Event, ProtocolError> {
        let Request { version, nonce, names, error } = request;
        let is_first = self.names.is_none();
        if is_first || nonce.is_empty() {
            let event = match is_first {
                true => Event::First(held(&version)?),
                false => Event::Subscription,
            };
            self.names = Some(names);
            return Ok(event);
        }
        let answered = nonce.parse().ok().filter(|nonce| (1..=self.sent).contains(nonce));
        let Some(answered) = answered else { return Err(ProtocolError::UnknownNonce { nonce }) };
        let accepted = match version.as_str() {
            "" => 0,
            text => text.parse().unwrap_or(u64::MAX),
        };
        if accepted > answered {
            return Err(ProtocolError::BadVersion { version, limit: answered });
        }
        self.names = Some(names);
        if answered < self.sent {
            // The client has not seen the last response yet: its answer to that follows.
            return Ok(Event::Subscription);
        }
        self.in_flight = false;
        if accepted == answered {
            self.acked = accepted;
            self.acked_names = self.names.clone().unwrap_or_default();
            self.nacked = None;
            return Ok(Event::Ack(accepted));
        }
        self.nacked = Some((answered, error.clone()));
        Ok(Event::Nack { version: answered, error })
    }

    /// Whether the client subscribes to a resource.
    pub(crate) fn includes(&self, name: &str) -> bool {
        self.names.as_ref().is_some_and(|names| names.is_empty() || names.contains(name))
    }

    /// Whether the client has accepted a response of this version or a later one, with this resource if it exists.
    pub(crate) fn has_acked(&self, name: &str, version: u64) -> bool {
        self.acked >= version && (self.acked_names.is_empty() || self.acked_names.contains(name))
    }
}

/// Returns the version in the first request of a stream; texts of other servers count as none.
fn held(version: &str) -> Result<u64, ProtocolError> {
    match version.parse() {
        Ok(held) if held > MAX_VERSION => {
            Err(ProtocolError::BadVersion { version: version.to_owned(), limit: MAX_VERSION })
        }
        Ok(held) => Ok(held),
        Err(_) => Ok(0),
    }
}
