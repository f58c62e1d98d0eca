//! `GET /metrics` for Prometheus.

use std::future::Future;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::registry::Metrics;

/// The format of the answer.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Listens on `--prometheus-serve-addr`: `host:port`, or `:port` for all addresses.
pub(crate) async fn bind(address: &str) -> anyhow::Result<TcpListener> {
    let listener = match address.strip_prefix(':') {
        Some(port) => match TcpListener::bind(format!("[::]:{port}")).await {
            Ok(listener) => Ok(listener),
            // A kernel without IPv6.
            Err(_) => TcpListener::bind(format!("0.0.0.0:{port}")).await,
        },
        None => TcpListener::bind(address).await,
    };
    listener.with_context(|| format!("prometheus-serve-addr: cannot listen on {address:?}"))
}

/// Answers until `stop` is ready.
pub(crate) async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let answer = move || {
        let text = metrics.text();
        std::future::ready(([(CONTENT_TYPE, FORMAT)], text))
    };
    let router = Router::new().route("/metrics", get(answer));
    axum::serve(listener, router).with_graceful_shutdown(stop).await.context("metrics server")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;

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
        let listener = bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = serve(listener, metrics, async {
            let _ = stopped.await;
        });
        let client = async {
            let answer = get(address, "/metrics").await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert!(answer.contains(FORMAT), "{answer}");
            assert!(answer.ends_with("# TYPE cilium_endpoint gauge\ncilium_endpoint 0\n"), "{answer}");
            assert!(get(address, "/").await.starts_with("HTTP/1.1 404"));
            stop.send(()).unwrap();
        };
        let (served, ()) = tokio::join!(served, client);
        served.unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_had_is_named() {
        let taken = bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let error = bind(&address).await.unwrap_err().to_string();
        assert_eq!(error, format!("prometheus-serve-addr: cannot listen on {address:?}"));
        assert!(bind("nonsense").await.is_err());
        assert!(bind(":0").await.is_ok());
    }
}
