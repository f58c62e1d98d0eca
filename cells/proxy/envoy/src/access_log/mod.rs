//! The requests that Envoy logs: the socket, and their records.
//!
//! Sibling folders that it uses: none.

mod record;
mod socket;

pub(crate) use record::parse;
pub use record::{AccessLog, AccessRecord, Header, HttpRecord, L7Record, LogPeer, RecordKind};
pub(crate) use socket::AccessLogSocket;
