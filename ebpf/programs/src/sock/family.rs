//! IP families: their maps, and where a context has an address.

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_map_delete_elem;
use datapath_abi::{
    FAMILY_V4, FAMILY_V6, IpcacheKey, LbAffinity, LbAffinityKey, LbBackend, LbReverseSk, LbReverseSkKey,
    LbService, LbServiceKey, SkipLb4Key, SkipLb6Key,
};

use crate::btf::Rows;
use crate::context::Address;
use crate::maps::*;

/// The maps of an IP family.
pub(crate) trait Family {
    type Address: Copy + 'static;
    /// A client in the keys of the affinity map.
    type Client: Copy + 'static;
    /// The padding of the keys of sockets.
    type Pad: Copy + Default;

    /// The address in the rows of ports of the node.
    const ANY: Self::Address;
    const LOOPBACK: Self::Address;

    fn services() -> Rows<LbServiceKey<Self::Address>, LbService>;
    fn backends() -> Rows<u32, LbBackend<Self::Address>>;
    fn affinity() -> Rows<LbAffinityKey<Self::Client>, LbAffinity>;
    fn sockets() -> Rows<LbReverseSkKey<Self::Address, Self::Pad>, LbReverseSk<Self::Address>>;
    /// Returns the map of backends that sockets of health probes name.
    fn probes() -> Rows<u64, LbBackend<Self::Address>>;
    /// Returns the map of [`Family::sockets`].
    fn sockets_handle() -> *mut c_void;
    /// True if sockets of the namespace reach this frontend without redirection.
    fn skips(netns_cookie: u64, address: Self::Address, port: u16) -> bool;
    /// Returns the client that stands for a network namespace.
    fn client(netns_cookie: u64) -> Self::Client;
    fn ipcache_key(address: Self::Address) -> IpcacheKey;
    fn is_loopback(address: Self::Address) -> bool;
    fn same(one: Self::Address, other: Self::Address) -> bool;
}

/// An address of a family in a context.
pub(crate) trait View {
    type Family: Family;
    fn address(ctx: Address) -> <Self::Family as Family>::Address;
    fn set_address(ctx: Address, address: <Self::Family as Family>::Address);
}

/// IPv4, also as the address of an IPv4 socket.
pub(crate) struct V4;
/// IPv6, also as the address of an IPv6 socket.
pub(crate) struct V6;
/// An IPv4 address of an IPv6 socket.
pub(crate) struct Mapped;

impl Family for V4 {
    type Address = u32;
    type Client = [u32; 2];
    type Pad = u16;
    const ANY: u32 = 0;
    const LOOPBACK: u32 = 0x7f00_0001_u32.to_be();

    #[inline(always)]
    fn services() -> Rows<LbServiceKey<u32>, LbService> {
        cilium_lb4_services_v2.rows()
    }

    #[inline(always)]
    fn backends() -> Rows<u32, LbBackend<u32>> {
        cilium_lb4_backends_v3.rows()
    }

    #[inline(always)]
    fn affinity() -> Rows<LbAffinityKey<[u32; 2]>, LbAffinity> {
        cilium_lb4_affinity.rows()
    }

    #[inline(always)]
    fn sockets() -> Rows<LbReverseSkKey<u32, u16>, LbReverseSk<u32>> {
        cilium_lb4_reverse_sk.rows()
    }

    #[inline(always)]
    fn probes() -> Rows<u64, LbBackend<u32>> {
        cilium_lb4_health.rows()
    }

    #[inline(always)]
    fn sockets_handle() -> *mut c_void {
        cilium_lb4_reverse_sk.handle()
    }

    #[inline(always)]
    fn skips(netns_cookie: u64, address: u32, port: u16) -> bool {
        cilium_skip_lb4.get(&SkipLb4Key { netns_cookie, address, port, pad: 0 }).is_some()
    }

    #[inline(always)]
    fn client(netns_cookie: u64) -> [u32; 2] {
        [netns_cookie as u32, (netns_cookie >> 32) as u32]
    }

    #[inline(always)]
    fn ipcache_key(address: u32) -> IpcacheKey {
        let prefixlen = IpcacheKey::STATIC_BITS + 32;
        IpcacheKey { prefixlen, cluster_id: 0, pad1: 0, family: FAMILY_V4, address: [address, 0, 0, 0] }
    }

