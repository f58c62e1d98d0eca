//! Contexts of the programs, the clock, verdicts and counters.

use core::arch::asm;
use core::ffi::c_void;

use aya_ebpf::bindings::{bpf_sock, bpf_sock_addr};
use aya_ebpf::helpers::{
    bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_jiffies64, bpf_ktime_get_ns, bpf_set_retval,
    bpf_setsockopt,
};
use datapath_abi::{MetricsKey, MetricsValue, file};

use crate::maps::cilium_metrics;

/// The verdict that lets the system call go on.
pub(crate) const PROCEED: i32 = 1;
/// The verdict that refuses it.
const REFUSE: i32 = 0;

/// Errors of refused system calls.
pub(crate) const ENOMEM: i32 = 12;
pub(crate) const EADDRINUSE: i32 = 98;
pub(crate) const ENOBUFS: i32 = 105;
pub(crate) const EHOSTUNREACH: i32 = 113;

/// IP protocols.
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
const UDPLITE: u8 = 136;

/// The first bits of an IPv4 address in IPv6 form.
const MAPPED_PREFIX: u32 = 0xffff_u32.to_be();

/// Reads a field of a context: exactly once and with its own width, as the verifier requires.
macro_rules! field {
    ($ctx:expr, $($field:tt)+) => {
        // SAFETY: the kernel passes a valid context, and the verifier checks each access.
        unsafe { core::ptr::read_volatile(&raw const (*$ctx).$($field)+) }
    };
}

/// The context of a system call with an address.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub(crate) *mut bpf_sock_addr);

impl Address {
    /// Returns the protocol of services that the socket uses; none if there are no such services.
    #[inline(always)]
    pub(crate) fn protocol(self) -> Option<u8> {
        service_protocol(field!(self.0, protocol))
    }

    /// Returns the port as on the wire.
    #[inline(always)]
    pub(crate) fn port(self) -> u16 {
        field!(self.0, user_port) as u16
    }

    #[inline(always)]
    pub(crate) fn set_port(self, port: u16) {
        // SAFETY: as in `field`.
        unsafe { core::ptr::write_volatile(&raw mut (*self.0).user_port, u32::from(port)) }
    }

    #[inline(always)]
    pub(crate) fn ipv4(self) -> u32 {
        field!(self.0, user_ip4)
    }

    #[inline(always)]
    pub(crate) fn set_ipv4(self, address: u32) {
        // SAFETY: as in `field`.
        unsafe { core::ptr::write_volatile(&raw mut (*self.0).user_ip4, address) }
    }

    #[inline(always)]
    pub(crate) fn ipv6(self) -> [u32; 4] {
        [
            field!(self.0, user_ip6[0]),
            field!(self.0, user_ip6[1]),
            field!(self.0, user_ip6[2]),
            field!(self.0, user_ip6[3]),
        ]
    }

    #[inline(always)]
    pub(crate) fn set_ipv6(self, address: [u32; 4]) {
        // SAFETY: as in `field`.
        unsafe {
            core::ptr::write_volatile(&raw mut (*self.0).user_ip6[0], address[0]);
            core::ptr::write_volatile(&raw mut (*self.0).user_ip6[1], address[1]);
            core::ptr::write_volatile(&raw mut (*self.0).user_ip6[2], address[2]);
            core::ptr::write_volatile(&raw mut (*self.0).user_ip6[3], address[3]);
        }
    }

    /// True if the IPv6 address contains an IPv4 address.
    #[inline(always)]
    pub(crate) fn is_mapped(self) -> bool {
        is_mapped(self.ipv6())
    }

    /// Returns the socket's cookie.
    #[inline(always)]
    pub(crate) fn cookie(self) -> u64 {
        // SAFETY: the helper takes the program's context.
        unsafe { bpf_get_socket_cookie(self.0.cast()) }
    }

    /// Returns the cookie of the socket's network namespace.
    #[inline(always)]
    pub(crate) fn netns_cookie(self) -> u64 {
        netns_cookie(self.0.cast())
    }

    /// Returns the number of the IP protocol, or of UDP-Lite.
    #[inline(always)]
    pub(crate) fn ip_protocol(self) -> u8 {
        field!(self.0, protocol) as u8
    }

    /// Returns the mark of the socket's packets.
    #[inline(always)]
    pub(crate) fn mark(self) -> u32 {
        let socket = field!(self.0, __bindgen_anon_1.sk);
        field!(socket, mark)
    }

    /// Removes the mark of the socket's packets.
    #[inline(always)]
    pub(crate) fn clear_mark(self) {
        const SOL_SOCKET: i32 = 1;
        const SO_MARK: i32 = 36;
        let mut none = 0u32;
        // SAFETY: the helper takes the program's context; the value outlives the call and has the given length.
        unsafe {
            bpf_setsockopt(
                self.0.cast(),
                SOL_SOCKET,
                SO_MARK,
                (&raw mut none).cast(),
                size_of::<u32>() as i32,
            )
        };
    }
}

