//! Metrics of identities, by the names of Cilium.

use std::collections::{BTreeMap, BTreeSet};

use identity_core::Scope;
use labels::RESERVED;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use statedb::Table;
use tokio::sync::watch;

use crate::forecast::Forecast;
use crate::identity::Identity;

/// The first well-known identity.
const WELL_KNOWN: u32 = 100;

/// The number of identities by kind, read from the table at a scrape. As in Cilium, well-known ones are also counted as
/// reserved, and only those workload identities that this node uses are counted.
pub(crate) struct Kinds(pub(crate) Table<Identity>);

impl std::fmt::Debug for Kinds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kinds")
    }
}

impl Collector for Kinds {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (mut kinds, mut sources) = (BTreeMap::new(), BTreeMap::new());
        let mut source = |name: &str| *sources.entry(name.to_owned()).or_insert(0) += 1;
        let snapshot = self.0.snapshot();
        for row in self.0.all(&snapshot) {
            let (kind, well_known) = match row.scope() {
                Scope::Reserved => ("reserved", row.id >= WELL_KNOWN),
                Scope::Global if row.users.is_empty() => continue,
                Scope::Global => ("cluster_local", false),
                Scope::Local => ("node_local", false),
                Scope::RemoteNode => ("remote_node", false),
            };
            *kinds.entry(kind).or_insert(0) += 1;
            if well_known {
                *kinds.entry("well_known").or_insert(0) += 1;
                source(RESERVED);
            }
            let own: BTreeSet<&str> = row.labels.iter().map(|label| label.source).collect();
            own.into_iter().for_each(&mut source);
        }
        let help = "Number of identities currently allocated";
        let mut family = encoder.encode_descriptor("identity", help, None, MetricType::Gauge)?;
        for (kind, count) in kinds {
            ConstGauge::<i64>::new(count).encode(family.encode_family(&[("type", kind)])?)?;
        }
        let help = "Number of identities which contain at least one label of the given label source";
        let mut family =
            encoder.encode_descriptor("identity_label_sources", help, None, MetricType::Gauge)?;
        for (source, count) in sources {
            ConstGauge::<i64>::new(count).encode(family.encode_family(&[("source", source.as_str())])?)?;
        }
        Ok(())
    }
}

/// The share of the range of workloads that is used, and the time until its last id is.
#[derive(Debug)]
pub(crate) struct Exhaustion(pub(crate) watch::Receiver<Forecast>);

impl Collector for Exhaustion {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(outlook) = self.0.borrow().outlook() else { return Ok(()) };
        let help = "Share of the identities of workloads that are used, 1 for all";
        let used = ConstGauge::new(outlook.used as f64 / outlook.capacity.max(1) as f64);
        used.encode(encoder.encode_descriptor("identity_range_usage", help, None, MetricType::Gauge)?)?;
        let Some(left) = outlook.left else { return Ok(()) };
        let help =
            "Seconds until all identities of workloads are used at the present growth; absent without growth";
        let name = "identity_exhaustion_seconds";
        ConstGauge::new(left.as_secs_f64()).encode(encoder.encode_descriptor(
            name,
            help,
            None,
            MetricType::Gauge,
        )?)?;
        Ok(())
    }
}
