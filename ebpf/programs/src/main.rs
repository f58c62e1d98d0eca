//! The datapath: every program that the agent attaches, in one object, so that all of them share one private
//! program array and an upgrade switches them together.
//!
//! This file declares the programs by name and hook; the code is in the folders below. Each `mod.rs` names what it owns
//! and which siblings it uses:
//!
//! | folder | owns |
//! |---|---|
//! | [`pod`] | interfaces of pods: from and to a pod, answers to ARP, neighbour discovery and refused packets |
//! | [`host`] | `cilium_host` and `cilium_net`, the host firewall |
//! | [`device`] | devices of the node |
//! | [`overlay`] | the tunnel between nodes: from and to it, encapsulation |
//! | [`lb`], [`nat`] | services: choice of a backend, replies; addresses, ports and checksums in the packet |
//! | [`nodeport`] | services for clients outside the cluster, at devices |
//! | [`nat46x64`] | translation between the IP families: services and the gateway |
//! | [`snat`] | masquerading at the devices |
//! | [`conntrack`] | connections |
//! | [`policy`] | verdicts of an endpoint's policy map |
//! | [`endpoint`] | endpoints, identities of addresses, delivery |
//! | [`packet`] | context, headers, IP families, flows and fragments |
//! | [`monitor`] | drops, trace points, metrics |
//! | [`maps`], [`config`] | the maps and the node-wide constants |
//!
//! Differences from Cilium 1.20, held by tests in `ebpf/object/tests` but for the last:
//! - Fragments of ICMP are tracked like others, where Cilium drops them: large pings pass.
//! - Four IPv6 extension headers pass, where Cilium allows three; RFC 8200 has no limit.
//! - An allowed ICMP packet counts for the policy entry of its type, so `bpf policy get` shows it there; Cilium counts
//! it   under the packet's port, for which there is no entry.
//! - A packet to a service without backends that is left to the node's routes (`enable-no-service-endpoints-routable`
//!   false) is subject to egress policy, which Cilium skips.
//! - Without `mesh-auth-enabled`, authentications in the map are not looked up, and nothing is signalled.
//! - A service without a Maglev table gets random backends, where Cilium drops packets with 158.
//! - `cil_to_netdev` is attached, and TO_NETWORK events and metrics exist, with `kube-proxy-replacement`,
//!   `enable-bpf-masquerade` or `enable-host-firewall`; encryption, which needs it as well, is not implemented.
//! - A pod's packet to the host meets the host's policy at the pod's interface, not at `cilium_host`.
//! - Neighbour discovery of a pod is for the link: with another hop limit than 255, or to a destination that the stack
//!   would forward it to, an advertisement is a packet like others, whose source and policy are checked; Cilium passes it.
//! - Packets of devices without Ethernet headers are not subject to the host firewall.
//!
//! Rules that the verifier requires: no panics, no slices, packet pointers checked by [`packet::skb::Skb::header`] and
//! reloaded after every helper that moves the packet, context and `.rodata` fields read one by one.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

#[macro_use]
mod config;
#[macro_use]
mod monitor;

mod conntrack;
mod device;
mod endpoint;
mod host;
mod lb;
mod maps;
mod nat;
mod nat46x64;
mod nodeport;
mod overlay;
mod packet;
mod pod;
mod policy;
mod snat;

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use host::firewall;
use nodeport::{dsr, ipip, refusal, remote, reply};
use packet::ipv4::V4;
use packet::ipv6::V6;
use pod::{arp, container, denied, ndp, no_service};
use snat::masquerade;

/// Ingress of a pod's host-side interface: all packets that a pod sends.
#[classifier]
pub fn cil_from_container(ctx: TcContext) -> i32 {
    container::from_container((&ctx).into())
}

/// IPv4 from a pod.
#[classifier]
pub fn tail_ipv4_from_lxc(ctx: TcContext) -> i32 {
    container::from_lxc::<V4>((&ctx).into())
}

