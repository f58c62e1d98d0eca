//! The state of an xDS server, state of the world variant: typed resources, their versions, subscriptions of clients,
//! acknowledgements. No sockets, no clock, no messages.
//!
//! **Owns** [`Cache`], the resources of one type and the streams of its clients. A [`Request`] of a stream is an
//! [`Event`]; [`Cache::response`] returns what a stream is due. At most one response of a stream is unanswered, so a
//! client that does not read costs no memory. [`Cache::delivery`] returns whether clients have acknowledged a change.
//!
//! **Versions** rise with each change of resources, in a process from 1 on. A client of an earlier process reports the
//! version that it holds in its first request; versions then continue after it, so that they never repeat.
//! A response is due when the resources that the client subscribes to differ from those of the last response: a
//! client that refused a version gets the next one, not the same again.
//!
//! ```
//! use xds::{Cache, Delivery, Event, Request};
//!
//! let mut cache = Cache::new();
//! let version = cache.update([("a".into(), Some(b"resource".to_vec().into()))]).unwrap();
//! let stream = cache.open();
//! cache.request(stream, Request::default()).unwrap();
//! let response = cache.response(stream).unwrap();
//! assert_eq!((response.version, response.resources.len()), (version, 1));
//! assert_eq!(cache.delivery("a", version), Delivery::Pending);
//! let nonce = response.version.to_string();
//! let ack = Request { version: nonce.clone(), nonce, ..Request::default() };
//! assert_eq!(cache.request(stream, ack), Ok(Event::Ack(version)));
//! assert_eq!(cache.delivery("a", version), Delivery::Done);
//! assert_eq!(cache.response(stream), None);
//! ```

#![forbid(unsafe_code)]

mod cache;
mod stream;

pub use cache::{Cache, Delivery, Response, StreamId, Value};
pub use stream::{Event, ProtocolError, Request};
