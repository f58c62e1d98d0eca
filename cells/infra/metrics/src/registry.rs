//! The registry in which cells register their metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry};

use crate::feature::{Feature, with_defaults};
use crate::selection::Selection;
use crate::text;

/// The prefix of all names of an agent.
const PREFIX: &str = "cilium";

/// The last line of OpenMetrics.
const END: &str = "# EOF\n";

/// The metrics of one agent. Cells register theirs once, under Cilium's names, and keep a clone of the metric to update
/// it.
///
/// Labels must come from sets that the agent bounds (operations, reasons, states), never from content of requests: each
/// combination stays in memory.
#[derive(Debug)]
pub struct Metrics {
    prefix: &'static str,
    registry: Mutex<Registry>,
    /// Metrics whose names do not get the prefix.
    foreign: Mutex<Registry>,
    selection: Mutex<Selection>,
    /// Flags that tell callers whether their families are exported, so that they can skip measuring if not.
    wanted: Mutex<Vec<Wanted>>,
}

/// Families, and a flag that is true while at least one of them is exported.
#[derive(Debug)]
struct Wanted {
    names: Vec<String>,
    is: Arc<AtomicBool>,
}

impl Wanted {
    fn refresh(&self, selection: &Selection) {
        self.is.store(self.names.iter().any(|name| selection.exports(name)), Ordering::Relaxed);
    }
}

impl Metrics {
    /// Returns a registry that exports the metrics of `selection`.
    pub fn new(selection: Selection) -> Self {
        Self::with_prefix(PREFIX, selection)
    }

    /// Returns a registry whose names have another prefix than those of an agent.
    pub fn with_prefix(prefix: &'static str, selection: Selection) -> Self {
        Self {
            prefix,
            registry: Mutex::new(Registry::with_prefix(prefix)),
            foreign: Mutex::default(),
            selection: Mutex::new(selection),
            wanted: Mutex::default(),
        }
    }

    /// Adds a metric by its full name without the prefix; the name of a counter ends with `_total`.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        add(&mut self.registry.lock(), name, help, metric);
    }

    /// Adds a metric that is not Cilium's by its full name, without a prefix.
    pub fn register_foreign(&self, name: &str, help: &str, metric: impl Metric) {
        add(&mut self.foreign.lock(), name, help, metric);
    }

    /// Adds a metric as [`register_foreign`](Self::register_foreign) does, exported only if `--metrics` enables it.
    pub fn register_foreign_off(&self, name: &str, help: &str, metric: impl Metric) {
        self.selection.lock().off_by_default(exported(name, &metric));
        self.register_foreign(name, help, metric);
    }

    /// Adds a metric and returns it.
    pub fn added<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.register(name, help, metric.clone());
        metric
    }

    /// Adds a metric that is exported only if `--metrics` enables it.
    pub fn register_off(&self, name: &str, help: &str, metric: impl Metric) {
        self.selection.lock().off_by_default(format!("{}_{}", self.prefix, exported(name, &metric)));
        self.register(name, help, metric);
    }

    /// Adds the gauge `feature_<name>`, which is 1 while the feature is on. As in Cilium, the gauge of a feature that
    /// is off is exported only if the environment has `CILIUM_FEATURE_METRICS_WITH_DEFAULTS=true`.
    pub fn register_feature(&self, name: &str, help: &str, is_on: impl Fn() -> bool + Send + Sync + 'static) {
        self.add_feature(name, help, is_on, with_defaults());
    }

    fn add_feature(
        &self,
        name: &str,
        help: &str,
        is_on: impl Fn() -> bool + Send + Sync + 'static,
        always: bool,
    ) {
        let (name, help) = (format!("feature_{name}"), format!("{help}."));
        self.register_collector(Feature { name, help, is_on, always });
    }

    /// Adds metrics whose values are read when the metrics are requested.
    pub fn register_collector(&self, collector: impl Collector) {
        self.registry.lock().register_collector(Box::new(collector));
    }

    /// Adds metrics as [`register_collector`](Self::register_collector) does, exported only if `--metrics` enables
    /// them.
    pub fn register_collector_off<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        collector: impl Collector,
    ) {
        let names = names.into_iter().map(|name| format!("{}_{name}", self.prefix));
        names.for_each(|name| self.selection.lock().off_by_default(name));
        self.register_collector(collector);
    }

    /// Registers these families as off by default; returns a flag that is true while one of them is exported, so that
    /// callers can skip measuring otherwise.
    pub fn wanted(&self, names: &[&str]) -> Arc<AtomicBool> {
        let names: Vec<String> = names.iter().map(|name| format!("{}_{name}", self.prefix)).collect();
        let mut selection = self.selection.lock();
        names.iter().for_each(|name| selection.off_by_default(name.clone()));
        let wanted = Wanted { names, is: Arc::default() };
        wanted.refresh(&selection);
        let is = wanted.is.clone();
        self.wanted.lock().push(wanted);
        is
    }

    /// Replaces the selection of exported metrics. Metrics that are off still count, so no value is lost.
    pub fn select(&self, selection: Selection) {
        let mut current = self.selection.lock();
        current.change(selection);
        self.wanted.lock().iter().for_each(|wanted| wanted.refresh(&current));
    }

    /// Returns all exported metrics in Prometheus' text format, families ordered by name.
    pub fn text(&self) -> String {
        let selection = self.selection.lock();
        self.text_of(|name| selection.exports(name))
    }

    /// Returns all metrics as [`text`](Self::text) does, including those that are off.
    pub(crate) fn everything(&self) -> String {
        self.text_of(|_| true)
    }

    /// Returns all metrics, whatever the selection, in the format of OpenMetrics 1.0, with exemplars.
    pub fn open_metrics(&self) -> String {
        let mut text = self.encoded();
        text.push_str(END);
        text
    }

    fn text_of(&self, exports: impl Fn(&str) -> bool) -> String {
        text::prometheus(&self.encoded(), exports)
    }

    /// Returns all metrics in the format of OpenMetrics, without its end mark.
    fn encoded(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail; a metric that cannot be written ends the text early.
        for registry in [&self.registry, &self.foreign] {
            let encoded = prometheus_client::encoding::text::encode(&mut text, &registry.lock());
            if let Err(error) = encoded {
                tracing::error!(%error, "Cannot write all metrics");
            }
            text.truncate(text.strip_suffix(END).unwrap_or(&text).len());
        }
        text
    }
}

