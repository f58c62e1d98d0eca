//! Tables over a real unix socket, with the requests of Cilium's RemoteTable.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hive::TestHive;
use serde::Serialize;
use statedb::{Db, Index, IndexDef, Query, RwTable, TableDisplay, TableSpec};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Device {
    index: u32,
    name: String,
}

const BY_NAME: Index<Device, str> = Index::new("name", |device, keys| keys.add(&device.name));

impl TableSpec for Device {
    const NAME: &'static str = "devices";
    const PRIMARY: &'static str = "id";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.index
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_NAME.def()]
    }
}

impl TableDisplay for Device {
    fn columns() -> &'static [&'static str] {
        &["Index", "Name"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.index.to_string(), self.name.clone()]
    }
}

struct Server {
    hive: TestHive,
    socket: PathBuf,
    devices: RwTable<Device>,
    _folder: tempfile::TempDir,
}

impl Server {
    async fn end(mut self) {
        self.hive.stop().await;
    }

    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cilium.sock");
        let cells = [statedb::cell(), metrics::cell(), api::cell()];
        let mut hive = TestHive::new(cells).set("socket-path", socket.display());
        hive.start().await;
        let devices = hive.get::<Db>().table_with_display().unwrap();
        Self { hive, socket, devices, _folder: folder }
    }

    fn insert(&self, devices: &[(u32, &str)]) {
        self.devices.transact(|w| {
            for &(index, name) in devices {
                w.insert(Device { index, name: name.to_owned() });
            }
        });
    }

    async fn send(&self, head: &str, body: &str) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Sends a request; returns status and body.
    async fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut answer = String::new();
        self.send(head, body).await.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Sends a request with an endless answer; returns the lines after its head.
    async fn follow(&self, path: &str) -> Lines<BufReader<UnixStream>> {
        let mut lines = BufReader::new(self.send(&format!("GET {path}"), "").await).lines();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "HTTP/1.1 200 OK");
        while !lines.next_line().await.unwrap().unwrap().is_empty() {}
        lines
    }
}

/// Returns the next change, without the framing of chunks.
async fn next(lines: &mut Lines<BufReader<UnixStream>>) -> String {
    let begin = async {
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if line.starts_with('{') {
                return line;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), begin).await.unwrap()
}

#[tokio::test]
async fn rows_are_found_by_the_bytes_of_their_keys() {
    let server = Server::start().await;
    server.insert(&[(1, "lo"), (2, "eth0"), (300, "lxc1")]);
    let lo = "{\"rev\":1,\"obj\":{\"Index\":1,\"Name\":\"lo\"}}\n";
    let eth0 = "{\"rev\":2,\"obj\":{\"Index\":2,\"Name\":\"eth0\"}}\n";
    let lxc1 = "{\"rev\":3,\"obj\":{\"Index\":300,\"Name\":\"lxc1\"}}\n";
    for (key, index, lowerbound, rows) in [
        ("AAAAAg==", "id", false, eth0.to_owned()),
        ("AAAAAg==", "", true, format!("{eth0}{lxc1}")),
        ("AAAAAw==", "id", false, String::new()),
        ("", "id", true, format!("{lo}{eth0}{lxc1}")),
        ("bG8=", "name", false, lo.to_owned()),
        ("bG8=", "name", true, format!("{lo}{lxc1}")),
        ("bA==", "name", false, String::new()),
    ] {
        let body = format!(
            "{{\"key\":\"{key}\",\"table\":\"devices\",\"index\":\"{index}\",\"lowerbound\":{lowerbound}}}"
        );
        assert_eq!(server.ask("GET /statedb/query", &body).await, (200, rows), "{body}");
    }
    let many: Vec<_> = (1000..2000).map(|index| (index, "veth")).collect();
    server.insert(&many);
    let (status, rows) =
        server.ask("GET /statedb/query", r#"{"key":"AAAD6A==","table":"devices","lowerbound":true}"#).await;
    assert_eq!((status, rows.matches("\"Name\":\"veth\"").count()), (200, 1000));
    server.end().await;
}

#[tokio::test]
async fn invalid_requests_are_refused_in_the_form_of_rows() {
    let server = Server::start().await;
    let refusal = |err: &str| format!("{{\"rev\":0,\"obj\":null,\"err\":\"{err}\"}}\n");
    for (path, body, status, answer) in [
        ("query", r#"{"table":"x"}"#, 404, refusal(r#"Table \"x\" not found"#)),
        ("query", r#"{"table":"devices","index":"x"}"#, 400, refusal(r#"Index \"x\" not found"#)),
        ("query", r#"{"table":"devices","key":"!"}"#, 400, refusal("illegal base64 data at input byte 0")),
        ("query", "", 400, refusal("EOF while parsing a value at line 1 column 0")),
        ("changes/x", "", 404, refusal(r#"Table \"x\" not found"#)),
        ("changes", "", 404, "404 page not found\n".to_owned()),
        ("changes/devices/x", "", 404, "404 page not found\n".to_owned()),
        ("", "", 404, "404 page not found\n".to_owned()),
        ("dump/", "", 404, "404 page not found\n".to_owned()),
        ("dumps", "", 404, "404 page not found\n".to_owned()),
        ("dump/x", "", 200, "{\n}\n".to_owned()),
    ] {
        let (found, text) = server.ask(&format!("GET /statedb/{path}"), body).await;
        let chunks = text.split("\r\n").filter(|part| u32::from_str_radix(part, 16).is_err());
        assert_eq!((found, chunks.collect::<String>()), (status, answer), "{path} {body}");
    }
    assert_eq!(server.ask("POST /statedb/query", "{}").await.0, 404);
    server.end().await;
}

#[tokio::test]
async fn changes_are_streamed_until_the_agent_stops() {
    let mut server = Server::start().await;
    server.insert(&[(1, "lo"), (2, "eth0")]);
    let mut lines = server.follow("/statedb/changes/devices").await;
    assert_eq!(next(&mut lines).await, "{\"obj\":{\"Index\":1,\"Name\":\"lo\"},\"rev\":1}");
    assert_eq!(next(&mut lines).await, "{\"obj\":{\"Index\":2,\"Name\":\"eth0\"},\"rev\":2}");
    server.insert(&[(1, "lo0")]);
    assert_eq!(next(&mut lines).await, "{\"obj\":{\"Index\":1,\"Name\":\"lo0\"},\"rev\":3}");
    server.devices.transact(|w| w.delete(Query::primary(2)));
    assert_eq!(
        next(&mut lines).await,
        "{\"obj\":{\"Index\":2,\"Name\":\"eth0\"},\"rev\":4,\"deleted\":true}"
    );
    let begin = std::time::Instant::now();
    server.hive.stop().await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let mut rest = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        rest.push(line);
    }
    assert_eq!(rest.iter().filter(|line| line.as_str() == "0").count(), 1, "the answer ends: {rest:?}");
}

#[tokio::test]
async fn a_disconnected_client_releases_its_tracker() {
    let server = Server::start().await;
    let lines = server.follow("/statedb/changes/devices").await;
    let trackers = || {
        let db: Arc<Db> = server.hive.get();
        db.table_by_name("devices").unwrap().stats(&db.snapshot()).trackers
    };
    assert_eq!(trackers(), 1);
    drop(lines);
    server.hive.until("the client to be forgotten", || trackers() == 0).await;
    server.end().await;
}
