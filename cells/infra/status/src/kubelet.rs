//! `GET /healthz` on 127.0.0.1 and ::1 for the kubelet: 200 or 503, no body.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use hive::Health;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use http_server::Bounds;
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::collector::Collector;
use crate::error::Error;

/// Maximum number of open connections.
const CONNECTIONS: usize = 32;

/// Maximum time until a request's head has arrived.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Size in bytes of a connection's read buffer and of its write buffer; the smallest that hyper accepts.
const BUFFER: usize = 8192;

/// Length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: u32 = 128;

/// The port of the probes.
#[derive(Clone, Copy)]
pub(crate) struct Port {
    pub(crate) port: u16,
    /// Whether to listen on 127.0.0.1.
    pub(crate) ipv4: bool,
    /// Whether to listen on ::1.
    pub(crate) ipv6: bool,
    /// Whether an unreachable API server is a failure for requests without the header `require-k8s-connectivity`.
    pub(crate) require_k8s: bool,
}

/// Listens on the port at the loopback address of each enabled family. `SO_REUSEPORT` lets two agents listen during an
/// upgrade; the kernel distributes the connections between them.
pub(crate) fn bind(Port { port, ipv4, ipv6, .. }: Port) -> Result<Vec<TcpListener>, Error> {
    let addresses = [(ipv4, IpAddr::V4(Ipv4Addr::LOCALHOST)), (ipv6, IpAddr::V6(Ipv6Addr::LOCALHOST))];
    let mut listeners = Vec::new();
    for (_, ip) in addresses.into_iter().filter(|(enabled, _)| *enabled) {
        let address = SocketAddr::new(ip, port);
        match listen(address) {
            Ok(listener) => listeners.push(listener),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported) =>
            {
                tracing::info!(%address, %error, "healthz status API server not available");
            }
            Err(source) => return Err(Error::Listen { address, source }),
        }
    }
    Ok(listeners)
}

pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves requests with `answer` until `stop`. Any local process may connect, hence the small bounds.
pub(crate) async fn serve<B>(
    listener: TcpListener,
    answer: impl Fn(&Request<Incoming>) -> Response<B> + Clone + Send + 'static,
    stop: CancellationToken,
    health: Health,
) where
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static,
{
    let answer = service_fn(move |request: Request<Incoming>| {
        std::future::ready(Ok::<_, Infallible>(answer(&request)))
    });
    let bounds = Bounds::new(CONNECTIONS).header_timeout(HEADER_TIMEOUT).buffer(BUFFER);
    let tasks = TaskTracker::new();
    let on_accept = |error: Option<&io::Error>| match error {
        Some(error) => health.degraded("Cannot accept connections", error),
        None => health.ok("serving"),
    };
    http_server::serve(&listener, bounds, answer, &stop, &tasks, on_accept).await;
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// Returns the answer to the kubelet; `default` applies if the request has no header `require-k8s-connectivity`.
pub(crate) fn probe<B>(collector: &Collector, request: &Request<B>, default: bool) -> Response<Empty<Bytes>> {
    let required = request.headers().get("require-k8s-connectivity").and_then(|value| value.to_str().ok());
    let require_k8s =
        required.map_or(default, |value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"));
    let mut response = Response::new(Empty::new());
    *response.status_mut() = match request.uri().path() {
        "/healthz" if collector.is_alive(require_k8s) => StatusCode::OK,
        "/healthz" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::NOT_FOUND,
    };
    response
}
