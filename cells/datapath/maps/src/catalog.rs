//! Every map that Cilium 1.20 pins: its type, sizes, flags and when it exists.

use bpf::MapType::{self, *};

use self::Existence::*;
use crate::size::Size::{self, *};

/// The rule for a map's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagRule {
    /// Always these flags.
    Always(u32),
    /// These flags, and `BPF_F_NO_PREALLOC` unless `preallocate-bpf-maps`.
    Prealloc(u32),
    /// None, or `BPF_F_NO_COMMON_LRU` with `bpf-distributed-lru`.
    Lru,
}

/// When a map exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existence {
    /// On every node.
    Always,
    /// With `enable-ipv4`.
    Family4,
    /// With `enable-ipv6`.
    Family6,
    /// With `enable-ipv4` and `enable-ipv4-fragment-tracking`.
    Fragments4,
    /// With `enable-ipv6` and `enable-ipv6-fragment-tracking`.
    Fragments6,
    /// With translations of IPv4 sources by the programs ([`NatSwitches`](crate::NatSwitches)).
    Nat4,
    /// With translations of IPv6 sources by the programs.
    Nat6,
    /// With those of IPv4 and `enable-ip-masq-agent`.
    IpMasq4,
    /// With those of IPv6 and `enable-ip-masq-agent`.
    IpMasq6,
    /// With `enable-ipv4` and Maglev tables ([`Specs::with_maglev`](crate::Specs::with_maglev)).
    Maglev4,
    /// With `enable-ipv6` and Maglev tables.
    Maglev6,
    /// With `enable-ipv4` and `enable-xdp-prefilter`.
    Prefilter4,
    /// With `enable-ipv6` and `enable-xdp-prefilter`.
    Prefilter6,
    /// With `routing-mode=hybrid`.
    Hybrid,
    /// With `enable-ipv4` and `bpf-lb-ipip-sock-mark`.
    Probes4,
    /// With `enable-ipv6` and `bpf-lb-ipip-sock-mark`.
    Probes6,
    /// The cell of a feature creates it; the option that switches the feature.
    Feature(&'static str),
    /// One for each endpoint, the name continued by `_` and the endpoint's id in five digits.
    PerEndpoint,
    /// One for each loaded set of programs.
    PerObject,
}

/// A map that Cilium pins, before the node's options give it a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapDef {
    /// The pin's name.
    pub name: &'static str,
    /// Its type.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// The rule for its capacity.
    pub size: Size,
    /// The rule for its flags.
    pub flags: FlagRule,
    /// When it exists.
    pub existence: Existence,
}

const NONE: FlagRule = FlagRule::Always(0);
const RO: FlagRule = FlagRule::Always(0x80);
const NO_PREALLOC: FlagRule = FlagRule::Always(0x01);
const NO_PREALLOC_RO: FlagRule = FlagRule::Always(0x81);
const PREALLOC: FlagRule = FlagRule::Prealloc(0);
const PREALLOC_RO: FlagRule = FlagRule::Prealloc(0x80);
const LRU: FlagRule = FlagRule::Lru;
const OWN_LRU: FlagRule = FlagRule::Always(0x02);

const fn map(
    name: &'static str,
    map_type: MapType,
    key_size: u32,
    value_size: u32,
    size: Size,
    flags: FlagRule,
    existence: Existence,
) -> MapDef {
    MapDef { name, map_type, key_size, value_size, size, flags, existence }
}

