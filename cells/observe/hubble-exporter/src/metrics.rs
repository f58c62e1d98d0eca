//! Metrics of dynamic exporters, under Cilium's names.

use std::sync::atomic::AtomicU64;

use hubble::HubbleRegistry;
use jiff::Timestamp;
use md5::{Digest, Md5};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::set::{Changes, Exporters};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Status {
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Op {
    op: &'static str,
}

/// The metrics.
#[derive(Clone, Default)]
pub(crate) struct DynamicMetrics {
    exporters: Family<Status, Gauge>,
    up: Family<Name, Gauge>,
    reconfigurations: Family<Op, Counter>,
    config_hash: Gauge<f64, AtomicU64>,
    last_applied: Gauge,
}

impl DynamicMetrics {
    /// Returns metrics that are registered.
    pub(crate) fn registered(registry: &HubbleRegistry) -> Self {
        let (metrics, this) = (&registry.0, Self::default());
        metrics.register(
            "dynamic_exporter_exporters_total",
            "Number of configured hubble exporters",
            this.exporters.clone(),
        );
        metrics.register(
            "dynamic_exporter_up",
            "Status of exporter (1 - active, 0 - inactive)",
            this.up.clone(),
        );
        metrics.register(
            "dynamic_exporter_reconfigurations_total",
            "Number of dynamic exporters reconfigurations",
            this.reconfigurations.clone(),
        );
        metrics.register(
            "dynamic_exporter_config_hash",
            "Hash of last applied config",
            this.config_hash.clone(),
        );
        metrics.register(
            "dynamic_exporter_config_last_applied",
            "Timestamp of last applied config",
            this.last_applied.clone(),
        );
        this
    }

    /// Sets the gauges of exporters.
    pub(crate) fn count(&self, exporters: &Exporters, now: Timestamp) {
        let mut counts = [0; 2];
        self.up.clear();
        for exporter in exporters.iter() {
            let is_active = exporter.is_active(now);
            counts[usize::from(is_active)] += 1;
            self.up.get_or_create(&Name { name: exporter.spec().name.clone() }).set(is_active.into());
        }
        for (status, count) in ["inactive", "active"].into_iter().zip(counts) {
            self.exporters.get_or_create(&Status { status }).set(count);
        }
    }

    /// Counts the changes of a file that was read.
    pub(crate) fn applied(&self, content: &[u8], changes: Changes, now: Timestamp) {
        for (op, count) in [("add", changes.added), ("update", changes.updated), ("remove", changes.removed)]
        {
            self.reconfigurations.get_or_create(&Op { op }).inc_by(count);
        }
        let hash: [u8; 16] = Md5::digest(content).into();
        let (first, _) = hash.split_first_chunk().unwrap_or((&[0; 8], &[]));
        self.config_hash.set(u64::from_le_bytes(*first) as f64);
        self.read_again(now);
    }

    /// Records that the file was read and is still valid.
    pub(crate) fn read_again(&self, now: Timestamp) {
        self.last_applied.set(now.as_second());
    }

    /// Counts a file that is unreadable or refused.
    pub(crate) fn failed(&self) {
        self.reconfigurations.get_or_create(&Op { op: "failure" }).inc();
    }
}
