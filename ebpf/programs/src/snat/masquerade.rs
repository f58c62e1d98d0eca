//! Which packets are translated, and to which address.

use crate::conntrack;
use crate::device::{set_looked_up, to_network};
use crate::endpoint;
use crate::endpoint::ipcache;
use crate::endpoint::subnet;
use crate::host::{drop_incoming, firewall, is_of_host};
use crate::maps::ep_masquerade;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::nat46x64;
use crate::nodeport::fib;
use crate::nodeport::way::is_own;
use crate::packet::flow::{self, Flow, SCTP, TCP, UDP, UNCOUNTED};
use crate::packet::skb::Skb;
use crate::snat::{STEP, Snat, TRANSLATED, UNTRANSLATED, destination, direct_routing_address, quote, source};
use aya_ebpf::bindings::__sk_buff;
use datapath_abi::{FAMILY_V4, direction, drop, file, identity, lxc_flag, mark};

const FILE: u8 = file::NODEPORT_EGRESS;

/// True for packets that are not translated at a device: they are encapsulated, encrypted or translated already.
#[inline(always)]
pub(crate) fn is_exempt(carried: u32) -> bool {
    matches!(carried & mark::MAGIC_MASK, mark::SNAT_DONE | mark::OVERLAY | mark::ENCRYPT)
}

/// Handles an IP packet that leaves by a device of the node. Its steps are functions, one after the other: together their
/// variables would not fit on the stack of a program.
#[inline(always)]
pub(crate) fn forward<F: Snat>(skb: Skb) -> i32 {
    let carried = skb.mark();
    let mut flow = Flow::none(F::NONE);
    let result = match decide::<F>(skb.raw(), &mut flow) {
        UNTRANSLATED => UNTRANSLATED,
        OF_POD => source::<F>(skb, &mut flow, false),
        OF_HOST => source::<F>(skb, &mut flow, true),
        ERROR => quote::translate::<F>(skb.raw(), flow.offset() as u64, true),
        dropped => dropped,
    };
    match skb.forget(result) {
        TRANSLATED => {
            let verdict = to_network(skb, carried, F::words(flow.source));
            skb.set_mark(mark::SNAT_DONE);
            verdict
        }
        UNTRANSLATED => to_network(skb, carried, [0; 4]),
        by if by >> 32 == BY_PARENT >> 32 => fib::redirect_to(by as u32),
        why => {
            let parties = Parties { endpoint: node!(host_endpoint_id), ..Parties::default() };
            dropped(skb, Drop::unpacked(why), direction::EGRESS, parties)
        }
    }
}

/// Reserves the port of a packet that the host sends by the tunnel from the router's address, which is that of clients
/// of services there as well; a port that is taken is translated.
#[inline(always)]
pub(crate) fn reserve_router_port<F: Snat>(skb: Skb) -> Result<(), Drop> {
    let mut flow = Flow::none(F::NONE);
    let result = match decide_router::<F>(skb.raw(), &mut flow) {
        OF_HOST => source::<F>(skb, &mut flow, true),
        step => step,
    };
    match skb.forget(result) {
        TRANSLATED | UNTRANSLATED => Ok(()),
        why => Err(Drop::unpacked(why)),
    }
}

/// Returns the step of a packet that leaves by the tunnel.
#[inline(never)]
fn decide_router<F: Snat>(raw: *mut __sk_buff, flow: &mut Flow<F::Address>) -> u64 {
    let skb = Skb::from_raw(raw);
    let Some(header) = F::header(skb) else { return UNTRANSLATED };
    // SAFETY: `header` checked the bounds; nothing writes the packet while this borrow is used.
    reserve::<F>(skb, unsafe { &*header }, flow, F::router())
}

/// The source of a pod's packet is translated.
const OF_POD: u64 = 3 * STEP;
/// A port of the host is reserved.
const OF_HOST: u64 = 4 * STEP;
/// The packet is an ICMP error.
const ERROR: u64 = 5 * STEP;
/// The packet leaves by another device, whose index is in the lower half.
const BY_PARENT: u64 = 6 * STEP;

/// Returns how a packet that leaves is translated. Writes the flow of a translated one.
#[inline(never)]
fn decide<F: Snat>(raw: *mut __sk_buff, flow: &mut Flow<F::Address>) -> u64 {
    match leave::<F>(Skb::from_raw(raw), flow) {
        Ok(step) => step,
        Err(why) => why.packed(),
    }
}

/// The class of a packet's sender.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// The host, by an address that translations use: its ports are reserved.
    Host,
    /// A pod of this node.
    Pod,
    /// Another machine.
    Other,
}

