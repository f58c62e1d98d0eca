//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::time::Duration;

use crate::error::Error;

/// Probes between nodes, their rate, and the port of the responder.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Health", check = |config: &Self| config.check().map_err(|error| error.to_string()))]
pub struct CiliumHealthConfig {
    /// Probe all nodes of the cluster, and respond to their probes
    #[flag(default = true)]
    pub enable_health_checking: bool,
    /// Have a health endpoint, and probe those of other nodes, too
    #[flag(default = true)]
    pub enable_endpoint_health_checking: bool,
    /// TCP port of the responder, here and on other nodes
    #[flag(default = 4240)]
    pub cluster_health_port: u16,
    /// Share of load against rate of probes: 0 probes most often, 1 least often (cycle: (10 s + ratio * 100 s) * ln(1 + nodes))
    #[flag(default = 0.5)]
    pub connectivity_probe_frequency_ratio: f64,
    /// Number of pings without a reply, 100 ms apart, after which an address counts as unreachable
    #[flag(default = 3)]
    pub health_check_icmp_failure_threshold: u32,
    /// List of cilium health API APIs which are administratively enabled. Supports '*'.
    #[flag(default = "*")]
    pub enable_cilium_health_api_server_access: Vec<String>,
}

/// The most pings of one probe: as many as fit into the probe's time limit.
const MAX_PINGS: u32 = 50;

impl CiliumHealthConfig {
    fn check(&self) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&self.connectivity_probe_frequency_ratio) {
            return Err(Error::Ratio(self.connectivity_probe_frequency_ratio));
        }
        if !(1..=MAX_PINGS).contains(&self.health_check_icmp_failure_threshold) {
            return Err(Error::Threshold(self.health_check_icmp_failure_threshold));
        }
        Ok(())
    }

    /// Whether this node has a health endpoint, for whose namespace the agent needs `CAP_SYS_ADMIN` until it is made.
    #[must_use]
    pub fn has_endpoint(&self) -> bool {
        self.enable_health_checking && self.enable_endpoint_health_checking
    }

    /// Returns the cycle of one address, which [`cycle`] scales.
    pub(crate) fn base(&self) -> Duration {
        Duration::from_secs_f64(10.0 + self.connectivity_probe_frequency_ratio * 100.0)
    }
}

/// Returns the time in which all addresses are probed once, by their number.
pub(crate) fn cycle(base: Duration, addresses: usize) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^52 addresses")]
    base.mul_f64((addresses as f64).ln_1p())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cycle_grows_with_the_logarithm_of_the_addresses() {
        let base = Duration::from_secs(60);
        let seconds = |addresses| cycle(base, addresses).as_secs();
        assert_eq!([0, 2, 200, 2000].map(seconds), [0, 65, 318, 456]);
    }
}
