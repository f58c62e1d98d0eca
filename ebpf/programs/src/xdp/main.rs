//! XDP: packets of clients to services, before the kernel has made anything of them (`bpf-lb-acceleration`), and the
//! prefilter of senders (`enable-xdp-prefilter`).
//!
//! One entry for each device of the node, which calls a program by the packet's family. It completes what leaves by a
//! device that has these programs as well: requests to backends of other nodes, by routes and by the tunnel, and the
//! replies to them, with the node's address or with direct server return. A packet to a backend of this node is translated
//! and passed on with the flag that says so. All else is passed on as it is, and the device's tc program does it: what the
//! stack answers, resolves or fragments, proxies, fragments without ports. So a packet has the same fate with XDP and
//! without.
//!
//! | file | owns |
//! |---|---|
//! | `main.rs` | the programs, the prefilter |
//! | `request.rs` | packets of clients |
//! | `reply.rs` | packets of backends of other nodes |
//! | `hop.rs` | next hops |
//! | `ipip.rs` | packets that leave in an outer IP header |
//! | `tunnel.rs` | packets that leave by the tunnel |
//! | `state.rs` | the packet between steps and programs |
//! | `../packet/xdp.rs` | the context, with the functions that shared code uses |
//!
//! All other modules are those of the tc programs, compiled for this context.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(dead_code, reason = "a part of what the programs of tc need")]

#[macro_use]
#[path = "../config.rs"]
mod config;
#[macro_use]
#[path = "../monitor/mod.rs"]
mod monitor;

#[path = "../conntrack/mod.rs"]
mod conntrack;
#[path = "../endpoint/mod.rs"]
mod endpoint;
mod hop;
mod ipip;
#[path = "../lb/mod.rs"]
mod lb;
#[path = "../maps/mod.rs"]
mod maps;
#[path = "../nat/mod.rs"]
mod nat;
#[path = "../nodeport/mod.rs"]
mod nodeport;
#[path = "../packet/mod.rs"]
mod packet;
mod reply;
mod request;
#[path = "../snat/mod.rs"]
mod snat;
mod state;
mod tunnel;

use crate::endpoint::ipcache;
use crate::maps::{cilium_cidr_v4_dyn, cilium_cidr_v4_fix, cilium_cidr_v6_dyn, cilium_cidr_v6_fix};
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::monitor::metrics;
use crate::nodeport::fib::Exit;
use crate::packet::family::Family;
use crate::packet::headers::EthHeader;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, ETH_LEN, PASS, SEND_BACK, SHOT, Skb};
use crate::snat::{STEP, Snat};
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use datapath_abi::drop::POLICY_DENIED;
use datapath_abi::{PrefilterKey4, PrefilterKey6, direction, file, metric};

const FILE: u8 = file::BPF_XDP;

/// Results of steps beside drops and those of the translation of sources.
/// The packet is passed on as it is.
const LEFT: u64 = 3 * STEP;
/// The next step follows.
const NEXT: u64 = 4 * STEP;

/// A packet that a device of the node has received.
#[xdp]
pub fn cil_xdp_entry(ctx: XdpContext) -> u32 {
    let skb = Skb::from(&ctx);
    let verdict = match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => handle::<V4>(skb),
        ETH_IPV6 if enabled!(enable_ipv6) => handle::<V6>(skb),
        _ => PASS,
    };
    verdict as u32
}

#[inline(always)]
fn handle<F: Snat + Prefilter>(skb: Skb) -> i32 {
    if enabled!(xdp_prefilter)
        && let Some(header) = F::header(skb)
        // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
        && F::is_listed(F::source(unsafe { &*header }))
    {
        // Without an event: nobody could read as many as a flood has.
        metrics::count(POLICY_DENIED, direction::INGRESS, FILE, line!() as u16, skb.len());
        return SHOT;
    }
    if enabled!(nodeport) {
        skb.tail_call(F::DELIVERY_SLOT);
        return refuse::<F>(skb, drop_here!(MISSED_TAIL_CALL).packed(), direction::INGRESS);
    }
    PASS
}

/// IPv4 of clients of services.
#[xdp]
pub fn tail_xdp_request_ipv4(ctx: XdpContext) -> u32 {
    request::handle::<V4>((&ctx).into()) as u32
}

/// IPv6 of clients of services.
#[xdp]
pub fn tail_xdp_request_ipv6(ctx: XdpContext) -> u32 {
    request::handle::<V6>((&ctx).into()) as u32
}

/// IPv4 of clients, with the decision about it.
#[xdp]
pub fn tail_xdp_send_ipv4(ctx: XdpContext) -> u32 {
    request::send::<V4>((&ctx).into()) as u32
}

/// IPv6 of clients, with the decision about it.
#[xdp]
pub fn tail_xdp_send_ipv6(ctx: XdpContext) -> u32 {
    request::send::<V6>((&ctx).into()) as u32
}

/// IPv4 that is not to a frontend: of backends of other nodes.
#[xdp]
pub fn tail_xdp_reply_ipv4(ctx: XdpContext) -> u32 {
    reply::handle::<V4>((&ctx).into()) as u32
}

/// IPv6 that is not to a frontend.
#[xdp]
pub fn tail_xdp_reply_ipv6(ctx: XdpContext) -> u32 {
    reply::handle::<V6>((&ctx).into()) as u32
}

/// The senders that an IP family's prefilter drops.
trait Prefilter: Family {
    /// True for addresses in a listed range.
    fn is_listed(address: Self::Address) -> bool;
}

impl Prefilter for V4 {
    #[inline(always)]
    fn is_listed(address: u32) -> bool {
        let key = PrefilterKey4 { prefixlen: Self::BITS, address };
        cilium_cidr_v4_dyn.get(&key).is_some() || cilium_cidr_v4_fix.get(&key).is_some()
    }
}

impl Prefilter for V6 {
    #[inline(always)]
    fn is_listed(address: [u32; 4]) -> bool {
        let key = PrefilterKey6 { prefixlen: Self::BITS, address };
        cilium_cidr_v6_dyn.get(&key).is_some() || cilium_cidr_v6_fix.get(&key).is_some()
    }
}

/// Returns the length of the IP packet in a frame.
#[inline(always)]
fn length(skb: Skb) -> u16 {
    u16::try_from(skb.len() - ETH_LEN as u32).unwrap_or(u16::MAX)
}

/// Sends a packet by a device with XDP.
#[inline(always)]
fn leave(skb: Skb, exit: Exit) -> i32 {
    let Some(header) = skb.header::<EthHeader>(0) else { return SHOT };
    let [destination, source] = exit.macs;
    // SAFETY: `header` checked the bounds; nothing moves the packet in between.
    unsafe { ((*header).destination, (*header).source) = (destination, source) };
    metrics::count(metric::FORWARDED, direction::EGRESS, FILE, line!() as u16, skb.len());
    if exit.ifindex == skb.ifindex() { SEND_BACK } else { skb.redirect(exit.ifindex) }
}

/// Drops a packet for the reason that a step has returned.
#[inline(always)]
fn refuse<F: Family>(skb: Skb, why: u64, direction: u8) -> i32 {
    let src_label = ipcache::sender_of::<F>(skb, F::world(), ETH_LEN);
    let parties = Parties { endpoint: node!(host_endpoint_id), src_label, ..Parties::default() };
    dropped(skb, Drop::unpacked(why), direction, parties)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual BSD/GPL\0";
