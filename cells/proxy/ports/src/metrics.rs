//! Metrics of all proxies, by Cilium's names.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use statedb::Table;

use crate::redirect::EndpointRedirect;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabels {
    rule: &'static str,
    proxy_type: &'static str,
}

/// The requests that proxies have handled. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Verdicts(Family<VerdictLabels, Counter>);

impl Verdicts {
    /// Adds the counter to a registry.
    pub fn register(&self, metrics: &metrics::Metrics) {
        metrics.register("policy_l7_total", "Number of total proxy requests handled", self.0.clone());
    }

    /// Counts a request: `received`, `forwarded`, `denied` or `parse_errors`, of a type of proxies: `fqdn` or `envoy`.
    pub fn count(&self, rule: &'static str, proxy_type: &'static str) {
        self.0.get_or_create(&VerdictLabels { rule, proxy_type }).inc();
    }
}

/// Counts redirects by kind of proxy when metrics are read.
#[derive(Debug)]
pub(crate) struct Redirects(Table<EndpointRedirect>);

impl Redirects {
    pub(crate) fn register(metrics: &metrics::Metrics, redirects: Table<EndpointRedirect>) {
        metrics.register_collector(Redirects(redirects));
    }
}

impl Collector for Redirects {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        let snapshot = self.0.snapshot();
        for row in self.0.all(&snapshot) {
            *counts.entry(row.redirect.parser.name()).or_default() += 1;
        }
        let help = "Number of redirects of endpoints to proxies, by protocol";
        let mut metric = encoder.encode_descriptor("proxy_redirects", help, None, MetricType::Gauge)?;
        for (protocol, count) in counts {
            ConstGauge::new(count).encode(metric.encode_family(&[("protocol", protocol)])?)?;
        }
        Ok(())
    }
}
