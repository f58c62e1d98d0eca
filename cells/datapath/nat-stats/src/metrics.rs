//! The gauge, by Cilium's name.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    family: &'static str,
}

/// How much of the source ports the destination with the most translations uses.
#[derive(Debug, Clone)]
pub(crate) struct Usage(Family<Labels, Gauge<f64, AtomicU64>>);

impl Usage {
    pub(crate) fn new(metrics: &metrics::Metrics) -> Usage {
        let family = Family::default();
        let help = "Share of the source ports that translations to one destination use: that with the most";
        metrics.register("nat_endpoint_max_connection", help, family.clone());
        Usage(family)
    }

    /// Records the share of a family, from 0 to 1.
    pub(crate) fn record(&self, family: &'static str, share: f64) {
        self.0.get_or_create(&Labels { family }).set(share);
    }
}
