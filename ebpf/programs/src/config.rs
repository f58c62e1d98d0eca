//! Node-wide switches: frozen by the loader, so that the verifier treats them as constants.

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
    policy_verdict_notify: 0,
    policy_accounting: 0,
    ct_accounting: 0,
    icmp_rules: 0,
    allow_icmp_frag_needed: 0,
    ipv4_fragments: 0,
    ipv6_fragments: 0,
    jiffies_clock: 0,
    ct_report_flags: 0,
    sctp: 0,
    extended_protocols: 0,
    ct_report_interval: 0,
    ct_tcp_lifetime: 0,
    ct_any_lifetime: 0,
    ct_service_tcp_lifetime: 0,
    ct_service_any_lifetime: 0,
    ct_service_tcp_grace: 0,
    ct_syn_timeout: 0,
    ct_close_timeout: 0,
    service_loopback_ipv6: [0; 4],
    service_loopback_ipv4: 0,
    ticks_in_256_seconds: 0,
    per_packet_lb: 0,
    empty_services_drop: 0,
    empty_services_reject: 0,
    host_routing: 0,
    host_mac: 0,
    tunnel_mac: 0,
    tunnel_ifindex: 0,
    tunnel_port: 0,
    tunnel: 0,
    masquerade_ipv4: 0,
    masquerade_ipv6: 0,
    nodeport: 0,
    ip_masq_agent: 0,
    remote_node_masquerade: 0,
    snat_min_port: 0,
    nodeport_min: 0,
    nodeport_max: 0,
    maglev: 0,
    algorithm_annotation: 0,
    maglev_table_size: 0,
    maglev_seed_ipv4: 0,
    maglev_seed_ipv6: 0,
    dsr: 0,
    dsr_dispatch: 0,
    dsr_icmp: 0,
    host_firewall: 0,
    dynamic_source: 0,
    before_services: 0,
    xdp_prefilter: 0,
    mesh_auth: 0,
    policy_deny_response: 0,
    nat46x64: 0,
    nat46x64_gateway: 0,
    vlan_filter: 0,
    vlans: [0; NodeConfig::VLANS],
    tunnel_source_ports: [0; 2],
    tunnel_geneve: 0,
    hybrid: 0,
    rss_ipv6: [0; 4],
    rss_host_ipv6: [0; 4],
    rss_ipv4: 0,
    rss_host_ipv4: 0,
    ipip_ifindex_ipv4: 0,
    ipip_ifindex_ipv6: 0,
    probes: 0,
    fib_flags: 0,
    bpf_tproxy: 0,
    pad: [0; 5],
};

/// Reads a field of [`NODE_CONFIG`]. By its own address, so that the verifier sees a constant; volatile, so that the
/// compiler does not replace it by the zero of the initializer.
macro_rules! node {
    ($field:ident) => {
        // SAFETY: reads an initialized static that only the loader writes, before the program runs.
        unsafe { core::ptr::read_volatile(&raw const $crate::config::NODE_CONFIG.$field) }
    };
}

/// True if a switch is enabled.
macro_rules! enabled {
    ($field:ident) => {
        node!($field) != 0
    };
}
