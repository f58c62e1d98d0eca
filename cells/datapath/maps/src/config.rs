//! The options of the maps, in Cilium's spelling.

/// The IP families that the node forwards. Changes take effect at the next start.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Node and cluster")]
pub struct FamilyConfig {
    /// Enable IPv4 support
    #[flag(default = true)]
    pub enable_ipv4: bool,
    /// Enable IPv6 support
    #[flag(default = true)]
    pub enable_ipv6: bool,
}

/// The clock that the datapath reads. A change takes effect at the next start.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Connections")]
pub struct ClockConfig {
    /// Use the kernel's jiffies, which are cheaper to read than seconds, for connection timeouts if supported
    #[flag(default = false)]
    pub enable_bpf_clock_probe: bool,
}

impl ClockConfig {
    /// Returns the clock of the datapath.
    pub fn clock(&self) -> bpf::Clock {
        if self.enable_bpf_clock_probe { bpf::Clock::probe() } else { bpf::Clock::Seconds }
    }
}

/// The interval of the sign of life for programs.
#[derive(Clone, Copy, Debug, PartialEq, hive::Config)]
#[config(group = "eBPF maps")]
pub struct LivenessConfig {
    /// Interval of updates of the agent liveness timestamp in the datapath
    #[flag(default = "1s")]
    pub agent_liveness_update_interval: std::time::Duration,
}

/// Paths and sizes of the maps. Sizes take effect at the next start: a map of another size is replaced by one that
/// holds its entries.
#[derive(Clone, Debug, PartialEq, hive::Config)]
#[config(group = "eBPF maps", check = |config: &Self| config.validate().map_err(|error| error.to_string()))]
pub struct MapsConfig {
    /// Path to the BPF file system; mounted there when absent
    #[flag(default = "/sys/fs/bpf")]
    pub bpf_root: String,
    /// Allocate the memory of hash maps when they are created (costs memory, saves time a packet)
    #[flag(default = true)]
    pub preallocate_bpf_maps: bool,
    /// Keep an LRU list for each CPU (evicts earlier, scales better)
    #[flag(default = false)]
    pub bpf_distributed_lru: bool,
    /// Share of the machine's memory that sizes connection, NAT and socket maps; 0 for fixed sizes
    #[flag(default = 0.0025)]
    pub bpf_map_dynamic_size_ratio: f64,
    /// Entries of the TCP connection maps
    #[flag(default = 524_288)]
    pub bpf_ct_global_tcp_max: u32,
    /// Entries of the maps of other connections
    #[flag(default = 262_144)]
    pub bpf_ct_global_any_max: u32,
    /// Entries of the NAT maps
    #[flag(default = 524_288)]
    pub bpf_nat_global_max: u32,
    /// Entries of the neighbour maps
    #[flag(default = 524_288)]
    pub bpf_neigh_global_max: u32,
    /// Entries of the maps of translated sockets; 0 for a share of memory
    #[flag(default = 0)]
    pub bpf_sock_rev_map_max: u32,
    /// Entries of the authentication map
    #[flag(default = 524_288)]
    pub bpf_auth_map_max: u32,
    /// Entries of the node map
    #[flag(default = 16_384)]
    pub bpf_node_map_max: u32,
    /// Entries of each endpoint's policy map
    #[flag(default = 16_384)]
    pub bpf_policy_map_max: u32,
    /// Entries of the policy counter map
    #[flag(default = 65_536)]
    pub bpf_policy_stats_map_max: u32,
    /// Entries of the fragment maps
    #[flag(default = 8_192)]
    pub bpf_fragments_map_max: u32,
    /// Track IPv4 fragments
    #[flag(default = true)]
    pub enable_ipv4_fragment_tracking: bool,
    /// Track IPv6 fragments
    #[flag(default = true)]
    pub enable_ipv6_fragment_tracking: bool,
    /// Entries of the egress gateway maps
    #[flag(default = 16_384)]
    pub egress_gateway_policy_map_max: u32,
    /// Entries of the service maps, unless they have an option of their own
    #[flag(default = 65_536)]
    pub bpf_lb_map_max: u32,
    /// Entries of the service map; 0 for bpf-lb-map-max
    #[flag(default = 0, hidden)]
    pub bpf_lb_service_map_max: u32,
    /// Entries of the backend map; 0 for bpf-lb-map-max
    #[flag(default = 0, hidden)]
    pub bpf_lb_service_backend_map_max: u32,
    /// Entries of the reverse NAT map; 0 for bpf-lb-map-max
    #[flag(default = 0, hidden)]
    pub bpf_lb_rev_nat_map_max: u32,
    /// Entries of the affinity map; 0 for bpf-lb-map-max
    #[flag(default = 0, hidden)]
    pub bpf_lb_affinity_map_max: u32,
    /// Entries of the source range map; 0 for bpf-lb-map-max
    #[flag(default = 0, hidden)]
    pub bpf_lb_source_range_map_max: u32,
    /// Entries of the maglev map; 0 for bpf-lb-map-max
    #[flag(default = 0, hidden)]
    pub bpf_lb_maglev_map_max: u32,
}

/// A size outside the range that Cilium accepts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option {option} is {value}, it must be between {min} and {max}")]
pub struct OutOfRange {
    /// The option's name.
    pub option: &'static str,
    /// Its value.
    pub value: u32,
    /// The smallest value.
    pub min: u32,
    /// The largest value.
    pub max: u32,
}

const KI: u32 = 1 << 10;
const MI: u32 = 1 << 20;

impl MapsConfig {
    /// Checks the ranges that Cilium checks.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let ranges = [
            ("bpf-ct-global-tcp-max", self.bpf_ct_global_tcp_max, KI, 16 * MI),
            ("bpf-ct-global-any-max", self.bpf_ct_global_any_max, KI, 16 * MI),
            ("bpf-nat-global-max", self.bpf_nat_global_max, KI, 16 * MI),
            ("bpf-neigh-global-max", self.bpf_neigh_global_max, KI, 16 * MI),
            ("bpf-auth-map-max", self.bpf_auth_map_max, 256, 16 * MI),
            ("bpf-node-map-max", self.bpf_node_map_max, 16 * KI, u32::MAX),
            ("bpf-policy-map-max", self.bpf_policy_map_max, 256, 64 * KI),
            ("bpf-policy-stats-map-max", self.bpf_policy_stats_map_max, KI, 16 * MI),
            ("bpf-fragments-map-max", self.bpf_fragments_map_max, 256, 64 * KI),
            ("bpf-lb-map-max", self.bpf_lb_map_max, 1, u32::MAX),
        ];
        match ranges.into_iter().find(|(_, value, min, max)| !(min..=max).contains(&value)) {
            Some((option, value, min, max)) => Err(OutOfRange { option, value, min, max }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_range_and_others_are_named() {
        MapsConfig::default().validate().unwrap();
        let small = MapsConfig { bpf_policy_map_max: 100, ..MapsConfig::default() };
        assert_eq!(
            small.validate().unwrap_err().to_string(),
            "option bpf-policy-map-max is 100, it must be between 256 and 65536"
        );
    }
}
