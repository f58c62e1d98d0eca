//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::time::Duration;

use fqdn::Limits;
use jiff::SignedDuration;

/// How long names and their addresses are kept.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "DNS")]
pub struct FqdnConfig {
    /// Number of addresses that are kept for each name of an endpoint; 0 for no limit
    #[flag(default = 1000)]
    pub tofqdns_endpoint_max_ip_per_hostname: usize,
    /// How long an address is kept after its last connection
    #[flag(default = "0s")]
    pub tofqdns_idle_connection_grace_period: Duration,
    /// Number of addresses that an endpoint keeps only for open connections; 0 for no limit
    #[flag(default = 10000)]
    pub tofqdns_max_deferred_connection_deletes: usize,
    /// Number of seconds for which an answer is kept at least
    #[flag(default = 0)]
    pub tofqdns_min_ttl: u32,
    /// Allocate the identity of a name or pattern with its policy, before the first answer
    #[flag(default = true)]
    pub tofqdns_preallocate_identities: bool,
    /// How long an answer is held until its addresses are known to the datapath
    #[flag(default = "100ms")]
    pub tofqdns_proxy_response_max_delay: Duration,
}

impl FqdnConfig {
    /// Returns the limits of names.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let grace = SignedDuration::try_from(self.tofqdns_idle_connection_grace_period);
        Limits {
            min_ttl: self.tofqdns_min_ttl,
            addresses_per_name: self.tofqdns_endpoint_max_ip_per_hostname,
            zombies: self.tofqdns_max_deferred_connection_deletes,
            idle_grace_period: grace.unwrap_or(SignedDuration::MAX),
            ..Limits::default()
        }
    }
}
