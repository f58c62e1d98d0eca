//! A small synchronous client of the REST API, for command lines and plugins.
//!
//! **Owns** the address of the agent ([`Address`]) and the wire ([`Connection`]). **Needs** no runtime: a call blocks
//! until its answer, or its next line, is there. **Provides** status and body as they come; what is in a body is `api-models`' or the
//! caller's business.
//!
//! ```no_run
//! use api_client::{Address, Connection};
//!
//! let mut agent = Connection::open(&Address::from_env())?;
//! let answer = agent.call("GET", "/v1/healthz", &[("brief", "true")], None)?;
//! assert_eq!(answer.status, 200, "{}", answer.words());
//! # Ok::<(), std::io::Error>(())
//! ```

mod address;
mod http;
mod lines;

pub use address::Address;
pub use http::{Connection, Response, escape};
pub use lines::Lines;
