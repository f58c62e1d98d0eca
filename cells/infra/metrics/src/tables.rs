//! Metrics of tables and of the transactions on them, all off unless `--metrics` enables them. Counts are read for each
//! request; transactions are measured only while one of their families is exported.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use statedb::{Db, TableStats};

use crate::registry::Metrics;

/// Upper bounds of buckets in seconds: the default of Prometheus.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A value of a table with its name and help.
type Count = (&'static str, &'static str, fn(&TableStats) -> u64);

const COUNTS: [Count; 5] = [
    ("statedb_table_objects", "Objects in a table", |stats| stats.objects as u64),
    ("statedb_table_revision", "The revision of a table", |stats| stats.revision),
    ("statedb_table_delete_trackers", "Change iterators of a table", |stats| stats.trackers as u64),
    ("statedb_table_graveyard_objects", "Deleted objects that a table keeps", |stats| stats.zombies as u64),
    (
        "statedb_table_graveyard_low_watermark",
        "The revision up to which all change iterators of a table have seen the deletes",
        |stats| stats.readers.iter().map(|reader| reader.seen).fold(stats.revision, u64::min),
    ),
];

/// Values of parts of a table: name, help, and the label that distinguishes the parts.
type Parts = (&'static str, &'static str, &'static str, fn(&TableStats) -> Vec<(String, u64)>);

const PARTS: [Parts; 2] = [
    (
        "statedb_table_reader_graveyard_objects",
        "Deleted objects that a table keeps for a change iterator",
        "reader",
        |stats| named(stats.readers.iter().map(|reader| (reader.owner.clone(), reader.kept as u64))),
    ),
    (
        "statedb_table_long_write_txns",
        "Write transactions that held an executor's thread for more than 100 us, by the place that began them",
        "place",
        |stats| named(stats.long_writes.iter().map(|write| (write.place.to_string(), write.count))),
    ),
];

/// Returns the sum of the values of each name.
fn named(parts: impl Iterator<Item = (String, u64)>) -> Vec<(String, u64)> {
    let mut sums = BTreeMap::new();
    parts.for_each(|(name, number)| *sums.entry(name).or_default() += number);
    sums.into_iter().collect()
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TxnLabels {
    handle: String,
    /// Sorted names, joined by commas.
    tables: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TableLabels {
    table: &'static str,
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// Measures transactions.
struct Transactions {
    wanted: Arc<AtomicBool>,
    acquisition: Durations<TxnLabels>,
    duration: Durations<TxnLabels>,
    contention: Family<TableLabels, Gauge<f64, AtomicU64>>,
    cleaning: Durations<TableLabels>,
}

/// Registers the metrics of a database.
pub(crate) fn register(metrics: &Metrics, db: &Arc<Db>) {
    fn durations<L: Clone + Eq + std::hash::Hash>() -> Durations<L> {
        Durations::new_with_constructor(|| Histogram::new(BUCKETS))
    }
    let [acquired, held, waited, cleaned] = [
        "statedb_write_txn_acquisition_seconds",
        "statedb_write_txn_duration_seconds",
        "statedb_table_contention_seconds",
        "statedb_table_graveyard_cleaning_duration_seconds",
    ];
    let transactions = Transactions {
        wanted: metrics.wanted(&[acquired, held, waited, cleaned]),
        acquisition: durations(),
        duration: durations(),
        contention: Family::default(),
        cleaning: durations(),
    };
    let Transactions { acquisition, duration, contention, cleaning, .. } = &transactions;
    metrics.register_off(acquired, "How long write transactions waited for all tables", acquisition.clone());
    metrics.register_off(held, "How long write transactions held their tables", duration.clone());
    metrics.register_off(waited, "How long the last writer of a table waited for it", contention.clone());
    metrics.register_off(cleaned, "How long the removal of seen deleted objects took", cleaning.clone());
    let names = COUNTS.iter().map(|(name, ..)| *name).chain(PARTS.iter().map(|(name, ..)| *name));
    metrics.register_collector_off(names, Tables(db.clone()));
    if !db.measure(Arc::new(transactions)) {
        tracing::warn!("Transactions on tables have another observer already and are not measured");
    }
}

fn labels(handle: &str, tables: impl Iterator<Item = &'static str>) -> TxnLabels {
    let mut tables: Vec<_> = tables.collect();
    tables.sort_unstable();
    TxnLabels { handle: handle.to_owned(), tables: tables.join(",") }
}

impl statedb::Metrics for Transactions {
    fn listens(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    fn acquired(&self, handle: &str, tables: &[(&'static str, Duration)]) {
        for (table, waited) in tables {
            self.contention.get_or_create(&TableLabels { table }).set(waited.as_secs_f64());
        }
        let labels = labels(handle, tables.iter().map(|(table, _)| *table));
        let waited: Duration = tables.iter().map(|(_, waited)| *waited).sum();
        self.acquisition.get_or_create(&labels).observe(waited.as_secs_f64());
    }

    fn committed(&self, handle: &str, tables: &[&'static str], held: Duration) {
        let labels = labels(handle, tables.iter().copied());
        self.duration.get_or_create(&labels).observe(held.as_secs_f64());
    }

    fn cleaned(&self, table: &'static str, took: Duration) {
        self.cleaning.get_or_create(&TableLabels { table }).observe(took.as_secs_f64());
    }
}

/// Counts of all tables.
struct Tables(Arc<Db>);

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tables")
    }
}

impl Collector for Tables {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = self.0.snapshot();
        let all = self.0.stats(&snapshot);
        for (name, help, count) in COUNTS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for stats in &all {
                let labels = [("table", stats.table)];
                ConstGauge::new(count(stats) as i64).encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, label, parts) in PARTS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for stats in &all {
                for (part, number) in parts(stats) {
                    let labels = [("table", stats.table), (label, part.as_str())];
                    ConstGauge::new(number as i64).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}
