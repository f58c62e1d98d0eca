//! The options of conntrack garbage collection, under Cilium's names. Changes take effect at once.

use std::time::Duration;

/// How often expired conntrack entries are garbage-collected.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Connections")]
pub struct ConntrackGcConfig {
    /// Time between two collections of ended connections; 0 to choose it by how much there is to collect
    #[flag(default = "0s", live)]
    pub conntrack_gc_interval: Duration,
    /// Longest time between two collections when it is chosen; 0 for 12h
    #[flag(default = "0s", live)]
    pub conntrack_gc_max_interval: Duration,
}
