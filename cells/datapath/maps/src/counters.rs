//! The datapath's counters for Prometheus: packets and bytes forwarded and dropped, read on request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use datapath_abi::{MetricsKey, MetricsValue, direction, metric};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::maps::Maps;

/// Reads `cilium_metrics`.
pub(crate) struct Counters(pub(crate) Arc<Maps>);

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counters")
    }
}

impl Collector for Counters {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // Before the start hook there are no maps, which is not an error of the scrape.
        let rows = match self.0.is_open().then(|| self.0.metrics().entries()) {
            Some(Ok(rows)) => rows,
            Some(Err(error)) => {
                tracing::warn!(%error, "Cannot read the datapath's counters");
                return Ok(());
            }
            None => return Ok(()),
        };
        write(&sums(rows), encoder)
    }
}

/// Direction and reason; no reason for forwarded packets.
type Labels = (&'static str, Option<String>);

/// Sums packets and bytes over CPUs, and over lines and files of the programs.
fn sums(rows: Vec<(MetricsKey, Vec<MetricsValue>)>) -> BTreeMap<Labels, (u64, u64)> {
    let mut sums: BTreeMap<Labels, (u64, u64)> = BTreeMap::new();
    for (key, cpus) in rows {
        let reason = match key.reason {
            metric::FORWARDED => None,
            code if key.is_drop() => {
                Some(metric::label(code).map_or_else(|| code.to_string(), str::to_owned))
            }
            // Other codes count events of packets that are also counted as forwarded or dropped.
            _ => continue,
        };
        let sum = sums.entry((direction::label(key.dir), reason)).or_default();
        for cpu in cpus {
            *sum = (sum.0.wrapping_add(cpu.count), sum.1.wrapping_add(cpu.bytes));
        }
    }
    sums
}

fn write(sums: &BTreeMap<Labels, (u64, u64)>, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    for (name, help, dropped, bytes) in [
        ("drop_count", "Dropped packets by direction and reason", true, false),
        ("drop_bytes", "Dropped bytes by direction and reason", true, true),
        ("forward_count", "Forwarded packets by direction", false, false),
        ("forward_bytes", "Forwarded bytes by direction", false, true),
    ] {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ((direction, reason), sum) in sums.iter().filter(|((_, reason), _)| reason.is_some() == dropped) {
            let counter = ConstCounter::new(if bytes { sum.1 } else { sum.0 });
            match reason {
                Some(reason) => {
                    let labels = [("direction", *direction), ("reason", reason.as_str())];
                    counter.encode(family.encode_family(&labels)?)?;
                }
                None => counter.encode(family.encode_family(&[("direction", *direction)])?)?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(Vec<(MetricsKey, Vec<MetricsValue>)>);

    impl Collector for Fixed {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
            write(&sums(self.0.clone()), encoder)
        }
    }

    #[test]
    fn entries_are_summed_over_cpus_and_lines_under_cilium_s_names() {
        let row = |reason, dir, line, counts: [u64; 2]| {
            let cpus = counts.map(|count| MetricsValue { count, bytes: count * 100 });
            (MetricsKey { reason, dir, line, ..MetricsKey::default() }, cpus.to_vec())
        };
        let metrics = metrics::Metrics::default();
        metrics.register_collector(Fixed(vec![
            row(133, direction::INGRESS, 7, [1, 0]),
            row(133, direction::INGRESS, 9, [0, 2]),
            row(metric::FORWARDED, direction::EGRESS, 5, [6, 7]),
            row(metric::FRAG_PACKET, direction::EGRESS, 5, [100, 0]),
        ]));
        let text = metrics.text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "cilium_drop_bytes_total{direction=\"INGRESS\",reason=\"Policy denied\"} 300",
                "cilium_drop_count_total{direction=\"INGRESS\",reason=\"Policy denied\"} 3",
                "cilium_forward_bytes_total{direction=\"EGRESS\"} 1300",
                "cilium_forward_count_total{direction=\"EGRESS\"} 13",
            ]
        );
    }
}