#[inline(always)]
fn leave<F: Snat>(skb: Skb, leaving: &mut Flow<F::Address>) -> Result<u64, Drop> {
    let carried = skb.mark();
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing writes the packet while this borrow is used.
    let ip = unsafe { &*header };
    let (from, to) = (F::source(ip), F::destination(ip));
    if !F::is_masqueraded() {
        // With sources of routes any address of the host may be that of clients of services.
        let is_source_of_clients = enabled!(dynamic_source) && is_own::<F>(from);
        let own = if is_source_of_clients { from } else { direct_routing_address::<F>() };
        return Ok(reserve::<F>(skb, ip, leaving, own));
    }
    let Some(device) = ep_masquerade.get(&skb.ifindex()) else { return Ok(UNTRANSLATED) };
    let own = F::masquerade_address(device);
    let local = endpoint::local::<F>(from);
    let is_own = F::same(from, own);
    let sender = match local {
        _ if is_own => Sender::Host,
        Some(info) if info.flags & lxc_flag::HOST != 0 => Sender::Host,
        _ if is_of_host(skb, carried) => Sender::Host,
        Some(_) => Sender::Pod,
        None => Sender::Other,
    };
    // Pods of secondary interfaces (of clouds) are asked by those, but the host's routes of their replies may lead to
    // another device, by whose network they would not arrive.
    let parent = match local {
        Some(info)
            if F::NUMBER == FAMILY_V4 && sender == Sender::Pod && info.parent_ifindex != skb.ifindex() =>
        {
            info.parent_ifindex
        }
        _ => 0,
    };
    let mut stays = 0;
    if sender != Sender::Host {
        let keeps_address = match local {
            Some(info) => info.flags & F::KEEPS_ADDRESS != 0,
            None => false,
        };
        if F::is_excluded(device, to)
            || keeps_address
            || enabled!(ip_masq_agent) && F::is_excluded_by_agent(to)
            || !leaves_cluster::<F>(from, to, sender == Sender::Pod)
        {
            if parent == 0 {
                return Ok(UNTRANSLATED);
            }
            stays = 1;
        }
    }
    let stays = skb.forget(stays) != 0;
    let flow = match flow::of::<F>(skb, ip, UNCOUNTED) {
        Ok(flow) => flow,
        // Protocols without ports keep their address, as in Cilium. The host's packets are no reason for a drop.
        Err(why) if stays || sender == Sender::Host || why.reason() == drop::CT_UNKNOWN_L4_PROTOCOL => {
            return Ok(UNTRANSLATED);
        }
        Err(why) => return Err(why),
    };
    if sender != Sender::Host && conntrack::is_reply::<F>(&flow) {
        return Ok(if parent != 0 { BY_PARENT | u64::from(parent) } else { UNTRANSLATED });
    }
    if stays {
        return Ok(UNTRANSLATED);
    }
    if sender != Sender::Host && F::is_unspecified(own) {
        return Err(drop_here!(NO_MAPPING_FOR_NAT_MASQUERADE));
    }
    *leaving = flow;
    match class::<F>(&flow, sender) {
        // Sockets of the host below the range can have no conflict with a translation.
        Class::Ports if sender != Sender::Pod && u16::from_be(flow.sport) < node!(snat_min_port) => {
            Ok(UNTRANSLATED)
        }
        Class::Echo if sender == Sender::Host && !is_own => Ok(UNTRANSLATED),
        Class::Ports | Class::Echo if sender == Sender::Host => Ok(OF_HOST),
        Class::Ports | Class::Echo => Ok(OF_POD),
        Class::Error => Ok(ERROR),
        Class::Untranslated => Ok(UNTRANSLATED),
        Class::Unsupported => Err(drop_here!(UNSUPPORTED_PROTOCOL_FOR_NAT_MASQUERADE)),
    }
}

/// Returns the step of a packet that leaves where only clients of services are translated, to `own`: the host's sockets
/// with that address must not share a port with them.
#[inline(always)]
fn reserve<F: Snat>(skb: Skb, ip: &F::Header, leaving: &mut Flow<F::Address>, own: F::Address) -> u64 {
    if !F::same(F::source(ip), own) {
        return UNTRANSLATED;
    }
    // The host's packets are no reason for a drop.
    let Ok(flow) = flow::of::<F>(skb, ip, UNCOUNTED) else { return UNTRANSLATED };
    let has_ports = matches!(flow.protocol(), TCP | UDP | SCTP);
    if !has_ports || u16::from_be(flow.sport) < node!(snat_min_port) {
        return UNTRANSLATED;
    }
    *leaving = flow;
    OF_HOST
}

