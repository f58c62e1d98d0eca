//! Replays one packet for benchmarks: restores the headers that the program under test rewrites, then tail-calls that
//! program. A test run repeats both without leaving the kernel. For tests as well: a packet that came by a tunnel, and
//! the key and options of one that leaves by it.
#![no_std]
#![no_main]

#[expect(dead_code, reason = "a part of what the datapath needs")]
#[path = "maps/btf.rs"]
mod btf;

use aya_ebpf::helpers::{
    bpf_skb_get_tunnel_key, bpf_skb_get_tunnel_opt, bpf_skb_set_tunnel_key, bpf_skb_set_tunnel_opt,
    bpf_skb_vlan_push, bpf_tail_call,
};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use btf::{ARRAY, Map, PROG_ARRAY};

/// The headers to restore, and the variation between packets.
#[repr(C)]
struct Template {
    /// The packet's first 80 bytes: Ethernet, IPv6, TCP and some of the payload.
    headers: [u64; 10],
    /// Offset of the source port if every packet gets a different one, else zero.
    vary_at: u32,
    /// Number of packets so far.
    count: u32,
}

#[unsafe(link_section = ".maps")]
#[unsafe(no_mangle)]
static replay_program: Map<u32, u32, PROG_ARRAY, 1, 0> = Map::new();
#[unsafe(link_section = ".maps")]
#[unsafe(no_mangle)]
static replay_packet: Map<u32, Template, ARRAY, 1, 0> = Map::new();

/// Offset of the source port after Ethernet and an IP header without options.
const IPV4_PORT: u32 = 14 + 20;
const IPV6_PORT: u32 = 14 + 40;

/// Verdicts of a replay without a program to call (TC_ACT_UNSPEC), and of one without a packet (TC_ACT_SHOT).
const NO_PROGRAM: i32 = -1;
const NO_PACKET: i32 = 2;

/// Restores the packet and its context, and tail-calls the program under test.
#[classifier]
pub fn replay(ctx: TcContext) -> i32 {
    let Some(template) = replay_packet.get_mut(&0) else { return NO_PACKET };
    let skb = ctx.skb.skb;
    // SAFETY: the context is valid; the packet is only written within its checked bounds.
    unsafe {
        let start = core::ptr::read_volatile(&raw const (*skb).data) as usize;
        let end = core::ptr::read_volatile(&raw const (*skb).data_end) as usize;
        if start + size_of::<[u64; 10]>() > end {
            return NO_PACKET;
        }
        let words = start as *mut u64;
        for index in 0..10 {
            core::ptr::write_volatile(words.add(index), template.headers[index]);
        }
        // Constant offsets, which the verifier can prove to be in bounds.
        if template.vary_at == IPV4_PORT {
            template.count += 1;
            core::ptr::write_volatile((start + IPV4_PORT as usize) as *mut u16, template.count as u16);
        } else if template.vary_at == IPV6_PORT {
            template.count += 1;
            core::ptr::write_volatile((start + IPV6_PORT as usize) as *mut u16, template.count as u16);
        }
        core::ptr::write_volatile(&raw mut (*skb).mark, 0);
        for slot in 0..5 {
            core::ptr::write_volatile(&raw mut (*skb).cb[slot], 0);
        }
        bpf_tail_call(skb.cast(), replay_program.handle(), 0);
    }
    NO_PROGRAM
}

/// As [`replay`], for programs of XDP, of packets that are all the same.
#[xdp]
pub fn replay_xdp(ctx: XdpContext) -> u32 {
    let Some(template) = replay_packet.get_mut(&0) else { return NO_PACKET as u32 };
    let raw = ctx.ctx;
    // SAFETY: the context is valid; the packet is only written within its checked bounds.
    unsafe {
        let start = core::ptr::read_volatile(&raw const (*raw).data) as usize;
        let end = core::ptr::read_volatile(&raw const (*raw).data_end) as usize;
        if start + size_of::<[u64; 10]>() > end {
            return NO_PACKET as u32;
        }
        let words = start as *mut u64;
        for index in 0..10 {
            core::ptr::write_volatile(words.add(index), template.headers[index]);
        }
        bpf_tail_call(raw.cast(), replay_program.handle(), 0);
    }
    NO_PROGRAM as u32
}

