//! The maps of the object. Names, types and sizes are those of Cilium's pins; `ep_*` are our own.

use crate::btf::*;
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
    /// Local addresses.
    cilium_lxc: Map<EndpointKey, EndpointInfo, HASH, 65535, { NO_PREALLOC | RDONLY_PROG }>;
    /// Identities of addresses.
    cilium_ipcache_v2: Map<IpcacheKey, RemoteEndpointInfo, LPM_TRIE, 512000, { NO_PREALLOC | RDONLY_PROG }>;
    /// Packets and bytes by reason and place.
    cilium_metrics: Map<MetricsKey, MetricsValue, PERCPU_HASH, 1024, NO_PREALLOC>;
    /// Drop and trace events.
    cilium_events: Map<u32, u32, PERF_EVENT_ARRAY, 0, 0>;
    /// Devices of the node by interface index.
    cilium_devices: Map<u32, DeviceValue, HASH, 512, NO_PREALLOC>;
    /// Programs of this load of the object.
    cilium_calls: Map<u32, u32, PROG_ARRAY, { slot::ENTRIES as usize }, 0>;
    /// Settings of endpoints by their id.
    ep_config: Map<u32, EndpointConfig, ARRAY, { EP_CONFIG_ENTRIES as usize }, RDONLY_PROG>;
    /// Endpoint ids by interface index, small indexes.
    ep_by_ifindex: Map<u32, u32, ARRAY, { EP_CONFIG_ENTRIES as usize }, RDONLY_PROG>;
    /// Endpoint ids by interface index, the others.
    ep_by_ifindex_hi: Map<u32, u32, HASH, { EP_CONFIG_ENTRIES as usize }, { NO_PREALLOC | RDONLY_PROG }>;
}