/// How a flow is translated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// By its source port.
    Ports,
    /// By the identifier of an ICMP echo request.
    Echo,
    /// By the packet that an ICMP error quotes.
    Error,
    /// Not at all.
    Untranslated,
    /// It cannot be, and its source must not leave the node.
    Unsupported,
}

#[inline(always)]
fn class<F: Snat>(flow: &Flow<F::Address>, sender: Sender) -> Class {
    let protocol = flow.protocol();
    if matches!(protocol, TCP | UDP | SCTP) {
        return Class::Ports;
    }
    if protocol != F::ICMP {
        return Class::Untranslated;
    }
    let [kind, _] = flow.icmp();
    if kind == F::ECHO_REQUEST {
        Class::Echo
    } else if flow.is_related() {
        Class::Error
    } else if F::is_untranslated(kind) || sender == Sender::Host {
        Class::Untranslated
    } else {
        Class::Unsupported
    }
}

/// True for destinations to which a sender's packets are translated: those outside of the cluster and of the sender's
/// subnets, and other nodes by the options of them and of routing.
#[inline(always)]
fn leaves_cluster<F: Snat>(from: F::Address, to: F::Address, is_pod: bool) -> bool {
    let (label, flags) = match ipcache::lookup::<F>(to) {
        Some(info) => (info.sec_identity, info.flags),
        None => (identity::UNKNOWN, 0),
    };
    if ipcache::is_remote_node(label) {
        if enabled!(remote_node_masquerade) {
            return true;
        }
        if !enabled!(tunnel) || flags & datapath_abi::ipcache_flag::SKIP_TUNNEL != 0 {
            return false;
        }
    }
    is_pod && !subnet::is_same::<F>(from, to)
}

/// Handles an IP packet that a device of the node received: a reply to a translated one gets the original destination.
#[inline(always)]
pub(crate) fn receive<F: Snat>(skb: Skb) -> i32 {
    match enter::<F>(skb) {
        Ok(true) => {
            skb.set_mark(mark::SNAT_DONE);
            if enabled!(nodeport) {
                skb.tail_call(F::REMOTE_REPLY_SLOT);
                return drop_incoming(skb, drop_here!(MISSED_TAIL_CALL), identity::UNKNOWN);
            }
        }
        Ok(false) => {}
        Err(why) => return drop_incoming(skb, why.any(skb), identity::UNKNOWN),
    }
    deliver::<F>(skb)
}

/// Delivers a packet after its translation, if it had one.
#[inline(always)]
pub(crate) fn deliver<F: Snat>(skb: Skb) -> i32 {
    if enabled!(nodeport) && enabled!(tunnel) && skb.ifindex() == node!(tunnel_ifindex) {
        set_looked_up(skb);
        skb.tail_call(F::OVERLAY_SLOT);
        return drop_incoming(skb, drop_here!(MISSED_TAIL_CALL), identity::UNKNOWN);
    }
    if !enabled!(host_routing) {
        return firewall::admit::<F>(skb, identity::UNKNOWN);
    }
    set_looked_up(skb);
    skb.tail_call(F::DELIVERY_SLOT);
    drop_incoming(skb, drop_here!(MISSED_TAIL_CALL), identity::UNKNOWN)
}

/// Translates a packet that enters back. Returns whether it did.
#[inline(always)]
fn enter<F: Snat>(skb: Skb) -> Result<bool, Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing writes the packet while this borrow is used.
    let ip = unsafe { &*header };
    // Translations have addresses of the host.
    match endpoint::local::<F>(F::destination(ip)) {
        Some(info) if info.flags & lxc_flag::HOST != 0 => {}
        // Was an address of the host before the packet became one of IPv6.
        _ if nat46x64::is_mapped::<F>(F::destination(ip)) => {}
        _ => return Ok(false),
    }
    // A packet without a mapping is the host's: its stack decides about fragments and unknown protocols.
    let Ok(mut flow) = flow::of::<F>(skb, ip, UNCOUNTED) else { return Ok(false) };
    let protocol = flow.protocol();
    if protocol == F::ICMP {
        if flow.is_related() {
            return match skb.forget(quote::translate::<F>(skb.raw(), flow.offset() as u64, false)) {
                TRANSLATED => Ok(true),
                UNTRANSLATED => Ok(false),
                why => Err(Drop::unpacked(why)),
            };
        }
        if flow.icmp()[0] != F::ECHO_REPLY {
            return Ok(false);
        }
    } else if !matches!(protocol, TCP | UDP | SCTP) || u16::from_be(flow.dport) < node!(snat_min_port) {
        return Ok(false);
    }
    destination::<F>(skb, &mut flow)
}
