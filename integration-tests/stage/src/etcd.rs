//! Requests of the stage to etcd itself, over its JSON gateway.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use test_kit::Keeper;

/// Where etcd listens for its clients.
pub(crate) const ADDRESS: &str = "127.0.0.1:2379";

/// Whether it serves, and why not.
pub(crate) fn health(keeper: &Keeper) -> Result<()> {
    let answer = request(keeper, "GET", "/health", "".to_owned())?;
    ensure!(answer["health"] == "true", "{answer}");
    Ok(())
}

/// Forgets everything but the present state; the revision that is the oldest one since.
pub(crate) fn compact(keeper: &Keeper) -> Result<i64> {
    let range = request(keeper, "POST", "/v3/kv/range", json!({"key": "AA=="}).to_string())?;
    let revision = range["header"]["revision"].as_str().and_then(|text| text.parse().ok());
    let revision: i64 = revision.with_context(|| format!("no revision: {range}"))?;
    let body = json!({"revision": revision.to_string(), "physical": true});
    request(keeper, "POST", "/v3/kv/compaction", body.to_string())?;
    Ok(revision)
}

fn request(keeper: &Keeper, method: &'static str, path: &'static str, body: String) -> Result<Value> {
    let text = keeper.run(move || exchange(method, path, &body))?;
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no HTTP: {text}"))?;
    ensure!(head.split(' ').nth(1) == Some("200"), "{method} {path}: {text}");
    serde_json::from_str(body).with_context(|| format!("{method} {path}: {text}"))
}

/// HTTP/1.0, so that the answer ends with the connection and is never chunked.
fn exchange(method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(ADDRESS)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {length}\r\n\r\n{body}")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
