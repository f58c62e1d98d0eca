//! Fill levels of the maps, updated with each write, so that a reader does not iterate over the maps.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::lbmap::rows::LbMap;

/// The hash table maps, of which Cilium exports the level: they come before the others.
const MAPS: &[LbMap] = LbMap::ALL.split_at(7).0;

/// The number of entries of each map.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    counts: [AtomicUsize; MAPS.len()],
    capacities: [AtomicUsize; MAPS.len()],
}

impl Levels {
    pub(crate) fn set_capacities(&self, capacity: impl Fn(LbMap) -> usize) {
        for (map, slot) in MAPS.iter().zip(&self.capacities) {
            slot.store(capacity(*map), Ordering::Relaxed);
        }
    }

    /// Stores the current number of entries of each map.
    pub(crate) fn report(&self, count: impl Fn(LbMap) -> usize) {
        for (map, slot) in MAPS.iter().zip(&self.counts) {
            slot.store(count(*map), Ordering::Relaxed);
        }
    }
}

/// `cilium_bpf_map_pressure` of the load balancer maps.
#[derive(Debug)]
pub(crate) struct Pressure(pub(crate) Arc<Levels>);

impl Collector for Pressure {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Fill percentage of map, tagged by map name";
        let mut family = encoder.encode_descriptor("bpf_map_pressure", help, None, MetricType::Gauge)?;
        let levels = self.0.counts.iter().zip(&self.0.capacities);
        for (map, (count, capacity)) in MAPS.iter().zip(levels) {
            let (count, capacity) = (count.load(Ordering::Relaxed), capacity.load(Ordering::Relaxed));
            // As in Cilium's gauge with its threshold of 0: an empty map has no series.
            if capacity > 0 && count > 0 {
                let name = map.name().trim_start_matches("cilium_");
                let level = count as f64 / capacity as f64;
                ConstGauge::new(level).encode(family.encode_family(&[("map_name", name)])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lbmap::rows::Family;

    #[test]
    fn maps_with_entries_have_a_series_and_empty_ones_have_none() {
        let levels = Arc::<Levels>::default();
        levels.set_capacities(|map| if map == LbMap::Services(Family::V6) { 0 } else { 8 });
        levels.report(|map| match map {
            LbMap::Services(Family::V4) | LbMap::SourceRanges(Family::V4) => 6,
            _ => 0,
        });
        let metrics = metrics::Metrics::default();
        metrics.register_collector(Pressure(levels));
        let text = metrics.text();
        assert!(text.contains("cilium_bpf_map_pressure{map_name=\"lb4_services_v2\"} 0.75\n"), "{text}");
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 1, "{text}");
    }
}
