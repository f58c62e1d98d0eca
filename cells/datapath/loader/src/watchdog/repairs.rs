//! Repairs of the datapath: their kinds, and the metric that counts them.

use metrics::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// The kind of a repaired part; the label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The bpf file system was not mounted.
    FileSystem,
    /// A pin of a map, of the array of programs, or of a device's link.
    Pin,
    /// The program of an endpoint or of a device.
    Program,
    /// An address or a route of cilium_host.
    Network,
    /// The rule of nftables that drops packets of unknown pods.
    Rule,
    /// Map entries: missing or overwritten ones, and those without an owner.
    Row,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Kind; 6] =
        [Kind::FileSystem, Kind::Pin, Kind::Program, Kind::Network, Kind::Rule, Kind::Row];

    /// Returns the metric's label.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::FileSystem => "bpffs",
            Kind::Pin => "pin",
            Kind::Program => "program",
            Kind::Network => "network",
            Kind::Rule => "nftables",
            Kind::Row => "row",
        }
    }
}

/// A part of the datapath that was missing or wrong and has been repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The kind of part.
    pub kind: Kind,
    /// Its description.
    pub what: String,
}

/// Creates a repair from the description of the part.
pub(crate) fn repair(kind: Kind, what: impl Into<String>) -> Repair {
    Repair { kind, what: what.into() }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// Counts of repairs since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repairs(Family<KindLabel, Counter>);

impl Repairs {
    /// Registers `datapath_repairs_total`, each kind at zero.
    pub(crate) fn register(&self, metrics: &Metrics) {
        Kind::ALL.into_iter().for_each(|kind| drop(self.counter(kind)));
        let help = "Parts of the datapath that were removed or changed by others and put back";
        metrics.register("datapath_repairs_total", help, self.0.clone());
    }

    fn counter(&self, kind: Kind) -> Counter {
        self.0.get_or_create_owned(&KindLabel { kind: kind.name() })
    }

    /// Counts a repair.
    pub(crate) fn count(&self, kind: Kind) {
        self.counter(kind).inc();
    }

    /// Returns the number of repairs of all kinds.
    pub(crate) fn total(&self) -> u64 {
        Kind::ALL.into_iter().map(|kind| self.counter(kind).get()).sum()
    }
}
