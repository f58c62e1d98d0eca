//! Metrics of writes.

use std::fmt;

use k8s_types::{ApiError, Kind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use statedb::Table;

use crate::mutation::Verb;
use crate::write::{Write, WriteState};

/// The queue's name in the metrics of all queues.
const QUEUE: Queue = Queue { name: "k8s-writes" };

/// Upper bounds of the times of queues, in seconds.
const TIMES: [f64; 8] = [0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Queue {
    name: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    verb: String,
    kind: &'static str,
    outcome: &'static str,
}

/// The metrics of the queue, under Cilium's names for queues, and of requests.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    adds: Family<Queue, Counter>,
    retries: Family<Queue, Counter>,
    waits: Family<Queue, Histogram>,
    works: Family<Queue, Histogram>,
    requests: Family<Request, Counter>,
}

impl Default for Numbers {
    fn default() -> Numbers {
        let times = || Histogram::new(TIMES);
        Numbers {
            adds: Family::default(),
            retries: Family::default(),
            waits: Family::new_with_constructor(times),
            works: Family::new_with_constructor(times),
            requests: Family::default(),
        }
    }
}

impl Numbers {
    pub(crate) fn register(&self, metrics: &metrics::Metrics, table: Table<Write>) {
        let help = "Number of mutations of objects of the cluster";
        metrics.register("k8s_workqueue_adds_total", help, self.adds.clone());
        let help = "Number of attempts that failed and were made again";
        metrics.register("k8s_workqueue_retries_total", help, self.retries.clone());
        let help = "Seconds from a mutation to its first attempt";
        metrics.register("k8s_workqueue_queue_duration_seconds", help, self.waits.clone());
        let help = "Seconds of an attempt";
        metrics.register("k8s_workqueue_work_duration_seconds", help, self.works.clone());
        let help = "Number of requests that write objects of the cluster, and of the looks before them";
        metrics.register("k8s_writes_total", help, self.requests.clone());
        metrics.register_collector(Levels(table));
    }

    pub(crate) fn added(&self) {
        self.adds.get_or_create(&QUEUE).inc();
    }

    pub(crate) fn begun(&self, waited: f64) {
        self.waits.get_or_create(&QUEUE).observe(waited);
    }

    pub(crate) fn ended(&self, took: f64, again: bool) {
        self.works.get_or_create(&QUEUE).observe(took);
        if again {
            self.retries.get_or_create(&QUEUE).inc();
        }
    }

    pub(crate) fn request(&self, verb: Verb, kind: Kind, error: Option<&ApiError>) {
        let outcome = match error {
            None => "success",
            Some(ApiError::NotFound(_)) => "not_found",
            Some(ApiError::AlreadyExists(_)) => "already_exists",
            Some(ApiError::Conflict(_)) => "conflict",
            Some(ApiError::Invalid(_)) => "invalid",
            Some(ApiError::Forbidden(_)) => "forbidden",
            Some(ApiError::Expired(_)) => "expired",
            Some(ApiError::Unavailable { .. }) => "unavailable",
        };
        self.requests.get_or_create(&Request { verb: verb.to_string(), kind: kind.name(), outcome }).inc();
    }
}

/// The length and age of the queue, computed from the table when metrics are collected.
#[derive(Debug)]
struct Levels(Table<Write>);

impl Collector for Levels {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (mut depth, mut oldest, mut longest, mut unfinished) = (0_u64, 0.0_f64, 0.0_f64, 0.0_f64);
        for row in self.0.all(&self.0.snapshot()) {
            oldest = oldest.max(row.since.elapsed().as_secs_f64());
            match row.tried.filter(|_| row.state == WriteState::Writing) {
                Some(since) => {
                    let since = since.elapsed().as_secs_f64();
                    (longest, unfinished) = (longest.max(since), unfinished + since);
                }
                None => depth += 1,
            }
        }
        for (name, help, value) in [
            ("k8s_workqueue_depth", "Mutations that wait", depth as f64),
            (
                "k8s_workqueue_longest_running_processor_seconds",
                "Seconds of the longest attempt now",
                longest,
            ),
            ("k8s_workqueue_unfinished_work_seconds", "Seconds of all attempts now", unfinished),
            ("k8s_workqueue_oldest_seconds", "Age of the oldest mutation that is not fulfilled", oldest),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(family.encode_family(&[("name", QUEUE.name)])?)?;
        }
        Ok(())
    }
}
