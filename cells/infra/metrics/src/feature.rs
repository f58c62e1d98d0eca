//! Gauges of features: 1 if enabled, else 0.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// Environment variable that, if `true`, exports disabled features as well.
const WITH_DEFAULTS: &str = "CILIUM_FEATURE_METRICS_WITH_DEFAULTS";

/// Whether disabled features are exported.
pub(crate) fn with_defaults() -> bool {
    std::env::var(WITH_DEFAULTS).is_ok_and(|value| value.eq_ignore_ascii_case("true"))
}

/// A feature, evaluated for each request for metrics.
pub(crate) struct Feature<F> {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) is_on: F,
    /// Whether it is exported even if disabled.
    pub(crate) always: bool,
}

impl<F> fmt::Debug for Feature<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Feature").field(&self.name).finish()
    }
}

impl<F: Fn() -> bool + Send + Sync + 'static> Collector for Feature<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let is_on = (self.is_on)();
        if !is_on && !self.always {
            return Ok(());
        }
        let gauge = encoder.encode_descriptor(&self.name, &self.help, None, MetricType::Gauge)?;
        ConstGauge::<i64>::new(is_on.into()).encode(gauge)
    }
}