    #[inline(always)]
    fn is_loopback(address: u32) -> bool {
        address.to_be() >> 24 == 127
    }

    #[inline(always)]
    fn same(one: u32, other: u32) -> bool {
        one == other
    }
}

impl Family for V6 {
    type Address = [u32; 4];
    type Client = [u32; 4];
    type Pad = [u16; 3];
    const ANY: [u32; 4] = [0; 4];
    const LOOPBACK: [u32; 4] = [0, 0, 0, 1_u32.to_be()];

    #[inline(always)]
    fn services() -> Rows<LbServiceKey<[u32; 4]>, LbService> {
        cilium_lb6_services_v2.rows()
    }

    #[inline(always)]
    fn backends() -> Rows<u32, LbBackend<[u32; 4]>> {
        cilium_lb6_backends_v3.rows()
    }

    #[inline(always)]
    fn affinity() -> Rows<LbAffinityKey<[u32; 4]>, LbAffinity> {
        cilium_lb6_affinity.rows()
    }

    #[inline(always)]
    fn sockets() -> Rows<LbReverseSkKey<[u32; 4], [u16; 3]>, LbReverseSk<[u32; 4]>> {
        cilium_lb6_reverse_sk.rows()
    }

    #[inline(always)]
    fn probes() -> Rows<u64, LbBackend<[u32; 4]>> {
        cilium_lb6_health.rows()
    }

    #[inline(always)]
    fn sockets_handle() -> *mut c_void {
        cilium_lb6_reverse_sk.handle()
    }

    #[inline(always)]
    fn skips(netns_cookie: u64, address: [u32; 4], port: u16) -> bool {
        cilium_skip_lb6.get(&SkipLb6Key { netns_cookie, address, pad: 0, port, pad2: 0 }).is_some()
    }

    #[inline(always)]
    fn client(netns_cookie: u64) -> [u32; 4] {
        [netns_cookie as u32, (netns_cookie >> 32) as u32, 0, 0]
    }

    #[inline(always)]
    fn ipcache_key(address: [u32; 4]) -> IpcacheKey {
        let prefixlen = IpcacheKey::STATIC_BITS + 128;
        IpcacheKey { prefixlen, cluster_id: 0, pad1: 0, family: FAMILY_V6, address }
    }

    #[inline(always)]
    fn is_loopback(address: [u32; 4]) -> bool {
        Self::same(address, Self::LOOPBACK)
    }

    #[inline(always)]
    fn same(one: [u32; 4], other: [u32; 4]) -> bool {
        one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3]
    }
}

impl View for V4 {
    type Family = V4;

    #[inline(always)]
    fn address(ctx: Address) -> u32 {
        ctx.ipv4()
    }

    #[inline(always)]
    fn set_address(ctx: Address, address: u32) {
        ctx.set_ipv4(address);
    }
}

impl View for V6 {
    type Family = V6;

    #[inline(always)]
    fn address(ctx: Address) -> [u32; 4] {
        ctx.ipv6()
    }

    #[inline(always)]
    fn set_address(ctx: Address, address: [u32; 4]) {
        ctx.set_ipv6(address);
    }
}

impl View for Mapped {
    type Family = V4;

    #[inline(always)]
    fn address(ctx: Address) -> u32 {
        ctx.ipv6()[3]
    }

    #[inline(always)]
    fn set_address(ctx: Address, address: u32) {
        let [first, second, prefix, _] = ctx.ipv6();
        ctx.set_ipv6([first, second, prefix, address]);
    }
}

/// Returns a map entry, if it exists.
#[inline(always)]
pub(crate) fn row<K, V>(rows: &Rows<K, V>, key: &K) -> Option<&'static V> {
    // SAFETY: null or a map entry, which outlives the program's run.
    unsafe { rows.pointer(key).as_ref() }
}

/// Removes the row of a socket; true if it existed.
#[inline(always)]
pub(crate) fn remove_socket<F: Family>(key: &LbReverseSkKey<F::Address, F::Pad>) -> bool {
    // SAFETY: the handle is that of the map with this key type; the key outlives the call.
    unsafe { bpf_map_delete_elem(F::sockets_handle(), (&raw const *key).cast()) == 0 }
}
