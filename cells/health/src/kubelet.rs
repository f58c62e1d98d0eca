//! `GET /healthz` on 127.0.0.1 and ::1 for the kubelet: 200 or 503, no body.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::any;
use tokio::net::{TcpListener, TcpSocket};

use crate::collector::{Collector, Question};
use crate::error::Error;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;

/// Listens on the port at the loopback address of each family that the node has. Another agent may listen, too: of
/// an upgrade's two agents the kernel asks either.
pub(crate) fn bind(port: u16, ipv4: bool, ipv6: bool) -> Result<Vec<TcpListener>, Error> {
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

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers until `stop` is ready.
pub(crate) async fn serve(
    listener: TcpListener,
    collector: Arc<Collector>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let router = Router::new().route("/healthz", any(probe)).with_state(collector);
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

async fn probe(State(collector): State<Arc<Collector>>, headers: HeaderMap) -> StatusCode {
    let required = headers.get("require-k8s-connectivity").and_then(|value| value.to_str().ok());
    let require_k8s =
        required.is_some_and(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"));
    let question = Question { brief: true, require_k8s, require_modules: false };
    let state = collector.status(question).and_then(|status| status.cilium).map(|cilium| cilium.state);
    match state.as_deref() {
        Some("Ok" | "Disabled") => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}
