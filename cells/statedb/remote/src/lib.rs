//! Tables of a running agent, read over its socket.
//!
//! **Owns** nothing. **Needs** an agent at an [`Address`], Cilium's as well as this one; no runtime: an iterator blocks
//! until its next row is there. **Provides** rows of any type that is made of their JSON, with their revisions: those with a
//! key, those from a key on, all, and the changes of a table.
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
//!     let change = change?; // lost? connect anew by `changes()`, which begins with all rows again
//!     println!("{} {}", change.object.name, change.deleted);
//! }
//! # Ok::<(), statedb_remote::Error>(())
//! ```
//!
//! Each question has a connection of its own, which closes with its iterator; of what is not read yet the agent keeps
//! little. A [`changes`](RemoteTable::changes) that is not read for a minute is ended by the agent.

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

/// A table of an agent. It is looked for with each question, nothing is kept in between.
pub struct RemoteTable<T> {
    agent: Address,
    name: String,
    marker: PhantomData<fn() -> T>,
}

/// A query as Cilium's clients write it.
#[derive(Serialize)]
struct Question<'q> {
    key: String,
    table: &'q str,
    index: &'q str,
    lowerbound: bool,
}

impl<T: DeserializeOwned> RemoteTable<T> {
    /// The table of this name of the agent at an address.
    pub fn new(agent: Address, name: impl Into<String>) -> Self {
        RemoteTable { agent, name: name.into(), marker: PhantomData }
    }

    /// The first row with a key of an index.
    ///
    /// # Errors
    /// See [`Error`]; of a table or an index that is not there [`Error::Refused`].
    pub fn get(&self, index: &str, key: impl RemoteKey) -> Result<Option<Row<T>>, Error> {
        self.list(index, key)?.next().transpose()
    }

    /// All rows with a key of an index.
    ///
    /// # Errors
    /// As those of [`get`](Self::get).
    pub fn list(&self, index: &str, key: impl RemoteKey) -> Result<Rows<T>, Error> {
        self.ask(index, &key, false)
    }

    /// All rows whose key of an index is this or greater, in the index's order.
    ///
    /// # Errors
    /// As those of [`get`](Self::get), and [`Error::Refused`] of an index whose order is not that of Cilium's bytes.
    pub fn lower_bound(&self, index: &str, key: impl RemoteKey) -> Result<Rows<T>, Error> {
        self.ask(index, &key, true)
    }

    /// All rows in the order of an index, such as the primary one: by its name, which Cilium asks for.
    ///
    /// # Errors
    /// As those of [`get`](Self::get).
    pub fn all(&self, index: &str) -> Result<Rows<T>, Error> {
        self.ask(index, &[0_u8; 0].as_slice(), true)
    }

    /// All rows as changes, then every change as it happens, until the agent stops: the iterator ends then, or gives
    /// an error if the agent is gone without a word. Changes that come while nobody reads are one for each row.
    ///
    /// # Errors
    /// As those of [`get`](Self::get).
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
