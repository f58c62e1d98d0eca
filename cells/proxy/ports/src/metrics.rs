//! The gauge of redirects, by Cilium's name.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use statedb::Table;

use crate::redirect::EndpointRedirect;

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
