//! The context of a packet (`__sk_buff`): fields, packet access and helpers of tc programs.

use crate::maps::cilium_calls;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::{
    bpf_csum_update, bpf_get_hash_recalc, bpf_get_socket_cookie, bpf_l4_csum_replace, bpf_redirect,
    bpf_redirect_peer, bpf_skb_adjust_room, bpf_skb_change_head, bpf_skb_change_proto, bpf_skb_change_tail,
    bpf_skb_change_type, bpf_skb_get_tunnel_key, bpf_skb_get_tunnel_opt, bpf_skb_load_bytes,
    bpf_skb_pull_data, bpf_skb_set_tunnel_key, bpf_skb_set_tunnel_opt, bpf_skb_store_bytes, bpf_tail_call,
};
use aya_ebpf::programs::TcContext;

/// The kernel's form of the context.
pub(crate) type Context = __sk_buff;

/// Verdicts (linux/pkt_cls.h).
pub(crate) const PASS: i32 = 0;
pub(crate) const SHOT: i32 = 2;

/// Length of an Ethernet header.
pub(crate) const ETH_LEN: usize = 14;

/// Ethernet types as in `skb->protocol`: in network byte order.
pub(crate) const ETH_IPV4: u16 = 0x0800u16.to_be();
pub(crate) const ETH_IPV6: u16 = 0x86ddu16.to_be();
pub(crate) const ETH_ARP: u16 = 0x0806u16.to_be();
/// The smallest value that is an Ethernet type and not a length (linux/if_ether.h).
pub(crate) const ETH_TYPE_MIN: u16 = 0x0600;

/// The type of packets that are addressed to this machine (`PACKET_HOST`, linux/if_packet.h).
const PACKET_HOST: u32 = 0;
/// Redirect to ingress of the interface (`BPF_F_INGRESS`).
const INGRESS: u64 = 1;

/// The key has IPv6 addresses (`BPF_F_TUNINFO_IPV6`).
const TUNNEL_IPV6: u64 = 1;
/// The outer UDP header has no checksum (`BPF_F_ZERO_CSUM_TX`): the inner packet has its own.
const ZERO_CSUM_TX: u64 = 2;
/// Room is made behind the IP header without options (`BPF_ADJ_ROOM_NET`), and a checksum that the device has verified
/// stays verified (`BPF_F_ADJ_ROOM_NO_CSUM_RESET`).
const BEHIND_IP: u32 = 0;
const KEEP_CSUM: u64 = 1 << 5;
/// Bytes are removed behind the Ethernet header (`BPF_ADJ_ROOM_MAC`), and segments of a large packet stay as long as they
/// are (`BPF_F_ADJ_ROOM_FIXED_GSO`).
const BEHIND_ETHERNET: u32 = 1;
const KEEP_SEGMENTS: u64 = 1;
/// Hop limit of the outer header.
const TUNNEL_TTL: u8 = 64;

/// `struct bpf_tunnel_key` up to the local address, which kernels before 6.0 do not have.
#[repr(C)]
#[derive(Default)]
struct TunnelKey {
    id: u32,
    /// As on the wire, but an IPv4 address in the machine's byte order.
    remote: [u32; 4],
    tos: u8,
    ttl: u8,
    ext: u16,
    label: u32,
}
const _: () = assert!(size_of::<TunnelKey>() == 28);

const RECOMPUTE_CSUM: u64 = 1;
const INVALIDATE_HASH: u64 = 2;

/// Returns the same integer as a new value to the compiler, which then extracts fields where it needs them instead of
/// keeping them in registers, for which the verifier tracks branches. The copy is one that extraction needs anyway.
#[inline(always)]
pub(crate) fn opaque(number: u64) -> u64 {
    let same;
    // SAFETY: copies a register. Not `pure`, or the compiler would merge two of them. Not empty: LLVM emits a debug
    // line for an empty one, too, and the kernel rejects two lines for one instruction.
    unsafe {
        core::arch::asm!(
            "{same} = {number}",
            same = lateout(reg) same,
            number = in(reg) number,
            options(nomem, nostack, preserves_flags)
        )
    };
    same
}

