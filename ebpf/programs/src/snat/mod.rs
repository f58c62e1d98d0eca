//! Source address translation at the devices of the node: packets of pods that leave the cluster get an address of the
//! node, and replies to it get the pod's back. Packets of clients to backends of other nodes get one as well.
//!
//! Owns: the decision which packets are translated ([`masquerade`]), the rows of the NAT maps (here; the engine is
//! [`datapath_abi::snat`]), and packets that ICMP errors quote ([`quote`]). Uses `conntrack`, `endpoint`, `maps`,
//! `monitor`, `nat` and `packet`.

#[cfg(not(feature = "xdp"))]
pub(crate) mod masquerade;
#[cfg(not(feature = "xdp"))]
pub(crate) mod quote;

use crate::conntrack;
use crate::maps::{
    cilium_ipmasq_v4, cilium_ipmasq_v6, cilium_signals, cilium_snat_v4_alloc_retries,
    cilium_snat_v4_external, cilium_snat_v6_alloc_retries, cilium_snat_v6_external, ep_masquerade,
};
use crate::monitor::drop::Drop;
use crate::nat::{self, Socket, Translate};
use crate::packet::family::Family;
use crate::packet::flow::{Flow, SCTP};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{Context, Skb};
use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_perf_event_output};
use datapath_abi::signal::{FillUp, NAT_FILL_UP};
use datapath_abi::snat::{Failure, MAX_TRIES, Mapping, Range, SIGNAL_RETRIES, Table, restore, translate};
use datapath_abi::{
    DIRECT_ROUTING, IpMasqKey, MasqueradeAddresses, NatEntry4, NatEntry6, NatKey, NatKey4, NatKey6, file,
    lxc_flag, slot, tuple_flag,
};

const FILE: u8 = file::NODEPORT;

/// Results of the steps beside drops, which have a zero here.
pub(crate) const STEP: u64 = 1 << 56;
/// The packet leaves as it is.
pub(crate) const UNTRANSLATED: u64 = STEP;
/// The packet was translated.
pub(crate) const TRANSLATED: u64 = 2 * STEP;

/// Translation of source addresses of an IP family.
pub(crate) trait Snat: Translate {
    /// The slot of the program that delivers packets of a device to pods.
    const DELIVERY_SLOT: u32;
    /// The slot of the program that translates packets that a device received.
    const INGRESS_SLOT: u32;
    /// The slot of the program that delivers packets of the tunnel to pods and to the host.
    const OVERLAY_SLOT: u32;
    /// The slot of the program that sends replies of backends of other nodes to clients.
    const REMOTE_REPLY_SLOT: u32;
    /// The bit of endpoints that keep their address.
    const KEEPS_ADDRESS: u32;

    /// True if packets of pods are masqueraded by the programs.
    fn is_masqueraded() -> bool;
    /// True if the programs translate sources of this family: of pods, or of clients of services.
    fn is_translated() -> bool;
    /// Returns the router's address.
    fn router() -> Self::Address;
    /// True for messages that a host or a router answers itself, which keep their source: redirects, echo replies,
    /// neighbour discovery.
    fn is_untranslated(icmp_type: u8) -> bool;
    /// Returns the address of packets that leave by a device.
    fn masquerade_address(device: &MasqueradeAddresses) -> Self::Address;
    fn is_unspecified(address: Self::Address) -> bool;
    /// True for destinations in the range that is not masqueraded.
    fn is_excluded(device: &MasqueradeAddresses, destination: Self::Address) -> bool;
    /// True for destinations in a range of `ip-masq-agent`.
    fn is_excluded_by_agent(destination: Self::Address) -> bool;
    fn row(key: &NatKey<Self::Address>) -> Option<Mapping<Self::Address>>;
    fn insert(key: &NatKey<Self::Address>, mapping: &Mapping<Self::Address>) -> Result<(), i8>;
    fn remove(key: &NatKey<Self::Address>);
    /// Returns the counter of mappings by the number of occupied ports before one was free.
    fn retries(retries: u32) -> Option<&'static mut u32>;
}

