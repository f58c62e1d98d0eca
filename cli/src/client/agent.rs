//! The agent's REST API as the commands ask it.

use anyhow::{Context as _, anyhow, bail};
use api_client::{Address, Connection, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A client that connects when it is first asked something.
#[derive(Debug)]
pub(crate) struct Agent {
    address: Address,
    connection: Option<Connection>,
}

impl Agent {
    /// The agent at `host`, or where `CILIUM_SOCK` says.
    pub(crate) fn new(host: Option<&str>) -> Self {
        Self { address: host.map_or_else(Address::from_env, Address::parse), connection: None }
    }

    /// Sends a GET; returns the body of an answer 200.
    pub(crate) fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        let answer = self.call("GET", path, &[], None)?;
        read(&answer)
    }

    /// As [`Self::get`], but an answer 404 is none.
    pub(crate) fn find<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<Option<T>> {
        let answer = self.call("GET", path, &[], None)?;
        if answer.status == 404 { Ok(None) } else { read(&answer).map(Some) }
    }

    /// Changes something; any answer but a success is an error.
    pub(crate) fn change(&mut self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<()> {
        let body = body.map(Value::to_string);
        let answer = self.call(method, path, &[], body.as_deref().map(str::as_bytes))?;
        if (200..300).contains(&answer.status) { Ok(()) } else { bail!(answer.words()) }
    }

    /// Sends a GET with labels as its body; returns the body of an answer 200, none for 404.
    pub(crate) fn find_by_labels<T: DeserializeOwned>(
        &mut self,
        path: &str,
        labels: &[String],
    ) -> anyhow::Result<Option<T>> {
        let answer = self.call("GET", path, &[], Some(&serde_json::to_vec(labels)?))?;
        if answer.status == 404 { Ok(None) } else { read(&answer).map(Some) }
    }

    /// A request of the REST API with its whole answer.
    pub(crate) fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> anyhow::Result<Response> {
        self.request(method, &format!("/v1{path}"), headers, body)
    }

    /// A request beside the REST API: tables, and questions that only this tool asks.
    pub(crate) fn call_plain(&mut self, method: &str, path: &str) -> anyhow::Result<Response> {
        self.request(method, path, &[], None)
    }

    fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> anyhow::Result<Response> {
        let unreachable = |error| anyhow!("dial {}: {error}\nIs the agent running?", self.address);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.address).map_err(unreachable)?,
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
