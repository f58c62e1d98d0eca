//! The maps, under the names of Cilium's pins.

use crate::btf::*;
use datapath_abi::ratelimit::{RatelimitBucket, RatelimitKey};
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

maps! {
    /// Events for monitors, a ring for each CPU.
    cilium_events: Map<u32, u32, PERF_EVENT_ARRAY, 0, 0>;
    /// Token buckets by usage.
    cilium_ratelimit: Map<RatelimitKey, RatelimitBucket, LRU_HASH, 1024, 0>;
    /// Events that a token bucket has suppressed, by usage.
    cilium_ratelimit_metrics: Map<u32, u64, HASH, 64, 0>;
    /// Identities of addresses.
    cilium_ipcache_v2: Map<IpcacheKey, RemoteEndpointInfo, LPM_TRIE, 512000, { NO_PREALLOC | RDONLY_PROG }>;
    /// Events by reason, direction, file and line.
    cilium_metrics: Map<MetricsKey, MetricsValue, PERCPU_HASH, 1024, NO_PREALLOC>;
    /// Services by frontend, and their backends by slot.
    cilium_lb4_services_v2: Map<LbServiceKey4, LbService, HASH, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    cilium_lb6_services_v2: Map<LbServiceKey6, LbService, HASH, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    /// Backends by id.
    cilium_lb4_backends_v3: Map<u32, LbBackend4, HASH, 65536, NO_PREALLOC>;
    cilium_lb6_backends_v3: Map<u32, LbBackend6, HASH, 65536, NO_PREALLOC>;
    /// The last backends of clients of services with session affinity.
    cilium_lb4_affinity: Map<LbAffinityKey4, LbAffinity, LRU_HASH, 65536, 0>;
    cilium_lb6_affinity: Map<LbAffinityKey6, LbAffinity, LRU_HASH, 65536, 0>;
    /// Backends to which affinity applies.
    cilium_lb_affinity_match: Map<LbAffinityMatch, u8, HASH, 65536, { NO_PREALLOC | RDONLY_PROG }>;
    /// The frontends that sockets were connected to, by socket and backend.
    cilium_lb4_reverse_sk: Map<LbReverseSkKey4, LbReverseSk4, LRU_HASH, 262144, 0>;
    cilium_lb6_reverse_sk: Map<LbReverseSkKey6, LbReverseSk6, LRU_HASH, 262144, 0>;
    /// Backends that sockets of health probes name, by the socket's cookie.
    cilium_lb4_health: Map<u64, LbBackend4, LRU_HASH, 65536, 0>;
    cilium_lb6_health: Map<u64, LbBackend6, LRU_HASH, 65536, 0>;
    /// Addresses that network namespaces reach without redirection to pods of the node.
    cilium_skip_lb4: Map<SkipLb4Key, u8, HASH, 100, { NO_PREALLOC | RDONLY_PROG }>;
    cilium_skip_lb6: Map<SkipLb6Key, u8, HASH, 100, { NO_PREALLOC | RDONLY_PROG }>;
}
