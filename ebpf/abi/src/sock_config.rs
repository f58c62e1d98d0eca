//! Switches of socket load balancing: one frozen `.rodata` variable of its object.

use crate::pod::layout;

/// The variable `SOCK_CONFIG` of the object of socket load balancing, frozen as
/// [`NodeConfig`](crate::NodeConfig) is. Switches are 0 or 1.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct SockConfig {
    /// Cookie of the host's network namespace; 0 if the kernel does not report it, which makes it the initial one.
    pub host_netns_cookie: u64,
    /// Units of the clock in 256 seconds.
    pub ticks_in_256_seconds: u32,
    /// First port for NodePort services (`node-port-range`).
    pub node_port_first: u16,
    /// Last port for NodePort services.
    pub node_port_last: u16,
    /// Translate to IPv4 backends (`enable-ipv4`).
    pub enable_ipv4: u8,
    /// Translate to IPv6 backends (`enable-ipv6`).
    pub enable_ipv6: u8,
    /// Translate only sockets of the host's network namespace (`bpf-lb-sock-hostns-only`).
    pub host_only: u8,
    /// Refuse connections to services without backends (`enable-no-service-endpoints-routable`).
    pub empty_services_drop: u8,
    /// Translate external IPs only if they are addresses of this node, so that a service cannot divert the traffic to
    /// an address of others (unless `disable-external-ip-mitigation`).
    pub external_ip_mitigation: u8,
    /// The clock is jiffies >> 8, not seconds (`enable-bpf-clock-probe`).
    pub jiffies_clock: u8,
    /// The kernel has `bpf_set_retval` (Linux 5.18): refusals have an errno of their own instead of EPERM.
    pub set_retval: u8,
    /// Emit trace events of sockets (`trace-sock`).
    pub trace_sock: u8,
    /// Interval of these events with aggregation, in nanoseconds (`monitor-aggregation-interval`).
    pub trace_interval: u64,
    /// [Aggregation level](crate::trace::aggregation) of these events (`monitor-aggregation`).
    pub monitor_aggregation: u32,
    /// Sockets of health probes name the backend that they ask, with [`PROBE`](crate::mark::PROBE)
    /// (`bpf-lb-ipip-sock-mark`).
    pub probes: u8,
    /// Zero.
    pub pad: [u8; 3],
}
layout!(SockConfig, 40, {
    host_netns_cookie: 0, ticks_in_256_seconds: 8, node_port_first: 12, node_port_last: 14, enable_ipv4: 16,
    enable_ipv6: 17, host_only: 18, empty_services_drop: 19, external_ip_mitigation: 20, jiffies_clock: 21,
    set_retval: 22, trace_sock: 23, trace_interval: 24, monitor_aggregation: 32, probes: 36,
    pad: 37,
});

impl SockConfig {
    /// Name of the variable.
    pub const SYMBOL: &str = "SOCK_CONFIG";
}
