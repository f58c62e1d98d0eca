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

/// Connections at once.
const CONNECTIONS: usize = 32;

/// How long a request may take to arrive.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that a connection may take for what it reads, and for what it writes.
const BUFFER: usize = 8192;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;

/// Where probes ask.
#[derive(Clone, Copy)]
pub(crate) struct Port {
    pub(crate) port: u16,
    /// On 127.0.0.1.
    pub(crate) ipv4: bool,
    /// On ::1.
    pub(crate) ipv6: bool,
    /// Whether a lost API server counts for those who do not say.
    pub(crate) require_k8s: bool,
}

/// Listens on the port at the loopback address of each family that the node has. Another agent may listen, too: of
/// an upgrade's two agents the kernel asks either.
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

/// Answers until `stop`, by this function. Whoever has a process on this machine may connect.
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
    let trouble = |error: Option<&io::Error>| match error {
        Some(error) => health.degraded("Cannot accept connections", error),
        None => health.ok("serving"),
    };
    http_server::serve(&listener, bounds, answer, &stop, &tasks, trouble).await;
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// The answer to the kubelet; `default`: whether a lost API server counts for those who do not say.
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
