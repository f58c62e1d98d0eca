//! How full the map is.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// `cilium_bpf_map_pressure` of the map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pressure {
    pub(crate) entries: Arc<AtomicUsize>,
    pub(crate) capacity: u32,
}

impl Collector for Pressure {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let entries = self.entries.load(Ordering::Relaxed);
        let help = "Fill percentage of map, tagged by map name";
        let mut family = encoder.encode_descriptor("bpf_map_pressure", help, None, MetricType::Gauge)?;
        // As in Cilium's gauge with its threshold of 0: an empty map has no series.
        if entries > 0 && self.capacity > 0 {
            let level = entries as f64 / f64::from(self.capacity);
            ConstGauge::new(level).encode(family.encode_family(&[("map_name", "subnet_map")])?)?;
        }
        Ok(())
    }
}