impl Snat for V4 {
    const DELIVERY_SLOT: u32 = slot::IPV4_FROM_NETDEV;
    const INGRESS_SLOT: u32 = slot::IPV4_NAT_INGRESS;
    const OVERLAY_SLOT: u32 = slot::IPV4_FROM_OVERLAY;
    const REMOTE_REPLY_SLOT: u32 = slot::IPV4_NODEPORT_REMOTE_REVNAT;
    const KEEPS_ADDRESS: u32 = lxc_flag::SKIP_MASQUERADE_V4;

    #[inline(always)]
    fn is_masqueraded() -> bool {
        enabled!(masquerade_ipv4)
    }

    #[inline(always)]
    fn is_translated() -> bool {
        enabled!(masquerade_ipv4) || enabled!(nodeport) && enabled!(enable_ipv4)
    }

    #[inline(always)]
    fn router() -> u32 {
        node!(router_ipv4)
    }

    #[inline(always)]
    fn is_untranslated(icmp_type: u8) -> bool {
        const REDIRECT: u8 = 5;
        matches!(icmp_type, Self::ECHO_REPLY | REDIRECT)
    }

    #[inline(always)]
    fn masquerade_address(device: &MasqueradeAddresses) -> u32 {
        device.ipv4
    }

    #[inline(always)]
    fn is_unspecified(address: u32) -> bool {
        address == 0
    }

    #[inline(always)]
    fn is_excluded(device: &MasqueradeAddresses, destination: u32) -> bool {
        destination & device.excluded_ipv4_mask == device.excluded_ipv4
    }

    #[inline(always)]
    fn is_excluded_by_agent(address: u32) -> bool {
        cilium_ipmasq_v4.get(&IpMasqKey { prefixlen: Self::BITS, address }).is_some()
    }

    #[inline(always)]
    fn row(key: &NatKey4) -> Option<Mapping<u32>> {
        let row = cilium_snat_v4_external.get(key)?;
        Some(Mapping { address: row.address, port: row.port, needs_ct: row.needs_ct != 0 })
    }

    #[inline(always)]
    fn insert(key: &NatKey4, mapping: &Mapping<u32>) -> Result<(), i8> {
        let row = NatEntry4 {
            created: u64::from(conntrack::now()),
            needs_ct: mapping.needs_ct.into(),
            pad1: 0,
            pad2: 0,
            address: mapping.address,
            port: mapping.port,
            pad: [0; 2],
        };
        cilium_snat_v4_external.rows().insert_new(key, &row)
    }

    #[inline(always)]
    fn remove(key: &NatKey4) {
        cilium_snat_v4_external.rows().remove(key);
    }

    #[inline(always)]
    fn retries(retries: u32) -> Option<&'static mut u32> {
        cilium_snat_v4_alloc_retries.get_mut(&retries)
    }
}

impl Snat for V6 {
    const DELIVERY_SLOT: u32 = slot::IPV6_FROM_NETDEV;
    const INGRESS_SLOT: u32 = slot::IPV6_NAT_INGRESS;
    const OVERLAY_SLOT: u32 = slot::IPV6_FROM_OVERLAY;
    const REMOTE_REPLY_SLOT: u32 = slot::IPV6_NODEPORT_REMOTE_REVNAT;
    const KEEPS_ADDRESS: u32 = lxc_flag::SKIP_MASQUERADE_V6;

    #[inline(always)]
    fn is_masqueraded() -> bool {
        enabled!(masquerade_ipv6)
    }

    #[inline(always)]
    fn is_translated() -> bool {
        enabled!(masquerade_ipv6) || enabled!(nodeport) && enabled!(enable_ipv6)
    }

    #[inline(always)]
    fn router() -> [u32; 4] {
        node!(router_ipv6)
    }

    #[inline(always)]
    fn is_untranslated(icmp_type: u8) -> bool {
        const ROUTER_SOLICITATION: u8 = 133;
        const REDIRECT: u8 = 137;
        icmp_type == Self::ECHO_REPLY || icmp_type >= ROUTER_SOLICITATION && icmp_type <= REDIRECT
    }

    #[inline(always)]
    fn masquerade_address(device: &MasqueradeAddresses) -> [u32; 4] {
        device.ipv6
    }

    #[inline(always)]
    fn is_unspecified(address: [u32; 4]) -> bool {
        address[0] | address[1] | address[2] | address[3] == 0
    }

