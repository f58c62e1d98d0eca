//! Metrics of the kernel's side: maps and programs with their memory, and durations of system calls.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bpf::{BpfFs, Usage};
use metrics::Metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::maps::Maps;

/// The family of durations, off by default as in Cilium.
const DURATIONS: &str = "bpf_syscall_duration_seconds";

/// Upper bounds of durations in seconds: the default of Prometheus.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    operation: &'static str,
    outcome: &'static str,
}

type Durations = Family<CallLabels, Histogram, fn() -> Histogram>;

/// Registers the durations of system calls, which are measured while they are exported. A process has one account of
/// them: that of the first hive.
pub(crate) fn register_durations(metrics: &Metrics) {
    let durations = Durations::new_with_constructor(|| Histogram::new(BUCKETS));
    let wanted = metrics.wanted(&[DURATIONS]);
    metrics.register_off(DURATIONS, "Durations of BPF system calls, in seconds", durations.clone());
    let observed = bpf::observe_calls(wanted, move |operation, success, duration: Duration| {
        let labels = CallLabels { operation, outcome: if success { "success" } else { "fail" } };
        durations.get_or_create(&labels).observe(duration.as_secs_f64());
    });
    if !observed {
        tracing::debug!("BPF system calls have another observer already and are not measured");
    }
}

/// Reads the memory of the maps and programs that the agent has open, and of the policy maps, of which those of no
/// endpoint are only pinned.
pub(crate) struct Memory(pub(crate) Arc<Maps>);

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

fn usage(fs: &BpfFs) -> bpf::Result<Usage> {
    let mut usage = Usage::default();
    usage.add_descriptors()?;
    usage.add_pinned_maps(&fs.policy_maps())?;
    Ok(usage)
}

impl Collector for Memory {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // The sample that the start takes reads nothing: a restart forwards first. Without programs there is little to read.
        let is_ready = self.0.is_open() && self.0.is_forwarding();
        let usage = match is_ready.then(|| usage(self.0.fs())) {
            Some(Ok(usage)) => usage,
            Some(Err(error)) => {
                tracing::warn!(%error, "Cannot read the memory of maps and programs");
                return Ok(());
            }
            None => return Ok(()),
        };
        for (name, help, value) in [
            ("bpf_maps", "BPF maps of this agent", usage.maps),
            ("bpf_maps_virtual_memory_max_bytes", "Kernel memory of the BPF maps, in bytes", usage.map_bytes),
            ("bpf_progs", "BPF programs of this agent", usage.programs),
            (
                "bpf_progs_virtual_memory_max_bytes",
                "Kernel memory of the BPF programs, in bytes",
                usage.program_bytes,
            ),
        ] {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(family)?;
        }
        Ok(())
    }
}
