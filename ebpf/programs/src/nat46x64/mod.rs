//! Translation between the IP families: services with backends of the other family, and the gateway for machines of one
//! family to those of the other ([`datapath_abi::nat46x64`] has the addresses).
//!
//! All decisions about such packets are those of IPv6. A packet of an IPv4 client becomes one of IPv6 before its service is
//! looked up ([`to_ipv6`]), and so does the reply of an IPv4 machine, which has the node's address as its destination. A
//! packet of which the destination contains an IPv4 address becomes one of IPv4 when it leaves ([`to_ipv4`]). In the maps
//! there are only IPv6 rows of these connections.
//!
//! | packet | in the IPv6 maps |
//! |---|---|
//! | IPv4 client to a frontend, ICMP errors about replies | both addresses mapped; to a backend of this node with the client under the prefix |
//! | IPv6 client to an IPv4 backend | the backend mapped; the source becomes the node's IPv4 address, mapped |
//! | IPv6 to the prefix | the destination as it is; the source becomes the node's IPv4 address, mapped |
//! | prefix to prefix, IPv4 to another machine | no row: only headers change |
//!
//! Owns: the decision which packets change the family (here), headers ([`header`]), ICMP errors ([`error`]). Uses
//! `conntrack`, `endpoint`, `nat`, `nodeport`, `packet` and `snat`.

mod error;
mod header;

use crate::conntrack::Status;
use crate::endpoint::{self, deliver};
use crate::host::drop_incoming;
use crate::lb::row;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::nat::ICMP_LEN;
use crate::nodeport::fib::{Route, Routed as _};
use crate::nodeport::{NodePort, remote, way};
use crate::packet::family::Family;
use crate::packet::flow::{self, Flow, TCP, UDP};
use crate::packet::headers::Ipv4Header;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::quoted::Quoted;
use crate::packet::skb::Skb;
use crate::pod::no_service;
use crate::snat::{Snat, TRANSLATED, direct_routing_address};
use aya_ebpf::bindings::__sk_buff;
use datapath_abi::nat46x64::{self as embedding, HEADER_DIFFERENCE};
use datapath_abi::{
    FAMILY_V4, FAMILY_V6, LbServiceKey, NatKey, direction, file, identity, lb_flag2, lb_scope, lxc_flag,
    mark, slot, tuple_flag,
};

const FILE: u8 = file::NODEPORT;

/// The word of the context that has the kind of a packet.
const KIND: usize = 3;

/// Which packet of IPv4 it is, which decides how its addresses are embedded.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind(u32);

impl Kind {
    /// None that changes the family.
    const OTHER: Self = Self(0);
    /// To a frontend with IPv6 backends.
    const REQUEST: Self = Self(1);
    /// Of an IPv4 backend to an IPv6 client of a service.
    const BACKEND: Self = Self(2);
    /// Of an IPv4 machine to an IPv6 client of the gateway.
    const MACHINE: Self = Self(3);
    /// Between machines that other gateways know by the prefix.
    const FORWARDED: Self = Self(4);

    /// True if the source has the prefix as an IPv6 address, else it is mapped.
    #[inline(always)]
    fn is_source_prefixed(self) -> bool {
        self.0 >= Self::MACHINE.0
    }

    /// True if the destination has the prefix as an IPv6 address, else it is mapped.
    #[inline(always)]
    fn is_destination_prefixed(self) -> bool {
        self == Self::FORWARDED
    }
}

/// Returns an IPv4 address as one of IPv6.
#[inline(always)]
fn embed(ipv4: u32, is_prefixed: bool) -> [u32; 4] {
    if is_prefixed { embedding::prefixed(ipv4) } else { embedding::mapped(ipv4) }
}

/// True for an IPv6 address that contains one of IPv4, where programs translate between the families.
#[inline(always)]
pub(crate) fn embeds<F: Family>(address: F::Address) -> bool {
    enabled!(nat46x64) && F::NUMBER == FAMILY_V6 && embedding::embeds(F::words(address))
}

