//! The compiled datapath programs as bytes.
//!
//! Owns: which object is used. Needs nothing at run time and no eBPF toolchain at build time: the object is in
//! `prebuilt/`, and the build fails when it does not come from the sources beside it (`tools/build-ebpf
//! --update-prebuilt` makes both equal again). `APIARY_EBPF_OBJECT_DIR` names a folder with another `datapath.o`. Source
//! lines are removed, unless `APIARY_EBPF_LINES` is set: a loader would need 25 MB more.
//! Provides: [`datapath`], the names in it, and which program belongs where; [`sock`] for socket load balancing, [`xdp`]
//! for services before the stack.
//!
//! # What a loader does with it
//! 1. Opens or creates the maps of [`MAPS`] and passes the pins to the parser by name. [`CALLS`] is created for
//!    every load: it holds the programs of this load and must stay pinned for as long as they run.
//! 2. Writes a [`datapath_abi::NodeConfig`] to the variable [`NODE_CONFIG`] (frozen `.rodata`: the verifier removes
//!    what is switched off).
//! 3. Loads all programs of [`PROGRAMS`], puts those with a slot into [`CALLS`], and only then attaches the others:
//!    each endpoint and device switches whole, because a new load brings its own array.
//!
//! Nothing here is per endpoint. An endpoint is rows: `ep_config[id]` (an
//! [`EndpointConfig`](datapath_abi::EndpointConfig) with [`LIVE`](datapath_abi::ep_flag::LIVE)), then
//! `ep_by_ifindex[ifindex] = id` (`ep_by_ifindex_hi` from 65536 on), then the program on its interface, then
//! `cilium_lxc` and `cilium_ipcache_v2`. Packets of an interface without rows are dropped with 203.
//!
//! ```
//! let entry = datapath_object::PROGRAMS.iter().filter(|program| program.slot.is_none());
//! assert!(entry.clone().any(|program| program.name == "cil_from_container"));
//! assert_eq!(datapath_object::datapath().as_ptr() as usize % 8, 0);
//! ```

pub mod sock;
pub mod xdp;

use datapath_abi::{NodeConfig, slot};

/// The ELF object with every tc program, aligned as parsers want it.
pub fn datapath() -> &'static [u8] {
    static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(env!("DATAPATH_OBJECT")));
    &OBJECT.0
}

/// The SHA-256 of [`datapath`], as text: two objects with it are equal.
pub const DIGEST: &str = env!("DATAPATH_DIGEST");

#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

/// The variable of node-wide switches, a [`NodeConfig`].
pub const NODE_CONFIG: &str = NodeConfig::SYMBOL;

/// The private program array.
pub const CALLS: &str = "cilium_calls";

/// A program of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name in the object and in the kernel.
    pub name: &'static str,
    /// Its slot in [`CALLS`]; `None` for a program that is attached, or put elsewhere.
    pub slot: Option<u32>,
}

const fn attached(name: &'static str) -> Program {
    Program { name, slot: None }
}

const fn tail(name: &'static str, slot: u32) -> Program {
    Program { name, slot: Some(slot) }
}