/// A packet in a tc program.
#[derive(Clone, Copy)]
pub(crate) struct Skb(*mut __sk_buff);

impl From<&TcContext> for Skb {
    #[inline(always)]
    fn from(ctx: &TcContext) -> Self {
        Self(ctx.skb.skb)
    }
}

/// Accesses a 32-bit field of the context. Volatile: the verifier requires each access to have the declared width, and
/// the compiler would merge neighbouring ones.
macro_rules! field {
    ($skb:expr, $($field:tt)+) => {
        // SAFETY: the context is valid for the whole run of the program.
        unsafe { core::ptr::read_volatile(&raw const (*$skb.0).$($field)+) }
    };
}
macro_rules! set_field {
    ($skb:expr, $value:expr, $($field:tt)+) => {
        // SAFETY: as above; tc programs may write the field.
        unsafe { core::ptr::write_volatile(&raw mut (*$skb.0).$($field)+, $value) }
    };
}

impl Skb {
    #[inline(always)]
    pub(crate) fn raw(self) -> *mut __sk_buff {
        self.0
    }

    /// Creates the packet from its raw context, in a function that is called with that.
    #[inline(always)]
    pub(crate) fn from_raw(raw: *mut __sk_buff) -> Self {
        Self(raw)
    }

    #[inline(always)]
    pub(crate) fn len(self) -> u32 {
        field!(self, len)
    }

    /// Returns the payload of each packet that the device makes of this one; zero if it is sent as it is.
    #[inline(always)]
    pub(crate) fn gso_size(self) -> u32 {
        field!(self, gso_size)
    }

    /// Returns the same integer, unknown to the verifier. After paths that have set it to different constants, the
    /// verifier then follows the rest of the program once instead of once per constant.
    #[inline(always)]
    pub(crate) fn forget(self, number: u64) -> u64 {
        let len = u64::from(self.len());
        let (mut forgotten, noise) = (number, len | len << 32);
        // SAFETY: adds and subtracts the same value with wrapping, which has no effect.
        unsafe {
            core::arch::asm!(
                "{forgotten} += {noise}",
                "{forgotten} -= {noise}",
                forgotten = inout(reg) forgotten,
                noise = in(reg) noise,
                options(nomem, nostack, preserves_flags, pure)
            )
        };
        forgotten
    }

    /// Returns the Ethernet type in network byte order.
    #[inline(always)]
    pub(crate) fn protocol(self) -> u16 {
        field!(self, protocol) as u16
    }

    /// Returns the id of the packet's VLAN; zero without one.
    #[inline(always)]
    pub(crate) fn vlan(self) -> u16 {
        const ID: u32 = 0xfff;
        if field!(self, vlan_present) == 0 { 0 } else { (field!(self, vlan_tci) & ID) as u16 }
    }

    #[inline(always)]
    pub(crate) fn ifindex(self) -> u32 {
        field!(self, ifindex)
    }

    /// Returns the index of the packet's input interface; zero if this machine generated it.
    #[inline(always)]
    pub(crate) fn ingress_ifindex(self) -> u32 {
        field!(self, ingress_ifindex)
    }

    #[inline(always)]
    pub(crate) fn mark(self) -> u32 {
        field!(self, mark)
    }

    #[inline(always)]
    pub(crate) fn set_mark(self, mark: u32) {
        set_field!(self, mark, mark)
    }

    #[inline(always)]
    pub(crate) fn cb(self, slot: usize) -> u32 {
        field!(self, cb[slot])
    }

    #[inline(always)]
    pub(crate) fn set_cb(self, slot: usize, value: u32) {
        set_field!(self, value, cb[slot])
    }

