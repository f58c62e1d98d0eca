//! Connections beyond the bounds: idle ones are evicted, new ones wait for busy ones.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use http_server::{Bounds, serve};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    folder: tempfile::TempDir,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Releases one request to `/slow`.
    go_on: Arc<Notify>,
}

impl Server {
    fn start(connections: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let (stop, tasks, go_on) = (CancellationToken::new(), TaskTracker::new(), Arc::new(Notify::new()));
        let waits = go_on.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let waits = waits.clone();
            async move {
                if request.uri().path() == "/slow" {
                    waits.notified().await;
                }
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
            }
        });
        let (stopped, spawned) = (stop.clone(), tasks.clone());
        tasks.spawn(async move {
            let bounds = Bounds::new(connections).header_timeout(PATIENCE * 10);
            serve(&listener, bounds, service, &stopped, &spawned, |_| ()).await;
        });
        Server { folder, stop, tasks, go_on }
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.folder.path().join("socket")).await.unwrap()
    }

    async fn get(&self, path: &str) -> String {
        let mut stream = self.connect().await;
        ask(&mut stream, path).await;
        answer(&mut stream).await
    }

    async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        timeout(PATIENCE, self.tasks.wait()).await.expect("what is answered ends");
    }
}

async fn ask(stream: &mut UnixStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
}

/// Reads the body up to its known end; empty if the connection was closed.
async fn answer(stream: &mut UnixStream) -> String {
    let mut read = Vec::new();
    let mut buffer = [0; 1024];
    while !read.ends_with(b"done") {
        match timeout(PATIENCE, stream.read(&mut buffer)).await.expect("an answer or an end") {
            Ok(0) | Err(_) => return String::new(),
            Ok(count) => read.extend_from_slice(&buffer[..count]),
        }
    }
    "done".to_owned()
}

#[tokio::test]
async fn connections_that_send_nothing_do_not_block_others() {
    let server = Server::start(8);
    let mut idle = Vec::new();
    for number in 0..50 {
        let mut stream = server.connect().await;
        if number % 2 == 0 {
            stream.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
        }
        idle.push(stream);
        if number % 10 == 0 {
            assert_eq!(server.get("/").await, "done");
        }
    }
    assert_eq!(server.get("/").await, "done");
    // The oldest connections were evicted, the newest are still served.
    assert_eq!(answer(&mut idle[0]).await, "");
    let newest = idle.last_mut().unwrap();
    ask(newest, "/").await;
    assert_eq!(answer(newest).await, "done");
    server.stop().await;
}

#[tokio::test]
async fn requests_in_flight_are_never_cut_off() {
    let server = Server::start(4);
    let mut busy = Vec::new();
    for _ in 0..4 {
        let mut stream = server.connect().await;
        ask(&mut stream, "/slow").await;
        busy.push(stream);
    }
    let mut waits = Box::pin(server.get("/"));
    assert!(timeout(Duration::from_millis(500), &mut waits).await.is_err(), "all connections are busy");
    server.go_on.notify_one();
    assert_eq!(waits.as_mut().await, "done", "one of them has become idle");
    drop(waits);
    for _ in 0..3 {
        server.go_on.notify_one();
        tokio::task::yield_now().await;
    }
    server.go_on.notify_waiters();
    let mut answered = 0;
    for stream in &mut busy {
        answered += usize::from(answer(stream).await == "done");
    }
    assert_eq!(answered, 4);
    server.stop().await;
}

/// Regression: each eviction of a connection with an incomplete request took 100 ms, one after another, so that a few hundred
/// of them kept a probe waiting for longer than it lasts.
#[tokio::test(start_paused = true)]
async fn incomplete_requests_are_evicted_without_a_wait() {
    let server = Server::start(8);
    let begin = tokio::time::Instant::now();
    let mut incomplete = Vec::new();
    for _ in 0..100 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
        incomplete.push(stream);
    }
    assert_eq!(server.get("/").await, "done");
    let waited = begin.elapsed();
    assert!(waited < Duration::from_secs(2), "{waited:?} of the paused clock");
    server.stop().await;
}
