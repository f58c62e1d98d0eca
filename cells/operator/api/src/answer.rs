//! Answers to requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::Full;
use k8s_client::ServerProbe;
use metrics::Metrics;
use serde_json::{Map, Value, json};

/// How long the API server may take to answer its version: less than the second that probes of Kubernetes wait times three.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// What answers are made from.
#[derive(Clone)]
pub(crate) struct Answers {
    pub(crate) probe: Option<Arc<ServerProbe>>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Answers {
    /// Returns the answer to a request.
    pub(crate) async fn respond(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let known = ["/healthz", "/v1/healthz", "/v1/metrics", "/v1/cluster"];
        if known.contains(&path) && method != Method::GET {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            return response;
        }
        match path {
            "/healthz" | "/v1/healthz" => self.health().await,
            "/v1/metrics" => {
                let mut response =
                    text(StatusCode::OK, &Value::Array(samples(&self.metrics.text())).to_string());
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            "/v1/cluster" => text(StatusCode::NOT_IMPLEMENTED, "this operator connects to no other clusters"),
            _ => text(StatusCode::NOT_FOUND, "not found"),
        }
    }

    async fn health(&self) -> Response<Full<Bytes>> {
        let Some(probe) = &self.probe else {
            return text(StatusCode::NOT_IMPLEMENTED, "no Kubernetes API server is configured");
        };
        match probe.version(PROBE_TIMEOUT).await {
            Ok(_) => text(StatusCode::OK, "ok"),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error),
        }
    }
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body.to_owned()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Reads the samples of Prometheus' text format, which the registry writes.
fn samples(text: &str) -> Vec<Value> {
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let value: f64 = value.parse().ok()?;
        Some(json!({"name": name, "labels": self::labels(labels.trim_end_matches('}')), "value": value}))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

/// Reads `a="1",b="x\"y"`.
fn labels(mut text: &str) -> Map<String, Value> {
    let mut labels = Map::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let mut end = rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    end = at + 1;
                    break;
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, escaped)) => value.push(escaped),
                    None => {}
                },
                c => value.push(c),
            }
        }
        labels.insert(name.trim_start_matches(',').to_owned(), value.into());
        text = &rest[end..];
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_their_labels() {
        let text = "# HELP a A.\n# TYPE a counter\na_total{x=\"1,2\",y=\"q\\\"r\\\\\"} 3\nb 0.5\n";
        let expected = json!([
            {"name": "a_total", "labels": {"x": "1,2", "y": "q\"r\\"}, "value": 3.0},
            {"name": "b", "labels": {}, "value": 0.5},
        ]);
        assert_eq!(Value::Array(samples(text)), expected);
    }

    #[tokio::test]
    async fn answers_without_a_server_say_so() {
        let answers = Answers { probe: None, metrics: Arc::default() };
        let status = |method: Method, path: &'static str| {
            let answers = answers.clone();
            async move { answers.respond(&method, path).await.status().as_u16() }
        };
        assert_eq!(status(Method::GET, "/healthz").await, 501);
        assert_eq!(status(Method::GET, "/v1/healthz").await, 501);
        assert_eq!(status(Method::GET, "/v1/cluster").await, 501);
        assert_eq!(status(Method::GET, "/v1/metrics").await, 200);
        assert_eq!(status(Method::POST, "/healthz").await, 405);
        assert_eq!(status(Method::GET, "/").await, 404);
    }
}
