//! Backends of other nodes: requests leave with an address of this node, and replies to it get the client's back.
//!
//! A request is translated to its backend already. Its source becomes the direct-routing address or that of
//! the route (`enable-dynamic-source-lookup-nodeport`), or the router's if the backend is reached by the tunnel; the port stays if it is free. The rows of the translation live as long as the
//! connection's entry, by which the reply finds its frontend.

use crate::endpoint;
use crate::host::{at_host, drop_incoming};
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::monitor::trace::Trace;
use crate::nat46x64;
use crate::nodeport::NodePort;
use crate::nodeport::fib::Route;
use crate::nodeport::reply;
use crate::nodeport::way::{self, behind_tunnel};
use crate::overlay::encapsulate::encapsulate;
use crate::packet::flow::Flow;
use crate::packet::skb::Skb;
use crate::snat::{self, STEP, Snat, TRANSLATED, UNTRANSLATED, masquerade, quote};
use aya_ebpf::bindings::__sk_buff;
use datapath_abi::trace::{TO_OVERLAY, reason};
use datapath_abi::{direction, file, identity, mark};

const FILE: u8 = file::NODEPORT;

/// Passes a packet that was translated to a backend of another node to [`send`]. Returns if that program is missing.
#[inline(always)]
pub(crate) fn hand_over<F: NodePort>(skb: Skb) -> Drop {
    skb.tail_call(F::REMOTE_SLOT);
    drop_here!(MISSED_TAIL_CALL)
}

/// Sends a packet to a backend of another node, past the stack. Its steps are functions, as those of masquerading.
#[inline(always)]
pub(crate) fn send<F: NodePort + Snat>(skb: Skb) -> i32 {
    let (mut flow, mut source) = (Flow::none(F::NONE), F::NONE);
    let result = match decide::<F>(skb.raw(), &mut flow, &mut source) {
        REQUEST => snat::to_backend::<F>(skb, &flow, &source),
        GATEWAY => snat::through_gateway::<F>(skb, &flow, &source),
        // About a reply: the backend knows this node as its receiver.
        ERROR => quote::translate::<F>(skb.raw(), flow.offset() as u64, true),
        dropped => dropped,
    };
    let result = match skb.forget(result) {
        TRANSLATED if nat46x64::embeds::<F>(flow.destination) => nat46x64::leave(skb).packed(),
        TRANSLATED => depart::<F>(skb.raw()),
        // An error about a reply that the backend's node has sent to the client itself: it goes there as it is.
        UNTRANSLATED if enabled!(dsr) => depart::<F>(skb.raw()),
        UNTRANSLATED => drop_here!(NO_MAPPING_FOR_NAT_MASQUERADE).packed(),
        dropped => dropped,
    };
    if result & VERDICT != 0 {
        return result as u32 as i32;
    }
    let parties = Parties { endpoint: node!(host_endpoint_id), ..Parties::default() };
    dropped(skb, Drop::unpacked(result), direction::EGRESS, parties)
}

/// Results of [`decide`] beside drops.
const REQUEST: u64 = 3 * STEP;
const ERROR: u64 = 4 * STEP;
const GATEWAY: u64 = 5 * STEP;
/// The bit of a verdict, which the lower half of a result is.
const VERDICT: u64 = STEP;

/// Writes the flow of a packet that is translated to a backend, and its new source.
#[inline(never)]
fn decide<F: NodePort + Snat>(
    raw: *mut __sk_buff,
    flow: &mut Flow<F::Address>,
    source: &mut F::Address,
) -> u64 {
    match prepare::<F>(Skb::from_raw(raw), flow, source) {
        Ok(step) => step,
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn prepare<F: NodePort + Snat>(
    skb: Skb,
    flow: &mut Flow<F::Address>,
    source: &mut F::Address,
) -> Result<u64, Drop> {
    *flow = reply::flow_of::<F>(skb)?;
    *source = way::source_to::<F>(skb, flow.destination);
    if F::is_unspecified(*source) {
        return Err(drop_here!(NO_MAPPING_FOR_NAT_MASQUERADE));
    }
    way::forward_hop::<F>(skb)?;
    Ok(if flow.is_related() {
        ERROR
    } else if nat46x64::is_behind_gateway::<F>(flow.destination) {
        GATEWAY
    } else {
        REQUEST
    })
}

/// Redirects a packet to a backend: into the tunnel, or by the host's route.
#[inline(never)]
fn depart<F: NodePort + Snat>(raw: *mut __sk_buff) -> u64 {
    let skb = Skb::from_raw(raw);
    skb.set_mark(mark::SNAT_DONE);
    let sent = match F::header(skb) {
        // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
        Some(header) => redirect::<F>(skb, unsafe { &*header }),
        None => Err(drop_here!(INVALID_PACKET_DROPPED)),
    };
    match sent {
        Ok(verdict) => VERDICT | u64::from(verdict as u32),
        Err(why) => why.packed(),
    }
}

/// Redirects a packet to another node by its addresses.
#[inline(always)]
pub(crate) fn redirect<F: NodePort>(skb: Skb, ip: &F::Header) -> Result<i32, Drop> {
    let (source, backend) = (F::source(ip), F::destination(ip));
    if let Some(info) = behind_tunnel::<F>(backend) {
        let at = at_host(TO_OVERLAY, F::world(), info.sec_identity);
        return encapsulate(skb, info, Trace { reason: reason::POLICY, ..at });
    }
    Ok(Route::of::<F>(skb, source, backend)?.redirect())
}

/// Handles a packet that had a translation back: the reply of another node's backend gets the frontend's address and
/// leaves to the client. Any other packet is delivered.
#[inline(always)]
pub(crate) fn reply<F: NodePort + Snat>(skb: Skb) -> i32 {
    match reply::of_service::<F>(skb) {
        Ok(Some(verdict)) => verdict,
        Ok(None) if enabled!(nat46x64_gateway) => match from_gateway::<F>(skb) {
            Ok(Some(verdict)) => verdict,
            Ok(None) => masquerade::deliver::<F>(skb),
            Err(why) => drop_incoming(skb, why.any(skb), identity::UNKNOWN),
        },
        Ok(None) => masquerade::deliver::<F>(skb),
        Err(why) => drop_incoming(skb, why.any(skb), identity::UNKNOWN),
    }
}

/// Sends the packet of an IPv4 machine to its IPv6 client on another machine; `None` for any other packet.
#[inline(always)]
fn from_gateway<F: NodePort>(skb: Skb) -> Result<Option<i32>, Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    let (source, client) = (F::source(ip), F::destination(ip));
    if !nat46x64::is_behind_gateway::<F>(source) || endpoint::local::<F>(client).is_some() {
        return Ok(None);
    }
    way::forward_hop::<F>(skb)?;
    if let Some(info) = behind_tunnel::<F>(client) {
        let at = at_host(TO_OVERLAY, F::world(), info.sec_identity);
        return encapsulate(skb, info, Trace { reason: reason::CT_REPLY, ..at }).map(Some);
    }
    Ok(Some(Route::of::<F>(skb, source, client)?.redirect()))
}
