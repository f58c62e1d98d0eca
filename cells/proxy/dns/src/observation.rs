//! Queries that another process has decided on and answered, for records and metrics of this one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use monitor::Monitor;

use crate::directory::{Client, Directory, Transport};
use crate::metrics::{Counters, Outcome, Timings};
use crate::records::Records;

/// An event in the way of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The address of the client.
    pub client: SocketAddr,
    /// The address of the server.
    pub server: SocketAddr,
    /// The protocol.
    pub transport: Transport,
    /// The name, canonical.
    pub name: String,
    /// The types of records that are asked for.
    pub qtypes: Vec<u16>,
    /// The event.
    pub event: Event,
    /// The durations of the parts of the query up to now.
    pub timings: Timings,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Policy allows the query.
    Allowed,
    /// Policy denies the query.
    Denied,
    /// The query has no answer.
    Failed {
        /// The reason.
        error: String,
        /// Whether the server did not answer in time.
        is_timeout: bool,
    },
    /// The answer is released.
    Answered(Details),
}

/// The contents of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// The code in the header.
    pub code: u16,
    /// The addresses of the name and of its aliases.
    pub addresses: Vec<IpAddr>,
    /// The shortest time to live, in seconds.
    pub ttl: u32,
    /// The aliases.
    pub aliases: Vec<String>,
    /// The types of its records.
    pub types: Vec<u16>,
}

/// Publishes and counts queries, the agent's own and those of a standalone proxy.
#[derive(Clone)]
pub struct Observer {
    pub(crate) records: Records,
    pub(crate) counters: Counters,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

impl Observer {
    pub(crate) fn new(monitor: Arc<Monitor>, directory: Arc<dyn Directory>, counters: Counters) -> Observer {
        Observer { records: Records { monitor, directory }, counters }
    }

    /// Publishes and counts an event of a standalone proxy.
    pub fn observe(&self, client: Client, observation: &Observation) {
        let timings = &observation.timings;
        match &observation.event {
            Event::Allowed => self.counters.received(),
            Event::Denied => {
                self.counters.received();
                self.counters.ended(Outcome::Denied, timings);
            }
            Event::Failed { is_timeout: true, .. } => self.counters.ended(Outcome::Timeout, timings),
            Event::Failed { .. } => self.counters.ended(Outcome::Failed, timings),
            Event::Answered(_) => self.counters.ended(Outcome::Forwarded, timings),
        }
        self.records.publish(client, observation);
    }
}