    /// Clears values of earlier programs in the control block.
    #[inline(always)]
    pub(crate) fn clear_cb(self) {
        self.set_cb(0, 0);
        self.set_cb(1, 0);
        self.set_cb(2, 0);
        self.set_cb(3, 0);
        self.set_cb(4, 0);
        set_field!(self, 0, tc_classid);
    }

    /// Clears the queue mapping, so that the stack selects a transmit queue: veth sets its receive queue here.
    #[inline(always)]
    pub(crate) fn clear_queue_mapping(self) {
        set_field!(self, 0, queue_mapping);
    }

    /// Returns a header at `offset`, if it is in the linear part of the packet.
    #[inline(always)]
    pub(crate) fn header<T>(self, offset: usize) -> Option<*mut T> {
        let start = field!(self, data) as usize + offset;
        if start + size_of::<T>() > field!(self, data_end) as usize { None } else { Some(start as *mut T) }
    }

    /// As [`Self::header`], but pulls the header into the linear part if necessary.
    #[inline(always)]
    pub(crate) fn pull_header<T>(self, offset: usize) -> Option<*mut T> {
        match self.header(offset) {
            Some(header) => Some(header),
            None => {
                // SAFETY: the context is valid; packet pointers are reloaded below.
                unsafe { bpf_skb_pull_data(self.0, (offset + size_of::<T>()) as u32) };
                self.header(offset)
            }
        }
    }

    /// Reads a value at `offset`, also outside of the linear part; `None` if the packet is too short. Never moves it.
    #[inline(always)]
    pub(crate) fn read<T: Copy + Default>(self, offset: usize) -> Option<T> {
        const { assert!(align_of::<T>() <= 2) };
        match self.header::<T>(offset) {
            // SAFETY: `header` checked the bounds; headers begin at even addresses.
            Some(value) => Some(unsafe { value.read() }),
            None => {
                let mut value = T::default();
                self.load(offset, &mut value).then_some(value)
            }
        }
    }

    /// Copies bytes of the packet, also from outside of the linear part; false if it is too short.
    #[inline(always)]
    pub(crate) fn load<T>(self, offset: usize, into: &mut T) -> bool {
        // SAFETY: the context is valid; `into` outlives the call and has the given length.
        unsafe {
            bpf_skb_load_bytes(self.0.cast(), offset as u32, (&raw mut *into).cast(), size_of::<T>() as u32)
                == 0
        }
    }

    /// Overwrites bytes of the packet; false if it is too short.
    #[inline(always)]
    pub(crate) fn store<T>(self, offset: usize, from: &T) -> bool {
        self.store_with(offset, from, RECOMPUTE_CSUM | INVALIDATE_HASH)
    }

    /// As [`Self::store`], for bytes with a compensating checksum inside of the packet: keeps the device's sum.
    #[inline(always)]
    pub(crate) fn store_quietly<T>(self, offset: usize, from: &T) -> bool {
        self.store_with(offset, from, 0)
    }

    #[inline(always)]
    fn store_with<T>(self, offset: usize, from: &T, flags: u64) -> bool {
        let (from, len) = ((&raw const *from).cast(), size_of::<T>() as u32);
        // SAFETY: the context is valid; `from` outlives the call and has the given length.
        unsafe { bpf_skb_store_bytes(self.0, offset as u32, from, len, flags) == 0 }
    }

    /// Truncates the packet to `len` bytes, or extends it by zeros.
    #[inline(always)]
    pub(crate) fn resize(self, len: u32) -> bool {
        // SAFETY: the context is valid; the caller reloads packet pointers.
        unsafe { bpf_skb_change_tail(self.0, len, 0) == 0 }
    }

