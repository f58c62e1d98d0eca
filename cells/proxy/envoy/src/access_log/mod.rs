//! The requests that Envoy logs: the socket, their records, and monitors, which get these.
//!
//! Sibling folders that it uses: none.

mod publish;
mod record;
mod socket;

pub(crate) use publish::Records;
#[cfg(any(test, feature = "test-util"))]
pub(crate) use record::parse;
pub(crate) use socket::AccessLogSocket;