/// Ingress of every pod's host-side interface.
pub const FROM_CONTAINER: &str = "cil_from_container";
/// Egress of every pod's host-side interface, only with `enable-endpoint-routes`.
pub const TO_CONTAINER: &str = "cil_to_container";
/// Egress of cilium_host.
pub const FROM_HOST: &str = "cil_from_host";
/// Ingress of cilium_host and of cilium_net.
pub const TO_HOST: &str = "cil_to_host";
/// Ingress of every device of the node.
pub const FROM_NETDEV: &str = "cil_from_netdev";
/// Egress of devices of the node, where something has to be done there.
pub const TO_NETDEV: &str = "cil_to_netdev";
/// Ingress of the tunnel device.
pub const FROM_OVERLAY: &str = "cil_from_overlay";
/// Egress of the tunnel device.
pub const TO_OVERLAY: &str = "cil_to_overlay";
/// Programs that only a node with a tunnel needs.
pub const OVERLAY: [&str; 4] = [FROM_OVERLAY, TO_OVERLAY, "tail_ipv4_from_overlay", "tail_ipv6_from_overlay"];
/// Programs that only services at devices need (`kube-proxy-replacement`).
pub const NODEPORT: [&str; 10] = [
    "tail_nodeport_refusal_ipv4",
    "tail_nodeport_refusal_ipv6",
    "tail_rev_nodeport_lb4",
    "tail_rev_nodeport_lb6",
    "tail_handle_nat_fwd_ipv4",
    "tail_handle_nat_fwd_ipv6",
    "tail_nodeport_nat_egress_ipv4",
    "tail_nodeport_nat_egress_ipv6",
    "tail_nodeport_rev_dnat_ipv4",
    "tail_nodeport_rev_dnat_ipv6",
];
/// Programs that only direct server return needs (`bpf-lb-mode`).
pub const DSR: [&str; 6] = [
    "tail_nodeport_ipv4_dsr",
    "tail_nodeport_ipv6_dsr",
    "tail_nodeport_dsr_receive_ipv4",
    "tail_nodeport_dsr_receive_ipv6",
    "tail_nodeport_dsr_too_big_ipv4",
    "tail_nodeport_dsr_too_big_ipv6",
];
/// Programs that only the removal of outer IP headers needs (`enable-ipip-termination`).
pub const IPIP: [&str; 2] = ["tail_ipip_from_netdev_ipv4", "tail_ipip_from_netdev_ipv6"];
/// Programs that only a node with masquerading of IPv4 in eBPF needs.
pub const MASQUERADE_IPV4: [&str; 2] = ["tail_ipv4_snat_fwd", "tail_ipv4_nat_ingress"];
/// The same for IPv6.
pub const MASQUERADE_IPV6: [&str; 2] = ["tail_ipv6_snat_fwd", "tail_ipv6_nat_ingress"];
/// Programs that only a node with the host firewall needs.
pub const HOST_FIREWALL: [&str; 4] =
    ["tail_ipv4_host_ingress", "tail_ipv6_host_ingress", "tail_ipv4_host_egress", "tail_ipv6_host_egress"];
/// Programs that only a node that answers denied packets needs (`policy-deny-response`).
pub const POLICY_DENIED: [&str; 2] = ["tail_policy_denied_ipv4", "tail_policy_denied_ipv6"];
/// Programs that only translation between the families needs (`enable-nat46x64-gateway`, `bpf-lb-nat46x64`).
pub const NAT46X64: [&str; 2] = ["tail_nat_ipv46", "tail_nat_ipv64"];
/// The way into all pods for callers of another origin: it may stand in `cilium_call_policy` under every endpoint id and
/// finds the endpoint by the packet's destination.
pub const LXC_POLICY: &str = "cil_lxc_policy";

/// All programs.
pub const PROGRAMS: [Program; 56] = [
    attached(FROM_CONTAINER),
    attached(TO_CONTAINER),
    attached(FROM_HOST),
    attached(TO_HOST),
    attached(FROM_NETDEV),
    attached(TO_NETDEV),
    attached(FROM_OVERLAY),
    attached(TO_OVERLAY),
    tail("tail_icmp6_ns", slot::ICMP6_NS),
    tail("tail_icmp6_time_exceeded", slot::ICMP6_TIME_EXCEEDED),
    tail("tail_arp", slot::ARP),
    tail("tail_ipv4_from_lxc", slot::IPV4_FROM_LXC),
    tail("tail_ipv6_from_lxc", slot::IPV6_FROM_LXC),
    tail("tail_ipv4_from_lxc_cont", slot::IPV4_FROM_LXC_CONT),
    tail("tail_ipv6_from_lxc_cont", slot::IPV6_FROM_LXC_CONT),
    attached(LXC_POLICY),
    tail("tail_ipv4_policy", slot::IPV4_POLICY),
    tail("tail_ipv6_policy", slot::IPV6_POLICY),
    tail("tail_ipv4_from_host", slot::IPV4_FROM_HOST),
    tail("tail_ipv6_from_host", slot::IPV6_FROM_HOST),
    tail(HOST_FIREWALL[0], slot::IPV4_HOST_INGRESS),
    tail(HOST_FIREWALL[1], slot::IPV6_HOST_INGRESS),
    tail(HOST_FIREWALL[2], slot::IPV4_HOST_EGRESS),
    tail(HOST_FIREWALL[3], slot::IPV6_HOST_EGRESS),
    tail("tail_ipv4_no_service", slot::IPV4_NO_SERVICE),
    tail("tail_ipv6_no_service", slot::IPV6_NO_SERVICE),
    tail(POLICY_DENIED[0], slot::IPV4_POLICY_DENIED),
    tail(POLICY_DENIED[1], slot::IPV6_POLICY_DENIED),
    tail(MASQUERADE_IPV4[0], slot::IPV4_SNAT_FORWARD),
    tail(MASQUERADE_IPV4[1], slot::IPV4_NAT_INGRESS),
    tail(MASQUERADE_IPV6[0], slot::IPV6_SNAT_FORWARD),
    tail(MASQUERADE_IPV6[1], slot::IPV6_NAT_INGRESS),
    tail("tail_ipv4_from_overlay", slot::IPV4_FROM_OVERLAY),
    tail("tail_ipv6_from_overlay", slot::IPV6_FROM_OVERLAY),
    tail("tail_ipv4_from_netdev", slot::IPV4_FROM_NETDEV),
    tail("tail_ipv6_from_netdev", slot::IPV6_FROM_NETDEV),
    tail("tail_nodeport_refusal_ipv4", slot::IPV4_NODEPORT_REFUSAL),
    tail("tail_nodeport_refusal_ipv6", slot::IPV6_NODEPORT_REFUSAL),
    tail("tail_rev_nodeport_lb4", slot::IPV4_NODEPORT_REVNAT),
    tail("tail_rev_nodeport_lb6", slot::IPV6_NODEPORT_REVNAT),
    tail("tail_handle_nat_fwd_ipv4", slot::IPV4_NODEPORT_NAT_FWD),
    tail("tail_handle_nat_fwd_ipv6", slot::IPV6_NODEPORT_NAT_FWD),
    tail("tail_nodeport_nat_egress_ipv4", slot::IPV4_NODEPORT_NAT_EGRESS),
    tail("tail_nodeport_nat_egress_ipv6", slot::IPV6_NODEPORT_NAT_EGRESS),
    tail(DSR[0], slot::IPV4_NODEPORT_DSR),
    tail(DSR[1], slot::IPV6_NODEPORT_DSR),
    tail(DSR[2], slot::IPV4_NODEPORT_DSR_RECEIVE),
    tail(DSR[3], slot::IPV6_NODEPORT_DSR_RECEIVE),
    tail(DSR[4], slot::IPV4_NODEPORT_DSR_TOO_BIG),
    tail(DSR[5], slot::IPV6_NODEPORT_DSR_TOO_BIG),
    tail("tail_nodeport_rev_dnat_ipv4", slot::IPV4_NODEPORT_REMOTE_REVNAT),
    tail("tail_nodeport_rev_dnat_ipv6", slot::IPV6_NODEPORT_REMOTE_REVNAT),
    tail(IPIP[0], slot::IPV4_IPIP),
    tail(IPIP[1], slot::IPV6_IPIP),
    tail(NAT46X64[0], slot::IPV46_RFC6052),
    tail(NAT46X64[1], slot::IPV64_RFC6052),
];

