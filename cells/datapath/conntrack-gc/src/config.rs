//! The options of the collection, in Cilium's spelling. Changes take effect at once.

use std::time::Duration;

/// How often rows that have ended are collected.
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
