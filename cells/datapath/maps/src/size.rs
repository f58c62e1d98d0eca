//! The number of entries of each map: fixed, by an option, or by a share of the machine's memory.

use crate::config::MapsConfig;

/// The rule for the size of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// This many entries.
    Fixed(u32),
    /// The possible CPUs.
    Cpus,
    /// TCP connections.
    CtTcp,
    /// Other connections.
    CtAny,
    /// Address translations.
    Nat,
    /// Neighbours of service clients; as many as translations.
    Neighbours,
    /// Sockets with translated peers.
    SockRev,
    /// Authenticated pairs.
    Auth,
    /// Nodes.
    Nodes,
    /// Fragments.
    Fragments,
    /// Entries of a policy map.
    Policy,
    /// Counters of policy entries.
    PolicyStats,
    /// Egress gateway rules.
    EgressGateway,
    /// Services.
    LbServices,
    /// Backends.
    LbBackends,
    /// Reverse translations of services.
    LbRevNat,
    /// Session affinities.
    LbAffinity,
    /// Source ranges.
    LbSourceRange,
    /// Maglev tables.
    LbMaglev,
}

/// Minimum, default and maximum number of entries of the five maps that are sized by memory.
const MIN_CT_TCP: u64 = 1 << 17;
const MIN_CT_ANY: u64 = 1 << 16;
const MIN_NAT: u64 = 1 << 17;
const MIN_SOCK_REV: u64 = 1 << 16;
const DEFAULT_CT_TCP: u64 = 1 << 19;
const DEFAULT_CT_ANY: u64 = 1 << 18;
const DEFAULT_NAT: u64 = 1 << 19;
const DEFAULT_SOCK_REV: u64 = 1 << 18;
const MAX: u64 = 1 << 24;
const DEFAULT_LB: u32 = 1 << 16;
const DEFAULT_AUTH: u32 = 1 << 19;
const DEFAULT_FRAGMENTS: u32 = 1 << 13;
const DEFAULT_POLICY_STATS: u32 = 1 << 16;
/// The smallest size of most maps under a limit of memory.
const MIN_LIMITED: u32 = 1 << 10;
/// Bytes of key and value, IPv6.
const CT_BYTES: u64 = 94;
const NAT_BYTES: u64 = 94;
const NEIGHBOUR_BYTES: u64 = 24;
const SOCK_REV_BYTES: u64 = 52;

/// The sizes of a node, computed once from its options, memory and CPUs.
#[derive(Clone, Debug)]
pub struct Sizes {
    cpus: u32,
    distributed_lru: bool,
    ct_tcp: u32,
    ct_any: u32,
    nat: u32,
    neighbours: u32,
    sock_rev: u32,
    config: MapsConfig,
    /// How many times the sizes that no option sets were halved.
    halved: u32,
}

/// Maximum number of halvings: then the smallest sizes suffice for a hundred connections.
const MAX_HALVED: u32 = 12;

impl Sizes {
    /// Computes the sizes. An option with another value than its default has precedence over the share of memory.
    pub fn new(config: &MapsConfig, memory_bytes: u64, cpus: usize) -> Sizes {
        let cpus = cpus.max(1) as u32;
        let distributed_lru = config.bpf_distributed_lru;
        let total = DEFAULT_CT_TCP * CT_BYTES
            + DEFAULT_CT_ANY * CT_BYTES
            + DEFAULT_NAT * (NAT_BYTES + NEIGHBOUR_BYTES)
            + DEFAULT_SOCK_REV * SOCK_REV_BYTES;
        let available = (memory_bytes as f64 * config.bpf_map_dynamic_size_ratio.max(0.0)) as u64;
        let share = |option: u64, default: u64, min: u64| -> u32 {
            // As in Cilium, an option at its default cannot be distinguished from one that is not set.
            if option != default && option != 0 {
                return option.min(MAX) as u32;
            }
            if available == 0 {
                return default as u32;
            }
            (u128::from(default) * u128::from(available) / u128::from(total)).clamp(min.into(), MAX.into())
                as u32
        };
        let ct_tcp = share(config.bpf_ct_global_tcp_max.into(), DEFAULT_CT_TCP, MIN_CT_TCP);
        let ct_any = share(config.bpf_ct_global_any_max.into(), DEFAULT_CT_ANY, MIN_CT_ANY);
        // Each translation belongs to a connection: more would never be used.
        let nat =
            share(config.bpf_nat_global_max.into(), DEFAULT_NAT, MIN_NAT).min(ct_tcp.saturating_add(ct_any));
        let neighbours = match config.bpf_neigh_global_max {
            own if u64::from(own) != DEFAULT_NAT && own != 0 => own,
            _ => nat,
        };
        let sock_rev = share(config.bpf_sock_rev_map_max.into(), DEFAULT_SOCK_REV, MIN_SOCK_REV);
        let config = config.clone();
        Sizes { cpus, distributed_lru, ct_tcp, ct_any, nat, neighbours, sock_rev, config, halved: 0 }
    }