// A slot of two programs would have the one that is written last, and a packet would meet the wrong one.
const _: () = {
    let mut at = 0;
    while at < PROGRAMS.len() {
        if let Some(slot) = PROGRAMS[at].slot {
            assert!(slot < slot::ENTRIES);
            let mut other = 0;
            while other < at {
                assert!(!matches!(PROGRAMS[other].slot, Some(taken) if taken == slot));
                other += 1;
            }
        }
        at += 1;
    }
};

/// Maps that the programs share with the agent and with tools, by their pinned names. Those that begin with `ep_` are our own.
pub const MAPS: [&str; 46] = [
    "cilium_lxc",
    "cilium_ipcache_v2",
    "cilium_metrics",
    "cilium_events",
    "cilium_signals",
    "cilium_ct4_global",
    "cilium_ct_any4_global",
    "cilium_ct6_global",
    "cilium_ct_any6_global",
    "cilium_ipv4_frag_datagrams",
    "cilium_ipv6_frag_datagrams",
    "cilium_policystats",
    "cilium_lb4_services_v2",
    "cilium_lb6_services_v2",
    "cilium_lb4_backends_v3",
    "cilium_lb6_backends_v3",
    "cilium_lb4_reverse_nat",
    "cilium_lb6_reverse_nat",
    "cilium_lb4_affinity",
    "cilium_lb6_affinity",
    "cilium_lb_affinity_match",
    "cilium_lb4_health",
    "cilium_lb6_health",
    "cilium_skip_lb4",
    "cilium_skip_lb6",
    "cilium_lb4_source_range",
    "cilium_lb6_source_range",
    "cilium_lb4_maglev",
    "cilium_lb6_maglev",
    "cilium_snat_v4_external",
    "cilium_snat_v6_external",
    "cilium_snat_v4_alloc_retries",
    "cilium_snat_v6_alloc_retries",
    "cilium_ipmasq_v4",
    "cilium_ipmasq_v6",
    "cilium_auth_map",
    "cilium_node_map_v2",
    "cilium_subnet_map",
    "cilium_runtime_config",
    "cilium_ratelimit",
    "cilium_devices",
    "ep_config",
    "ep_by_ifindex",
    "ep_by_ifindex_hi",
    "ep_policies",
    "ep_masquerade",
];