/// Adds a metric to a registry, which appends a full stop to the help text, and `_total` to the names of counters.
fn add(registry: &mut Registry, name: &str, help: &str, metric: impl Metric) {
    let name = match metric.metric_type() {
        MetricType::Counter => name.strip_suffix("_total").unwrap_or(name),
        _ => name,
    };
    registry.register(name, help.trim_end_matches('.'), metric);
}

/// Returns the name under which a metric is exported.
fn exported(name: &str, metric: &impl Metric) -> String {
    let counter = matches!(metric.metric_type(), MetricType::Counter) && !name.ends_with("_total");
    format!("{name}{}", if counter { "_total" } else { "" })
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(Selection::default())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::EncodeLabelSet;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct Labels {
        reason: &'static str,
    }

    fn filled(selection: &str) -> Metrics {
        let metrics = Metrics::new(Selection::parse(selection.split_whitespace()).0);
        let drops = Family::<Labels, Counter>::default();
        metrics.register("drop_count_total", "Drops.", drops.clone());
        drops.get_or_create(&Labels { reason: "a \"b\"" }).inc_by(3);
        let endpoints = Gauge::<i64>::default();
        metrics.register("endpoint", "Endpoints", endpoints.clone());
        endpoints.set(2);
        let delay = Histogram::new([0.5, 1.0]);
        metrics.register_off("delay_seconds", "Delay", delay.clone());
        delay.observe(0.7);
        metrics
    }

    #[test]
    fn families_have_ciliums_names_and_the_format_of_prometheus() {
        assert_eq!(
            filled("").text(),
            "# HELP cilium_drop_count_total Drops.\n\
             # TYPE cilium_drop_count_total counter\n\
             cilium_drop_count_total{reason=\"a \\\"b\\\"\"} 3\n\
             # HELP cilium_endpoint Endpoints.\n\
             # TYPE cilium_endpoint gauge\n\
             cilium_endpoint 2\n"
        );
    }

    #[test]
    fn both_registries_are_one_text_of_open_metrics() {
        let metrics = filled("");
        metrics.register_foreign("go_threads", "Threads", Gauge::<i64>::default());
        let text = metrics.open_metrics();
        assert!(text.contains("# TYPE cilium_drop_count counter\n"), "{text}");
        assert!(text.contains("go_threads 0\n") && text.matches("# EOF").count() == 1, "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn disabled_features_are_exported_on_request() {
        let metrics = Metrics::default();
        let on = Arc::new(AtomicBool::new(true));
        let asked = on.clone();
        metrics.add_feature("vtep_enabled", "VTEP", move || asked.load(Ordering::Relaxed), false);
        metrics.add_feature("bgp_enabled", "BGP", || false, true);
        let bgp = "# HELP cilium_feature_bgp_enabled BGP.\n# TYPE cilium_feature_bgp_enabled gauge\n\
                   cilium_feature_bgp_enabled 0\n";
        let vtep = "# HELP cilium_feature_vtep_enabled VTEP.\n# TYPE cilium_feature_vtep_enabled gauge\n\
                    cilium_feature_vtep_enabled 1\n";
        assert_eq!(metrics.text(), format!("{bgp}{vtep}"));
        on.store(false, Ordering::Relaxed);
        assert_eq!(metrics.text(), bgp);
    }

    #[test]
    fn a_selection_turns_families_on_and_off() {
        let text = filled("+cilium_delay_seconds -cilium_endpoint").text();
        assert!(text.contains("cilium_delay_seconds_bucket{le=\"1.0\"} 1\n"), "{text}");
        assert!(text.contains("cilium_delay_seconds_count 1\n"), "{text}");
        assert!(text.contains("cilium_drop_count_total"), "{text}");
        assert!(!text.contains("cilium_endpoint"), "{text}");

        let metrics = filled("+cilium_delay_seconds");
        metrics.select(Selection::parse(["-cilium_endpoint"]).0);
        let text = metrics.text();
        assert!(!text.contains("cilium_delay_seconds") && !text.contains("cilium_endpoint"), "{text}");
        metrics.select(Selection::default());
        assert!(metrics.text().contains("cilium_endpoint 2\n"));
    }
}