    /// Puts an Ethernet header before a packet without one: addresses of zero, and the packet's protocol. A sum of the
    /// device does not cover it.
    #[inline(always)]
    pub(crate) fn prepend_ethernet(self) -> bool {
        // SAFETY: the context is valid; the caller reloads packet pointers.
        let is_longer = unsafe { bpf_skb_change_head(self.0, ETH_LEN as u32, 0) == 0 };
        is_longer && self.store_quietly(ETH_LEN - size_of::<u16>(), &self.protocol())
    }

    /// Inserts this number of zero bytes behind the IP header without its options.
    #[inline(always)]
    pub(crate) fn widen(self, by: u16) -> bool {
        // SAFETY: the context is valid; the caller reloads packet pointers.
        unsafe { bpf_skb_adjust_room(self.0, i32::from(by), BEHIND_IP, KEEP_CSUM) == 0 }
    }

    /// Removes this number of bytes behind the Ethernet header; false, and the packet unchanged, if the kernel refuses.
    #[inline(always)]
    pub(crate) fn strip(self, by: u16) -> bool {
        // SAFETY: the context is valid; the caller reloads packet pointers.
        unsafe { bpf_skb_adjust_room(self.0, -i32::from(by), BEHIND_ETHERNET, KEEP_SEGMENTS) == 0 }
    }

    /// Gives the packet the room for an IP header of this Ethernet type, of the other family.
    #[inline(always)]
    pub(crate) fn change_protocol(self, protocol: u16) -> bool {
        // SAFETY: the context is valid; the caller reloads packet pointers.
        unsafe { bpf_skb_change_proto(self.0, protocol, 0) == 0 }
    }

    /// Updates the device's sum over the packet, if there is one, after the change of a 16-bit word.
    #[inline(always)]
    pub(crate) fn word_changed(self, from: u16, to: u16) {
        self.sum_changed(u32::from(!from) + u32::from(to));
    }

    /// Updates the device's sum over the packet, if there is one, by a difference.
    #[inline(always)]
    pub(crate) fn sum_changed(self, difference: u32) {
        // SAFETY: the context is valid for the whole run; the helper takes no pointers.
        unsafe { bpf_csum_update(self.0, difference) };
    }

    /// Updates the checksum of a transport header at `at` by the change of a value, or by the difference `to` if the
    /// flags have no size. The caller must reload its packet pointers.
    #[inline(always)]
    pub(crate) fn replace_checksum(self, at: usize, from: u64, to: u64, flags: u64) -> bool {
        // SAFETY: the context is valid; the caller reloads packet pointers.
        unsafe { bpf_l4_csum_replace(self.0, at as u32, from, to, flags) == 0 }
    }

    /// Returns the cookie of the socket that has sent the packet; zero without one.
    #[inline(always)]
    pub(crate) fn socket_cookie(self) -> u64 {
        // SAFETY: the context is valid for the whole run.
        unsafe { bpf_get_socket_cookie(self.0.cast()) }
    }

    /// Returns the bits of [`tc_index`](datapath_abi::mark::tc_index).
    #[inline(always)]
    pub(crate) fn tc_index(self) -> u32 {
        field!(self, tc_index)
    }

    #[inline(always)]
    pub(crate) fn set_tc_index(self, bits: u32) {
        set_field!(self, bits, tc_index)
    }

    /// Returns the hash of the packet's flow.
    #[inline(always)]
    pub(crate) fn hash(self) -> u32 {
        // SAFETY: the context is valid for the whole run.
        unsafe { bpf_get_hash_recalc(self.0) }
    }

    /// Returns the flags that a program of XDP has given the packet; zero without one.
    #[inline(always)]
    pub(crate) fn transferred(self) -> u32 {
        let flags = field!(self, data_meta) as usize;
        if flags + size_of::<u32>() > field!(self, data) as usize {
            return 0;
        }
        // SAFETY: the bounds are checked, and metadata is aligned to its words.
        unsafe { (flags as *const u32).read() }
    }

