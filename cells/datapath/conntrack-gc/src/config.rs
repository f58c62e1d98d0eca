//! The options of conntrack garbage collection, under Cilium's names. Changes take effect at once.

use std::time::Duration;

/// How often expired conntrack entries are garbage-collected.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Connections")]
pub struct ConntrackGcConfig {
    /// Interval of conntrack garbage collection; 0 adapts it to the share of expired entries
    #[flag(default = "0s", live)]
    pub conntrack_gc_interval: Duration,
    /// Upper bound of the adaptive interval; 0 for 12h
    #[flag(default = "0s", live)]
    pub conntrack_gc_max_interval: Duration,
}
