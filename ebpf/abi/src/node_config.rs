//! Node-wide switches: one frozen `.rodata` variable of the object.

use crate::pod::layout;

/// The variable `NODE_CONFIG` of every object. The loader writes it before the programs are loaded and freezes it, so
/// that the verifier treats its fields as constants and removes the code of disabled features.
///
/// Switches are 0 or 1. [`Self::default`] is the value in an object until a loader sets it: everything disabled.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct NodeConfig {
    /// The router's IPv6 address (CiliumInternalIP) as on the wire; neighbour solicitations for it are answered.
    pub router_ipv6: [u32; 4],
    /// The router's IPv4 address as on the wire.
    pub router_ipv4: u32,
    /// Interface index of cilium_host.
    pub host_ifindex: u32,
    /// Interface index of cilium_net.
    pub net_ifindex: u32,
    /// Id of the host endpoint: the `source` of events of the host programs.
    pub host_endpoint_id: u32,
    /// Maximum bytes of a packet in a trace or drop event (`trace-payloadlen`).
    pub trace_payload_len: u32,
    /// [Aggregation](crate::trace::aggregation) of trace events.
    pub monitor_aggregation: u32,
    /// Forward IPv4 (`enable-ipv4`).
    pub enable_ipv4: u8,
    /// Forward IPv6 (`enable-ipv6`).
    pub enable_ipv6: u8,
    /// Check source addresses of pods if their settings entry requires it (`enable-source-ip-verification`).
    pub source_ip_verification: u8,
    /// Answer ARP requests of pods (off in some chained setups).
    pub arp_responder: u8,
    /// Deliver packets of pods to pods of the node with `bpf_redirect_peer`.
    pub redirect_peer: u8,
    /// Deliver by the pod's interface, where `cil_to_container` applies policy (`enable-endpoint-routes`).
    pub endpoint_routes: u8,
    /// Send drop events (`DropNotification`).
    pub drop_notify: u8,
    /// Send trace events (`TraceNotification`).
    pub trace_notify: u8,
    /// Encode the source identity in the mark of forwarded packets (`enable-identity-mark`).
    pub identity_mark: u8,
    /// Send policy verdict events (`PolicyVerdictNotification`).
    pub policy_verdict_notify: u8,
    /// Count packets and bytes of policy entries (`policy-accounting`).
    pub policy_accounting: u8,
    /// Count packets and bytes of connections (`bpf-conntrack-accounting`).
    pub ct_accounting: u8,
    /// Apply policy to ICMP messages by type (`enable-icmp-rules`).
    pub icmp_rules: u8,
    /// Allow ICMP "fragmentation needed" regardless of policy (`allow-icmp-frag-needed`).
    pub allow_icmp_frag_needed: u8,
    /// Track IPv4 fragments (`enable-ipv4-fragment-tracking`).
    pub ipv4_fragments: u8,
    /// Track IPv6 fragments (`enable-ipv6-fragment-tracking`).
    pub ipv6_fragments: u8,
    /// The clock is jiffies >> 8, not seconds (`enable-bpf-clock-probe`).
    pub jiffies_clock: u8,
    /// TCP flags of which the first occurrence is reported (`monitor-aggregation-flags`), as in the TCP header.
    pub ct_report_flags: u8,
    /// Track SCTP (`enable-sctp`).
    pub sctp: u8,
    /// Track other protocols by addresses alone (`enable-extended-ip-protocols`).
    pub extended_protocols: u8,
    /// Interval of events per established connection (`monitor-aggregation-interval`), in units of the clock, as all
    /// times below.
    pub ct_report_interval: u32,
    /// Timeout of an established TCP connection (`bpf-ct-timeout-regular-tcp`).
    pub ct_tcp_lifetime: u32,
    /// Timeout of other connections (`bpf-ct-timeout-regular-any`).
    pub ct_any_lifetime: u32,
    /// Timeout of the service entry of an established TCP connection (`bpf-ct-timeout-service-tcp`).
    pub ct_service_tcp_lifetime: u32,
    /// Timeout of other service entries (`bpf-ct-timeout-service-any`).
    pub ct_service_any_lifetime: u32,
    /// Grace period in which SYN|ACK may use a closed service entry (`bpf-ct-timeout-service-tcp-grace`).
    pub ct_service_tcp_grace: u32,
    /// Timeout of a TCP connection of which only the SYN was seen (`bpf-ct-timeout-regular-tcp-syn`).
    pub ct_syn_timeout: u32,
    /// Timeout of a TCP connection that both sides have closed (`bpf-ct-timeout-regular-tcp-fin`).
    pub ct_close_timeout: u32,
    /// Source of an IPv6 packet that a pod sends to itself through a service, as on the wire
    /// (`ipv6-service-loopback-address`).
    pub service_loopback_ipv6: [u32; 4],
    /// The same for IPv4 (`ipv4-service-loopback-address`).
    pub service_loopback_ipv4: u32,
    /// Units of the clock in 256 seconds.
    pub ticks_in_256_seconds: u32,
    /// Translate services at the pods' interfaces (disabled with socket load balancing).
    pub per_packet_lb: u8,
    /// Reject packets to services without backends, instead of leaving them to the routes of the node
    /// (`enable-no-service-endpoints-routable`).
    pub empty_services_drop: u8,
    /// Send an ICMP error for these packets (`service-no-backend-response=reject`).
    pub empty_services_reject: u8,
    /// Deliver packets of devices with `bpf_redirect_peer`, bypassing the host's stack (host routing). Only if packets
    /// of pods bypass it as well: else connection tracking of the host would see only one direction.
    pub host_routing: u8,
    /// MAC address of cilium_host ([`mac_word`](crate::mac_word)): packets of the tunnel to the host are sent to it.
    pub host_mac: u64,
    /// MAC address of the tunnel device.
    pub tunnel_mac: u64,
    /// Interface index of the tunnel device; 0 if it could not be created.
    pub tunnel_ifindex: u32,
    /// UDP port of the tunnel as on the wire.
    pub tunnel_port: u16,
    /// Encapsulate packets to addresses with a tunnel endpoint (`routing-mode`).
    pub tunnel: u8,
    /// Masquerade IPv4 packets of pods at the devices (`enable-bpf-masquerade` with `enable-ipv4-masquerade`).
    pub masquerade_ipv4: u8,
    /// The same for IPv6.
    pub masquerade_ipv6: u8,
    /// Serve frontends of services at the devices (`kube-proxy-replacement`).
    pub nodeport: u8,
    /// Keep the address of packets to ranges of `cilium_ipmasq_v4` and `cilium_ipmasq_v6` (`enable-ip-masq-agent`).
    pub ip_masq_agent: u8,
    /// Masquerade packets to other nodes (`enable-remote-node-masquerade`).
    pub remote_node_masquerade: u8,
    /// The lowest port of translations, in the machine's byte order: behind `node-port-range`.
    pub snat_min_port: u16,
    /// The first port of services at nodes (`node-port-range`), in the machine's byte order.
    pub nodeport_min: u16,
    /// The last one.
    pub nodeport_max: u16,
    /// Devices choose backends by Maglev tables unless the service's entry says otherwise (`bpf-lb-algorithm`).
    pub maglev: u8,
    /// The algorithm in a service's entry decides (`bpf-lb-algorithm-annotation`).
    pub algorithm_annotation: u8,
    /// Positions of a Maglev table (`bpf-lb-maglev-table-size`); 0 if there are no tables.
    pub maglev_table_size: u32,
    /// Seed of the hash of IPv4 flows (the second word of `bpf-lb-maglev-hash-seed`).
    pub maglev_seed_ipv4: u32,
    /// The same for IPv6 (the third word).
    pub maglev_seed_ipv6: u32,
    /// Services with direct replies of backends on other nodes to clients, one of [`dsr`](crate::dsr) (`bpf-lb-mode`).
    pub dsr: u8,
    /// How backends of other nodes learn the frontend, one of [`dispatch`](crate::dsr::dispatch) (`bpf-lb-dsr-dispatch`).
    pub dsr_dispatch: u8,
    /// Answer packets that get too long by the option with an ICMP error (`enable-pmtu-discovery`).
    pub dsr_icmp: u8,
    /// Apply the host endpoint's policy to packets from and to the host (`enable-host-firewall`).
    pub host_firewall: u8,
    /// The source of packets to backends of other nodes is that of the host's route
    /// (`enable-dynamic-source-lookup-nodeport`).
    pub dynamic_source: u8,
    /// Steps of devices before services are looked up, bits of [`before_services`].
    pub before_services: u8,
    /// They drop packets of listed senders (`enable-xdp-prefilter`).
    pub xdp_prefilter: u8,
    /// Look up authentications that policies require (`mesh-auth-enabled`); without it their packets are dropped.
    pub mesh_auth: u8,
    /// Answer packets of pods that policy denies with an ICMP error (`policy-deny-response=icmp`).
    pub policy_deny_response: u8,
    /// Translate between the families for services with backends of the other one (`bpf-lb-nat46x64`) or for the gateway.
    pub nat46x64: u8,
    /// Be a gateway between the families (`enable-nat46x64-gateway`): [`nat46x64`](crate::nat46x64).
    pub nat46x64_gateway: u8,
    /// Packets of VLANs that devices pass, one of [`vlan_filter`] (`vlan-bpf-bypass`).
    pub vlan_filter: u8,
    /// The ids of these VLANs; zero for none.
    pub vlans: [u16; Self::VLANS],
    /// The lowest and the highest UDP source port of the tunnel, in the machine's byte order
    /// (`tunnel-source-port-range`); programs of XDP encapsulate themselves.
    pub tunnel_source_ports: [u16; 2],
    /// The tunnel is one of Geneve, else of VXLAN (`tunnel-protocol`).
    pub tunnel_geneve: u8,
    /// Route packets between addresses of one group of `cilium_subnet_map` natively (`routing-mode=hybrid`).
    pub hybrid: u8,
    /// Source of outer headers that programs of XDP write for direct server return by IPIP, as on the wire
    /// (`bpf-lb-rss-ipv6-src-cidr`); zero for the node's address.
    pub rss_ipv6: [u32; 4],
    /// The bits of that source that a hash of the flow decides.
    pub rss_host_ipv6: [u32; 4],
    /// The same for IPv4 (`bpf-lb-rss-ipv4-src-cidr`).
    pub rss_ipv4: u32,
    /// The bits that a hash of the flow decides.
    pub rss_host_ipv4: u32,
    /// Interface index of the device that adds outer headers of IPv4; 0 if it could not be created.
    pub ipip_ifindex_ipv4: u32,
    /// The same for IPv6.
    pub ipip_ifindex_ipv6: u32,
    /// Packets of health probes leave in an outer header to the backend that their socket names
    /// (`bpf-lb-ipip-sock-mark`).
    pub probes: u8,
    /// Flags of tc programs' lookups of routes ([`fib_flag`]); those of XDP have none, as they need MAC addresses.
    pub fib_flags: u8,
    /// Give packets for proxies to their sockets, without rules of iptables (`enable-bpf-tproxy`).
    pub bpf_tproxy: u8,
    /// Zero.
    pub pad: [u8; 5],
}
layout!(NodeConfig, 272, {
    router_ipv6: 0, router_ipv4: 16, host_ifindex: 20, net_ifindex: 24, host_endpoint_id: 28, trace_payload_len: 32,
    monitor_aggregation: 36, enable_ipv4: 40, enable_ipv6: 41, source_ip_verification: 42, arp_responder: 43,
    redirect_peer: 44, endpoint_routes: 45, drop_notify: 46, trace_notify: 47, identity_mark: 48, policy_verdict_notify: 49,
    policy_accounting: 50, ct_accounting: 51, icmp_rules: 52, allow_icmp_frag_needed: 53, ipv4_fragments: 54,
    ipv6_fragments: 55, jiffies_clock: 56, ct_report_flags: 57, sctp: 58, extended_protocols: 59, ct_report_interval: 60,
    ct_tcp_lifetime: 64, ct_any_lifetime: 68, ct_service_tcp_lifetime: 72, ct_service_any_lifetime: 76,
    ct_service_tcp_grace: 80, ct_syn_timeout: 84, ct_close_timeout: 88,
    service_loopback_ipv6: 92, service_loopback_ipv4: 108, ticks_in_256_seconds: 112, per_packet_lb: 116, empty_services_drop: 117,
    empty_services_reject: 118, host_routing: 119, host_mac: 120, tunnel_mac: 128, tunnel_ifindex: 136, tunnel_port: 140,
    tunnel: 142, masquerade_ipv4: 143, masquerade_ipv6: 144, nodeport: 145, ip_masq_agent: 146,
    remote_node_masquerade: 147, snat_min_port: 148, nodeport_min: 150, nodeport_max: 152,
    maglev: 154, algorithm_annotation: 155, maglev_table_size: 156, maglev_seed_ipv4: 160, maglev_seed_ipv6: 164,
    dsr: 168, dsr_dispatch: 169, dsr_icmp: 170, host_firewall: 171, dynamic_source: 172, before_services: 173, xdp_prefilter: 174, mesh_auth: 175,
    policy_deny_response: 176, nat46x64: 177, nat46x64_gateway: 178, vlan_filter: 179, vlans: 180,
    tunnel_source_ports: 210, tunnel_geneve: 214, hybrid: 215,
    rss_ipv6: 216, rss_host_ipv6: 232, rss_ipv4: 248, rss_host_ipv4: 252, ipip_ifindex_ipv4: 256, ipip_ifindex_ipv6: 260,
    probes: 264, fib_flags: 265, bpf_tproxy: 266, pad: 267,
});

impl NodeConfig {
    /// Name of the variable.
    pub const SYMBOL: &str = "NODE_CONFIG";
    /// Number of ids of VLANs.
    pub const VLANS: usize = 15;
}

/// Flags of lookups of routes (linux/bpf.h, `BPF_FIB_LOOKUP_*`).
pub mod fib_flag {
    /// Leave the MAC address of the next hop to the kernel, which finds it when it sends the packet (Linux 6.3).
    pub const SKIP_NEIGHBOUR: u8 = 4;
}

/// Steps of devices before services are looked up.
pub mod before_services {
    /// Programs of XDP may have handled the packet (`bpf-lb-acceleration`).
    pub const XDP: u8 = 1;
    /// Outer IP headers to addresses of this node are removed (`enable-ipip-termination`).
    pub const IPIP: u8 = 2;
}

/// Which packets with a VLAN's id programs of devices pass as they are; the VLAN's own device has them next.
pub mod vlan_filter {
    /// The id is not evaluated: packets are handled as those without one.
    pub const OFF: u8 = 0;
    /// Those of listed VLANs; others are dropped.
    pub const LISTED: u8 = 1;
    /// All.
    pub const ALL: u8 = 2;
}
