//! The pods, addresses and configurations of the tests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use datapath_abi::{
    NodeConfig, Pod as Plain, RemoteEndpointInfo, ipcache_flag, ipv4_word, ipv6_words, mac_word,
};

/// Verdicts (linux/pkt_cls.h).
pub(crate) const PASS: u32 = 0;
pub(crate) const SHOT: u32 = 2;
pub(crate) const REDIRECT: u32 = 7;

/// The loopback interface: the only one that surely exists, which test runs ask for.
pub(crate) const IFINDEX: u32 = 1;

pub(crate) const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const HOST_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(crate) const HOST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub(crate) const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
pub(crate) const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 9);
pub(crate) const HOST_ENDPOINT: u32 = 1234;
pub(crate) const SERVICE_LOOPBACK_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 42, 1);
pub(crate) const SERVICE_LOOPBACK_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// An endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Pod {
    pub(crate) id: u16,
    pub(crate) identity: u32,
    pub(crate) ifindex: u32,
    pub(crate) ipv4: Ipv4Addr,
    pub(crate) ipv6: Ipv6Addr,
    pub(crate) mac: [u8; 6],
    pub(crate) node_mac: [u8; 6],
    pub(crate) netns_cookie: u32,
}

/// The pod behind [`IFINDEX`].
pub(crate) const A: Pod = Pod {
    id: 11,
    identity: 1001,
    ifindex: IFINDEX,
    ipv4: Ipv4Addr::new(10, 0, 0, 11),
    ipv6: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 11),
    mac: [2, 0, 0, 0, 0, 0xa1],
    node_mac: [2, 0, 0, 0, 0, 0xa2],
    netns_cookie: 0xa3,
};

/// The other pod; identity with bits that the mark keeps elsewhere.
pub(crate) const B: Pod = Pod {
    id: 60012,
    identity: 0x0002_0457,
    ifindex: 4242,
    ipv4: Ipv4Addr::new(10, 0, 0, 12),
    ipv6: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 12),
    mac: [2, 0, 0, 0, 0, 0xb1],
    node_mac: [2, 0, 0, 0, 0, 0xb2],
    netns_cookie: 0,
};

/// The default state of a node.
pub(crate) fn default_config() -> NodeConfig {
    NodeConfig {
        router_ipv6: ipv6_words(ROUTER),
        router_ipv4: ipv4_word(Ipv4Addr::new(10, 0, 0, 1)),
        host_ifindex: 2,
        net_ifindex: 3,
        host_endpoint_id: HOST_ENDPOINT,
        trace_payload_len: 128,
        monitor_aggregation: 3,
        enable_ipv4: 1,
        enable_ipv6: 1,
        source_ip_verification: 1,
        arp_responder: 1,
        redirect_peer: 1,
        endpoint_routes: 0,
        drop_notify: 1,
        trace_notify: 1,
        identity_mark: 1,
        policy_verdict_notify: 1,
        policy_accounting: 1,
        ct_accounting: 0,
        icmp_rules: 1,
        allow_icmp_frag_needed: 1,
        ipv4_fragments: 1,
        ipv6_fragments: 1,
        jiffies_clock: 0,
        ct_report_flags: 7,
        ct_report_interval: 5,
        ct_tcp_lifetime: 8000,
        ct_any_lifetime: 60,
        ct_service_tcp_lifetime: 8000,
        ct_service_any_lifetime: 60,
        ct_service_tcp_grace: 60,
        ct_syn_timeout: 60,
        ct_close_timeout: 10,
        service_loopback_ipv6: ipv6_words(SERVICE_LOOPBACK_V6),
        service_loopback_ipv4: ipv4_word(SERVICE_LOOPBACK_V4),
        ticks_in_256_seconds: 256,
        per_packet_lb: 1,
        empty_services_drop: 1,
        empty_services_reject: 1,
        ..NodeConfig::default()
    }
}

/// A node whose programs bypass the host's stack between pods and the network.
pub(crate) fn host_routing_config() -> NodeConfig {
    NodeConfig { host_routing: 1, ..default_config() }
}

pub(crate) const TUNNEL: u32 = 77;
pub(crate) const TUNNEL_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
pub(crate) const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
pub(crate) const REMOTE_IDENTITY: u32 = 0x00ab_cdef;
pub(crate) const REMOTE_V4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 20);
pub(crate) const REMOTE_V6: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 20);
pub(crate) const REMOTE: [IpAddr; 2] = [IpAddr::V4(REMOTE_V4), IpAddr::V6(REMOTE_V6)];

pub(crate) const VXLAN_PORT: u16 = 8472;

/// A node with a tunnel.
pub(crate) fn tunnel_config() -> NodeConfig {
    NodeConfig {
        host_mac: mac_word(HOST_MAC),
        tunnel_mac: mac_word(TUNNEL_MAC),
        tunnel_ifindex: TUNNEL,
        tunnel_port: VXLAN_PORT.to_be(),
        tunnel: 1,
        ..default_config()
    }
}

/// An ipcache entry behind a node, with IPv4 or IPv6 between nodes.
pub(crate) fn behind(sec_identity: u32, node: IpAddr, flags: u8) -> RemoteEndpointInfo {
    let (tunnel_endpoint, family) = match node {
        IpAddr::V4(node) => ([ipv4_word(node), 0, 0, 0], 0),
        IpAddr::V6(node) => (ipv6_words(node), ipcache_flag::IPV6_TUNNEL_ENDPOINT),
    };
    let flags = flags | family | ipcache_flag::HAS_TUNNEL_ENDPOINT;
    RemoteEndpointInfo { sec_identity, tunnel_endpoint, flags, ..Plain::zeroed() }
}
