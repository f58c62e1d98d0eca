//! The object of socket load balancing: programs of cgroups, each attached to the hook of its section.

use datapath_abi::SockConfig;

use crate::Aligned;

/// The ELF object with every program, aligned as parsers want it.
pub fn object() -> &'static [u8] {
    static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(env!("SOCK_OBJECT")));
    &OBJECT.0
}

/// The variable of switches, a [`SockConfig`].
pub const SOCK_CONFIG: &str = SockConfig::SYMBOL;

/// Close of any socket.
pub const RELEASE: &str = "cil_sock_release";

/// Programs that IPv4 needs, in the order of their attachment: the ways back before the ways there, so that no socket is
/// translated that would see the backend's address.
pub const IPV4: [&str; 4] =
    ["cil_sock4_recvmsg", "cil_sock4_getpeername", "cil_sock4_sendmsg", "cil_sock4_connect"];
/// Programs that IPv6 needs, and IPv4 for the addresses of IPv6 sockets that contain IPv4 addresses.
pub const IPV6: [&str; 4] =
    ["cil_sock6_recvmsg", "cil_sock6_getpeername", "cil_sock6_sendmsg", "cil_sock6_connect"];
/// Protection of the ports of services, IPv4.
pub const POST_BIND4: &str = "cil_sock4_post_bind";
/// Protection of the ports of services, IPv6.
pub const POST_BIND6: &str = "cil_sock6_post_bind";
/// The backends of health probes (`bpf-lb-ipip-sock-mark`), IPv4.
pub const PRE_BIND4: &str = "cil_sock4_pre_bind";
/// The backends of health probes, IPv6.
pub const PRE_BIND6: &str = "cil_sock6_pre_bind";
