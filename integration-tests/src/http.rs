//! The smallest client of the REST API: one request, one connection.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// A response of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The head, as it came.
    pub head: String,
    /// The body, as it came.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Panics
    /// If it is not JSON; the message has the body.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// Sends one request over the unix socket and reads the whole response.
pub fn request(socket: &Path, method: &str, path: &str, body: Option<&str>) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let body = body.unwrap_or_default();
    // HTTP/1.0, so that the answer ends with the connection and is never chunked.
    let sent = write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // A server that refuses a body answers before it has read all of it.
    let mut text = String::new();
    let read = stream.read_to_string(&mut text);
    if text.is_empty() {
        sent?;
        read?;
    }
    let (head, body) =
        text.split_once("\r\n\r\n").ok_or_else(|| io::Error::other(format!("no HTTP: {text}")))?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status: {head}")))?;
    Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
}
