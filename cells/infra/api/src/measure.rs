//! The metrics of requests and of their limits.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use metrics::Metrics;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::limit::{Kind, Values};
use crate::operation::Operation;
use crate::router::BASE;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    path: String,
    return_code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    api_call: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ValueLabels {
    api_call: &'static str,
    value: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    api_call: &'static str,
    outcome: &'static str,
    return_code: u16,
}

type Values64 = Family<ValueLabels, Gauge<f64, std::sync::atomic::AtomicU64>>;
type Times = Family<RequestLabels, Histogram, fn() -> Histogram>;

/// The buckets of Cilium, in seconds.
const SECONDS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0];

/// The metrics of requests.
pub(crate) struct Measure {
    times: Times,
    processed: Family<OutcomeLabels, Counter>,
    adjustment_factor: Family<CallLabels, Gauge<f64, std::sync::atomic::AtomicU64>>,
    processing: Values64,
    rate: Values64,
    in_flight: Values64,
    waits: Values64,
    /// Status codes seen so far: their number is bounded, as each one adds series to the metrics.
    codes: Mutex<Vec<u16>>,
}

impl Measure {
    pub(crate) fn new(metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            times: metrics.added(
                "agent_api_process_time_seconds",
                "Duration of processed API calls labeled by path, method and return code.",
                Family::new_with_constructor(|| Histogram::new(SECONDS)),
            ),
            processed: metrics.added(
                "api_limiter_processed_requests_total",
                "Total number of API requests processed",
                Family::default(),
            ),
            adjustment_factor: metrics.added(
                "api_limiter_adjustment_factor",
                "Current adjustment factor while auto adjusting",
                Family::default(),
            ),
            processing: metrics.added(
                "api_limiter_processing_duration_seconds",
                "Mean and estimated processing duration in seconds",
                Family::default(),
            ),
            rate: metrics.added(
                "api_limiter_rate_limit",
                "Current rate limiting configuration",
                Family::default(),
            ),
            in_flight: metrics.added(
                "api_limiter_requests_in_flight",
                "Current requests in flight",
                Family::default(),
            ),
            waits: metrics.added(
                "api_limiter_wait_duration_seconds",
                "Mean, min, and max wait duration in seconds",
                Family::default(),
            ),
            codes: Mutex::default(),
        })
    }

    pub(crate) fn request(&self, method: &Method, path: &str, status: StatusCode, took: Duration) {
        let labels = RequestLabels {
            method: method_label(method).to_owned(),
            path: path_label(path),
            return_code: self.code_label(status),
        };
        self.times.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn limited(&self, kind: Kind, values: Values, status: StatusCode) {
        self.count(kind, if status.as_u16() < 400 { "success" } else { "fail" }, status);
        let api_call = kind.name();
        let set = |family: &Values64, value, number: f64| {
            family.get_or_create(&ValueLabels { api_call, value }).set(number);
        };
        self.adjustment_factor.get_or_create(&CallLabels { api_call }).set(values.adjustment_factor);
        set(&self.processing, "mean", values.mean_processing);
        set(&self.processing, "estimated", values.estimated_processing);
        set(&self.rate, "limit", values.rate);
        set(&self.rate, "burst", values.burst);
        set(&self.in_flight, "in-flight", values.in_flight as f64);
        set(&self.in_flight, "limit", values.parallel as f64);
        set(&self.waits, "mean", values.mean_wait);
        set(&self.waits, "min", values.min_wait);
        set(&self.waits, "max", values.max_wait);
    }

    pub(crate) fn turned_away(&self, kind: Kind, status: StatusCode) {
        self.count(kind, "fail", status);
    }

    fn count(&self, kind: Kind, outcome: &'static str, status: StatusCode) {
        let return_code = self.code_label(status);
        self.processed.get_or_create(&OutcomeLabels { api_call: kind.name(), outcome, return_code }).inc();
    }

    fn code_label(&self, status: StatusCode) -> u16 {
        const MOST: usize = 32;
        let code = status.as_u16();
        let mut codes = self.codes.lock();
        if codes.contains(&code) {
            return code;
        }
        if codes.len() >= MOST {
            return 0;
        }
        codes.push(code);
        code
    }
}

/// Returns the first two segments of the path; all unknown paths share one label, so that clients cannot add series
/// without bound.
fn path_label(path: &str) -> String {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    let (base, first) = (segments.next().unwrap_or(""), segments.next().unwrap_or(""));
    let known = Operation::ALL.iter().any(|op| op.path().split('/').nth(1) == Some(first));
    if known && BASE.strip_prefix('/') == Some(base) {
        format!("{BASE}/{first}")
    } else {
        "unknown".to_owned()
    }
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        assert_eq!(path_label("/v1/endpoint/5/healthz"), "/v1/endpoint");
        assert_eq!(path_label("//v1/healthz"), "/v1/healthz");
        assert_eq!(path_label("/v1/cluster/nodes"), "/v1/cluster");
        assert_eq!(path_label("/v1/anything"), "unknown");
        assert_eq!(path_label("/healthz"), "unknown");
        assert_eq!(method_label(&Method::from_bytes(b"BREW").unwrap()), "other");

        let metrics = Metrics::default();
        let measure = Measure::new(&metrics);
        for code in 400..600 {
            let status = StatusCode::from_u16(code).unwrap();
            measure.request(&Method::GET, "/v1/ip", status, Duration::ZERO);
        }
        assert!(metrics.text().matches("_count{").count() <= 33);
    }

    #[test]
    fn requests_are_measured_in_ciliums_buckets() {
        let metrics = Metrics::default();
        let measure = Measure::new(&metrics);
        measure.request(&Method::DELETE, "/v1/ipam/1.2.3.4", StatusCode::OK, Duration::from_millis(7));
        let text = metrics.text();
        for line in [
            "cilium_agent_api_process_time_seconds_bucket{le=\"0.005\",method=\"DELETE\",path=\"/v1/ipam\",return_code=\"200\"} 0",
            "cilium_agent_api_process_time_seconds_bucket{le=\"0.01\",method=\"DELETE\",path=\"/v1/ipam\",return_code=\"200\"} 1",
            "cilium_agent_api_process_time_seconds_count{method=\"DELETE\",path=\"/v1/ipam\",return_code=\"200\"} 1",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