/// True for a mapped address, as [`embeds`].
#[inline(always)]
pub(crate) fn is_mapped<F: Family>(address: F::Address) -> bool {
    enabled!(nat46x64) && F::NUMBER == FAMILY_V6 && embedding::is_mapped(F::words(address))
}

/// True for an address under the prefix, where this node is a gateway.
#[inline(always)]
pub(crate) fn is_behind_gateway<F: Family>(address: F::Address) -> bool {
    enabled!(nat46x64_gateway) && F::NUMBER == FAMILY_V6 && embedding::is_prefixed(F::words(address))
}

/// Returns the source of packets to an IPv6 address that contains one of IPv4: an IPv4 address of this node, mapped.
#[inline(always)]
pub(crate) fn source_to<F: Family>(skb: Skb, destination: F::Address) -> F::Address {
    let source = way::source_to::<V4>(skb, embedding::embedded(F::words(destination)));
    F::from_words(if source == 0 { [0; 4] } else { embedding::mapped(source) })
}

/// Returns the source of a client's packet to a backend of this node: hosts refuse packets from mapped addresses.
#[inline(always)]
pub(crate) fn source_on_node<F: Family>(source: F::Address) -> F::Address {
    if is_mapped::<F>(source) {
        F::from_words(embedding::prefixed(embedding::embedded(F::words(source))))
    } else {
        source
    }
}

/// Passes a packet of an IPv4 client to a frontend with IPv6 backends to [`to_ipv6`]. Returns if that program is missing.
#[inline(always)]
pub(crate) fn request(skb: Skb) -> Drop {
    skb.set_cb(KIND, Kind::REQUEST.0);
    skb.tail_call(slot::IPV46_RFC6052);
    drop_here!(MISSED_TAIL_CALL)
}

/// Passes a packet that leaves to an IPv4 machine to [`to_ipv4`]. Returns if that program is missing.
#[inline(always)]
pub(crate) fn leave(skb: Skb) -> Drop {
    leave_as(skb, Kind::OTHER)
}

/// True for an ICMP error of IPv4 about a reply of a service with IPv6 backends, which is handled as a request.
#[inline(always)]
pub(crate) fn is_about_reply<F: NodePort>(skb: Skb, error: &Flow<F::Address>) -> bool {
    if !enabled!(nat46x64) || F::NUMBER != FAMILY_V4 {
        return false;
    }
    let Some(quoted) = Quoted::of::<F>(skb, error) else { return false };
    let key = LbServiceKey {
        address: quoted.source,
        dport: quoted.sport,
        backend_slot: 0,
        proto: quoted.protocol(),
        scope: lb_scope::EXTERNAL,
        pad: [0; 2],
    };
    matches!(row(&F::services(), &key), Some(service) if service.flags2 & lb_flag2::NAT_46X64 != 0)
}

#[inline(always)]
fn leave_as(skb: Skb, kind: Kind) -> Drop {
    skb.set_cb(KIND, kind.0);
    skb.set_mark(mark::SNAT_DONE);
    skb.tail_call(slot::IPV64_RFC6052);
    drop_here!(MISSED_TAIL_CALL)
}