    /// Returns sizes in which all that no option sets are halved; `None` after the last halving.
    pub(crate) fn half(&self) -> Option<Sizes> {
        (self.halved < MAX_HALVED).then(|| Sizes { halved: self.halved + 1, ..self.clone() })
    }

    /// Returns the divisor of the sizes that no option sets.
    pub(crate) fn divisor(&self) -> u32 {
        1 << self.halved
    }

    /// Returns the entries of a map; LRU maps with a list for each CPU are rounded up to a multiple of the CPUs.
    pub fn entries(&self, size: Size, lru: bool) -> u32 {
        let (entries, min) = self.unlimited(size);
        let entries = min.map_or(entries, |min| (entries >> self.halved).max(entries.min(min)));
        match size {
            Size::PolicyStats => entries / self.cpus * self.cpus,
            _ if lru && self.distributed_lru => entries.next_multiple_of(self.cpus),
            _ => entries,
        }
    }

    /// Returns the entries without a memory limit, and the minimum under one; `None` for a size that an option sets.
    fn unlimited(&self, size: Size) -> (u32, Option<u32>) {
        let config = &self.config;
        let by_option = |own: u32, default: u32, min: u32| (own, (own == default).then_some(min));
        let shared = |own: u32, size: u32, default: u64| {
            let min = (own == 0 || u64::from(own) == default).then_some(MIN_LIMITED);
            (size, min)
        };
        let service = |own: u32| match own {
            0 => by_option(config.bpf_lb_map_max, DEFAULT_LB, MIN_LIMITED),
            own => (own, None),
        };
        match size {
            Size::Fixed(n) => (n, None),
            Size::Cpus => (self.cpus, None),
            Size::CtTcp => shared(config.bpf_ct_global_tcp_max, self.ct_tcp, DEFAULT_CT_TCP),
            Size::CtAny => shared(config.bpf_ct_global_any_max, self.ct_any, DEFAULT_CT_ANY),
            Size::Nat => shared(config.bpf_nat_global_max, self.nat, DEFAULT_NAT),
            Size::Neighbours => shared(config.bpf_neigh_global_max, self.neighbours, DEFAULT_NAT),
            Size::SockRev => shared(config.bpf_sock_rev_map_max, self.sock_rev, 0),
            Size::Auth => by_option(config.bpf_auth_map_max, DEFAULT_AUTH, 256),
            Size::Nodes => (config.bpf_node_map_max, None),
            Size::Fragments => by_option(config.bpf_fragments_map_max, DEFAULT_FRAGMENTS, 256),
            Size::Policy => (config.bpf_policy_map_max, None),
            Size::PolicyStats => {
                by_option(config.bpf_policy_stats_map_max, DEFAULT_POLICY_STATS, MIN_LIMITED)
            }
            Size::EgressGateway => (config.egress_gateway_policy_map_max, None),
            Size::LbServices => service(config.bpf_lb_service_map_max),
            Size::LbBackends => service(config.bpf_lb_service_backend_map_max),
            Size::LbRevNat => service(config.bpf_lb_rev_nat_map_max),
            Size::LbAffinity => service(config.bpf_lb_affinity_map_max),
            Size::LbSourceRange => service(config.bpf_lb_source_range_map_max),
            Size::LbMaglev => service(config.bpf_lb_maglev_map_max),
        }
    }
}

