//! `GET /metrics` for Prometheus.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use http_server::Bounds;
use hyper::body::Incoming;
use hyper::service::service_fn;
use server_tls::Listener;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::registry::Metrics;

/// Maximum number of open connections.
const CONNECTIONS: usize = 64;

/// Maximum time until a request's head has arrived.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Content type of the answer.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Listens on the address of an option: `host:port`, or `:port` for all addresses.
pub(crate) async fn bind(option: &str, address: &str) -> anyhow::Result<TcpListener> {
    let listener = match address.strip_prefix(':') {
        Some(port) => match TcpListener::bind(format!("[::]:{port}")).await {
            Ok(listener) => Ok(listener),
            // The kernel may have no IPv6.
            Err(_) => TcpListener::bind(format!("0.0.0.0:{port}")).await,
        },
        None => TcpListener::bind(address).await,
    };
    listener.with_context(|| format!("{option}: cannot listen on {address:?}"))
}

/// Serves requests until `stop`. The callback gets the error when no connection can be accepted, and `None` when one
/// can again.
pub(crate) async fn serve(
    listener: Listener,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    on_accept: impl FnMut(Option<&io::Error>),
) {
    let answer = service_fn(move |request: Request<Incoming>| {
        std::future::ready(Ok::<_, Infallible>(answer(&metrics, &request)))
    });
    let bounds = Bounds::new(CONNECTIONS).header_timeout(HEADER_TIMEOUT);
    let tasks = TaskTracker::new();
    http_server::serve(&listener, bounds, answer, &stop, &tasks, on_accept).await;
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

fn answer<B>(metrics: &Metrics, request: &Request<B>) -> Response<Full<Bytes>> {
    let mut response = Response::default();
    if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
    } else {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(FORMAT));
        *response.body_mut() = Full::from(metrics.text());
    }
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    const OPTION: &str = "prometheus-serve-addr";

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_are_served_in_the_prometheus_format_until_the_stop() {
        let metrics = Arc::new(Metrics::default());
        let endpoints = prometheus_client::metrics::gauge::Gauge::<i64>::default();
        metrics.register("endpoint", "Endpoints", endpoints);
        let listener = bind(OPTION, "127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let listener = Listener { listener, certificates: None };
        let served = serve(listener, metrics, stop.clone(), |_| ());
        let client = async {
            let answer = get(address, "/metrics").await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert!(answer.contains(FORMAT), "{answer}");
            assert!(answer.ends_with("# TYPE cilium_endpoint gauge\ncilium_endpoint 0\n"), "{answer}");
            assert!(get(address, "/").await.starts_with("HTTP/1.1 404"));
            stop.cancel();
        };
        tokio::join!(served, client);
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_bound_is_named() {
        let taken = bind(OPTION, "127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let error = bind(OPTION, &address).await.unwrap_err().to_string();
        assert_eq!(error, format!("prometheus-serve-addr: cannot listen on {address:?}"));
        assert!(bind(OPTION, "nonsense").await.is_err());
        assert!(bind(OPTION, ":0").await.is_ok());
    }
}
