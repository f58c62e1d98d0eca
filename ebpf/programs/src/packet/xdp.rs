//! The context of a packet (`xdp_md`): the functions of [`skb`](self) that shared code uses, in an XDP program.
//!
//! There is neither a sum of the device nor room for values beside the packet, and all of the packet that programs read is
//! in its linear part. So most functions are plain reads and writes with checked bounds.

use crate::maps::cilium_calls;
use crate::nat::{SIZE_2, ZERO_IS_NONE};
use crate::packet::headers::{EthHeader, Ipv4Header, Ipv6Header, fold};
use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::{bpf_redirect, bpf_tail_call, bpf_xdp_adjust_head, bpf_xdp_adjust_meta};
use aya_ebpf::programs::XdpContext;

/// The kernel's form of the context.
pub(crate) type Context = xdp_md;

/// Verdicts (linux/bpf.h, `enum xdp_action`).
pub(crate) const SHOT: i32 = 1;
pub(crate) const PASS: i32 = 2;
/// Out by the device that the packet came by.
pub(crate) const SEND_BACK: i32 = 3;

/// Length of an Ethernet header.
pub(crate) const ETH_LEN: usize = 14;

/// Ethernet types as in packets: in network byte order.
pub(crate) const ETH_IPV4: u16 = 0x0800u16.to_be();
pub(crate) const ETH_IPV6: u16 = 0x86ddu16.to_be();

