//! The listener on one address.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use bytes::Bytes;
use hive::Backoff;
use hive::prelude::*;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Empty;
use http_server::{Bounds, Pool};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// The maximum number of connections of all listeners together.
const CONNECTIONS: usize = 256;

/// The timeout for the head of a request, and for a connection without one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The size of a connection's read buffer, and of its write buffer, in bytes.
const BUFFER: usize = 8192;

/// The backoff for a port that another program uses, and for an address that is not there yet.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// The listeners and their states.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listening {
    /// The error of each address that was tried; none for one that is served.
    tried: BTreeMap<IpAddr, Option<String>>,
    expected: usize,
}

impl Listening {
    pub(crate) fn expect(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.expected = addresses.len();
    }

    pub(crate) fn remove(&mut self, ip: IpAddr) {
        self.tried.remove(&ip);
    }

    /// Whether each address was tried, with or without success.
    pub(crate) fn is_tried(&self) -> bool {
        self.expected != 0 && self.tried.len() >= self.expected
    }

    /// Returns the first error.
    pub(crate) fn error(&self) -> Option<&str> {
        self.tried.values().find_map(|error| error.as_deref())
    }

    fn set(&mut self, ip: IpAddr, error: Option<String>) {
        self.tried.insert(ip, error);
    }
}

/// The listener.
pub(crate) struct Listener {
    /// The address; the unspecified one of IPv6 for all addresses of both families.
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    pub(crate) pool: Pool,
    pub(crate) state: watch::Sender<Listening>,
}

impl Listener {
    /// Serves the address until the job is cancelled.
    pub(crate) async fn serve(self, cx: JobCx) -> anyhow::Result<()> {
        let Some(listener) = self.bind(&cx).await else { return Ok(()) };
        self.state.send_modify(|state| state.set(self.ip, None));
        respond_on(listener, &self.pool, &cx).await;
        Ok(())
    }

    /// Listens; retries until it succeeds, or returns `None` if the job is cancelled.
    async fn bind(&self, cx: &JobCx) -> Option<TcpListener> {
        let mut backoff = Backoff::exponential(RETRY.0, RETRY.1);
        loop {
            let error = match bind(self.ip, self.port).await {
                Ok(listener) => return Some(listener),
                Err(error) => error,
            };
            let (ip, port) = (self.ip, self.port);
            let remedy = match error.kind() {
                io::ErrorKind::AddrInUse => format!(
                    "port {port} of {ip} is in use: free it, or give all nodes another --cluster-health-port"
                ),
                _ => format!("port {port} of {ip}: {error}"),
            };
            if cx.health.degraded_anew("Other nodes cannot probe this one: cannot listen", &remedy) {
                tracing::error!(port, %ip, %error, "Other nodes cannot probe this one: cannot listen");
            }
            self.state.send_modify(|state| state.set(ip, Some(remedy)));
            let wait = backoff.next_wait().unwrap_or(RETRY.1);
            cx.token().run_until_cancelled(tokio::time::sleep(wait)).await?;
        }
    }
}

/// Answers requests on the listener until the job is cancelled.
async fn respond_on(listener: TcpListener, pool: &Pool, cx: &JobCx) {
    cx.health.ok("Running");
    let answer = service_fn(|request: Request<Incoming>| {
        std::future::ready(Ok::<_, Infallible>(respond(request.method(), request.uri().path())))
    });
    let bounds = Bounds::new(CONNECTIONS).header_timeout(HEADER_TIMEOUT).buffer(BUFFER).title_case_headers();
    let tasks = TaskTracker::new();
    let report_accept = |error: Option<&io::Error>| match error {
        Some(error) => cx.health.degraded("Cannot accept connections", error),
        None => cx.health.ok("Running"),
    };
    http_server::serve_in(pool, &listener, bounds, answer, cx.token(), &tasks, report_accept).await;
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// Serves the socket in the namespace of the health endpoint until the job is cancelled. Its connections have a bound of their
/// own: those to the node do not take their place.
pub(crate) async fn serve_endpoint(listener: std::net::TcpListener, cx: JobCx) -> anyhow::Result<()> {
    respond_on(TcpListener::from_std(listener)?, &Pool::default(), &cx).await;
    Ok(())
}

/// Listens on the port at this address, or at all addresses of the node.
async fn bind(ip: IpAddr, port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((ip, port)).await {
        // A kernel without IPv6.
        Err(error) if ip.is_unspecified() && error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

/// Returns the response: 200 to `GET /hello`, else 404; none has a body.
fn respond(method: &Method, path: &str) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    if method != Method::GET || path != "/hello" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hello_is_answered() {
        let status = |method: Method, path| respond(&method, path).status().as_u16();
        assert_eq!(status(Method::GET, "/hello"), 200);
        for (method, path) in
            [(Method::HEAD, "/hello"), (Method::POST, "/hello"), (Method::GET, "/"), (Method::GET, "/hello/")]
        {
            assert_eq!(status(method, path), 404, "{path}");
        }
    }
}
