//! The connections of a listener.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hive::JobCx;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;

use crate::preface::Prefaced;

/// The pause after a connection could not be accepted.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What the clients of a listener may use.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The maximum number of open connections.
    pub connections: usize,
    /// The maximum number of requests of a connection that are in flight.
    pub requests: u32,
    /// Bytes of responses that wait for their client, per request: a client that does not read costs no more.
    pub send_buffer: usize,
    /// The interval of pings, which detect clients that are gone without closing.
    pub ping_interval: Duration,
    /// The maximum time for the answer to a ping.
    pub ping_timeout: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 64,
            requests: 64,
            send_buffer: 32 << 10,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(20),
        }
    }
}

/// The connections of a listener, whose requests a service answers. They end when the token is cancelled.
pub struct Server<S> {
    /// The protocol, for logs and health.
    name: &'static str,
    bounds: Bounds,
    service: S,
    connections: TaskTracker,
    /// Whether the latest client was refused.
    is_full: AtomicBool,
    requests: Requests,
}

impl<S> Server<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    /// Returns a server without connections. `name` is the protocol's, for logs and health.
    pub fn new(name: &'static str, bounds: Bounds, service: S, stop: CancellationToken) -> Self {
        let requests = Requests { tracker: TaskTracker::new(), stop };
        let (connections, is_full) = (TaskTracker::new(), AtomicBool::new(false));
        Self { name, bounds, service, connections, is_full, requests }
    }

    /// Returns whether another connection is served. Logs the first refusal of a row: clients must not fill the log.
    pub fn has_capacity(&self) -> bool {
        let has_capacity = self.connections.len() < self.bounds.connections;
        if !self.is_full.swap(!has_capacity, Ordering::Relaxed) && !has_capacity {
            let (protocol, clients) = (self.name, self.bounds.connections);
            tracing::info!(clients, "{protocol} client refused: too many are connected");
        }
        has_capacity
    }

    /// Serves a connection, once it is established, until its client closes it or the token is cancelled.
    pub fn serve<T>(&self, connecting: impl Future<Output = Option<T>> + Send + 'static)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, service, bounds) = (self.requests.clone(), self.service.clone(), self.bounds);
        self.connections.spawn(async move {
            let stop = requests.stop.clone();
            let serving = async {
                let Some(stream) = connecting.await else { return };
                let mut server = http2::Builder::new(requests);
                server
                    .max_concurrent_streams(bounds.requests)
                    .max_send_buf_size(bounds.send_buffer)
                    .keep_alive_interval(bounds.ping_interval)
                    .keep_alive_timeout(bounds.ping_timeout)
                    .timer(TokioTimer::new());
                // The end of a client, also by an error, needs no report.
                drop(server.serve_connection(TokioIo::new(Prefaced::new(stream)), service).await);
            };
            stop.run_until_cancelled(serving).await;
        });
    }

    /// Serves the connections of a unix socket until the job is cancelled. Reports to the job's health.
    pub async fn serve_unix(&self, listener: &UnixListener, cx: &JobCx) {
        cx.health.ok("Serving");
        while let Some(accepted) = cx.token().run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok(_) if !self.has_capacity() => {}
                Ok((stream, _)) => {
                    cx.health.ok("Serving");
                    self.serve(async { Some(stream) });
                }
                Err(error) => {
                    let message = format!("Cannot accept connections on the socket of {}", self.name);
                    cx.health.degraded(message, &error);
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Waits for the end of all connections and requests.
    pub async fn drain(self) {
        for tracker in [self.connections, self.requests.tracker] {
            tracker.close();
            tracker.wait().await;
        }
    }
}

/// Runs the requests of connections, until the token is cancelled.
#[derive(Clone)]
struct Requests {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Requests {
    fn execute(&self, work: F) {
        let stop = self.stop.clone();
        self.tracker.spawn(async move { drop(stop.run_until_cancelled(work).await) });
    }
}

#[cfg(test)]
mod tests {
    use hyper::service::service_fn;
    use tokio::io::{AsyncReadExt as _, duplex};
    use tower::{Service as _, ServiceExt as _};

    use super::*;
    use crate::Connection;

    /// A service that never answers below `/wait`.
    async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        match request.uri().path() {
            "/wait" => std::future::pending().await,
            _ => Ok(Response::new(Body::empty())),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_beyond_the_bound_wait_until_a_silent_one_has_been_closed() {
        let bounds = Bounds { connections: 2, ..Bounds::default() };
        let server = Server::new("test", bounds, service_fn(answer), CancellationToken::new());
        let (mut silent, served) = duplex(1024);
        server.serve(async { Some(served) });
        let (client, served) = duplex(1024);
        server.serve(async { Some(served) });
        assert!(!server.has_capacity());
        let (mut connection, work) = Connection::new(client).await.unwrap();
        let work = tokio_util::task::AbortOnDropHandle::new(TaskTracker::new().spawn(work));
        let request = || Request::new(Body::empty());
        assert_eq!(connection.ready().await.unwrap().call(request()).await.unwrap().status(), 200);
        // The bytes that the server sends first, then the end of the stream.
        silent.read_to_end(&mut Vec::new()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(server.has_capacity(), "the silent client is closed, the other one is served");
        assert_eq!(connection.ready().await.unwrap().call(request()).await.unwrap().status(), 200);
        drop(work);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_end_with_the_token() {
        let stop = CancellationToken::new();
        let server = Server::new("test", Bounds::default(), service_fn(answer), stop.clone());
        let (client, served) = duplex(1024);
        server.serve(async { Some(served) });
        let (mut connection, work) = Connection::new(client).await.unwrap();
        let work = tokio_util::task::AbortOnDropHandle::new(TaskTracker::new().spawn(work));
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = hyper::Uri::from_static("/wait");
        let response = connection.ready().await.unwrap().call(request);
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
        server.drain().await;
        response.await.unwrap_err();
        drop(work);
    }
}
