//! Metrics of the maps themselves: their capacity, and events that rate limits of the programs have suppressed.

use std::fmt;
use std::sync::Arc;

use bpf::{Map, MapSpec};
use datapath_abi::ratelimit;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::maps::Maps;

/// The capacity that maps of the group `default` have.
const DEFAULT_CAPACITY: u32 = 65536;

/// Returns the groups of maps with their capacity, as Cilium forms them: maps of the default capacity are one, policy
/// maps of endpoints another, each other map is its own.
fn capacities(maps: &[MapSpec], policy: &MapSpec) -> Vec<(String, u32)> {
    let own = maps.iter().map(|map| (map.name.to_string(), map.layout.max_entries));
    let own = own.filter(|(name, capacity)| *capacity != DEFAULT_CAPACITY && name.starts_with("cilium_"));
    let groups =
        [("default".to_owned(), DEFAULT_CAPACITY), ("endpoint_policy".to_owned(), policy.layout.max_entries)];
    own.chain(groups).collect()
}

/// Returns the name of a usage of rate limits.
fn usage_name(usage: u32) -> String {
    match usage {
        ratelimit::ICMPV6 => "icmpv6".to_owned(),
        ratelimit::EVENTS => "events".to_owned(),
        ratelimit::SOCKET_EVENTS => "socket_events".to_owned(),
        other => other.to_string(),
    }
}

/// Reads capacities and `cilium_ratelimit_metrics`.
pub(crate) struct Gauges(pub(crate) Arc<Maps>);

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gauges")
    }
}

impl Gauges {
    /// Returns the suppressed events by usage; none if the map cannot be read.
    fn suppressed(&self) -> Vec<(u32, u64)> {
        let map = self.0.is_open().then(|| self.0.shared("cilium_ratelimit_metrics"));
        let map = map.and_then(Result::ok).flatten();
        let entries = map.and_then(|map| Map::<u32, u64>::new(map).ok()?.entries().ok());
        entries.unwrap_or_default()
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let specs = self.0.specs();
        let help = "Capacity of map, tagged by map group. All maps with a capacity of 65536 are grouped under 'default'";
        let mut family = encoder.encode_descriptor("bpf_map_capacity", help, None, MetricType::Gauge)?;
        for (group, capacity) in capacities(&specs.of_node(), &specs.policy(0)) {
            let capacity = ConstGauge::new(i64::from(capacity));
            capacity.encode(family.encode_family(&[("map_group", group.as_str())])?)?;
        }
        let help = "Total drops resulting from BPF ratelimiter, tagged by source of drop";
        let mut family =
            encoder.encode_descriptor("bpf_ratelimit_dropped", help, None, MetricType::Counter)?;
        for (usage, dropped) in self.suppressed() {
            let usage = usage_name(usage);
            ConstCounter::new(dropped).encode(family.encode_family(&[("usage", usage.as_str())])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FamilyConfig, MapsConfig};
    use crate::specs::Specs;

    #[test]
    fn maps_of_the_default_capacity_are_one_group() {
        let families = FamilyConfig { enable_ipv4: true, enable_ipv6: false };
        let specs = Specs::new(MapsConfig::default(), families);
        let groups = capacities(&specs.of_node(), &specs.policy(0));
        let of = |name: &str| groups.iter().find(|(group, _)| group == name).map(|(_, capacity)| *capacity);
        for (group, capacity) in [
            ("default", 65536),
            ("endpoint_policy", 16384),
            ("cilium_lxc", 65535),
            ("cilium_ipcache_v2", 512_000),
            ("cilium_ratelimit", 1024),
            ("cilium_runtime_config", 256),
            ("cilium_skip_lb4", 100),
        ] {
            assert_eq!(of(group), Some(capacity), "{group} in {groups:?}");
        }
        assert!(groups.iter().all(|(name, capacity)| name == "default" || *capacity != 65536), "{groups:?}");
        assert!(of("cilium_skip_lb6").is_none(), "a map that this node does not have");
    }
}
