//! The packet's context: what a tc program may read, write and do.

use crate::maps::cilium_calls;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::{
    bpf_csum_update, bpf_redirect, bpf_redirect_peer, bpf_skb_change_tail, bpf_skb_load_bytes,
    bpf_skb_pull_data, bpf_skb_store_bytes, bpf_tail_call,
};
use aya_ebpf::programs::TcContext;

/// Verdicts (linux/pkt_cls.h).
pub(crate) const PASS: i32 = 0;
pub(crate) const SHOT: i32 = 2;

/// Length of an Ethernet header.
pub(crate) const ETH_LEN: usize = 14;

/// Ethernet types as `skb->protocol` holds them: as on the wire.
pub(crate) const ETH_IPV4: u16 = 0x0800u16.to_be();
pub(crate) const ETH_IPV6: u16 = 0x86ddu16.to_be();
pub(crate) const ETH_ARP: u16 = 0x0806u16.to_be();
/// The smallest number that is an Ethernet type and not a length (linux/if_ether.h).
pub(crate) const ETH_TYPE_MIN: u16 = 0x0600;

const RECOMPUTE_CSUM: u64 = 1;
const INVALIDATE_HASH: u64 = 2;

/// The same number, but for the compiler another one: it reads a packed number again where it needs a part of it, instead of
/// keeping parts, of which the verifier would know what branches have shown. The copy is the one that taking a part needs.
#[inline(always)]
pub(crate) fn opaque(number: u64) -> u64 {
    let same;
    // SAFETY: copies a register. Not pure, or two of them would become one. Not empty: LLVM gives an empty one a line of
    // its own in the debug information, and the kernel refuses two lines of one instruction.
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

/// One 32-bit field of the context. Volatile: the verifier wants each access in its declared width, and the
/// compiler would merge neighbours.
macro_rules! field {
    ($skb:expr, $($field:tt)+) => {
        // SAFETY: the context is valid for the whole run of the program.
        unsafe { core::ptr::read_volatile(&raw const (*$skb.0).$($field)+) }
    };
}
macro_rules! set_field {
    ($skb:expr, $value:expr, $($field:tt)+) => {
        // SAFETY: as above; the field is writable for tc programs.
        unsafe { core::ptr::write_volatile(&raw mut (*$skb.0).$($field)+, $value) }
    };
}

impl Skb {
    #[inline(always)]
    pub(crate) fn raw(self) -> *mut __sk_buff {
        self.0
    }

    /// A packet again, in a function that was called with its raw context.
    #[inline(always)]
    pub(crate) fn from_raw(raw: *mut __sk_buff) -> Self {
        Self(raw)
    }

    #[inline(always)]
    pub(crate) fn len(self) -> u32 {
        field!(self, len)
    }

    /// The same number, but for the verifier any number. Where paths join that have set it to different constants, the
    /// verifier then goes on once and not once for each.
    #[inline(always)]
    pub(crate) fn forget(self, number: u64) -> u64 {
        let len = u64::from(self.len());
        let (mut forgotten, noise) = (number, len | len << 32);
        // SAFETY: adds a number and takes it away again; wraps around alike.
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

    /// Ethernet type as on the wire.
    #[inline(always)]
    pub(crate) fn protocol(self) -> u16 {
        field!(self, protocol) as u16
    }

    #[inline(always)]
    pub(crate) fn ifindex(self) -> u32 {
        field!(self, ifindex)
    }

    /// The interface the packet came in by; zero if this machine made it.
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

    /// Clears what earlier programs left in the control block.
    #[inline(always)]
    pub(crate) fn clear_cb(self) {
        self.set_cb(0, 0);
        self.set_cb(1, 0);
        self.set_cb(2, 0);
        self.set_cb(3, 0);
        self.set_cb(4, 0);
        set_field!(self, 0, tc_classid);
    }

    /// Lets the stack choose a transmit queue: veth leaves its own receive queue here.
    #[inline(always)]
    pub(crate) fn clear_queue_mapping(self) {
        set_field!(self, 0, queue_mapping);
    }

    /// A header at `offset`, checked to be inside of the linear part of the packet.
    #[inline(always)]
    pub(crate) fn header<T>(self, offset: usize) -> Option<*mut T> {
        let start = field!(self, data) as usize + offset;
        if start + size_of::<T>() > field!(self, data_end) as usize { None } else { Some(start as *mut T) }
    }

    /// As [`Self::header`], and moves the header into the linear part if it is not there.
    #[inline(always)]
    pub(crate) fn pull_header<T>(self, offset: usize) -> Option<*mut T> {
        match self.header(offset) {
            Some(header) => Some(header),
            None => {
                // SAFETY: the context is valid; packet pointers are taken again below.
                unsafe { bpf_skb_pull_data(self.0, (offset + size_of::<T>()) as u32) };
                self.header(offset)
            }
        }
    }

    /// A value at `offset`, wherever it lies; `None` if the packet is too short. Does not move the packet.
    #[inline(always)]
    pub(crate) fn read<T: Copy + Default>(self, offset: usize) -> Option<T> {
        const { assert!(align_of::<T>() <= 2) };
        match self.header::<T>(offset) {
            // SAFETY: checked by `header`; headers begin at even addresses.
            Some(value) => Some(unsafe { value.read() }),
            None => {
                let mut value = T::default();
                self.load(offset, &mut value).then_some(value)
            }
        }
    }

    /// Bytes of the packet, wherever they lie; false if it is too short.
    #[inline(always)]
    pub(crate) fn load<T>(self, offset: usize, into: &mut T) -> bool {
        // SAFETY: `into` has the length given.
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

    /// As [`Self::store`], for bytes whose change a checksum inside of the packet makes up for.
    #[inline(always)]
    pub(crate) fn store_quietly<T>(self, offset: usize, from: &T) -> bool {
        self.store_with(offset, from, 0)
    }

    #[inline(always)]
    fn store_with<T>(self, offset: usize, from: &T, flags: u64) -> bool {
        let (from, len) = ((&raw const *from).cast(), size_of::<T>() as u32);
        // SAFETY: `from` holds the length given.
        unsafe { bpf_skb_store_bytes(self.0, offset as u32, from, len, flags) == 0 }
    }

    /// Cuts the packet to `len` bytes, or adds zeroes.
    #[inline(always)]
    pub(crate) fn resize(self, len: u32) -> bool {
        // SAFETY: the context is valid; the caller takes packet pointers again.
        unsafe { bpf_skb_change_tail(self.0, len, 0) == 0 }
    }

    /// Updates the packet's checksum after a 16-bit word of it changed (packets whose device summed all of them up).
    #[inline(always)]
    pub(crate) fn word_changed(self, from: u16, to: u16) {
        // SAFETY: the context is valid.
        unsafe { bpf_csum_update(self.0, u32::from(!from) + u32::from(to)) };
    }

    /// Goes on in a program of the private array; returns only if there is none.
    #[inline(always)]
    pub(crate) fn tail_call(self, slot: u32) {
        // SAFETY: context and map are valid; on success the call does not return.
        unsafe { bpf_tail_call(self.0.cast(), cilium_calls.handle(), slot) };
    }

    /// Out of an interface.
    #[inline(always)]
    pub(crate) fn redirect(self, ifindex: u32) -> i32 {
        // SAFETY: no pointers.
        unsafe { bpf_redirect(ifindex, 0) as i32 }
    }

    /// Into the namespace behind a pod's interface.
    #[inline(always)]
    pub(crate) fn redirect_peer(self, ifindex: u32) -> i32 {
        // SAFETY: no pointers.
        unsafe { bpf_redirect_peer(ifindex, 0) as i32 }
    }
}
