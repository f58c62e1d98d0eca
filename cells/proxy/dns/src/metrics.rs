//! Metrics, by the names of Cilium.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use proxy_ports::Verdicts;

/// Seconds of a query, as Cilium's client counts them.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReplyLabels {
    error: &'static str,
    protocol_l7: &'static str,
    scope: &'static str,
}

/// The outcome of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Forwarded,
    Denied,
    Timeout,
    Failed,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Outcome::Forwarded => "allow",
            Outcome::Denied => "denied",
            Outcome::Timeout => "timeout",
            Outcome::Failed => "proxyErr",
        }
    }
}

/// Durations of the parts of a query, by scope.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// The time until it was among those that are handled at once.
    pub semaphore: Duration,
    /// The decision.
    pub policy: Duration,
    /// The server's answer.
    pub upstream: Duration,
    /// The time until the kernel had the addresses.
    pub datapath: Duration,
    /// All.
    pub total: Duration,
}

/// The parts of a query, as the label `scope` names them.
const SCOPES: [&str; 6] =
    ["semaphoreTime", "policyCheckTime", "upstreamTime", "dataplaneTime", "processingTime", "totalTime"];

/// The families.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    replies: Family<ReplyLabels, Histogram, fn() -> Histogram>,
    /// Those of `replies` by outcome, from its first query on: to find six of them by their labels takes longer than to
    /// count.
    by_outcome: [Arc<OnceLock<[Histogram; SCOPES.len()]>>; 4],
    verdicts: Verdicts,
    rejected: Counter,
}

impl Counters {
    pub(crate) fn new(verdicts: Verdicts) -> Counters {
        Counters {
            replies: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            by_outcome: std::array::from_fn(|_| Arc::default()),
            verdicts,
            rejected: Counter::default(),
        }
    }

    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        let help = "Seconds waited to get a reply from an upstream server";
        metrics.register("proxy_upstream_reply_seconds", help, self.replies.clone());
        let help = "Number of DNS requests rejected because of the limit of requests at once";
        metrics.register_off("fqdn_semaphore_rejected_total", help, self.rejected.clone());
    }

    /// Counts a query that has ended. Denied ones and those without an address count, too.
    pub(crate) fn ended(&self, outcome: Outcome, timings: &Timings) {
        let of_scope = |scope| {
            let labels = ReplyLabels { error: outcome.label(), protocol_l7: "dns", scope };
            self.replies.get_or_create(&labels).clone()
        };
        let histograms = self.by_outcome[outcome as usize].get_or_init(|| SCOPES.map(of_scope));
        let Timings { semaphore, policy, upstream, datapath, total } = *timings;
        let processing = total.saturating_sub(upstream);
        let times = [semaphore, policy, upstream, datapath, processing, total];
        for (histogram, time) in histograms.iter().zip(times) {
            histogram.observe(time.as_secs_f64());
        }
        match outcome {
            Outcome::Forwarded => self.rule("forwarded"),
            Outcome::Denied => self.rule("denied"),
            Outcome::Timeout | Outcome::Failed => {}
        }
    }

    pub(crate) fn received(&self) {
        self.rule("received");
    }

    pub(crate) fn malformed(&self) {
        self.rule("parse_errors");
    }

    pub(crate) fn rejected(&self) {
        self.rejected.inc();
    }

    fn rule(&self, rule: &'static str) {
        self.verdicts.count(rule, "fqdn");
    }
}