/// `struct bpf_tunnel_key` up to the local address.
#[repr(C)]
struct TunnelKey {
    id: u32,
    rest: [u32; 6],
}

/// Sets the key of a tunnel, with the id of `cb[0]` and the flags of `cb[1]`, and as many bytes of options as `cb[2]` says
/// from the beginning of the template; tail-calls the program under test.
#[classifier]
pub fn tunnelled(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    // SAFETY: the context is valid; the key outlives the call and has the given length.
    unsafe {
        let id = core::ptr::read_volatile(&raw const (*skb).cb[0]);
        let flags = core::ptr::read_volatile(&raw const (*skb).cb[1]);
        let mut key = TunnelKey { id, rest: [0; 6] };
        if bpf_skb_set_tunnel_key(skb, (&raw mut key).cast(), size_of::<TunnelKey>() as u32, flags.into())
            != 0
        {
            return NO_PACKET;
        }
        let len = core::ptr::read_volatile(&raw const (*skb).cb[2]);
        if len != 0 {
            let Some(template) = replay_packet.get_mut(&0) else { return NO_PACKET };
            let options = (&raw mut template.headers).cast();
            // Constant lengths, which the verifier can prove to be in bounds.
            let is_set = match len {
                SHORT_OPTION => bpf_skb_set_tunnel_opt(skb, options, SHORT_OPTION),
                LONG_OPTION => bpf_skb_set_tunnel_opt(skb, options, LONG_OPTION),
                _ => NO_PACKET.into(),
            };
            if is_set != 0 {
                return NO_PACKET;
            }
            core::ptr::write_volatile(&raw mut (*skb).cb[2], 0);
        }
        bpf_tail_call(skb.cast(), replay_program.handle(), 0);
    }
    NO_PROGRAM
}

/// Gives the packet the tag of `cb[0]`, as the kernel does with one that was in it, and tail-calls the program under test.
#[classifier]
pub fn tagged(ctx: TcContext) -> i32 {
    const VLAN: u16 = 0x8100u16.to_be();
    let skb = ctx.skb.skb;
    // SAFETY: the context is valid; the packet is not read.
    unsafe {
        let tag = core::ptr::read_volatile(&raw const (*skb).cb[0]) as u16;
        if bpf_skb_vlan_push(skb, VLAN, tag) != 0 {
            return NO_PACKET;
        }
        core::ptr::write_volatile(&raw mut (*skb).cb[0], 0);
        bpf_tail_call(skb.cast(), replay_program.handle(), 0);
    }
    NO_PROGRAM
}

/// The key has IPv6 addresses (`BPF_F_TUNINFO_IPV6`).
const TUNNEL_IPV6: u64 = 1;
/// Lengths of options with an address of IPv4 and of IPv6.
const SHORT_OPTION: u32 = 12;
const LONG_OPTION: u32 = 24;

/// Writes the key's id and the options by which a packet would leave by a tunnel into the template, the length of the
/// options as `vary_at`, and drops the packet.
#[classifier]
pub fn leaving(ctx: TcContext) -> i32 {
    let Some(template) = replay_packet.get_mut(&0) else { return NO_PACKET };
    let skb = ctx.skb.skb;
    let mut key = TunnelKey { id: 0, rest: [0; 6] };
    // SAFETY: the context is valid; key and template outlive the calls and have the given lengths.
    unsafe {
        let (into, size) = ((&raw mut key).cast(), size_of::<TunnelKey>() as u32);
        if bpf_skb_get_tunnel_key(skb, into, size, 0) != 0
            && bpf_skb_get_tunnel_key(skb, into, size, TUNNEL_IPV6) != 0
        {
            return NO_PACKET;
        }
        let options = (&raw mut template.headers).cast();
        let len = bpf_skb_get_tunnel_opt(skb, options, size_of::<[u64; 10]>() as u32);
        (template.count, template.vary_at) = (key.id, if len < 0 { 0 } else { len as u32 });
    }
    NO_PACKET
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual BSD/GPL\0";