/// The context of a socket's change of state.
#[derive(Clone, Copy)]
pub(crate) struct Socket(pub(crate) *mut bpf_sock);

impl Socket {
    #[inline(always)]
    pub(crate) fn family(self) -> u32 {
        field!(self.0, family)
    }

    /// Returns the protocol of services that the socket uses; none if there are no such services.
    #[inline(always)]
    pub(crate) fn protocol(self) -> Option<u8> {
        service_protocol(field!(self.0, protocol))
    }

    #[inline(always)]
    pub(crate) fn source_ipv4(self) -> u32 {
        field!(self.0, src_ip4)
    }

    #[inline(always)]
    pub(crate) fn source_ipv6(self) -> [u32; 4] {
        [
            field!(self.0, src_ip6[0]),
            field!(self.0, src_ip6[1]),
            field!(self.0, src_ip6[2]),
            field!(self.0, src_ip6[3]),
        ]
    }

    /// Returns the port as on the wire.
    #[inline(always)]
    pub(crate) fn source_port(self) -> u16 {
        (field!(self.0, src_port) as u16).to_be()
    }

    #[inline(always)]
    pub(crate) fn peer_ipv4(self) -> u32 {
        field!(self.0, dst_ip4)
    }

    #[inline(always)]
    pub(crate) fn peer_ipv6(self) -> [u32; 4] {
        [
            field!(self.0, dst_ip6[0]),
            field!(self.0, dst_ip6[1]),
            field!(self.0, dst_ip6[2]),
            field!(self.0, dst_ip6[3]),
        ]
    }

    /// Returns the peer's port as on the wire.
    #[inline(always)]
    pub(crate) fn peer_port(self) -> u16 {
        field!(self.0, dst_port)
    }

    /// Returns the socket's cookie.
    #[inline(always)]
    pub(crate) fn cookie(self) -> u64 {
        // SAFETY: the helper takes the program's context.
        unsafe { bpf_get_socket_cookie(self.0.cast()) }
    }

    /// True in the host's network namespace.
    #[inline(always)]
    pub(crate) fn is_of_host(self) -> bool {
        is_host(netns_cookie(self.0.cast()))
    }
}

#[inline(always)]
fn service_protocol(protocol: u32) -> Option<u8> {
    match protocol as u8 {
        TCP => Some(TCP),
        UDP | UDPLITE => Some(UDP),
        _ => None,
    }
}

/// True if the IPv6 address contains an IPv4 address.
#[inline(always)]
pub(crate) fn is_mapped(address: [u32; 4]) -> bool {
    address[0] == 0 && address[1] == 0 && address[2] == MAPPED_PREFIX
}

#[inline(always)]
fn netns_cookie(ctx: *mut c_void) -> u64 {
    // SAFETY: the helper takes the program's context or null.
    unsafe { bpf_get_netns_cookie(ctx) }
}

/// True for the cookie of the host's network namespace.
#[inline(always)]
pub(crate) fn is_host(cookie: u64) -> bool {
    match setting!(host_netns_cookie) {
        0 => cookie == netns_cookie(core::ptr::null_mut()),
        host => cookie == host,
    }
}

/// Refuses the system call with an error; EPERM on kernels before 5.18.
#[inline(always)]
pub(crate) fn refuse(errno: i32) -> i32 {
    if enabled!(set_retval) {
        // SAFETY: the helper takes a negative errno.
        unsafe { bpf_set_retval(-errno) };
    }
    REFUSE
}

/// Returns the time in units of the clock of affinity entries.
#[inline(always)]
pub(crate) fn now() -> u64 {
    const JIFFIES_SHIFT: u32 = 8;
    const NANOSECONDS: u64 = 1_000_000_000;
    if enabled!(jiffies_clock) {
        // SAFETY: the helper takes no arguments.
        unsafe { bpf_jiffies64() >> JIFFIES_SHIFT }
    } else {
        // SAFETY: the helper takes no arguments.
        unsafe { bpf_ktime_get_ns() / NANOSECONDS }
    }
}

/// Counts an event. Programs of sockets may be preempted by others on the same CPU, so the counter is atomic.
#[inline(never)]
pub(crate) fn count(reason: u8, direction: u8) {
    let key = MetricsKey { reason, dir: direction, line: 0, file: file::BPF_SOCK, reserved: [0; 3] };
    // SAFETY: null or a map entry, which outlives the program's run; all writers of this key are atomic.
    match unsafe { cilium_metrics.rows().pointer(&key).as_mut() } {
        Some(value) => {
            // The target has no atomic types.
            // SAFETY: an aligned field of a live map entry.
            unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) &raw mut value.count, in(reg) 1_u64) };
        }
        None => cilium_metrics.insert(&key, &MetricsValue { count: 1, bytes: 0 }),
    }
}
