//! Metrics of reconcilers, all off unless `--metrics` enables them. Operations are timed only while their durations are
//! exported.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use reconciler::{Histogram, Listener};
use statedb::Db;

use crate::registry::Metrics;

/// A value of a reconciler with its name, help and type.
type Number = (&'static str, &'static str, MetricType, fn(&reconciler::Metrics) -> u64);

/// Names of counters are without `_total`, which the encoder adds. `count` and `prune_count` have no such suffix in
/// Cilium, so they are exported as gauges.
const NUMBERS: [Number; 5] = [
    ("reconciler_count", "Number of operations of reconcilers", MetricType::Gauge, |m| m.operations.value()),
    ("reconciler_errors", "Failed operations of reconcilers", MetricType::Counter, |m| m.errors.value()),
    ("reconciler_errors_current", "Objects that fail to be reconciled", MetricType::Gauge, |m| {
        m.errors_current.value()
    }),
    ("reconciler_prune_count", "Number of prunes", MetricType::Gauge, |m| m.prunes.count()),
    ("reconciler_prune_errors", "Failed prunes", MetricType::Counter, |m| m.prune_errors.value()),
];
const DURATION: &str = "reconciler_duration_seconds";
const PRUNE_DURATION: &str = "reconciler_prune_duration_seconds";

/// Registers the metrics of all reconcilers of a database.
pub(crate) fn register(metrics: &Metrics, db: &Arc<Db>) {
    let listener = Listener::attach(db, metrics.wanted(&[DURATION]));
    let numbers = NUMBERS.map(|(name, _, kind, _)| match kind {
        MetricType::Counter => format!("{name}_total"),
        _ => name.to_owned(),
    });
    let names = numbers.iter().map(String::as_str).chain([DURATION, PRUNE_DURATION]);
    metrics.register_collector_off(names, Reconcilers { db: db.clone(), _listener: listener });
}

struct Reconcilers {
    db: Arc<Db>,
    _listener: Arc<Listener>,
}

impl fmt::Debug for Reconcilers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reconcilers")
    }
}

impl Collector for Reconcilers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all = reconciler::Metrics::all(&self.db);
        for (name, help, kind, number) in NUMBERS {
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for one in &all {
                let labels = [("module_id", one.module()), ("name", one.name())];
                let metric = family.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => ConstCounter::new(number(one)).encode(metric)?,
                    _ => ConstGauge::new(number(one) as i64).encode(metric)?,
                }
            }
        }
        let help = "Durations of operations of reconcilers, in seconds";
        let mut family = encoder.encode_descriptor(DURATION, help, None, MetricType::Histogram)?;
        for one in &all {
            for (op, durations) in [("update", &one.updates), ("delete", &one.deletes)] {
                let labels = [("module_id", one.module()), ("name", one.name()), ("op", op)];
                if durations.count() > 0 {
                    encode(durations, family.encode_family(&labels)?)?;
                }
            }
        }
        let help = "Durations of prunes, in seconds";
        let mut family = encoder.encode_descriptor(PRUNE_DURATION, help, None, MetricType::Histogram)?;
        for one in &all {
            let labels = [("module_id", one.module()), ("name", one.name())];
            if one.prunes.count() > 0 {
                encode(&one.prunes, family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn encode(
    durations: &Histogram,
    mut metric: prometheus_client::encoding::MetricEncoder<'_>,
) -> Result<(), fmt::Error> {
    let buckets: Vec<_> = durations.buckets().collect();
    let count = buckets.iter().map(|(_, count)| count).sum();
    metric.encode_histogram::<NoLabelSet>(durations.sum().as_secs_f64(), count, &buckets, None)
}
