//! Routes of the host, for packets that leave by a device without the host's stack.

#[cfg(feature = "xdp")]
use crate::maps::xdp_devices;
use crate::monitor::drop::Drop;
use crate::packet::family::Family;
#[cfg(feature = "xdp")]
use crate::packet::headers::Mac;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::Skb;
use aya_ebpf::helpers::bpf_fib_lookup;
#[cfg(not(feature = "xdp"))]
use aya_ebpf::helpers::bpf_redirect_neigh;
use datapath_abi::file;

const FILE: u8 = file::NODEPORT;

/// Address families (linux/socket.h).
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Results of a lookup (linux/bpf.h) that name a next hop: with its MAC address, and without.
const SUCCESS: i64 = 0;
const NO_NEIGHBOUR: i64 = 7;
/// The result for a packet that exceeds the MTU of its route.
const FRAGMENTATION_NEEDED: i64 = 8;
/// Results for packets that the host's stack drops without an answer: a blackhole route, and an interface of which nothing
/// is forwarded.
const BLACKHOLE: i64 = 1;
const FORWARDING_DISABLED: i64 = 5;

/// Write the source address that the host would choose for the route (`BPF_FIB_LOOKUP_SRC`, Linux 6.7).
const SOURCE: u32 = 1 << 4;

/// `struct bpf_fib_lookup`.
#[repr(C)]
pub(crate) struct Lookup {
    family: u8,
    protocol: u8,
    ports: [u16; 2],
    /// The packet's length in the machine's byte order; zero skips the check of the MTU.
    len: u16,
    /// The packet's interface, then that of the route.
    ifindex: u32,
    flow: u32,
    source: [u32; 4],
    /// The packet's destination, then the next hop.
    destination: [u32; 4],
    vlan: u32,
    macs: [u32; 3],
}
const _: () = assert!(size_of::<Lookup>() == 64);

impl Lookup {
    #[inline(always)]
    fn new<F: Routed>(skb: Skb, source: F::Address, destination: F::Address, len: u16) -> Self {
        Self {
            family: F::AF,
            protocol: 0,
            ports: [0; 2],
            len,
            ifindex: skb.ifindex(),
            flow: 0,
            source: F::words(source),
            destination: F::words(destination),
            vlan: 0,
            macs: [0; 3],
        }
    }

    /// Writes what the kernel finds, and returns its result.
    #[inline(always)]
    fn run(&mut self, skb: Skb, flags: u32) -> i64 {
        // SAFETY: the context is valid; the parameters outlive the call and have the given length.
        unsafe { bpf_fib_lookup(skb.raw().cast(), (&raw mut *self).cast(), size_of::<Self>() as i32, flags) }
    }
}

/// Returns the source address that the host would choose for packets to a destination; `None` without a route, or if
/// the kernel does not choose one for programs.
#[inline(always)]
pub(crate) fn source_to<F: Routed>(skb: Skb, destination: F::Address) -> Option<F::Address> {
    let mut lookup = Lookup::new::<F>(skb, F::from_words([0; 4]), destination, 0);
    match lookup.run(skb, SOURCE) {
        SUCCESS | NO_NEIGHBOUR => Some(F::from_words(lookup.source)),
        _ => None,
    }
}

/// `struct bpf_redir_neigh`.
#[cfg(not(feature = "xdp"))]
#[repr(C)]
struct NextHop {
    family: u32,
    address: [u32; 4],
}
#[cfg(not(feature = "xdp"))]
const _: () = assert!(size_of::<NextHop>() == 20);

/// Sends the packet by a device, whatever its route; the kernel finds the next hop on that device, and its MAC address.
#[cfg(not(feature = "xdp"))]
#[inline(always)]
pub(crate) fn redirect_to(ifindex: u32) -> i32 {
    // SAFETY: without parameters the kernel looks the next hop up.
    unsafe { bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0) as i32 }
}

/// The families as routes have them.
pub(crate) trait Routed: Family {
    const AF: u8;

    /// True for addresses that no router forwards, for which a lookup may return the default route all the same.
    fn is_unroutable(address: Self::Address) -> bool;
}

impl Routed for V4 {
    const AF: u8 = AF_INET;

    /// This host, loopback, multicast, reserved and broadcast (RFC 6890). Not the link's: routers do forward them.
    #[inline(always)]
    fn is_unroutable(address: u32) -> bool {
        let first = u32::from_be(address) >> 24;
        first == 0 || first == 127 || first >= 224
    }
}

impl Routed for V6 {
    const AF: u8 = AF_INET6;

