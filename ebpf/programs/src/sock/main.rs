//! Socket load balancing: programs of a cgroup that translate services when a socket connects or sends, so that packets
//! carry the backend's address from the start. An object of its own: a node without it loads nothing of this.
//!
//! | file | owns |
//! |---|---|
//! | `forward.rs` | connect, sendmsg: choice of a backend |
//! | `reverse.rs` | recvmsg, getpeername: the service's address again; release of a socket |
//! | `bind.rs` | bind: ports of services |
//! | `probe.rs` | bind and connect of health probes |
//! | `trace.rs` | events for monitors |
//! | `service.rs` | which service a destination is |
//! | `family.rs` | IP families: maps, and where the context has an address |
//! | `context.rs` | contexts, clock, verdicts, counters |
//! | `maps.rs`, `config.rs` | the maps and the constants |
//!
//! The row of `cilium_lb4_reverse_sk` or `cilium_lb6_reverse_sk` with the socket's cookie and the backend's address
//! leads back to the address that the socket was connected to. An IPv4 address in IPv6 form (`::ffff:a.b.c.d`) is
//! translated by the IPv4 maps and has the same form afterwards.
//!
//! Differences from Cilium 1.20:
//! - A slot whose backend was just removed is skipped for the next one, where Cilium refuses the connection.
//! - Reverse translations are reported where one takes place, not for each datagram of any socket.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

#[expect(dead_code, reason = "a part of what the datapath needs")]
#[path = "../maps/btf.rs"]
mod btf;
#[macro_use]
mod config;
mod bind;
mod context;
mod family;
mod forward;
mod maps;
mod probe;
mod reverse;
mod service;
mod trace;

use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr};
use aya_ebpf::programs::{SockAddrContext, SockContext};
use context::{Address, PROCEED, Socket};
use family::{Mapped, V4, V6};
use trace::Call;

/// connect(2) of an IPv4 socket.
#[cgroup_sock_addr(connect4)]
pub fn cil_sock4_connect(ctx: SockAddrContext) -> i32 {
    forward::translate::<V4>(Address(ctx.sock_addr), Call::Connect)
}

/// connect(2) of an IPv6 socket.
#[cgroup_sock_addr(connect6)]
pub fn cil_sock6_connect(ctx: SockAddrContext) -> i32 {
    forward_ipv6(Address(ctx.sock_addr), Call::Connect)
}

/// sendmsg(2) of an unconnected UDP socket to an IPv4 address.
#[cgroup_sock_addr(sendmsg4)]
pub fn cil_sock4_sendmsg(ctx: SockAddrContext) -> i32 {
    forward::translate::<V4>(Address(ctx.sock_addr), Call::Message)
}

/// sendmsg(2) of an unconnected UDP socket to an IPv6 address.
#[cgroup_sock_addr(sendmsg6)]
pub fn cil_sock6_sendmsg(ctx: SockAddrContext) -> i32 {
    forward_ipv6(Address(ctx.sock_addr), Call::Message)
}

/// The sender's address in recvmsg(2) of a UDP socket, IPv4.
#[cgroup_sock_addr(recvmsg4)]
pub fn cil_sock4_recvmsg(ctx: SockAddrContext) -> i32 {
    reverse::translate::<V4>(Address(ctx.sock_addr))
}

/// The sender's address in recvmsg(2) of a UDP socket, IPv6.
#[cgroup_sock_addr(recvmsg6)]
pub fn cil_sock6_recvmsg(ctx: SockAddrContext) -> i32 {
    reverse_ipv6(Address(ctx.sock_addr))
}

/// getpeername(2) of an IPv4 socket.
#[cgroup_sock_addr(getpeername4)]
pub fn cil_sock4_getpeername(ctx: SockAddrContext) -> i32 {
    reverse::translate::<V4>(Address(ctx.sock_addr))
}

/// getpeername(2) of an IPv6 socket.
#[cgroup_sock_addr(getpeername6)]
pub fn cil_sock6_getpeername(ctx: SockAddrContext) -> i32 {
    reverse_ipv6(Address(ctx.sock_addr))
}

/// bind(2) of an IPv4 socket.
#[cgroup_sock_addr(bind4)]
pub fn cil_sock4_pre_bind(ctx: SockAddrContext) -> i32 {
    probe::bind_ipv4(Address(ctx.sock_addr))
}

/// bind(2) of an IPv6 socket.
#[cgroup_sock_addr(bind6)]
pub fn cil_sock6_pre_bind(ctx: SockAddrContext) -> i32 {
    probe::bind_ipv6(Address(ctx.sock_addr))
}

/// An IPv4 socket was bound.
#[cgroup_sock(post_bind4)]
pub fn cil_sock4_post_bind(ctx: SockContext) -> i32 {
    bind::bound_ipv4(Socket(ctx.sock))
}

/// An IPv6 socket was bound.
#[cgroup_sock(post_bind6)]
pub fn cil_sock6_post_bind(ctx: SockContext) -> i32 {
    bind::bound_ipv6(Socket(ctx.sock))
}

/// A socket is closed.
#[cgroup_sock(sock_release)]
pub fn cil_sock_release(ctx: SockContext) -> i32 {
    reverse::release(Socket(ctx.sock));
    PROCEED
}

#[inline(always)]
fn forward_ipv6(address: Address, call: Call) -> i32 {
    if address.is_mapped() {
        if enabled!(enable_ipv4) { forward::translate::<Mapped>(address, call) } else { PROCEED }
    } else if enabled!(enable_ipv6) {
        forward::translate::<V6>(address, call)
    } else {
        PROCEED
    }
}

#[inline(always)]
fn reverse_ipv6(address: Address) -> i32 {
    if address.is_mapped() {
        if enabled!(enable_ipv4) { reverse::translate::<Mapped>(address) } else { PROCEED }
    } else if enabled!(enable_ipv6) {
        reverse::translate::<V6>(address)
    } else {
        PROCEED
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual BSD/GPL\0";