    #[inline(always)]
    fn is_excluded(device: &MasqueradeAddresses, destination: [u32; 4]) -> bool {
        let (range, mask) = (device.excluded_ipv6, device.excluded_ipv6_mask);
        let masked = [
            destination[0] & mask[0],
            destination[1] & mask[1],
            destination[2] & mask[2],
            destination[3] & mask[3],
        ];
        Self::same(masked, range)
    }

    #[inline(always)]
    fn is_excluded_by_agent(address: [u32; 4]) -> bool {
        cilium_ipmasq_v6.get(&IpMasqKey { prefixlen: Self::BITS, address }).is_some()
    }

    #[inline(always)]
    fn row(key: &NatKey6) -> Option<Mapping<[u32; 4]>> {
        let row = cilium_snat_v6_external.get(key)?;
        Some(Mapping { address: row.address, port: row.port, needs_ct: row.needs_ct != 0 })
    }

    #[inline(always)]
    fn insert(key: &NatKey6, mapping: &Mapping<[u32; 4]>) -> Result<(), i8> {
        let row = NatEntry6 {
            created: u64::from(conntrack::now()),
            needs_ct: mapping.needs_ct.into(),
            pad1: 0,
            pad2: 0,
            address: mapping.address,
            port: mapping.port,
            pad: [0; 6],
        };
        cilium_snat_v6_external.rows().insert_new(key, &row)
    }

    #[inline(always)]
    fn remove(key: &NatKey6) {
        cilium_snat_v6_external.rows().remove(key);
    }

    #[inline(always)]
    fn retries(retries: u32) -> Option<&'static mut u32> {
        cilium_snat_v6_alloc_retries.get_mut(&retries)
    }
}

/// The NAT map of a family, as the engine uses it.
struct NatMap<F>(core::marker::PhantomData<F>);

impl<F: Snat> Table for NatMap<F> {
    type Address = F::Address;

    #[inline(always)]
    fn same(a: F::Address, b: F::Address) -> bool {
        F::same(a, b)
    }

    #[inline(always)]
    fn mapping(&self, key: &NatKey<F::Address>) -> Option<Mapping<F::Address>> {
        F::row(key)
    }

    #[inline(always)]
    fn insert(&self, key: &NatKey<F::Address>, mapping: &Mapping<F::Address>) -> Result<(), i8> {
        F::insert(key, mapping)
    }

    #[inline(always)]
    fn remove(&self, key: &NatKey<F::Address>) {
        F::remove(key);
    }

    #[inline(always)]
    fn random(&self) -> u32 {
        // SAFETY: the helper takes no arguments.
        unsafe { bpf_get_prandom_u32() }
    }
}

/// Bits of [`map`]'s result: a port in the lower ones, else a reason.
const OCCUPIED: u64 = 1 << 16;
const REFUSED: u64 = 1 << 17;
const ERRNO_SHIFT: u32 = 32;

/// Returns the port of a flow's translation. A separate function: the verifier follows its loop once, and it has a stack
/// of its own.
#[inline(never)]
fn map<F: Snat>(raw: *mut Context, flow: &Flow<F::Address>, is_host: bool) -> u64 {
    let skb = Skb::from_raw(raw);
    map_to::<F>(skb, flow, target::<F>(skb, flow, is_host), is_host)
}

/// Returns the port of a flow's translation to a source.
#[inline(always)]
fn map_to<F: Snat>(skb: Skb, flow: &Flow<F::Address>, target: F::Address, needs_ct: bool) -> u64 {
    let table = NatMap::<F>(core::marker::PhantomData);
    let range = if flow.protocol() == F::ICMP { Range::IDENTIFIERS } else { ports() };
    let out = NatKey {
        daddr: flow.destination,
        saddr: flow.source,
        dport: flow.dport,
        sport: flow.sport,
        nexthdr: flow.protocol(),
        flags: tuple_flag::OUT,
    };
    let translated = translate(&table, &out, target, range, needs_ct);
    let (result, retries) = match translated {
        Ok(translated) => (u64::from(translated.port), translated.retries.unwrap_or(EXISTED)),
        Err(Failure::Occupied) => (OCCUPIED, MAX_TRIES),
        Err(Failure::Refused(errno)) => (REFUSED | u64::from(errno as u8) << ERRNO_SHIFT, EXISTED),
    };
    // Else the verifier would follow the rest once for each number of tries.
    let (result, retries) = (skb.forget(result), skb.forget(u64::from(retries)) as u32);
    if retries != EXISTED {
        if let Some(count) = F::retries(retries) {
            *count += 1;
        }
        if retries > SIGNAL_RETRIES {
            signal::<F>(skb);
        }
    }
    result
}

