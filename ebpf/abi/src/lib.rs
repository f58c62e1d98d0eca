//! Keys, values, constants and events shared by the datapath, the agent and the command line.
//!
//! Owns: the byte layouts of Cilium's pinned maps and perf events, of our own maps ([`EndpointConfig`],
//! [`NodeConfig`]) and the codes that travel in them. Needs nothing: `no_std`, no dependencies, the same source
//! is compiled for the kernel and for the host. Provides: `#[repr(C)]` structs with sizes and offsets that are checked
//! at compile time, the marker [`Pod`], and tables that convert codes into the names that Cilium prints.
//!
//! Byte order follows Cilium's maps: addresses and ports are kept as on the wire (a field holds the bytes of the
//! packet on any machine), identities, endpoint ids, interface indexes, counters and prefix lengths are in
//! host order. Feature `user` adds `Debug`, `PartialEq`, `Eq` and `Hash`; the eBPF build leaves them out.
//!
//! ```
//! use core::net::Ipv4Addr;
//! use datapath_abi::{EndpointKey, Pod};
//!
//! let key = EndpointKey::v4(Ipv4Addr::new(10, 0, 0, 7));
//! assert_eq!(key.as_bytes()[..4], [10, 0, 0, 7]);
//! assert_eq!(key.ip(), Some(Ipv4Addr::new(10, 0, 0, 7).into()));
//! ```
#![no_std]
#![expect(unsafe_code, reason = "plain data is turned into bytes and back at the kernel boundary")]

mod address;
mod conntrack;
pub mod drop;
pub mod dsr;
mod endpoint;
pub mod event;
pub mod file;
pub mod identity;
mod ipcache;
mod lb;
pub mod mark;
mod metrics;
mod nat;
pub mod nat46x64;
mod node;
mod node_config;
mod pod;
mod policy;
pub mod ratelimit;
pub mod runtime_config;
pub mod signal;
pub mod slot;
pub mod snat;
mod sock_config;
mod subnet;
pub mod trace;

pub use address::{
    FAMILY_V4, FAMILY_V6, ipv4_from_word, ipv4_word, ipv6_from_words, ipv6_words, mac_from_word, mac_word,
};
pub use conntrack::{
    CtEntry, CtTuple, CtTuple4, CtTuple6, FragmentKey4, FragmentKey6, FragmentPorts, ct_flag, tuple_flag,
};
pub use endpoint::{EP_CONFIG_ENTRIES, EndpointConfig, EndpointInfo, EndpointKey, ep_flag, lxc_flag};
pub use ipcache::{IpcacheKey, RemoteEndpointInfo, ipcache_flag};
pub use lb::{
    LbAffinity, LbAffinityKey, LbAffinityKey4, LbAffinityKey6, LbAffinityMatch, LbBackend, LbBackend4,
    LbBackend6, LbReverseNat, LbReverseNat4, LbReverseNat6, LbReverseSk, LbReverseSk4, LbReverseSk6,
    LbReverseSkKey, LbReverseSkKey4, LbReverseSkKey6, LbService, LbServiceKey, LbServiceKey4, LbServiceKey6,
    LbSourceRange, LbSourceRange4, LbSourceRange6, MAGLEV_TEMPLATE_SIZE, SkipLb4Key, SkipLb6Key,
    lb_algorithm, lb_backend_state, lb_flag, lb_flag2, lb_scope,
};
pub use metrics::{MetricsKey, MetricsValue, direction, metric};
pub use nat::{
    DIRECT_ROUTING, IpMasqKey, IpMasqKey4, IpMasqKey6, MasqueradeAddresses, NatEntry, NatEntry4, NatEntry6,
    NatKey, NatKey4, NatKey6, PrefilterKey4, PrefilterKey6,
};
pub use node::{DeviceValue, NodeKey, NodeValue};
pub use node_config::{NodeConfig, before_services, fib_flag, vlan_filter};
pub use pod::Pod;
pub use policy::{PolicyEntry, PolicyKey, PolicyStatsKey, PolicyStatsValue, policy_flag, policy_match};
pub use sock_config::SockConfig;
pub use subnet::{NO_SUBNET, SubnetKey};
