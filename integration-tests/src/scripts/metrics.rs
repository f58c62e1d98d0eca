//! Three metrics, one of them off, next to the usual ones.

use std::sync::Arc;

use ::metrics::Metrics;
use hive::prelude::*;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    lbl: &'static str,
}

pub(super) fn cells() -> Vec<Cell> {
    let fill = invoke(|metrics: Arc<Metrics>| {
        let gauge = |value| {
            let gauge = Gauge::<i64>::default();
            gauge.set(value);
            gauge
        };
        metrics.register_foreign("test_A", "A gauge", gauge(1));
        // Counts, but the library would put `_total` behind the name of a counter.
        metrics.register_foreign_off("test_B", "A counter", gauge(2));
        let histograms = Family::<Labels, Histogram>::new_with_constructor(|| {
            Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
        });
        let histogram = histograms.get_or_create(&Labels { lbl: "a" }).clone();
        for seconds in [0.01, 0.01, 0.1, 1.0] {
            histogram.observe(seconds);
        }
        metrics.register_foreign("test_C_seconds", "A histogram", histograms);
    });
    vec![
        ::metrics::cell(),
        module("test", "Three metrics", fill),
        module("health", "The table", status::table()),
    ]
}
