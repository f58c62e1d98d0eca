//! Sockets of the network namespace, by the addresses of a packet.

use crate::packet::skb::Skb;
use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::helpers::{bpf_sk_assign, bpf_sk_lookup_udp, bpf_sk_release, bpf_skc_lookup_tcp};

/// States of TCP (linux/tcp_states.h, `BPF_TCP_*`).
pub(crate) const TIME_WAIT: u32 = 6;
pub(crate) const LISTEN: u32 = 10;

/// In the packet's own namespace (`BPF_F_CURRENT_NETNS`).
const CURRENT_NETNS: u64 = -1i64 as u64;

/// The peer's and the socket's address and port, as on the wire: `struct bpf_sock_tuple` with the address of its family.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Tuple<A> {
    pub(crate) source: A,
    pub(crate) destination: A,
    pub(crate) sport: u16,
    pub(crate) dport: u16,
}
const _: () = assert!(size_of::<Tuple<u32>>() == 12 && size_of::<Tuple<[u32; 4]>>() == 36);

/// A socket with a reference. The verifier refuses a path that does not [release](Self::release) it.
pub(crate) struct Socket(*mut bpf_sock);

impl Socket {
    /// Returns the TCP socket of a connection, in any state, or else the listener.
    #[inline(always)]
    pub(crate) fn of_tcp<A>(skb: Skb, tuple: &Tuple<A>) -> Option<Self> {
        let (at, size) = ((&raw const *tuple).cast_mut().cast(), size_of::<Tuple<A>>() as u32);
        // SAFETY: the context is valid; the tuple outlives the call and has the given length.
        let socket = unsafe { bpf_skc_lookup_tcp(skb.raw().cast(), at, size, CURRENT_NETNS, 0) };
        (!socket.is_null()).then_some(Self(socket))
    }

    /// Returns the UDP socket that receives packets to an address and port.
    #[inline(always)]
    pub(crate) fn of_udp<A>(skb: Skb, tuple: &Tuple<A>) -> Option<Self> {
        let (at, size) = ((&raw const *tuple).cast_mut().cast(), size_of::<Tuple<A>>() as u32);
        // SAFETY: the context is valid; the tuple outlives the call and has the given length.
        let socket = unsafe { bpf_sk_lookup_udp(skb.raw().cast(), at, size, CURRENT_NETNS, 0) };
        (!socket.is_null()).then_some(Self(socket))
    }

    /// Returns the state of TCP.
    #[inline(always)]
    pub(crate) fn state(&self) -> u32 {
        // SAFETY: not null, and referenced until it is released. Volatile: the verifier requires the declared width.
        unsafe { core::ptr::read_volatile(&raw const (*self.0).state) }
    }

    /// Gives a packet at tc ingress to the socket, whatever its destination; false if the kernel refuses.
    #[inline(always)]
    pub(crate) fn assign(&self, skb: Skb) -> bool {
        // SAFETY: context and socket are valid.
        unsafe { bpf_sk_assign(skb.raw().cast(), self.0.cast(), 0) == 0 }
    }

    /// Releases the reference.
    #[inline(always)]
    pub(crate) fn release(self) {
        // SAFETY: the socket is valid, and not used any more.
        unsafe { bpf_sk_release(self.0.cast()) };
    }
}