/// IPv6 from a pod.
#[classifier]
pub fn tail_ipv6_from_lxc(ctx: TcContext) -> i32 {
    container::from_lxc::<V6>((&ctx).into())
}

/// IPv4 from a pod, after service translation.
#[classifier]
pub fn tail_ipv4_from_lxc_cont(ctx: TcContext) -> i32 {
    container::forward_from_lxc::<V4>((&ctx).into())
}

/// IPv6 from a pod, after service translation.
#[classifier]
pub fn tail_ipv6_from_lxc_cont(ctx: TcContext) -> i32 {
    container::forward_from_lxc::<V6>((&ctx).into())
}

/// ARP from a pod.
#[classifier]
pub fn tail_arp(ctx: TcContext) -> i32 {
    arp::handle((&ctx).into())
}

/// Neighbour solicitations from a pod.
#[classifier]
pub fn tail_icmp6_ns(ctx: TcContext) -> i32 {
    ndp::handle((&ctx).into())
}

/// Replies to an IPv6 packet from a pod with an exhausted hop limit.
#[classifier]
pub fn tail_icmp6_time_exceeded(ctx: TcContext) -> i32 {
    ndp::time_exceeded((&ctx).into())
}

/// Rejects an IPv4 packet from a pod to a service without backends.
#[classifier]
pub fn tail_ipv4_no_service(ctx: TcContext) -> i32 {
    no_service::handle_ipv4((&ctx).into())
}

/// Rejects an IPv6 packet from a pod to a service without backends.
#[classifier]
pub fn tail_ipv6_no_service(ctx: TcContext) -> i32 {
    no_service::handle_ipv6((&ctx).into())
}

/// Replies to an IPv4 packet from a pod that policy denies.
#[classifier]
pub fn tail_policy_denied_ipv4(ctx: TcContext) -> i32 {
    denied::handle_ipv4((&ctx).into())
}

/// Replies to an IPv6 packet from a pod that policy denies.
#[classifier]
pub fn tail_policy_denied_ipv6(ctx: TcContext) -> i32 {
    denied::handle_ipv6((&ctx).into())
}

/// The last step into a pod, tail-called by programs of other loaders.
#[classifier]
pub fn cil_lxc_policy(ctx: TcContext) -> i32 {
    container::policy((&ctx).into())
}

/// The last step into a pod, IPv4.
#[classifier]
pub fn tail_ipv4_policy(ctx: TcContext) -> i32 {
    container::policy_of::<V4>((&ctx).into())
}

/// The last step into a pod, IPv6.
#[classifier]
pub fn tail_ipv6_policy(ctx: TcContext) -> i32 {
    container::policy_of::<V6>((&ctx).into())
}

/// Egress of a pod's host-side interface, with endpoint routes: packets from the stack to a pod.
#[classifier]
pub fn cil_to_container(ctx: TcContext) -> i32 {
    container::to_container((&ctx).into())
}

/// Egress of cilium_host: packets that the host routes to pods.
#[classifier]
pub fn cil_from_host(ctx: TcContext) -> i32 {
    host::from_host((&ctx).into())
}

/// IPv4 from the host.
#[classifier]
pub fn tail_ipv4_from_host(ctx: TcContext) -> i32 {
    host::to_pods::<V4>((&ctx).into())
}

/// IPv6 from the host.
#[classifier]
pub fn tail_ipv6_from_host(ctx: TcContext) -> i32 {
    host::to_pods::<V6>((&ctx).into())
}

/// IPv4 to the host, with the host firewall.
#[classifier]
pub fn tail_ipv4_host_ingress(ctx: TcContext) -> i32 {
    firewall::ingress::<V4>((&ctx).into())
}

/// IPv6 to the host, with the host firewall.
#[classifier]
pub fn tail_ipv6_host_ingress(ctx: TcContext) -> i32 {
    firewall::ingress::<V6>((&ctx).into())
}

