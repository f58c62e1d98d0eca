//! A client of the agent's REST API.

use anyhow::{Context as _, anyhow, bail};
use api_client::{Address, Connection, Lines, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// A client that connects with the first request.
#[derive(Debug)]
pub(crate) struct Agent {
    address: Address,
    connection: Option<Connection>,
    timeout: Option<Duration>,
}

impl Agent {
    /// Returns a client of the agent at `host`, or at the address in `CILIUM_SOCK`.
    pub(crate) fn new(host: Option<&str>) -> Self {
        Self { address: host.map_or_else(Address::from_env, Address::parse), connection: None, timeout: None }
    }

    /// Returns a client of the API at this address.
    pub(crate) fn at(address: Address) -> Self {
        Self { address, connection: None, timeout: None }
    }

    /// Limits the time of an answer from now on.
    pub(crate) fn limit(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
        self.connection = None;
    }

    /// Returns the address, for clients with connections of their own.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the path of the unix socket; `None` for TCP.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.address.path()
    }

    /// Sends a GET; returns the body of a response 200.
    pub(crate) fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        let answer = self.call("GET", path, &[], None)?;
        read(&answer)
    }

    /// Sends a GET; returns `None` for a response 404. See [`Self::get`].
    pub(crate) fn find<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<Option<T>> {
        let answer = self.call("GET", path, &[], None)?;
        if answer.status == 404 { Ok(None) } else { read(&answer).map(Some) }
    }

    /// Sends a modifying request; any status but success is an error.
    pub(crate) fn change(&mut self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<()> {
        let body = body.map(Value::to_string);
        let answer = self.call(method, path, &[], body.as_deref().map(str::as_bytes))?;
        if (200..300).contains(&answer.status) { Ok(()) } else { bail!(answer.words()) }
    }

    /// Sends a GET with labels as its body; returns the body of a response 200, `None` for 404.
    pub(crate) fn find_by_labels<T: DeserializeOwned>(
        &mut self,
        path: &str,
        labels: &[String],
    ) -> anyhow::Result<Option<T>> {
        let answer = self.call("GET", path, &[], Some(&serde_json::to_vec(labels)?))?;
        if answer.status == 404 { Ok(None) } else { read(&answer).map(Some) }
    }

    /// Sends a request of the REST API; returns the whole response.
    pub(crate) fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> anyhow::Result<Response> {
        self.request(method, &format!("/v1{path}"), headers, body)
    }

    /// Sends a request of the REST API on a connection of its own; returns the answer to be read as it arrives.
    pub(crate) fn lines(&self, method: &str, path: &str) -> anyhow::Result<Lines> {
        Ok(self.connect()?.lines(method, &format!("/v1{path}"), None)?)
    }

    /// Sends a request outside of the REST API: tables, the health API, and endpoints that only this tool uses.
    pub(crate) fn call_plain(&mut self, method: &str, path: &str) -> anyhow::Result<Response> {
        self.request(method, path, &[], None)
    }

    /// Sends a request with a body outside of the REST API.
    pub(crate) fn send_plain(&mut self, method: &str, path: &str, body: &Value) -> anyhow::Result<Response> {
        self.request(method, path, &[], Some(body.to_string().as_bytes()))
    }

    fn connect(&self) -> anyhow::Result<Connection> {
        let unreachable = |error| anyhow!("dial {}: {error}\nIs the agent running?", self.address);
        match self.timeout {
            Some(timeout) => Connection::open_with_timeout(&self.address, timeout).map_err(unreachable),
            None => Connection::open(&self.address).map_err(unreachable),
        }
    }

    fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> anyhow::Result<Response> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let answer = connection.call(method, path, headers, body)?;
        if answer.keep_alive {
            self.connection = Some(connection);
        }
        Ok(answer)
    }
}

fn read<T: DeserializeOwned>(answer: &Response) -> anyhow::Result<T> {
    if answer.status != 200 {
        bail!(answer.words());
    }
    serde_json::from_slice(&answer.body).context("the agent's answer cannot be decoded")
}
