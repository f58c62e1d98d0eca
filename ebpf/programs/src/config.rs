//! Node-wide switches: frozen by the loader, constants to the verifier.

use datapath_abi::NodeConfig;

/// Written by the loader before it loads the programs, under [`NodeConfig::SYMBOL`].
#[unsafe(no_mangle)]
pub(crate) static NODE_CONFIG: NodeConfig = NodeConfig {
    router_ipv6: [0; 4],
    router_ipv4: 0,
    host_ifindex: 0,
    net_ifindex: 0,
    host_endpoint_id: 0,
    trace_payload_len: 0,
    monitor_aggregation: 0,
    enable_ipv4: 0,
    enable_ipv6: 0,
    source_ip_verification: 0,
    arp_responder: 0,
    redirect_peer: 0,
    endpoint_routes: 0,
    drop_notify: 0,
    trace_notify: 0,
    identity_mark: 0,
    reserved: [0; 7],
};

/// One field of [`NODE_CONFIG`]. Read by its own address, so that the verifier sees a constant, and volatile, so
/// that the compiler does not take the zero of the source for it.
macro_rules! node {
    ($field:ident) => {
        // SAFETY: a read of a static.
        unsafe { core::ptr::read_volatile(&raw const $crate::config::NODE_CONFIG.$field) }
    };
}

/// True if a switch is on.
macro_rules! enabled {
    ($field:ident) => {
        node!($field) != 0
    };
}
