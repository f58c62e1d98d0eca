//! `GET /metrics` of flows, for Prometheus.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hive::JobCx;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use http_server::{Bounds, bind_with_retry};
use hubble::HubbleRegistry;
use hyper::body::Incoming;
use hyper::service::service_fn;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use server_tls::{CurrentTls, Listener};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// Maximum number of open connections.
const CONNECTIONS: usize = 64;

/// Maximum time until a request's head has arrived.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Content type of the answer.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Content type of OpenMetrics, and the part of it that clients name.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text";

/// The buckets of durations, as Go's clients have them.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: u16,
}

type Durations = Family<Code, Histogram, fn() -> Histogram>;

/// Answers requests, and counts them.
#[derive(Clone)]
pub(crate) struct Server {
    registry: Arc<HubbleRegistry>,
    /// Whether OpenMetrics is served to clients that accept it.
    open_metrics: bool,
    requests: Family<Code, Counter>,
    durations: Durations,
}

impl Server {
    /// Returns the server, with its own metrics registered.
    pub(crate) fn new(registry: Arc<HubbleRegistry>, open_metrics: bool) -> Self {
        let durations: Durations = Family::new_with_constructor(|| Histogram::new(BUCKETS));
        let requests = Family::default();
        registry.0.register(
            "metrics_http_handler_requests_total",
            "A counter for requests to Hubble metrics handler",
            Family::clone(&requests),
        );
        registry.0.register(
            "metrics_http_handler_request_duration_seconds",
            "A histogram of latencies of Hubble metrics handler",
            durations.clone(),
        );
        Self { registry, open_metrics, requests, durations }
    }

    /// Serves requests until the job ends; tries again while the address cannot be used.
    /// With TLS the address is bound once there are certificates.
    pub(crate) async fn run(
        self,
        address: SocketAddr,
        certificates: Option<Arc<CurrentTls>>,
        cx: JobCx,
    ) -> anyhow::Result<()> {
        if let Some(certificates) = &certificates {
            cx.health.ok("Waits for certificates");
            let mut current = certificates.subscribe();
            // The sender is an argument: waiting does not fail.
            if cx.token().run_until_cancelled(current.wait_for(Option::is_some)).await.is_none() {
                return Ok(());
            }
        }
        let report = |error: &io::Error| {
            cx.health.degraded(format_args!("hubble-metrics-server: cannot listen on {address}"), error);
        };
        let Some(listener) = bind_with_retry(address.ip(), address.port(), &cx, report).await else {
            return Ok(());
        };
        tracing::info!(address = %listener.local_addr()?, tls = certificates.is_some(), "Serving metrics of flows");
        cx.health.ok(format_args!("Serving {}", listener.local_addr()?));
        let answer = service_fn(move |request: Request<Incoming>| {
            let answer = self.answer(request.method(), request.uri().path(), request.headers());
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let listener = Listener { listener, certificates };
        let bounds = Bounds::new(CONNECTIONS).header_timeout(HEADER_TIMEOUT);
        let tasks = TaskTracker::new();
        let on_accept = |error: Option<&io::Error>| match error {
            Some(error) => cx.health.degraded("Cannot accept connections", error),
            None => cx.health.ok("Serving"),
        };
        http_server::serve(&listener, bounds, answer, cx.token(), &tasks, on_accept).await;
        drop(listener);
        tasks.close();
        tasks.wait().await;
        Ok(())
    }

    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let begin = Instant::now();
        let mut response = Response::default();
        if path != "/metrics" {
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        }
        if matches!(*method, Method::GET | Method::HEAD) {
            let (format, text) = match self.open_metrics && accepts_open_metrics(headers) {
                true => (OPEN_METRICS, self.registry.0.open_metrics()),
                false => (FORMAT, self.registry.0.text()),
            };
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format));
            *response.body_mut() = Full::from(text);
        } else {
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
        }
        let code = Code { code: response.status().as_u16() };
        self.requests.get_or_create(&code).inc();
        self.durations.get_or_create(&code).observe(begin.elapsed().as_secs_f64());
        response
    }
}

fn accepts_open_metrics(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim_start().starts_with(OPEN_METRICS_TYPE))
}

/// Returns the address of an option: `HOST:PORT`, or `:PORT` for all addresses.
pub(crate) fn address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix(':') {
        Some(port) => Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port.parse().ok()?)),
        None => text.replace("localhost", "127.0.0.1").parse().ok(),
    }
}
