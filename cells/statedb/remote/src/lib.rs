//! Tables of a running agent, read over its socket.
//!
//! **Owns** nothing. **Needs** an agent at an [`Address`], Cilium's or Apiary's; no async runtime: iterators block
//! until the next row arrives. **Provides** rows of any type that deserializes from their JSON, with their revisions:
//! by key, from a key on, all, and the changes of a table.
//!
//! ```no_run
//! use api_client::Address;
//! use statedb_remote::RemoteTable;
//!
//! #[derive(serde::Deserialize)]
//! #[serde(rename_all = "PascalCase")]
//! struct Device { index: u32, name: String }
//!
//! let devices = RemoteTable::<Device>::new(Address::from_env(), "devices");
//! if let Some(row) = devices.get("name", "eth0")? {
//!     println!("{} {}", row.object.index, row.revision);
//! }
//! for change in devices.changes()? {
//!     let change = change?; // after a lost connection call `changes()` again: it starts over with all rows
//!     println!("{} {}", change.object.name, change.deleted);
//! }
//! # Ok::<(), statedb_remote::Error>(())
//! ```
//!
//! Each query has its own connection, which is closed with the iterator; the agent buffers little of an unread
//! response. The agent ends a [`changes`](RemoteTable::changes) stream that is not read for a minute.

mod error;
mod key;
mod rows;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::fmt;
use std::marker::PhantomData;

use api_client::{Address, Connection, Lines, escape};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use error::Error;
pub use key::{RemoteKey, RemotePrefix};
pub use rows::{Change, Changes, Row, Rows};

/// A client of an agent's table. It has no state: the agent looks the table up for each query.
pub struct RemoteTable<T> {
    agent: Address,
    name: String,
    marker: PhantomData<fn() -> T>,
}

/// A query in the encoding of Cilium's clients.
#[derive(Serialize)]
struct Question<'q> {
    key: String,
    table: &'q str,
    index: &'q str,
    lowerbound: bool,
}

impl<T: DeserializeOwned> RemoteTable<T> {
    /// Returns a client of the table with this name, of the agent at an address.
    pub fn new(agent: Address, name: impl Into<String>) -> Self {
        RemoteTable { agent, name: name.into(), marker: PhantomData }
    }

    /// Returns the first row with a key of an index.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Refused`] if the table or the index does not exist.
    pub fn get(&self, index: &str, key: impl RemoteKey) -> Result<Option<Row<T>>, Error> {
        self.list(index, key)?.next().transpose()
    }

    /// Returns all rows with a key of an index.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn list(&self, index: &str, key: impl RemoteKey) -> Result<Rows<T>, Error> {
        self.ask(index, &key, false)
    }

    /// Returns all rows with this key of an index or a greater one, in the index's order.
    ///
    /// # Errors
    /// As for [`get`](Self::get), and [`Error::Refused`] if the index is not ordered as Cilium's bytes.
    pub fn lower_bound(&self, index: &str, key: impl RemoteKey) -> Result<Rows<T>, Error> {
        self.ask(index, &key, true)
    }

    /// Returns all rows in the order of an index. Cilium requires the index's name, also for the primary one.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn all(&self, index: &str) -> Result<Rows<T>, Error> {
        self.ask(index, &[0_u8; 0].as_slice(), true)
    }

    /// Returns all rows as changes, then every later change, until the agent stops: the iterator then ends, or returns
    /// an error if the connection broke. Changes between two reads are coalesced by row.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn changes(&self) -> Result<Changes<T>, Error> {
        let path = format!("/statedb/changes/{}", escape(&self.name));
        Changes::new(self.send(&path, None)?)
    }

    fn ask(&self, index: &str, key: &dyn RemoteKey, lowerbound: bool) -> Result<Rows<T>, Error> {
        let question =
            Question { key: BASE64_STANDARD.encode(key.to_bytes()), table: &self.name, index, lowerbound };
        let question = serde_json::to_vec(&question).map_err(|source| Error::Row { source })?;
        Rows::new(self.send("/statedb/query", Some(&question))?)
    }

    fn send(&self, path: &str, body: Option<&[u8]>) -> Result<Lines, Error> {
        let connect = |source| Error::Connect { agent: self.agent.to_string(), source };
        let connection = Connection::open(&self.agent).map_err(connect)?;
        connection.lines("GET", path, body).map_err(|source| Error::Lost { source })
    }
}

impl<T> fmt::Debug for RemoteTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteTable({} at {})", self.name, self.agent)
    }
}