    /// Tail-calls a program of the private array; returns only if the slot is empty.
    #[inline(always)]
    pub(crate) fn tail_call(self, slot: u32) {
        // SAFETY: context and map are valid; on success the call does not return.
        unsafe { bpf_tail_call(self.0.cast(), cilium_calls.handle(), slot) };
    }

    /// Redirects the packet to egress of an interface.
    #[inline(always)]
    pub(crate) fn redirect(self, ifindex: u32) -> i32 {
        // SAFETY: the helper takes no pointers.
        unsafe { bpf_redirect(ifindex, 0) as i32 }
    }

    /// Redirects the packet to ingress of an interface: as if it had received it.
    #[inline(always)]
    pub(crate) fn redirect_ingress(self, ifindex: u32) -> i32 {
        // SAFETY: the helper takes no pointers.
        unsafe { bpf_redirect(ifindex, INGRESS) as i32 }
    }

    /// Marks the packet as addressed to this machine, whatever its MAC address.
    #[inline(always)]
    pub(crate) fn set_type_host(self) {
        // SAFETY: the context is valid for the whole run; the helper fails only for other types.
        unsafe { bpf_skb_change_type(self.0, PACKET_HOST) };
    }

    /// Returns the id in the key of the tunnel that the packet came from, or is about to leave by; `None` without one.
    #[inline(always)]
    pub(crate) fn tunnel_id(self) -> Option<u32> {
        let mut key = TunnelKey::default();
        let (into, size) = ((&raw mut key).cast(), size_of::<TunnelKey>() as u32);
        // SAFETY: the context is valid; the key outlives the calls and has the given length.
        let found = unsafe {
            bpf_skb_get_tunnel_key(self.0, into, size, 0) == 0
                || bpf_skb_get_tunnel_key(self.0, into, size, TUNNEL_IPV6) == 0
        };
        found.then_some(key.id)
    }

    /// Sets the key by which a tunnel device encapsulates the packet. `remote` is an address as in map values.
    #[inline(always)]
    pub(crate) fn set_tunnel_key(self, id: u32, remote: [u32; 4], ipv6: bool) -> bool {
        let mut key = TunnelKey { id, remote, ttl: TUNNEL_TTL, ..TunnelKey::default() };
        let mut flags = ZERO_CSUM_TX;
        if ipv6 {
            flags |= TUNNEL_IPV6;
        } else {
            key.remote[0] = u32::from_be(remote[0]);
        }
        let (from, size) = ((&raw mut key).cast(), size_of::<TunnelKey>() as u32);
        // SAFETY: the context is valid; the key outlives the call and has the given length.
        unsafe { bpf_skb_set_tunnel_key(self.0, from, size, flags) == 0 }
    }

    /// Adds options to the key by which a tunnel device encapsulates the packet.
    #[inline(always)]
    pub(crate) fn set_tunnel_option<T>(self, option: &T) -> bool {
        let (from, size) = ((&raw const *option).cast_mut().cast(), size_of::<T>() as u32);
        // SAFETY: the context is valid; the option outlives the call and has the given length.
        unsafe { bpf_skb_set_tunnel_opt(self.0, from, size) == 0 }
    }

    /// Copies the options of the tunnel that the packet came from; false unless they have this length.
    #[inline(always)]
    pub(crate) fn tunnel_option<T>(self, into: &mut T) -> bool {
        let size = size_of::<T>() as u32;
        // SAFETY: the context is valid; `into` outlives the call and has the given length.
        unsafe { bpf_skb_get_tunnel_opt(self.0, (&raw mut *into).cast(), size) == i64::from(size) }
    }

    /// Redirects the packet to ingress of the peer of a pod's interface, in the pod's namespace.
    #[inline(always)]
    pub(crate) fn redirect_peer(self, ifindex: u32) -> i32 {
        // SAFETY: the helper takes no pointers.
        unsafe { bpf_redirect_peer(ifindex, 0) as i32 }
    }
}
