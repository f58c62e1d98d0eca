//! A small synchronous client of the REST API, for command lines and plugins.
//!
//! **Owns** the address of the agent ([`Address`]) and the connection ([`Connection`]). **Needs** no runtime: a call
//! blocks until its answer, or the next line of it, has arrived. **Provides** status and body as received; the caller
//! parses the body, for instance with `api-models`.
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