/// In place of a number of tries: the mapping existed, or there is none.
const EXISTED: u32 = u32::MAX;

/// Asks the agent to collect rows of ended connections.
#[inline(always)]
fn signal<F: Family>(skb: Skb) {
    const CURRENT_CPU: u64 = 0xffff_ffff;
    let message = FillUp { signal: NAT_FILL_UP, family: F::SIGNAL };
    // SAFETY: context and map are valid; the message outlives the call and has the given length.
    unsafe {
        bpf_perf_event_output(
            skb.raw().cast(),
            cilium_signals.handle(),
            CURRENT_CPU,
            (&raw const message).cast_mut().cast(),
            size_of::<FillUp>() as u64,
        )
    };
}

/// Translates the source of a packet that leaves, under a port in the range of translations: that of the host keeps its
/// address. Returns the result of this step; the flow stays that of the packet before it.
#[inline(always)]
fn source<F: Snat>(skb: Skb, flow: &mut Flow<F::Address>, is_host: bool) -> u64 {
    if is_host {
        let kept = skb.forget(keep::<F>(skb.raw(), flow));
        if kept != UNTRANSLATED {
            return kept;
        }
    }
    let mapped = skb.forget(map::<F>(skb.raw(), flow, is_host));
    if mapped & (OCCUPIED | REFUSED) != 0 {
        return unmapped(mapped).packed();
    }
    write::<F>(skb.raw(), flow, mapped as u16, is_host)
}

/// Gives a client's packet to a backend of another node this source, under a port in the range of translations. The
/// connection has an entry already, which the rows live with. Returns the result of this step.
#[inline(always)]
pub(crate) fn to_backend<F: Snat>(skb: Skb, flow: &Flow<F::Address>, target: &F::Address) -> u64 {
    let mapped = skb.forget(map_client::<F>(skb.raw(), flow, target));
    if mapped & (OCCUPIED | REFUSED) != 0 {
        return unmapped(mapped).packed();
    }
    write_client::<F>(skb.raw(), flow, target, mapped as u16)
}

/// As [`to_backend`], for a packet that leaves by the gateway: the rows live with an entry that this function keeps.
#[cfg(not(feature = "xdp"))]
#[inline(always)]
pub(crate) fn through_gateway<F: Snat>(skb: Skb, flow: &Flow<F::Address>, target: &F::Address) -> u64 {
    let kept = skb.forget(keep::<F>(skb.raw(), flow));
    if kept != UNTRANSLATED {
        return kept;
    }
    let mapped = skb.forget(map_gateway::<F>(skb.raw(), flow, target));
    if mapped & (OCCUPIED | REFUSED) != 0 {
        return unmapped(mapped).packed();
    }
    write_client::<F>(skb.raw(), flow, target, mapped as u16)
}

/// A function of its own, as [`map`].
#[cfg(not(feature = "xdp"))]
#[inline(never)]
fn map_gateway<F: Snat>(raw: *mut Context, flow: &Flow<F::Address>, target: &F::Address) -> u64 {
    map_to::<F>(Skb::from_raw(raw), flow, *target, true)
}

/// A function of its own, as [`map`].
#[inline(never)]
fn map_client<F: Snat>(raw: *mut Context, flow: &Flow<F::Address>, target: &F::Address) -> u64 {
    map_to::<F>(Skb::from_raw(raw), flow, *target, false)
}

/// A function of its own, as [`map`].
#[inline(never)]
fn write_client<F: Snat>(raw: *mut Context, flow: &Flow<F::Address>, target: &F::Address, port: u16) -> u64 {
    if port != flow.sport && flow.protocol() == SCTP {
        return drop_here!(ERROR_WHILE_CORRECTING_L4_CHECKSUM).packed();
    }
    write_to::<F>(Skb::from_raw(raw), flow, Socket { address: *target, port })
}

/// Returns the drop of a packet for which [`map`] found no port.
#[inline(always)]
fn unmapped(mapped: u64) -> Drop {
    let none = drop_here!(NO_MAPPING_FOR_NAT_MASQUERADE);
    if mapped & REFUSED != 0 { none.with_detail((mapped >> ERRNO_SHIFT) as i8) } else { none }
}

