//! The REST server with the handlers of the cells, over its socket. The cells are those of the agent; the kernel -
//! programs, maps, links - is replaced by fakes.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use hive::TestHive;
use statedb::{AnyTable, Db, Snapshot};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::input::parts;

mod cells;

/// The maximum number of requests that one agent serves: state left by accepted ones slows down later requests.
const SERVED: usize = 2000;

/// A response takes longer only if the server hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Tables that a refused request must not change.
const KEPT: [&str; 5] = ["endpoints", "ipam", "identities", "runtime-options", "endpoint-policies"];

thread_local! {
    static AGENT: RefCell<Option<Agent>> = const { RefCell::new(None) };
}

/// A request: its first line, headers by line, a body with a matching length; or, if it begins with `!`, raw bytes,
/// after which the client disconnects.
pub(crate) fn run(data: &[u8]) {
    AGENT.with_borrow_mut(|agent| {
        if agent.as_ref().is_none_or(|agent| agent.served >= SERVED) {
            if let Some(old) = agent.take() {
                old.stop();
            }
            *agent = Some(Agent::start());
        }
        let Some(served) = agent.as_mut() else { return };
        if served.serve(data).is_err() {
            // The change may be a delayed effect of an earlier request: it must reproduce with this request alone.
            let mut alone = Agent::start();
            let outcome = alone.serve(data);
            alone.stop();
            if let Err(difference) = outcome {
                panic!("{difference}");
            }
        }
    });
}

struct Agent {
    runtime: Runtime,
    /// `None` only after the agent was stopped at the end of its thread.
    hive: Option<TestHive>,
    socket: PathBuf,
    _folder: TempDir,
    served: usize,
}

impl Agent {
    fn start() -> Agent {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cilium.sock");
        let mut hive = cells::hive(folder.path(), &socket);
        runtime.block_on(async {
            hive.start().await;
            // Requests for endpoints are accepted once everything has been restored; then the host's own endpoint is
            // created, which must not be taken for an effect of a request.
            let ready = async {
                loop {
                    let (status, text) = ask(&socket, &request(b"GET /v1/endpoint", b"", b"")).await;
                    if status == 200 && text.contains(r#""state":"ready""#) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(PATIENCE, ready).await.unwrap();
        });
        Agent { runtime, hive: Some(hive), socket, _folder: folder, served: 0 }
    }

    fn stop(mut self) {
        let hive = self.hive.as_mut().expect("not stopped before");
        self.runtime.block_on(hive.stop());
    }

    /// Sends a request; the error names the change that a refused one has caused.
    fn serve(&mut self, data: &[u8]) -> Result<(), String> {
        self.served += 1;
        if let Some(raw) = data.strip_prefix(b"!") {
            let sent = async {
                let mut stream = UnixStream::connect(&self.socket).await.unwrap();
                let _ = stream.write_all(raw).await;
                let _ = stream.shutdown().await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            };
            self.runtime.block_on(async { timeout(PATIENCE, sent).await }).unwrap();
            return Ok(());
        }
        let [line, headers, body] = parts(data);
        // A response without an end.
        if line.windows(16).any(|part| part == b"/statedb/changes") {
            return Ok(());
        }
        let bytes = request(line, headers, body);
        let db = self.hive.as_ref().expect("not stopped yet").get::<Db>();
        let tables: Vec<_> = db.tables().into_iter().filter(|table| KEPT.contains(&table.name())).collect();
        let (status, text, changed) = self.runtime.block_on(async {
            settle(&tables, &db).await;
            let before = db.snapshot();
            let (status, text) = ask(&self.socket, &bytes).await;
            let refused = (400..500).contains(&status);
            let changed = refused.then(|| changed(&tables, &before, &db.snapshot())).flatten();
            (status, text, changed)
        });
        let sent = String::from_utf8_lossy(&bytes);
        assert!((100..600).contains(&status), "no answer to {sent}");
        assert!(status != 500 || !text.contains("handler of this operation failed"), "{text}");
        changed.map_or(Ok(()), |changed| Err(format!("{sent}\n{changed}")))
    }
}

/// The thread may end normally or because a request failed; in both cases the agent must stop.
impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(hive) = self.hive.take() {
            hive.kill();
        }
    }
}

/// Waits until effects of earlier requests have ended.
async fn settle(tables: &[std::sync::Arc<dyn AnyTable>], db: &Db) {
    let revisions = || {
        let snapshot = db.snapshot();
        tables.iter().map(|table| table.stats(&snapshot).revision).collect::<Vec<_>>()
    };
    let mut quiet = 0;
    let mut last = revisions();
    while quiet < 3 {
        tokio::task::yield_now().await;
        let now = revisions();
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
}

/// Returns the rows of the first table that differs.
fn changed(tables: &[std::sync::Arc<dyn AnyTable>], before: &Snapshot, after: &Snapshot) -> Option<String> {
    tables.iter().find_map(|table| {
        if table.stats(before).revision == table.stats(after).revision {
            return None;
        }
        let rows = |at| table.all(at).iter().map(|row| row.row().join(" ")).collect::<Vec<_>>();
        let (old, new) = (rows(before), rows(after));
        (old != new).then(|| format!("{}: {old:?} became {new:?}", table.name()))
    })
}

/// Returns a request as bytes; the length of the body is correct, whatever its headers contain.
fn request(line: &[u8], headers: &[u8], body: &[u8]) -> Vec<u8> {
    let word = |text: &[u8]| text.iter().copied().filter(|byte| !b"\r\n".contains(byte)).collect::<Vec<u8>>();
    let mut bytes = word(line);
    bytes.extend_from_slice(b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    for header in headers.split(|byte| *byte == b'\n').filter(|header| !header.is_empty()) {
        let name = header.split(|byte| *byte == b':').next().unwrap_or_default().to_ascii_lowercase();
        // These headers set the length of the request, or keep the connection open.
        if ["content-length", "transfer-encoding", "connection", "expect", "upgrade"]
            .iter()
            .all(|own| own.as_bytes() != name)
        {
            bytes.extend(word(header));
            bytes.extend_from_slice(b"\r\n");
        }
    }
    if !body.is_empty() {
        bytes.extend(format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()).bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// Returns status and text of the response; status 0 if there is none.
async fn ask(socket: &std::path::Path, bytes: &[u8]) -> (u16, String) {
    let answered = async {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        // A request that is refused early is not read to its end.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    let answer = timeout(PATIENCE, answered).await;
    let answer = answer.unwrap_or_else(|_| panic!("hangs: {}", String::from_utf8_lossy(bytes)));
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, text)
}