    /// Unspecified, loopback and mapped addresses, those of the link, and multicast (RFC 4291).
    #[inline(always)]
    fn is_unroutable(address: [u32; 4]) -> bool {
        let first = u32::from_be(address[0]);
        first == 0 || first >> 22 == 0xfe80 >> 6 || first >> 24 == 0xff
    }
}

/// A route of the host.
pub(crate) struct Route(Lookup);

impl Route {
    /// Looks up the route of a packet at this interface, by its addresses. The MTU is not checked.
    #[inline(always)]
    pub(crate) fn of<F: Routed>(skb: Skb, source: F::Address, destination: F::Address) -> Result<Self, Drop> {
        Self::for_length::<F>(skb, source, destination, 0, &mut 0)
    }

    /// As [`Route::of`], for a packet that will have this length: it must fit into the route's MTU. Else `mtu` gets that.
    #[inline(always)]
    pub(crate) fn for_length<F: Routed>(
        skb: Skb,
        source: F::Address,
        destination: F::Address,
        len: u16,
        mtu: &mut u16,
    ) -> Result<Self, Drop> {
        let mut lookup = Lookup::new::<F>(skb, source, destination, len);
        let result = lookup.run(skb, node!(fib_flags).into());
        if len != 0 && result == FRAGMENTATION_NEEDED {
            // The kernel has written it in place of the length.
            *mtu = lookup.len;
            return Err(drop_here!(FRAG_NEEDED));
        }
        if result != SUCCESS && result != NO_NEIGHBOUR {
            return Err(drop_here!(FIB_LOOKUP_FAILED).with_detail(result as i8));
        }
        Ok(Self(lookup))
    }

    /// As [`Route::for_length`]. `None` if the host's stack handles the packet: those to the host, and those that it
    /// encapsulates, fragments, or answers with an ICMP error.
    #[inline(always)]
    pub(crate) fn past_stack<F: Routed>(
        skb: Skb,
        source: F::Address,
        destination: F::Address,
        len: u16,
    ) -> Result<Option<Self>, Drop> {
        let mut lookup = Lookup::new::<F>(skb, source, destination, len);
        let result = lookup.run(skb, node!(fib_flags).into());
        if result == SUCCESS || result == NO_NEIGHBOUR {
            return Ok(Some(Self(lookup)));
        }
        if result < SUCCESS || result == BLACKHOLE || result == FORWARDING_DISABLED {
            return Err(drop_here!(FIB_LOOKUP_FAILED).with_detail(result as i8));
        }
        Ok(None)
    }

    /// Returns the interface that it leaves by.
    #[inline(always)]
    pub(crate) fn ifindex(&self) -> u32 {
        self.0.ifindex
    }

    /// Sends the packet to the next hop; the kernel resolves its MAC address.
    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    pub(crate) fn redirect(&self) -> i32 {
        let mut hop = NextHop { family: u32::from(self.0.family), address: self.0.destination };
        // SAFETY: the parameters outlive the call and have the given length.
        unsafe {
            bpf_redirect_neigh(self.0.ifindex, (&raw mut hop).cast(), size_of::<NextHop>() as i32, 0) as i32
        }
    }

    /// Returns the way of a packet of this length by a device with XDP; `None` for other devices, for packets that the
    /// host's stack handles, and if the kernel has yet to resolve the next hop's MAC address. `mtu` gets the length that fits.
    #[cfg(feature = "xdp")]
    #[inline(always)]
    pub(crate) fn exit<F: Routed>(
        skb: Skb,
        source: F::Address,
        destination: F::Address,
        len: u16,
        mtu: &mut u16,
    ) -> Option<Exit> {
        let mut lookup = Lookup::new::<F>(skb, source, destination, len);
        if lookup.run(skb, 0) != SUCCESS {
            return None;
        }
        // Frames for a device without XDP would be lost, unless its driver can send them all the same.
        if lookup.ifindex != skb.ifindex() && xdp_devices.get(&lookup.ifindex).is_none() {
            return None;
        }
        // Before Linux 5.13 it is still this packet's length.
        *mtu = lookup.len;
        let [a, b, c] = lookup.macs;
        let low = |word: u32| word as u16;
        let high = |word: u32| (word >> 16) as u16;
        let macs = [[high(b), low(c), high(c)], [low(a), high(a), low(b)]];
        Some(Exit { ifindex: lookup.ifindex, macs })
    }
}

/// The device by which a packet leaves, and its MAC addresses: destination and source.
#[cfg(feature = "xdp")]
#[derive(Clone, Copy)]
pub(crate) struct Exit {
    pub(crate) ifindex: u32,
    pub(crate) macs: [Mac; 2],
}
