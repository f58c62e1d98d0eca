//! Metrics: requests under Cilium's names, watches under Apiary's.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::Method;
use k8s_types::Kind;
use metrics::Metrics;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

use crate::request_error::ErrorKind;
use crate::target::Target;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    host: String,
    method: String,
    return_code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    path: String,
    method: String,
}

/// Upper bounds of the buckets of latencies, in seconds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

type Latencies = Family<PathLabels, Histogram, fn() -> Histogram>;

/// The metrics of requests.
#[derive(Clone)]
pub(crate) struct ClientMetrics {
    calls: Family<CallLabels, Counter>,
    latency: Latencies,
    waits: Histogram,
}

impl Default for ClientMetrics {
    fn default() -> ClientMetrics {
        ClientMetrics {
            calls: Family::default(),
            latency: Latencies::new_with_constructor(|| Histogram::new(BUCKETS)),
            waits: Histogram::new(BUCKETS),
        }
    }
}

impl ClientMetrics {
    pub(crate) fn register(&self, metrics: &Metrics) {
        let text = "Number of requests to the Kubernetes API server, by host, method and code";
        metrics.register("k8s_client_api_calls_total", text, self.calls.clone());
        let text = "Time until the answer of a request to the Kubernetes API server begins, in seconds";
        metrics.register("k8s_client_api_latency_time_seconds", text, self.latency.clone());
        let text = "Time that requests to the Kubernetes API server wait for their turn, in seconds";
        metrics.register("k8s_client_rate_limiter_duration_seconds", text, self.waits.clone());
    }

    /// Records the wait of a request for the rate limit.
    pub(crate) fn waited(&self, wait: Duration) {
        self.waits.observe(wait.as_secs_f64());
    }

    /// Records the response of a request.
    pub(crate) fn called(&self, host: &str, method: &Method, code: &str, path: &str, took: Duration) {
        let method = method.to_string();
        let labels = PathLabels { path: path.to_owned(), method: method.clone() };
        self.latency.get_or_create(&labels).observe(took.as_secs_f64());
        let labels = CallLabels { host: host.to_owned(), method, return_code: code.to_owned() };
        self.calls.get_or_create(&labels).inc();
    }
}

/// The state of a watch, for metrics and for the wait for its list.
#[derive(Debug)]
pub(crate) struct WatchState {
    /// The name of the watched objects.
    pub(crate) name: String,
    kind: Option<Kind>,
    scope: String,
    born: Instant,
    /// Milliseconds from `born` to the last event.
    last_received: AtomicU64,
    objects: AtomicI64,
    received: AtomicU64,
    restarts: AtomicU64,
    listed: AtomicBool,
    excused: AtomicBool,
    /// The last failure, with its time.
    failed: Mutex<Option<(Instant, ErrorKind)>>,
}

impl WatchState {
    pub(crate) fn new(target: &Target) -> WatchState {
        WatchState {
            name: target.name.clone(),
            kind: target.kind,
            scope: target.scope(),
            born: Instant::now(),
            last_received: AtomicU64::new(0),
            objects: AtomicI64::new(0),
            received: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            listed: AtomicBool::new(false),
            excused: AtomicBool::new(false),
            failed: Mutex::default(),
        }
    }

    /// Records an event or a bookmark.
    pub(crate) fn received(&self) {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_received.store(now, Ordering::Relaxed);
    }

    /// Records the change in the number of objects.
    pub(crate) fn object(&self, more: i64) {
        self.received.fetch_add(1, Ordering::Relaxed);
        self.objects.fetch_add(more, Ordering::Relaxed);
    }

    /// Records the start of a list.
    pub(crate) fn begin(&self) {
        self.objects.store(0, Ordering::Relaxed);
    }

    /// Records a reconnect.
    pub(crate) fn restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a failure with its reason.
    pub(crate) fn failed(&self, why: ErrorKind) {
        *self.failed.lock() = Some((Instant::now(), why));
    }

    /// Records that all objects have been listed.
    pub(crate) fn listed(&self) {
        self.listed.store(true, Ordering::Relaxed);
    }

    /// Sets whether the initial sync does not wait for the list: it is forbidden, or the kind does not exist.
    pub(crate) fn excuse(&self, excused: bool) {
        self.excused.store(excused, Ordering::Relaxed);
    }

    /// Whether all objects have been listed once.
    pub(crate) fn was_listed(&self) -> bool {
        self.listed.load(Ordering::Relaxed)
    }

    /// Whether all objects have been listed once, or never will be.
    pub(crate) fn is_listed_or_excused(&self) -> bool {
        self.listed.load(Ordering::Relaxed) || self.excused.load(Ordering::Relaxed)
    }

    /// Returns the number of objects.
    pub(crate) fn objects(&self) -> i64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Returns the kind's name in Cilium's status: `cilium/v2::CiliumNode`.
    pub(crate) fn api_version(&self) -> Option<String> {
        let kind = self.kind?;
        let group = match kind.group() {
            "" => "core",
            "cilium.io" => "cilium",
            "discovery.k8s.io" => "discovery",
            other => other,
        };
        let name = if kind == Kind::Pod { "Pods" } else { kind.name() };
        Some(format!("{group}/{}::{name}", kind.version()))
    }

    /// Returns the time since data was last received.
    pub(crate) fn age(&self) -> Duration {
        self.born.elapsed().saturating_sub(Duration::from_millis(self.last_received.load(Ordering::Relaxed)))
    }
}

/// All existing watches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watches(Arc<Mutex<Vec<Weak<WatchState>>>>);

impl Watches {
    pub(crate) fn add(&self, watch: &Arc<WatchState>) {
        let mut watches = self.0.lock();
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(watch));
    }

    pub(crate) fn all(&self) -> Vec<Arc<WatchState>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

type Read<T> = fn(&WatchState) -> T;

impl Collector for Watches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let watches = self.all();
        let families: [(&str, &str, Read<f64>); 2] = [
            ("k8s_watch_age_seconds", "Time since the last sign of life of a watch", |w| {
                w.age().as_secs_f64()
            }),
            ("k8s_watch_objects", "Objects of a watch", |w| w.objects() as f64),
        ];
        for (name, help, value) in families {
            let metric = ConstGauge::new(0.0);
            let mut family = encoder.encode_descriptor(name, help, None, metric.metric_type())?;
            for watch in &watches {
                let labels = [("scope", watch.scope.as_str())];
                ConstGauge::new(value(watch)).encode(family.encode_family(&labels)?)?;
            }
        }
        let families: [(&str, &str, Read<u64>); 2] = [
            ("k8s_watch_events", "Objects that a watch has received", |w| w.received.load(Ordering::Relaxed)),
            ("k8s_watch_restarts", "Connections of a watch that have ended", |w| {
                w.restarts.load(Ordering::Relaxed)
            }),
        ];
        for (name, help, value) in families {
            let metric = ConstCounter::new(0_u64);
            let mut family = encoder.encode_descriptor(name, help, None, metric.metric_type())?;
            for watch in &watches {
                let labels = [("scope", watch.scope.as_str())];
                ConstCounter::new(value(watch)).encode(family.encode_family(&labels)?)?;
            }
        }
        let metric = ConstGauge::new(0.0);
        let help = "Time since the last failure of a watch, by the reason";
        let kind = metric.metric_type();
        let mut family = encoder.encode_descriptor("k8s_watch_last_error_age_seconds", help, None, kind)?;
        for watch in &watches {
            if let Some((at, why)) = *watch.failed.lock() {
                let labels = [("scope", watch.scope.as_str()), ("reason", why.name())];
                ConstGauge::new(at.elapsed().as_secs_f64()).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
