//! Switches: frozen by the loader, so that the verifier treats them as constants.

use datapath_abi::SockConfig;

/// Written by the loader before it loads the programs, under [`SockConfig::SYMBOL`].
#[unsafe(no_mangle)]
pub(crate) static SOCK_CONFIG: SockConfig = SockConfig {
    host_netns_cookie: 0,
    ticks_in_256_seconds: 0,
    node_port_first: 0,
    node_port_last: 0,
    enable_ipv4: 0,
    enable_ipv6: 0,
    host_only: 0,
    empty_services_drop: 0,
    external_ip_mitigation: 0,
    jiffies_clock: 0,
    set_retval: 0,
    trace_sock: 0,
    trace_interval: 0,
    monitor_aggregation: 0,
    probes: 0,
    pad: [0; 3],
};

/// Reads a field of [`SOCK_CONFIG`]: volatile and by its own address, so that the verifier sees a constant.
macro_rules! setting {
    ($field:ident) => {
        // SAFETY: reads an initialized static that only the loader writes, before the program runs.
        unsafe { core::ptr::read_volatile(&raw const $crate::config::SOCK_CONFIG.$field) }
    };
}

/// True if a switch is enabled.
macro_rules! enabled {
    ($field:ident) => {
        setting!($field) != 0
    };
}
