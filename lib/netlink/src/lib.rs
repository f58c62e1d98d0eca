//! Netlink sockets: requests, dumps, batches, notifications, attributes.
//!
//! - [`Connection`]: synchronous requests with their acknowledgements, many of them in one datagram, dumps, transactions
//!   of nfnetlink;
//! - [`Subscription`] (feature `tokio`): notifications of multicast groups;
//! - [`Body`] and [`Attributes`]: a writer and a reader for families without types in the `netlink-packet-*` crates;
//! - [`messages`]: splits a datagram, from a socket or from elsewhere, into netlink messages.
//!
//! Requests are [`RouteNetlinkMessage`]s of `netlink-packet-route`, or a [`Request`]: a message type and a body, which
//! is any `Emitable`. Answers are borrowed bytes: a caller parses the part that it needs, so that a small binary does
//! not link parsers for all of rtnetlink.
//!
//! **Guarantees.** A dump is complete or an error: one that the kernel marks as interrupted (`NLM_F_DUMP_INTR`) is
//! repeated up to [`DUMP_ATTEMPTS`] times. Answers to an earlier request are skipped by their sequence number. Lengths
//! that exceed the datagram, datagrams that exceed the buffer and answers for another port id are [`Malformed`]. A
//! refusal carries the message of the kernel's extended acknowledgement, if there is one. Lost answers (`ENOBUFS`) are
//! [`Error::Overrun`]. After any error but [`Error::Refused`] a dump may still be in progress: open a new connection.
//!
//! Only the kernel can answer: the socket is connected to port id 0, so the kernel refuses messages from other
//! processes.
//!
//! ```
//! use netlink::{Connection, Protocol, Request};
//! use netlink_packet_core::Parseable;
//! use netlink_packet_route::link::LinkMessage;
//!
//! # fn main() -> Result<(), netlink::Error> {
//! let mut connection = Connection::open(Protocol::Route)?;
//! let request = Request { kind: libc::RTM_GETLINK, body: LinkMessage::default() };
//! let indexes = connection.dump(&request, |answer| {
//!     let link = LinkMessage::parse(answer.body).map_err(|error| answer.undecodable(error))?;
//!     Ok([link.header.index])
//! })?;
//! assert!(indexes.contains(&1), "the loopback device");
//! # Ok(()) }
//! ```
//!
//! [`RouteNetlinkMessage`]: https://docs.rs/netlink-packet-route/latest/netlink_packet_route/enum.RouteNetlinkMessage.html

mod attributes;
mod body;
mod connection;
mod error;
mod message;
pub mod nfnetlink;
mod protocol;
mod refusal;
mod request;
#[cfg(feature = "tokio")]
mod subscription;
mod transport;

pub use attributes::{Attribute, Attributes};
pub use body::Body;
pub use connection::{Connection, DUMP_ATTEMPTS, MAX_BATCH};
pub use error::{Error, Malformed, is_retryable};
pub use message::{Message, Messages, messages};
pub use protocol::Protocol;
pub use request::Request;
#[cfg(feature = "tokio")]
pub use subscription::{Received, Subscription};
#[cfg(feature = "test-util")]
pub use transport::Transport;