/// IPv4 of the host, with the host firewall.
#[classifier]
pub fn tail_ipv4_host_egress(ctx: TcContext) -> i32 {
    firewall::egress::<V4>((&ctx).into())
}

/// IPv6 of the host, with the host firewall.
#[classifier]
pub fn tail_ipv6_host_egress(ctx: TcContext) -> i32 {
    firewall::egress::<V6>((&ctx).into())
}

/// Ingress of cilium_host and cilium_net: into the host's stack.
#[classifier]
pub fn cil_to_host(ctx: TcContext) -> i32 {
    host::to_host((&ctx).into())
}

/// Ingress of a device of the node.
#[classifier]
pub fn cil_from_netdev(ctx: TcContext) -> i32 {
    device::from_netdev((&ctx).into())
}

/// IPv4 from a device of the node.
#[classifier]
pub fn tail_ipv4_from_netdev(ctx: TcContext) -> i32 {
    device::to_pods::<V4>((&ctx).into())
}

/// IPv6 from a device of the node.
#[classifier]
pub fn tail_ipv6_from_netdev(ctx: TcContext) -> i32 {
    device::to_pods::<V6>((&ctx).into())
}

/// IPv4 in an outer header, from a device of the node.
#[classifier]
pub fn tail_ipip_from_netdev_ipv4(ctx: TcContext) -> i32 {
    ipip::receive::<V4>((&ctx).into())
}

/// IPv6 in an outer header, from a device of the node.
#[classifier]
pub fn tail_ipip_from_netdev_ipv6(ctx: TcContext) -> i32 {
    ipip::receive::<V6>((&ctx).into())
}

/// Egress of a device of the node.
#[classifier]
pub fn cil_to_netdev(ctx: TcContext) -> i32 {
    device::to_netdev((&ctx).into())
}

/// Rejects an IPv4 packet from a device to a service without backends.
#[classifier]
pub fn tail_nodeport_refusal_ipv4(ctx: TcContext) -> i32 {
    refusal::refuse_ipv4((&ctx).into())
}

/// Rejects an IPv6 packet from a device to a service without backends.
#[classifier]
pub fn tail_nodeport_refusal_ipv6(ctx: TcContext) -> i32 {
    refusal::refuse_ipv6((&ctx).into())
}

/// Replies of pods to IPv4 clients of services at devices.
#[classifier]
pub fn tail_rev_nodeport_lb4(ctx: TcContext) -> i32 {
    reply::from_pod::<V4>((&ctx).into())
}

/// Replies of pods to IPv6 clients of services at devices.
#[classifier]
pub fn tail_rev_nodeport_lb6(ctx: TcContext) -> i32 {
    reply::from_pod::<V6>((&ctx).into())
}

/// IPv4 that a device sends, with services at devices.
#[classifier]
pub fn tail_handle_nat_fwd_ipv4(ctx: TcContext) -> i32 {
    reply::at_device::<V4>((&ctx).into())
}

/// IPv6 that a device sends, with services at devices.
#[classifier]
pub fn tail_handle_nat_fwd_ipv6(ctx: TcContext) -> i32 {
    reply::at_device::<V6>((&ctx).into())
}

/// IPv4 of clients to backends of services on other nodes.
#[classifier]
pub fn tail_nodeport_nat_egress_ipv4(ctx: TcContext) -> i32 {
    remote::send::<V4>((&ctx).into())
}

/// IPv6 of clients to backends of services on other nodes.
#[classifier]
pub fn tail_nodeport_nat_egress_ipv6(ctx: TcContext) -> i32 {
    remote::send::<V6>((&ctx).into())
}

/// IPv4 of clients to backends of services on other nodes, which reply to them themselves.
#[classifier]
pub fn tail_nodeport_ipv4_dsr(ctx: TcContext) -> i32 {
    dsr::send::send::<V4>((&ctx).into())
}

