//! The maps of the object. Names, types and sizes are those of Cilium's pins; `ep_*` are our own.
//!
//! Owns: the definitions (here) and access to map entries ([`btf`]). Uses none of its siblings.

pub(crate) mod btf;

#[cfg(feature = "xdp")]
use crate::hop::{HOPS, Hop};
use crate::maps::btf::*;
#[cfg(feature = "xdp")]
use crate::state::Packet;
#[cfg(not(feature = "xdp"))]
use datapath_abi::ratelimit::{RatelimitBucket, RatelimitKey};
#[cfg(not(feature = "xdp"))]
use datapath_abi::signal::{AuthEntry, AuthKey};
use datapath_abi::*;

macro_rules! maps {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(link_section = ".maps")]
            #[unsafe(no_mangle)]
            pub(crate) static $name: $type = <$type>::new();
        )*
    };
}

/// The policy of one endpoint.
pub(crate) type PolicyMap = Map<PolicyKey, PolicyEntry, LPM_TRIE, 16384, { NO_PREALLOC | RDONLY_PROG }>;

/// The backends of one service by the hash of a flow, in the only value.
pub(crate) type MaglevTable = Map<u32, [u32; MAGLEV_TEMPLATE_SIZE as usize], ARRAY, 1, 0>;

maps! {
    /// Local addresses.
    cilium_lxc: Map<EndpointKey, EndpointInfo, HASH, 65535, { NO_PREALLOC | RDONLY_PROG }>;
    /// Identities of addresses.
    cilium_ipcache_v2: Map<IpcacheKey, RemoteEndpointInfo, LPM_TRIE, 512000, { NO_PREALLOC | RDONLY_PROG }>;
    /// Packets and bytes by reason, direction, file and line.
    cilium_metrics: Map<MetricsKey, MetricsValue, PERCPU_HASH, 1024, NO_PREALLOC>;
    /// Drop and trace events.
    cilium_events: Map<u32, u32, PERF_EVENT_ARRAY, 0, 0>;
    /// Signals to the agent.
    cilium_signals: Map<u32, u32, PERF_EVENT_ARRAY, 0, 0>;
    /// Connections: TCP and others, IPv4 and IPv6.
    cilium_ct4_global: Map<CtTuple4, CtEntry, LRU_HASH, 524288, 0>;
    cilium_ct_any4_global: Map<CtTuple4, CtEntry, LRU_HASH, 262144, 0>;
    cilium_ct6_global: Map<CtTuple6, CtEntry, LRU_HASH, 524288, 0>;
    cilium_ct_any6_global: Map<CtTuple6, CtEntry, LRU_HASH, 262144, 0>;
    /// Ports of fragmented datagrams.
    cilium_ipv4_frag_datagrams: Map<FragmentKey4, FragmentPorts, LRU_HASH, 8192, 0>;
    cilium_ipv6_frag_datagrams: Map<FragmentKey6, FragmentPorts, LRU_HASH, 8192, 0>;
    /// Services by frontend, and their backends by slot.
    cilium_lb4_services_v2: Map<LbServiceKey4, LbService, HASH, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    cilium_lb6_services_v2: Map<LbServiceKey6, LbService, HASH, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    /// Backends by id.
    cilium_lb4_backends_v3: Map<u32, LbBackend4, HASH, 65536, NO_PREALLOC>;
    cilium_lb6_backends_v3: Map<u32, LbBackend6, HASH, 65536, NO_PREALLOC>;
    /// Frontends by the service's big-endian id.
    cilium_lb4_reverse_nat: Map<u16, LbReverseNat4, HASH, 65536, NO_PREALLOC>;
    cilium_lb6_reverse_nat: Map<u16, LbReverseNat6, HASH, 65536, NO_PREALLOC>;
    /// The last backends of clients of services with session affinity.
    cilium_lb4_affinity: Map<LbAffinityKey4, LbAffinity, LRU_HASH, 65536, 0>;
    cilium_lb6_affinity: Map<LbAffinityKey6, LbAffinity, LRU_HASH, 65536, 0>;
    /// Backends to which affinity applies.
    cilium_lb_affinity_match: Map<LbAffinityMatch, u8, HASH, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    /// Clients that services admit or refuse.
    cilium_lb4_source_range: Map<LbSourceRange4, u8, LPM_TRIE, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    cilium_lb6_source_range: Map<LbSourceRange6, u8, LPM_TRIE, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    /// Maglev tables by the service's big-endian id.
    cilium_lb4_maglev: HashOfMaps<u16, MaglevTable, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    cilium_lb6_maglev: HashOfMaps<u16, MaglevTable, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    /// Translations of sources, and how many occupied ports were tried for each.
    cilium_snat_v4_external: Map<NatKey4, NatEntry4, LRU_HASH, 524288, 0>;
    cilium_snat_v6_external: Map<NatKey6, NatEntry6, LRU_HASH, 524288, 0>;
    cilium_snat_v4_alloc_retries: Map<u32, u32, PERCPU_ARRAY, { snat::MAX_TRIES as usize + 1 }, 0>;
    cilium_snat_v6_alloc_retries: Map<u32, u32, PERCPU_ARRAY, { snat::MAX_TRIES as usize + 1 }, 0>;
    /// Ranges that are not masqueraded.
    cilium_ipmasq_v4: Map<IpMasqKey4, u8, LPM_TRIE, 16384, { NO_PREALLOC | RDONLY_PROG }>;
    cilium_ipmasq_v6: Map<IpMasqKey6, u8, LPM_TRIE, 16384, { NO_PREALLOC | RDONLY_PROG }>;
    /// Programs of this load of the object.
    cilium_calls: Map<u32, u32, PROG_ARRAY, { slot::ENTRIES as usize }, 0>;
    /// Addresses of packets that leave by a device, by its index.
    ep_masquerade: Map<u32, MasqueradeAddresses, HASH, 512, { NO_PREALLOC | RDONLY_PROG }>;
}