/// Returns the same integer as a new value to the compiler, as in tc programs.
#[inline(always)]
pub(crate) fn opaque(number: u64) -> u64 {
    let same;
    // SAFETY: copies a register.
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

/// A packet in an XDP program, under the name that shared code has for it.
#[derive(Clone, Copy)]
pub(crate) struct Skb(*mut xdp_md);

impl From<&XdpContext> for Skb {
    #[inline(always)]
    fn from(ctx: &XdpContext) -> Self {
        Self(ctx.ctx)
    }
}

/// Accesses a 32-bit field of the context, as in tc programs.
macro_rules! field {
    ($skb:expr, $field:ident) => {
        // SAFETY: the context is valid for the whole run of the program.
        unsafe { core::ptr::read_volatile(&raw const (*$skb.0).$field) }
    };
}

impl Skb {
    #[inline(always)]
    pub(crate) fn raw(self) -> *mut xdp_md {
        self.0
    }

    /// Creates the packet from its raw context, in a function that is called with that.
    #[inline(always)]
    pub(crate) fn from_raw(raw: *mut xdp_md) -> Self {
        Self(raw)
    }

    #[inline(always)]
    pub(crate) fn len(self) -> u32 {
        let (mut len, start) = (u64::from(field!(self, data_end)), u64::from(field!(self, data)));
        // Both are pointers to the verifier, which the compiler may store as the 32 bits of the context's fields until it
        // needs the difference.
        // SAFETY: subtracts registers.
        unsafe {
            core::arch::asm!(
                "{len} -= {start}",
                len = inout(reg) len,
                start = in(reg) start,
                options(nomem, nostack, preserves_flags, pure)
            )
        };
        len as u32
    }

    /// Returns the same integer, unknown to the verifier, as in tc programs.
    #[inline(always)]
    pub(crate) fn forget(self, number: u64) -> u64 {
        let index = u64::from(field!(self, ingress_ifindex));
        let (mut forgotten, noise) = (number, index | index << 32);
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

    /// Returns the Ethernet type in network byte order; zero if the packet is too short.
    #[inline(always)]
    pub(crate) fn protocol(self) -> u16 {
        match self.header::<EthHeader>(0) {
            // SAFETY: `header` checked the bounds.
            Some(header) => unsafe { (*header).protocol },
            None => 0,
        }
    }

    #[inline(always)]
    pub(crate) fn ifindex(self) -> u32 {
        field!(self, ingress_ifindex)
    }

    /// Returns zero: the kernel has not computed a hash yet.
    #[inline(always)]
    pub(crate) fn hash(self) -> u32 {
        0
    }

    /// Returns a header at `offset`.
    #[inline(always)]
    pub(crate) fn header<T>(self, offset: usize) -> Option<*mut T> {
        let start = field!(self, data) as usize + offset;
        if start + size_of::<T>() > field!(self, data_end) as usize { None } else { Some(start as *mut T) }
    }

    /// As [`Self::header`].
    #[inline(always)]
    pub(crate) fn pull_header<T>(self, offset: usize) -> Option<*mut T> {
        self.header(offset)
    }

    /// Reads a value at `offset`; `None` if the packet is too short.
    #[inline(always)]
    pub(crate) fn read<T: Copy>(self, offset: usize) -> Option<T> {
        const { assert!(align_of::<T>() <= 2) };
        // SAFETY: `header` checked the bounds; headers begin at even addresses.
        self.header::<T>(offset).map(|value| unsafe { value.read() })
    }

    /// Copies bytes of the packet; false if it is too short.
    #[inline(always)]
    pub(crate) fn load<T>(self, offset: usize, into: &mut T) -> bool {
        let Some(value) = self.header::<T>(offset) else { return false };
        // SAFETY: `header` checked the bounds.
        *into = unsafe { value.read_unaligned() };
        true
    }

    /// Overwrites bytes of the packet; false if it is too short.
    #[inline(always)]
    pub(crate) fn store<T: Copy>(self, offset: usize, from: &T) -> bool {
        let Some(value) = self.header::<T>(offset) else { return false };
        // SAFETY: `header` checked the bounds.
        unsafe { value.write_unaligned(*from) };
        true
    }

    /// As [`Self::store`].
    #[inline(always)]
    pub(crate) fn store_quietly<T: Copy>(self, offset: usize, from: &T) -> bool {
        self.store(offset, from)
    }

    /// Inserts this number of bytes behind the IP header without its options; the caller writes them.
    #[inline(always)]
    pub(crate) fn widen(self, by: u16) -> bool {
        match self.protocol() {
            ETH_IPV4 => self.widen_behind::<{ (ETH_LEN + size_of::<Ipv4Header>()) / 2 }>(by),
            ETH_IPV6 => self.widen_behind::<{ (ETH_LEN + size_of::<Ipv6Header>()) / 2 }>(by),
            _ => false,
        }
    }

    /// Inserts this number of bytes before the packet; the caller writes them and reloads its packet pointers.
    #[inline(always)]
    pub(crate) fn prepend(self, by: u16) -> bool {
        // SAFETY: the context is valid; the caller reloads packet pointers.
        unsafe { bpf_xdp_adjust_head(self.0, -i32::from(by)) == 0 }
    }

    /// Sends the packet by another device.
    #[inline(always)]
    pub(crate) fn redirect(self, ifindex: u32) -> i32 {
        // SAFETY: the helper takes no pointers.
        unsafe { bpf_redirect(ifindex, 0) as i32 }
    }

    /// Moves the first words of the packet up to its new beginning.
    #[inline(always)]
    fn widen_behind<const WORDS: usize>(self, by: u16) -> bool {
        if !self.prepend(by) {
            return false;
        }
        let Some(from) = self.header::<[u16; WORDS]>(usize::from(by)) else { return false };
        let Some(to) = self.header::<[u16; WORDS]>(0) else { return false };
        for word in 0..WORDS {
            // SAFETY: `header` checked both bounds. A word is read before its place is written: that is before it.
            unsafe {
                to.cast::<u16>().add(word).write_volatile(from.cast::<u16>().add(word).read_volatile())
            };
        }
        true
    }

    /// Has no effect: the device has no sum over the packet here.
    #[inline(always)]
    pub(crate) fn word_changed(self, _: u16, _: u16) {}

    /// Has no effect, as [`Self::word_changed`].
    #[inline(always)]
    pub(crate) fn sum_changed(self, _: u32) {}

    /// Updates the checksum of a transport header at `at` by the change of a value, or by the difference `to` if the
    /// flags have no size.
    #[inline(always)]
    pub(crate) fn replace_checksum(self, at: usize, from: u64, to: u64, flags: u64) -> bool {
        let Some(checksum) = self.header::<u16>(at) else { return false };
        // SAFETY: `header` checked the bounds; nothing moves the packet in between.
        let checksum = unsafe { &mut *checksum };
        if flags & ZERO_IS_NONE != 0 && *checksum == 0 {
            return true;
        }
        let difference = if flags & SIZE_2 != 0 {
            u32::from(!(from as u16)) + u32::from(to as u16)
        } else {
            (to as u32 & 0xffff) + (to as u32 >> 16)
        };
        let changed = !fold(u32::from(!*checksum) + difference);
        *checksum = if flags & ZERO_IS_NONE != 0 && changed == 0 { u16::MAX } else { changed };
        true
    }

    /// Tail-calls a program of the private array; returns only if the slot is empty.
    #[inline(always)]
    pub(crate) fn tail_call(self, slot: u32) {
        // SAFETY: context and map are valid; on success the call does not return.
        unsafe { bpf_tail_call(self.0.cast(), cilium_calls.handle(), slot) };
    }

    /// Gives the packet flags for the programs of its device; false if the driver has no room for them.
    #[inline(always)]
    pub(crate) fn transfer(self, flags: u32) -> bool {
        // SAFETY: the context is valid; packet pointers are reloaded.
        if unsafe { bpf_xdp_adjust_meta(self.0, -(size_of::<u32>() as i32)) } != 0 {
            return false;
        }
        let meta = field!(self, data_meta) as usize;
        if meta + size_of::<u32>() > field!(self, data) as usize {
            return false;
        }
        // SAFETY: the bounds are checked, and metadata is aligned to its words.
        unsafe { (meta as *mut u32).write(flags) };
        true
    }
}