/// The maps, by name. `cilium_devices` always has flags 0x1, which Cilium's objects require; its agent creates the map
/// by the preallocation setting and lets the objects replace it. `cilium_cidr_v4_fix` and `cilium_cidr_v6_fix` have room for a
/// million addresses: of Cilium's 20 million each takes 512 MB while it is empty.
#[rustfmt::skip]
pub const CATALOG: &[MapDef] = &[
    map("cilium_auth_map", Hash, 12, 8, Auth, NO_PREALLOC_RO, Always),
    map("cilium_call_policy", ProgArray, 4, 4, Fixed(65535), NONE, Always),
    map("cilium_calls", ProgArray, 4, 4, Fixed(50), NONE, PerObject),
    map("cilium_cidr_v4_dyn", LpmTrie, 8, 1, Fixed(65536), NO_PREALLOC_RO, Prefilter4),
    map("cilium_cidr_v4_fix", Hash, 8, 1, Fixed(1048576), NO_PREALLOC_RO, Prefilter4),
    map("cilium_cidr_v6_dyn", LpmTrie, 20, 1, Fixed(65536), NO_PREALLOC_RO, Prefilter6),
    map("cilium_cidr_v6_fix", Hash, 20, 1, Fixed(1048576), NO_PREALLOC_RO, Prefilter6),
    map("cilium_ct4_global", LruHash, 14, 56, CtTcp, LRU, Family4),
    map("cilium_ct6_global", LruHash, 38, 56, CtTcp, LRU, Family6),
    map("cilium_ct_any4_global", LruHash, 14, 56, CtAny, LRU, Family4),
    map("cilium_ct_any6_global", LruHash, 38, 56, CtAny, LRU, Family6),
    map("cilium_devices", Hash, 4, 16, Fixed(512), NO_PREALLOC, Always),
    map("cilium_egress_gw_policy_v4", LpmTrie, 12, 8, EgressGateway, NO_PREALLOC_RO, Feature("enable-egress-gateway")),
    map("cilium_egress_gw_policy_v4_v2", LpmTrie, 12, 28, EgressGateway, NO_PREALLOC_RO, Feature("enable-egress-gateway")),
    map("cilium_egress_gw_policy_v6", LpmTrie, 36, 40, EgressGateway, NO_PREALLOC_RO, Feature("enable-egress-gateway")),
    map("cilium_egresscall_policy", ProgArray, 4, 4, Fixed(65535), NONE, Always),
    map("cilium_encrypt_state", Array, 4, 1, Fixed(1), RO, Feature("enable-ipsec")),
    map("cilium_events", PerfEventArray, 4, 4, Cpus, NONE, Always),
    map("cilium_ipcache_v2", LpmTrie, 24, 24, Fixed(512000), NO_PREALLOC_RO, Always),
    map("cilium_ipmasq_v4", LpmTrie, 8, 1, Fixed(16384), NO_PREALLOC_RO, IpMasq4),
    map("cilium_ipmasq_v6", LpmTrie, 20, 1, Fixed(16384), NO_PREALLOC_RO, IpMasq6),
    map("cilium_ipv4_frag_datagrams", LruHash, 12, 4, Fragments, LRU, Fragments4),
    map("cilium_ipv6_frag_datagrams", LruHash, 40, 4, Fragments, LRU, Fragments6),
    map("cilium_l2_responder_v4", Hash, 8, 8, Fixed(4096), NO_PREALLOC, Family4),
    map("cilium_l2_responder_v6", Hash, 24, 8, Fixed(4096), NO_PREALLOC, Family6),
    map("cilium_lb4_affinity", LruHash, 16, 16, LbAffinity, LRU, Family4),
    map("cilium_lb4_backends_v3", Hash, 4, 12, LbBackends, PREALLOC, Family4),
    map("cilium_lb4_health", LruHash, 8, 12, LbBackends, LRU, Probes4),
    map("cilium_lb4_maglev", HashOfMaps, 2, 4, LbMaglev, PREALLOC_RO, Maglev4),
    map("cilium_lb4_reverse_nat", Hash, 2, 6, LbRevNat, PREALLOC, Family4),
    map("cilium_lb4_reverse_sk", LruHash, 16, 8, SockRev, LRU, Family4),
    map("cilium_lb4_services_v2", Hash, 12, 12, LbServices, PREALLOC_RO, Family4),
    map("cilium_lb4_source_range", LpmTrie, 12, 1, LbSourceRange, NO_PREALLOC_RO, Family4),
    map("cilium_lb6_affinity", LruHash, 24, 16, LbAffinity, LRU, Family6),
    map("cilium_lb6_backends_v3", Hash, 4, 24, LbBackends, PREALLOC, Family6),
    map("cilium_lb6_health", LruHash, 8, 24, LbBackends, LRU, Probes6),
    map("cilium_lb6_maglev", HashOfMaps, 2, 4, LbMaglev, PREALLOC_RO, Maglev6),
    map("cilium_lb6_reverse_nat", Hash, 2, 18, LbRevNat, PREALLOC, Family6),
    map("cilium_lb6_reverse_sk", LruHash, 32, 20, SockRev, LRU, Family6),
    map("cilium_lb6_services_v2", Hash, 24, 12, LbServices, PREALLOC_RO, Family6),
    map("cilium_lb6_source_range", LpmTrie, 24, 1, LbSourceRange, NO_PREALLOC_RO, Family6),
    map("cilium_lb_act", LruHash, 4, 8, LbServices, LRU, Feature("enable-active-connection-tracking")),
    map("cilium_lb_affinity_match", Hash, 8, 1, LbAffinity, PREALLOC_RO, Always),
    map("cilium_lb_fct", LruHash, 4, 4, LbServices, LRU, Feature("enable-active-connection-tracking")),
    map("cilium_lxc", Hash, 20, 48, Fixed(65535), PREALLOC_RO, Always),
    map("cilium_mcast_group_outer_v4_map", HashOfMaps, 4, 4, Fixed(1024), PREALLOC, Feature("multicast-enabled")),
    map("cilium_metrics", PerCpuHash, 8, 16, Fixed(1024), PREALLOC, Always),
    map("cilium_node_map_v2", Hash, 20, 4, Nodes, NO_PREALLOC_RO, Always),
    map("cilium_nodeport_neigh4", LruHash, 4, 8, Neighbours, LRU, Feature("kube-proxy-replacement")),
    map("cilium_nodeport_neigh6", LruHash, 16, 8, Neighbours, LRU, Feature("kube-proxy-replacement")),
    map("cilium_per_cluster_ct_any4", ArrayOfMaps, 4, 4, Fixed(256), NONE, Feature("enable-cluster-aware-addressing")),
    map("cilium_per_cluster_ct_any6", ArrayOfMaps, 4, 4, Fixed(256), NONE, Feature("enable-cluster-aware-addressing")),
    map("cilium_per_cluster_ct_tcp4", ArrayOfMaps, 4, 4, Fixed(256), NONE, Feature("enable-cluster-aware-addressing")),
    map("cilium_per_cluster_ct_tcp6", ArrayOfMaps, 4, 4, Fixed(256), NONE, Feature("enable-cluster-aware-addressing")),
    map("cilium_per_cluster_snat_v4_external", ArrayOfMaps, 4, 4, Fixed(256), NONE, Feature("enable-cluster-aware-addressing")),
    map("cilium_per_cluster_snat_v6_external", ArrayOfMaps, 4, 4, Fixed(256), NONE, Feature("enable-cluster-aware-addressing")),
    map("cilium_percpu_trace_id", PerCpuArray, 4, 8, Fixed(1), NONE, Always),
    map("cilium_policy_v2", LpmTrie, 12, 12, Policy, NO_PREALLOC_RO, PerEndpoint),
    map("cilium_policystats", LruPerCpuHash, 12, 16, PolicyStats, OWN_LRU, Always),
    map("cilium_ratelimit", LruHash, 8, 16, Fixed(1024), LRU, Always),
    map("cilium_ratelimit_metrics", Hash, 4, 8, Fixed(64), PREALLOC, Always),
    map("cilium_runtime_config", Array, 4, 8, Fixed(256), RO, Always),
    map("cilium_signals", PerfEventArray, 4, 4, Cpus, NONE, Always),
    map("cilium_skip_lb4", Hash, 16, 1, Fixed(100), NO_PREALLOC_RO, Family4),
    map("cilium_skip_lb6", Hash, 32, 1, Fixed(100), NO_PREALLOC_RO, Family6),
    map("cilium_snat_v4_alloc_retries", PerCpuArray, 4, 4, Fixed(33), NONE, Nat4),
    map("cilium_snat_v4_external", LruHash, 14, 40, Nat, LRU, Nat4),
    map("cilium_snat_v6_alloc_retries", PerCpuArray, 4, 4, Fixed(33), NONE, Nat6),
    map("cilium_snat_v6_external", LruHash, 38, 56, Nat, LRU, Nat6),
    map("cilium_srv6_policy_v4", LpmTrie, 12, 16, Fixed(16384), NO_PREALLOC_RO, Feature("enable-srv6")),
    map("cilium_srv6_policy_v6", LpmTrie, 24, 16, Fixed(16384), NO_PREALLOC_RO, Feature("enable-srv6")),
    map("cilium_srv6_sid", Hash, 16, 4, Fixed(16384), NO_PREALLOC_RO, Feature("enable-srv6")),
    map("cilium_srv6_vrf_v4", LpmTrie, 12, 4, Fixed(16384), NO_PREALLOC_RO, Feature("enable-srv6")),
    map("cilium_srv6_vrf_v6", LpmTrie, 36, 4, Fixed(16384), NO_PREALLOC_RO, Feature("enable-srv6")),
    map("cilium_subnet_map", LpmTrie, 24, 4, Fixed(1024), NO_PREALLOC_RO, Hybrid),
    map("cilium_throttle", Hash, 8, 56, Fixed(65535), NO_PREALLOC, Feature("enable-bandwidth-manager")),
    map("cilium_vtep_map", Hash, 4, 16, Fixed(8), PREALLOC_RO, Feature("enable-vtep")),
    map("cilium_xdp_scratch", PerCpuArray, 4, 28, Fixed(1), NONE, Feature("bpf-lb-acceleration")),
];

/// Returns the map of that name.
pub fn find(name: &str) -> Option<&'static MapDef> {
    CATALOG.iter().find(|def| def.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_the_public_form() {
        let mut names: Vec<&str> = CATALOG.iter().map(|def| def.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CATALOG.len());
        assert!(names.iter().all(|n| n.starts_with("cilium_")));
        assert_eq!(find("cilium_lxc").unwrap().value_size, 48);
        assert!(find("cilium_nothing").is_none());
    }
}