#[cfg(not(feature = "xdp"))]
maps! {
    /// Packets and bytes by policy entry.
    cilium_policystats: Map<PolicyStatsKey, PolicyStatsValue, LRU_PERCPU_HASH, 65536, NO_COMMON_LRU>;
    /// Identities that have authenticated.
    cilium_auth_map: Map<AuthKey, AuthEntry, HASH, 524288, { NO_PREALLOC | RDONLY_PROG }>;
    /// Ids of nodes by address.
    cilium_node_map_v2: Map<NodeKey, NodeValue, HASH, 16384, { NO_PREALLOC | RDONLY_PROG }>;
    /// Groups of subnets that reach each other without the tunnel.
    cilium_subnet_map: Map<SubnetKey, u32, LPM_TRIE, 1024, { NO_PREALLOC | RDONLY_PROG }>;
    /// Values that the agent writes while it runs.
    cilium_runtime_config: Map<u32, u64, ARRAY, 256, RDONLY_PROG>;
    /// Backends that sockets of health probes name, by the socket's cookie.
    cilium_lb4_health: Map<u64, LbBackend4, LRU_HASH, 65536, 0>;
    cilium_lb6_health: Map<u64, LbBackend6, LRU_HASH, 65536, 0>;
    /// Addresses that network namespaces reach without redirection to pods of the node.
    cilium_skip_lb4: Map<SkipLb4Key, u8, HASH, 100, { NO_PREALLOC | RDONLY_PROG }>;
    cilium_skip_lb6: Map<SkipLb6Key, u8, HASH, 100, { NO_PREALLOC | RDONLY_PROG }>;
    /// Token buckets of errors.
    cilium_ratelimit: Map<RatelimitKey, RatelimitBucket, LRU_HASH, 1024, 0>;
    /// Devices of the node by interface index.
    cilium_devices: Map<u32, DeviceValue, HASH, 512, NO_PREALLOC>;
    /// Settings of endpoints by their id.
    ep_config: Map<u32, EndpointConfig, ARRAY, { EP_CONFIG_ENTRIES as usize }, RDONLY_PROG>;
    /// Endpoint ids by interface index, small indexes.
    ep_by_ifindex: Map<u32, u32, ARRAY, { EP_CONFIG_ENTRIES as usize }, RDONLY_PROG>;
    /// Endpoint ids by interface index, large indexes.
    ep_by_ifindex_hi: Map<u32, u32, HASH, { EP_CONFIG_ENTRIES as usize }, { NO_PREALLOC | RDONLY_PROG }>;
    /// Policy maps of endpoints by the slot in their settings.
    ep_policies: ArrayOfMaps<PolicyMap, { EP_CONFIG_ENTRIES as usize }>;
}

#[cfg(feature = "xdp")]
maps! {
    /// Ranges of senders that are dropped, and single addresses.
    cilium_cidr_v4_dyn: Map<PrefilterKey4, u8, LPM_TRIE, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    cilium_cidr_v4_fix: Map<PrefilterKey4, u8, HASH, 20971520, { NO_PREALLOC | RDONLY_PROG }>;
    cilium_cidr_v6_dyn: Map<PrefilterKey6, u8, LPM_TRIE, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    cilium_cidr_v6_fix: Map<PrefilterKey6, u8, HASH, 20971520, { NO_PREALLOC | RDONLY_PROG }>;
    /// The packet that this CPU translates.
    xdp_packet_v4: Map<u32, Packet<u32>, PERCPU_ARRAY, 1, 0>;
    xdp_packet_v6: Map<u32, Packet<[u32; 4]>, PERCPU_ARRAY, 1, 0>;
    /// Next hops that this CPU has looked up.
    xdp_hops_v4: Map<u32, Hop<u32>, PERCPU_ARRAY, HOPS, 0>;
    xdp_hops_v6: Map<u32, Hop<[u32; 4]>, PERCPU_ARRAY, HOPS, 0>;
    /// Devices that run the programs, by interface index.
    xdp_devices: Map<u32, u32, HASH, 512, { NO_PREALLOC | RDONLY_PROG }>;
}