/// IPv6 of clients to backends of services on other nodes, which reply to them themselves.
#[classifier]
pub fn tail_nodeport_ipv6_dsr(ctx: TcContext) -> i32 {
    dsr::send::send::<V6>((&ctx).into())
}

/// Refuses an IPv4 packet that is too long for its route with the name of the frontend.
#[classifier]
pub fn tail_nodeport_dsr_too_big_ipv4(ctx: TcContext) -> i32 {
    dsr::too_big::refuse_ipv4((&ctx).into())
}

/// Refuses an IPv6 packet that is too long for its route with the name of the frontend.
#[classifier]
pub fn tail_nodeport_dsr_too_big_ipv6(ctx: TcContext) -> i32 {
    dsr::too_big::refuse_ipv6((&ctx).into())
}

/// IPv4 that may be of a client of a service of another node.
#[classifier]
pub fn tail_nodeport_dsr_receive_ipv4(ctx: TcContext) -> i32 {
    dsr::receive::receive::<V4>((&ctx).into())
}

/// IPv6 that may be of a client of a service of another node.
#[classifier]
pub fn tail_nodeport_dsr_receive_ipv6(ctx: TcContext) -> i32 {
    dsr::receive::receive::<V6>((&ctx).into())
}

/// IPv4 with the translation reversed: replies of backends on other nodes.
#[classifier]
pub fn tail_nodeport_rev_dnat_ipv4(ctx: TcContext) -> i32 {
    remote::reply::<V4>((&ctx).into())
}

/// IPv6 with the translation reversed: replies of backends on other nodes.
#[classifier]
pub fn tail_nodeport_rev_dnat_ipv6(ctx: TcContext) -> i32 {
    remote::reply::<V6>((&ctx).into())
}

/// IPv4 that leaves by a device of the node.
#[classifier]
pub fn tail_ipv4_snat_fwd(ctx: TcContext) -> i32 {
    masquerade::forward::<V4>((&ctx).into())
}

/// IPv6 that leaves by a device of the node.
#[classifier]
pub fn tail_ipv6_snat_fwd(ctx: TcContext) -> i32 {
    masquerade::forward::<V6>((&ctx).into())
}

/// IPv4 that a device of the node received: replies to masqueraded packets.
#[classifier]
pub fn tail_ipv4_nat_ingress(ctx: TcContext) -> i32 {
    masquerade::receive::<V4>((&ctx).into())
}

/// IPv6 that a device of the node received: replies to masqueraded packets.
#[classifier]
pub fn tail_ipv6_nat_ingress(ctx: TcContext) -> i32 {
    masquerade::receive::<V6>((&ctx).into())
}

/// IPv4 that becomes IPv6: of clients of services with IPv6 backends, and of machines to IPv6 clients.
#[classifier]
pub fn tail_nat_ipv46(ctx: TcContext) -> i32 {
    nat46x64::to_ipv6((&ctx).into())
}

/// IPv6 that leaves to IPv4 machines.
#[classifier]
pub fn tail_nat_ipv64(ctx: TcContext) -> i32 {
    nat46x64::to_ipv4((&ctx).into())
}

/// Ingress of the tunnel device: packets of other nodes.
#[classifier]
pub fn cil_from_overlay(ctx: TcContext) -> i32 {
    overlay::from_overlay((&ctx).into())
}

/// IPv4 from the tunnel.
#[classifier]
pub fn tail_ipv4_from_overlay(ctx: TcContext) -> i32 {
    overlay::to_pods::<V4>((&ctx).into())
}

/// IPv6 from the tunnel.
#[classifier]
pub fn tail_ipv6_from_overlay(ctx: TcContext) -> i32 {
    overlay::to_pods::<V6>((&ctx).into())
}

/// Egress of the tunnel device: packets to other nodes.
#[classifier]
pub fn cil_to_overlay(ctx: TcContext) -> i32 {
    overlay::to_overlay((&ctx).into())
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual BSD/GPL\0";
