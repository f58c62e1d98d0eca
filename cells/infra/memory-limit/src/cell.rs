//! The wiring: the limit, the row of health with the memory in use, the job that returns free memory to the kernel.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use metrics::Metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use crate::allocator::trim;
use crate::binary::unmap_binary;
use crate::counting::allocated;
use crate::limit::MemoryLimit;

/// Interval between updates of the row of health.
const REPORT_INTERVAL: Duration = Duration::from_secs(15);
/// Interval between calls of [`trim`]; the first one follows the start, which leaves most of the free pages.
const TRIM_INTERVAL: Duration = Duration::from_secs(20);

/// Detects the limit and provides it as `Arc<MemoryLimit>`; reports the memory in use, and returns free pages to the
/// kernel at intervals.
pub fn cell() -> Cell {
    let parts = [provide(detect_limit), invoke(watch), invoke(start_trimming), invoke(export)];
    module("memory", "Memory that the agent may use", parts)
}

/// As [`cell`], without the limit: for processes that size nothing by it.
pub fn trimming() -> Cell {
    module("memory", "Free memory, returned to the kernel", [invoke(start_trimming), invoke(export)])
}

fn detect_limit() -> Arc<MemoryLimit> {
    Arc::new(MemoryLimit::detect())
}

fn start_trimming(jobs: JobGroup) {
    let mut has_started = false;
    jobs.timer("give-back", TRIM_INTERVAL, move |_| {
        let is_first = !std::mem::replace(&mut has_started, true);
        async move {
            trim();
            if is_first {
                // Without it the agent works as well, with more pages mapped.
                match unmap_binary() {
                    Ok(bytes) => {
                        tracing::debug!(bytes, "Unmapped the pages of the binary that the start needed")
                    }
                    Err(error) => tracing::debug!(%error, "Pages of the binary stay mapped"),
                }
            }
            Ok(())
        }
    })
    .add();
}

fn export(metrics: Arc<Metrics>) {
    metrics.register_collector(Allocated);
}

/// The gauge of allocated bytes, read on each request; absent if the process does not use
/// [`Counting`](crate::Counting).
#[derive(Debug)]
struct Allocated;

impl Collector for Allocated {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(bytes) = allocated() else { return Ok(()) };
        let metric = ConstGauge::new(bytes as f64);
        let (name, help) = ("process_allocated_bytes", "Memory that is allocated and not freed");
        metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
    }
}

fn watch(limit: Arc<MemoryLimit>, jobs: JobGroup, health: Health) {
    let (Some(bytes), Some(group)) = (limit.bytes(), limit.group()) else { return };
    tracing::info!(
        limit = bytes,
        cgroup = %group.display(),
        "Memory is limited: maps are sized by it, and what is read"
    );
    let health = health.child("limit");
    jobs.timer("usage", REPORT_INTERVAL, move |_| {
        report(&limit, &health);
        async { Ok(()) }
    })
    .immediate()
    .add();
}

fn report(limit: &MemoryLimit, health: &Health) {
    let (Some(used), Some(bytes)) = (limit.used(), limit.bytes()) else { return };
    match limit.room() {
        Ok(()) => health.ok(format_args!("{} of {} MiB are in use", used >> 20, bytes >> 20)),
        Err(full) => health.degraded("Nothing is taken that makes the agent larger", full),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocated_bytes_are_exported() {
        let metrics = Arc::new(Metrics::default());
        export(metrics.clone());
        let text = metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix("cilium_process_allocated_bytes "));
        let bytes: f64 = line.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
        assert!(bytes > 10_000.0, "{text}");
    }
}
