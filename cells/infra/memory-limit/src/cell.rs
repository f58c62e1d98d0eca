//! The wiring: the limit, the row of health that says how much of it is in use, giving memory back.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use metrics::Metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use crate::allocator::trim;
use crate::counting::allocated;
use crate::limit::MemoryLimit;

/// How often the row of health is renewed.
const TELL: Duration = Duration::from_secs(15);
/// How often freed memory is given back; the first time when a start has settled.
const TRIM: Duration = Duration::from_secs(20);

/// Looks the limit up; provides `Arc<MemoryLimit>`. Gives freed memory back from time to time, and reports what is in use.
pub fn cell() -> Cell {
    let parts = [provide(found), invoke(watch), invoke(give_back), invoke(export)];
    module("memory", "Memory that the agent may use", parts)
}

fn found() -> Arc<MemoryLimit> {
    Arc::new(MemoryLimit::detect())
}

fn give_back(jobs: JobGroup) {
    jobs.timer("give-back", TRIM, |_| async {
        trim();
        Ok(())
    });
}

fn export(metrics: Arc<Metrics>) {
    metrics.register_collector(Allocated);
}

/// The allocator's count, looked up on request; not there if it does not count.
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
    let health = health.scope("limit");
    jobs.timer("usage", TELL, move |_| {
        tell(&limit, &health);
        async { Ok(()) }
    })
    .immediate();
}

fn tell(limit: &MemoryLimit, health: &Health) {
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
    fn what_is_allocated_is_exported() {
        let metrics = Arc::new(Metrics::default());
        export(metrics.clone());
        let text = metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix("cilium_process_allocated_bytes "));
        let bytes: f64 = line.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
        assert!(bytes > 10_000.0, "{text}");
    }
}
