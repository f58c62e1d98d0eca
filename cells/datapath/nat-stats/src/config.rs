//! The options, under Cilium's names. Changes take effect at the next start.

use std::time::Duration;

/// The most rows that can be configured, as in Cilium.
const MAX_ENTRIES: usize = 4096;

/// How often translations are counted, and how many destinations are listed.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Connections")]
#[config(check = Self::validate)]
pub struct NatStatsConfig {
    /// Interval of the statistics of translations; 0 for none
    #[flag(default = "30s")]
    pub nat_map_stats_interval: Duration,
    /// Destinations with the most translations that table nat-stats lists for each address family
    #[flag(default = 32)]
    pub nat_map_stats_entries: usize,
}

impl NatStatsConfig {
    fn validate(&self) -> Result<(), String> {
        match self.nat_map_stats_entries {
            1..=MAX_ENTRIES => Ok(()),
            entries => Err(format!("nat-map-stats-entries={entries}: set a number from 1 to {MAX_ENTRIES}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_cilium() {
        let with = |entries| NatStatsConfig { nat_map_stats_entries: entries, ..NatStatsConfig::default() };
        assert_eq!(NatStatsConfig::default(), with(32));
        assert!(with(1).validate().is_ok() && with(4096).validate().is_ok());
        for entries in [0, 4097] {
            let error = with(entries).validate().unwrap_err();
            assert_eq!(error, format!("nat-map-stats-entries={entries}: set a number from 1 to 4096"));
        }
    }
}