/// Passes a packet of the network that is to no frontend on, if it changes the family. Returns in all other cases.
#[inline(always)]
pub(crate) fn dispatch<F: NodePort + Snat>(skb: Skb) -> Result<(), Drop> {
    if F::NUMBER == FAMILY_V4 {
        return pass(skb, skb.forget(kind(skb.raw())) as u32);
    }
    let Some(header) = F::header(skb) else { return Ok(()) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    if !is_behind_gateway::<F>(F::destination(ip)) {
        return Ok(());
    }
    if is_behind_gateway::<F>(F::source(ip)) {
        way::forward_hop::<F>(skb)?;
        return Err(leave_as(skb, Kind::FORWARDED));
    }
    Err(remote::hand_over::<F>(skb))
}

/// Passes an IPv4 packet of a pod on, after all decisions about it, if it is a reply to an IPv6 client. Returns in all other
/// cases.
#[inline(always)]
pub(crate) fn reply_of_pod(skb: Skb, status: Status, dst_label: u32) -> Result<(), Drop> {
    let is_reply = matches!(status, Status::Reply | Status::Related);
    if is_reply && dst_label == identity::HOST {
        let kind = skb.forget(kind(skb.raw())) as u32;
        if kind == Kind::BACKEND.0 || kind == Kind::MACHINE.0 {
            return pass(skb, kind);
        }
    }
    Ok(())
}

#[inline(always)]
fn pass(skb: Skb, kind: u32) -> Result<(), Drop> {
    if kind == Kind::OTHER.0 {
        return Ok(());
    }
    skb.set_cb(KIND, kind);
    skb.tail_call(slot::IPV46_RFC6052);
    Err(drop_here!(MISSED_TAIL_CALL))
}

/// Returns the [`Kind`] of an IPv4 packet that is to no frontend.
#[inline(never)]
fn kind(raw: *mut __sk_buff) -> u64 {
    u64::from(kind_of(Skb::from_raw(raw)).0)
}

#[inline(always)]
fn kind_of(skb: Skb) -> Kind {
    let Some(header) = V4::header(skb) else { return Kind::OTHER };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    match endpoint::local::<V4>(ip.destination) {
        Some(info) if info.flags & lxc_flag::HOST != 0 => {}
        // A pod's packet.
        Some(_) => return Kind::OTHER,
        None if enabled!(nat46x64_gateway)
            && ip.destination != direct_routing_address::<V4>()
            && !V4::is_unroutable(ip.source)
            && !V4::is_unroutable(ip.destination) =>
        {
            return Kind::FORWARDED;
        }
        None => return Kind::OTHER,
    }
    // The host's stack decides about packets that programs cannot read.
    let Ok(flow) = flow::of::<V4>(skb, ip, flow::UNCOUNTED) else { return Kind::OTHER };
    let Some(mut key) = row_of(skb, &flow) else { return Kind::OTHER };
    if V6::row(&key).is_some() {
        return Kind::BACKEND;
    }
    key.saddr = embedding::prefixed(embedding::embedded(key.saddr));
    if enabled!(nat46x64_gateway) && V6::row(&key).is_some() { Kind::MACHINE } else { Kind::OTHER }
}

/// Returns the key of the row by which an IPv4 packet to the node finds its IPv6 client, if that is a client of a service.
/// Of an ICMP error it is the one of the packet that it quotes.
#[inline(always)]
fn row_of(skb: Skb, flow: &Flow<u32>) -> Option<NatKey<[u32; 4]>> {
    let (peer, own) = (embedding::mapped(flow.source), embedding::mapped(flow.destination));
    let key = NatKey { daddr: own, saddr: peer, dport: 0, sport: 0, nexthdr: 0, flags: tuple_flag::IN };
    let protocol = flow.protocol();
    let icmp = flow.icmp()[0];
    if matches!(protocol, TCP | UDP) {
        return Some(NatKey { dport: flow.dport, sport: flow.sport, nexthdr: protocol, ..key });
    }
    if protocol != V4::ICMP {
        return None;
    }
    if icmp == V4::ECHO_REPLY {
        return Some(NatKey { dport: flow.dport, nexthdr: V6::ICMP, ..key });
    }
    if !flow.is_related() || !flow.has_upper_header() {
        return None;
    }
    let mut quoted = [0u32; 7];
    if !skb.load(flow.offset() + ICMP_LEN, &mut quoted) {
        return None;
    }
    let (protocol, upper) = ((quoted[2] >> 8) as u8, quoted[5]);
    let (sport, dport, protocol) = match protocol {
        TCP | UDP => (upper as u16, (upper >> 16) as u16, protocol),
        V4::ICMP => (quoted[6] as u16, 0, V6::ICMP),
        _ => return None,
    };
    // The quoted packet has left.
    let saddr = embedding::mapped(quoted[4]);
    Some(NatKey { saddr, dport: sport, sport: dport, nexthdr: protocol, ..key })
}

/// Makes an IPv4 packet one of IPv6, and passes it to the program that decides about it as such.
#[inline(always)]
pub(crate) fn to_ipv6(skb: Skb) -> i32 {
    if !enabled!(nat46x64) {
        return drop_incoming(skb, drop_here!(MISSED_TAIL_CALL), identity::UNKNOWN);
    }
    let kind = Kind(skb.cb(KIND));
    if kind == Kind::FORWARDED {
        return forward(skb).unwrap_or_else(|why| lost(skb, why.any(skb)));
    }
    let translated = header::to_ipv6(skb, kind);
    if translated != TRANSLATED {
        return lost(skb, Drop::unpacked(translated));
    }
    skb.set_cb(KIND, 0);
    let next = if kind != Kind::REQUEST {
        V6::INGRESS_SLOT
    } else if enabled!(tunnel) && skb.ifindex() == node!(tunnel_ifindex) {
        V6::OVERLAY_SLOT
    } else {
        V6::DELIVERY_SLOT
    };
    skb.tail_call(next);
    lost(skb, drop_here!(MISSED_TAIL_CALL))
}

/// Forwards an IPv4 packet to another machine as one of IPv6.
#[inline(always)]
fn forward(skb: Skb) -> Result<i32, Drop> {
    let Some(header) = V4::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    let (source, destination) = (embedding::prefixed(ip.source), embedding::prefixed(ip.destination));
    let is_whole = ip.fragment & DONT_FRAGMENT != 0;
    let len = u16::from_be(ip.len).saturating_add(HEADER_DIFFERENCE as u16);
    let len = if skb.gso_size() == 0 { len } else { 0 };
    let mut mtu = 0;
    let route = match Route::for_length::<V6>(skb, source, destination, len, &mut mtu) {
        Ok(route) => route,
        Err(why) => {
            let node = direct_routing_address::<V4>();
            if mtu as u32 <= HEADER_DIFFERENCE || !is_whole || node == 0 {
                return Err(why);
            }
            let mtu = u32::from(mtu) - HEADER_DIFFERENCE;
            return no_service::error(skb, |own| own, (TOO_LONG, mtu), Some(node), why);
        }
    };
    way::forward_hop::<V4>(skb)?;
    if header::to_ipv6(skb, Kind::FORWARDED) != TRANSLATED {
        return Err(drop_here!(NAT46));
    }
    skb.set_mark(mark::SNAT_DONE);
    Ok(route.redirect())
}

/// ICMP type and code of "fragmentation needed" (RFC 1191).
const TOO_LONG: [u8; 2] = [3, 4];
/// The flag in the fragment field of an IPv4 header, in network byte order.
const DONT_FRAGMENT: u16 = 0x4000u16.to_be();

/// Makes an IPv6 packet one of IPv4, and sends it.
#[inline(always)]
pub(crate) fn to_ipv4(skb: Skb) -> i32 {
    if !enabled!(nat46x64) {
        return drop_incoming(skb, drop_here!(MISSED_TAIL_CALL), identity::UNKNOWN);
    }
    let translated = header::to_ipv4(skb);
    let sent = match translated {
        TRANSLATED => send(skb),
        _ if skb.cb(KIND) == Kind::FORWARDED.0 => Err(drop_here!(NAT64)),
        why => Err(Drop::unpacked(why)),
    };
    sent.unwrap_or_else(|why| {
        let parties = Parties { endpoint: node!(host_endpoint_id), ..Parties::default() };
        dropped(skb, why.any(skb), direction::EGRESS, parties)
    })
}

#[inline(always)]
fn send(skb: Skb) -> Result<i32, Drop> {
    let Some(header) = V4::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let ip: &Ipv4Header = unsafe { &*header };
    match endpoint::local::<V4>(ip.destination) {
        // The host's stack refuses packets from the host's own address.
        Some(pod) if pod.flags & lxc_flag::HOST != 0 => Err(drop_here!(NAT64)),
        Some(pod) => deliver::to_pod::<V4>(skb, header, pod, V6::world(), deliver::Origin::Network),
        None => remote::redirect::<V4>(skb, ip),
    }
}

/// Drops a packet that is, or was, IPv4.
#[inline(always)]
fn lost(skb: Skb, why: Drop) -> i32 {
    drop_incoming(skb, why, identity::UNKNOWN)
}
