//! Metrics of the allocator, by the names of Cilium.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family;
use prometheus_client::metrics::gauge::Gauge;

use crate::handle::Ipam;
use crate::range::Family;

/// The counted operations on an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Allocate,
    Release,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Event {
    action: &'static str,
    family: &'static str,
}

/// `cilium_ipam_events_total`
#[derive(Debug, Clone, Default)]
pub(crate) struct Events(family::Family<Event, Counter>);

impl Events {
    pub(crate) fn count(&self, action: Action, family: Family) {
        let action = match action {
            Action::Allocate => "allocate",
            Action::Release => "release",
        };
        self.0.get_or_create(&Event { action, family: family.name() }).inc();
    }

    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        metrics.register("ipam_events_total", "Number of IPAM events received", self.0.clone());
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFamily {
    family: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRange {
    cidr: String,
    family: &'static str,
}

/// `cilium_ip_addresses` and `cilium_ipam_capacity`, read from the table at a scrape.
pub(crate) struct Usage(pub(crate) Ipam);

impl std::fmt::Debug for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Usage")
    }
}

impl Collector for Usage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let used = family::Family::<OfFamily, Gauge>::default();
        let capacity = family::Family::<OfRange, Gauge>::default();
        let number = |value: u128| i64::try_from(value).unwrap_or(i64::MAX);
        for family in [Family::V4, Family::V6] {
            let count = self.0.count(family);
            used.get_or_create(&OfFamily { family: family.name() }).set(number(count as u128));
            let pools = self.0.pools();
            if let (true, Some(listed)) = (pools.enabled(family), pools.listed()) {
                let labels = OfRange { cidr: String::new(), family: family.name() };
                capacity.get_or_create(&labels).set(number(listed.count(family)));
            }
            for range in pools.of(family) {
                let labels = OfRange { cidr: range.cidr().to_string(), family: family.name() };
                capacity.get_or_create(&labels).set(number(range.capacity()));
            }
        }
        let help = "Number of allocated IP addresses";
        used.encode(encoder.encode_descriptor("ip_addresses", help, None, MetricType::Gauge)?)?;
        let help = "Total number of IPs in the IPAM pool labeled by family";
        capacity.encode(encoder.encode_descriptor("ipam_capacity", help, None, MetricType::Gauge)?)
    }
}
