//! Three metrics, one of them off.

use std::sync::Arc;

use ::metrics::{Metrics, Selection};
use hive::prelude::*;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    lbl: &'static str,
}

pub(super) fn cells() -> Vec<Cell> {
    // The names of the fixture have no prefix.
    let registry = provide(|| Arc::new(Metrics::unprefixed(Selection::default())));
    let fill = invoke(|metrics: Arc<Metrics>| {
        let gauge = Gauge::<i64>::default();
        gauge.set(1);
        metrics.register("test_A", "A gauge", gauge);
        let counter = Counter::<u64>::default();
        counter.inc_by(2);
        metrics.register_off("test_B", "A counter", counter);
        let histograms = Family::<Labels, Histogram>::new_with_constructor(|| {
            Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
        });
        let histogram = histograms.get_or_create(&Labels { lbl: "a" }).clone();
        for seconds in [0.01, 0.01, 0.1, 1.0] {
            histogram.observe(seconds);
        }
        metrics.register("test_C_seconds", "A histogram", histograms);
    });
    vec![module("metrics", "Three metrics", [registry, ::metrics::commands(), fill])]
}