/// Returns the memory of the machine in bytes, from the text of `/proc/meminfo`; 0 if the line is missing.
pub fn memory_total(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: Option<u64> = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that a Cilium 1.20 agent chose on a machine with this memory.
    #[test]
    fn shares_of_memory_are_those_of_cilium() {
        let sizes = Sizes::new(&MapsConfig::default(), 24_684_092 * 1024, 2);
        assert_eq!(sizes.entries(Size::CtTcp, true), 221_723);
        assert_eq!(sizes.entries(Size::CtAny, true), 110_861);
        assert_eq!(sizes.entries(Size::SockRev, true), 110_861);
        assert_eq!(sizes.entries(Size::Nat, true), 221_723);
        assert_eq!(sizes.entries(Size::Neighbours, true), 221_723);
    }

    #[test]
    fn small_machines_get_the_minimum_and_ratio_zero_the_default() {
        let small = Sizes::new(&MapsConfig::default(), 1 << 30, 2);
        assert_eq!(small.entries(Size::CtTcp, false), 1 << 17);
        assert_eq!(small.entries(Size::CtAny, false), 1 << 16);
        let off = MapsConfig { bpf_map_dynamic_size_ratio: 0.0, ..MapsConfig::default() };
        let off = Sizes::new(&off, 1 << 35, 2);
        assert_eq!(off.entries(Size::CtTcp, false), 524_288);
        assert_eq!(off.entries(Size::SockRev, false), 262_144);
    }

    #[test]
    fn an_option_counts_over_the_share() {
        let config = MapsConfig {
            bpf_ct_global_tcp_max: 200_000,
            bpf_ct_global_any_max: 100_000,
            bpf_nat_global_max: 999_999,
            bpf_lb_map_max: 1000,
            bpf_lb_service_map_max: 77,
            bpf_policy_stats_map_max: 1025,
            ..MapsConfig::default()
        };
        let sizes = Sizes::new(&config, 1 << 35, 4);
        assert_eq!(sizes.entries(Size::CtTcp, false), 200_000);
        assert_eq!(sizes.entries(Size::Nat, false), 300_000, "never more than connections");
        assert_eq!(sizes.entries(Size::LbServices, false), 77);
        assert_eq!(sizes.entries(Size::LbBackends, false), 1000);
        assert_eq!(sizes.entries(Size::PolicyStats, false), 1024);
    }

    #[test]
    fn distributed_lists_round_up() {
        let config =
            MapsConfig { bpf_distributed_lru: true, bpf_ct_global_tcp_max: 200_001, ..MapsConfig::default() };
        let sizes = Sizes::new(&config, 1 << 35, 8);
        assert_eq!(sizes.entries(Size::CtTcp, true), 200_008);
        assert_eq!(sizes.entries(Size::Auth, false), 524_288);
    }

    #[test]
    fn halves_are_of_what_no_option_sets() {
        let config = MapsConfig {
            bpf_ct_global_any_max: 100_000,
            bpf_lb_service_map_max: 9999,
            ..MapsConfig::default()
        };
        let mut sizes = Sizes::new(&config, 1 << 35, 3);
        let (before, sockets) = (sizes.entries(Size::CtTcp, true), sizes.entries(Size::SockRev, true));
        sizes = sizes.half().unwrap().half().unwrap();
        assert_eq!((sizes.entries(Size::CtTcp, true), sizes.divisor()), (before / 4, 4));
        assert_eq!(
            (sizes.entries(Size::Auth, false), sizes.entries(Size::SockRev, true)),
            (131_072, sockets / 4)
        );
        assert_eq!(sizes.entries(Size::PolicyStats, false), 16_383, "a multiple of the CPUs");
        assert_eq!(
            (sizes.entries(Size::LbBackends, false), sizes.entries(Size::LbServices, false)),
            (16_384, 9999)
        );
        assert_eq!((sizes.entries(Size::CtAny, true), sizes.entries(Size::Policy, false)), (100_000, 16_384));
        while let Some(half) = sizes.half() {
            sizes = half;
        }
        assert_eq!((sizes.entries(Size::CtTcp, true), sizes.entries(Size::Fragments, true)), (1024, 256));
    }

    #[test]
    fn meminfo() {
        assert_eq!(memory_total("MemTotal:       24684092 kB\nMemFree: 1 kB\n"), 24_684_092 * 1024);
        assert_eq!(memory_total("nonsense"), 0);
    }
}