/// Returns the address of the node from which other nodes get packets outside of the tunnel.
#[inline(always)]
pub(crate) fn direct_routing_address<F: Snat>() -> F::Address {
    match ep_masquerade.get(&DIRECT_ROUTING) {
        Some(node) => F::masquerade_address(node),
        None => F::NONE,
    }
}

/// Keeps the connection tracking entry of a flow of the host. A function of its own, as [`map`].
#[inline(never)]
fn keep<F: Snat>(raw: *mut Context, flow: &Flow<F::Address>) -> u64 {
    match conntrack::keep::<F>(Skb::from_raw(raw), flow, conntrack::now()) {
        Ok(()) => UNTRANSLATED,
        Err(why) => why.packed(),
    }
}

/// Writes the translated source into a packet. A function of its own, as [`map`].
#[inline(never)]
fn write<F: Snat>(raw: *mut Context, flow: &Flow<F::Address>, port: u16, is_host: bool) -> u64 {
    let skb = Skb::from_raw(raw);
    let address = target::<F>(skb, flow, is_host);
    if port != flow.sport && flow.protocol() == SCTP {
        return drop_here!(ERROR_WHILE_CORRECTING_L4_CHECKSUM).packed();
    }
    if is_host && port == flow.sport {
        return UNTRANSLATED;
    }
    write_to::<F>(skb, flow, Socket { address, port })
}

/// Writes a source into a packet.
#[inline(always)]
fn write_to<F: Snat>(skb: Skb, flow: &Flow<F::Address>, to: Socket<F::Address>) -> u64 {
    let identifier = nat::Change { from: flow.sport, to: to.port };
    let mut translated = *flow;
    let written = nat::to_source::<F>(skb, &mut translated, to, flow.destination, false);
    let written = written.and_then(|()| match flow.protocol() == F::ICMP {
        true => nat::set_echo_identifier(skb, flow, identifier),
        false => Ok(()),
    });
    match written {
        Ok(()) => TRANSLATED,
        Err(why) => why.packed(),
    }
}

/// Returns the source after the translation: the device's address, or the host's own.
#[inline(always)]
fn target<F: Snat>(skb: Skb, flow: &Flow<F::Address>, is_host: bool) -> F::Address {
    if is_host {
        return flow.source;
    }
    match ep_masquerade.get(&skb.ifindex()) {
        Some(device) => F::masquerade_address(device),
        None => F::NONE,
    }
}

/// Translates the destination of a reply back. Returns whether the packet was changed; false for a packet without a
/// mapping.
#[inline(always)]
fn destination<F: Snat>(skb: Skb, flow: &mut Flow<F::Address>) -> Result<bool, Drop> {
    let Some(Mapping { address, port, needs_ct }) = original::<F>(flow) else { return Ok(false) };
    let (source, identifier) = (flow.source, nat::Change { from: flow.dport, to: port });
    let is_changed = !F::same(address, flow.destination) || port != flow.dport;
    if is_changed {
        nat::to_destination::<F>(skb, flow, Socket { address, port }, source, false)?;
        if flow.protocol() == F::ICMP {
            nat::set_echo_identifier(skb, flow, identifier)?;
            flow.dport = port;
        }
    }
    if needs_ct {
        conntrack::refresh_reply::<F>(skb, flow, conntrack::now());
    }
    Ok(is_changed)
}

/// Returns the destination of a reply before its translation; `None` for a packet without a mapping.
#[inline(always)]
pub(crate) fn original<F: Snat>(flow: &Flow<F::Address>) -> Option<Mapping<F::Address>> {
    restore(&NatMap::<F>(core::marker::PhantomData), &key_of(flow, tuple_flag::IN))
}

/// Returns the key of the row of this kind about a packet.
#[inline(always)]
pub(crate) fn key_of<A: Copy>(flow: &Flow<A>, flags: u8) -> NatKey<A> {
    NatKey {
        daddr: flow.destination,
        saddr: flow.source,
        dport: flow.dport,
        sport: flow.sport,
        nexthdr: flow.protocol(),
        flags,
    }
}

/// Returns the ports of translations of TCP, UDP and SCTP.
#[inline(always)]
fn ports() -> Range {
    Range { min: node!(snat_min_port), max: u16::MAX }
}
