//! Gauges of features: whether each is on.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// The variable that has features exported that are off, if it is `true`.
const WITH_DEFAULTS: &str = "CILIUM_FEATURE_METRICS_WITH_DEFAULTS";

/// Whether features are exported that are off.
pub(crate) fn with_defaults() -> bool {
    std::env::var(WITH_DEFAULTS).is_ok_and(|value| value.eq_ignore_ascii_case("true"))
}

/// A feature, asked when metrics are requested.
pub(crate) struct Feature<F> {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) is_on: F,
    /// Exported also if it is off.
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
