//! Packets of backends of other nodes to clients: the translation of the request is reversed.

use crate::conntrack;
use crate::hop;
use crate::lb::row;
use crate::monitor::drop::Drop;
use crate::nat::{self, Socket};
use crate::nodeport::way;
use crate::packet::flow::{self, SCTP};
use crate::packet::skb::{Context, PASS, Skb};
use crate::snat;
use crate::state::{Packet, Place};
use crate::{LEFT, NEXT, leave, length, refuse};
use datapath_abi::nat46x64::embeds;
use datapath_abi::snat::Mapping;
use datapath_abi::{FAMILY_V6, direction};

/// Handles a packet that is not to a frontend.
#[inline(always)]
pub(crate) fn handle<F: Place>(skb: Skb) -> i32 {
    let Some(reply) = F::place() else { return PASS };
    if skb.forget(find::<F>(skb.raw(), reply)) != NEXT || skb.forget(route::<F>(skb.raw(), reply)) != NEXT {
        return PASS;
    }
    let translated = skb.forget(translate::<F>(skb.raw(), reply));
    if translated != NEXT {
        return refuse::<F>(skb, translated, direction::INGRESS);
    }
    leave(skb, reply.exit)
}

/// Writes client and frontend of a reply; [`LEFT`] for any other packet.
#[inline(never)]
fn find<F: Place>(raw: *mut Context, reply: &mut Packet<F::Address>) -> u64 {
    let skb = Skb::from_raw(raw);
    let Some(header) = F::header(skb) else { return LEFT };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let Ok(flow) = flow::of::<F>(skb, unsafe { &*header }, flow::UNCOUNTED) else { return LEFT };
    reply.flow = flow;
    if flow.protocol() == SCTP
        || u16::from_be(flow.dport) < node!(snat_min_port)
        || !way::is_own::<F>(flow.destination)
    {
        return LEFT;
    }
    let Some(Mapping { address, port, needs_ct: false }) = snat::original::<F>(&flow) else { return LEFT };
    reply.peer = Socket { address, port };
    let mut restored = flow;
    (restored.destination, restored.dport) = (address, port);
    let rev_nat = conntrack::nodeport::replied_by::<F>(skb, &restored, conntrack::now());
    let Some(service) = row(&F::reverse_nat(), &rev_nat) else { return LEFT };
    reply.frontend = Socket { address: service.address, port: service.port };
    NEXT
}

/// Writes the way of a reply; [`LEFT`] for one that XDP cannot send.
#[inline(never)]
fn route<F: Place>(raw: *mut Context, reply: &mut Packet<F::Address>) -> u64 {
    let (skb, client) = (Skb::from_raw(raw), reply.peer.address);
    // An IPv4 client of an IPv6 backend: the device's program translates between the families. Not in `find`, whose stack
    // is full.
    if enabled!(nat46x64) && F::NUMBER == FAMILY_V6 && embeds(F::words(client)) {
        return LEFT;
    }
    if way::behind_tunnel::<F>(client).is_some() {
        return LEFT;
    }
    match hop::exit::<F>(skb, reply.frontend.address, client, length(skb)) {
        Some(exit) => {
            reply.exit = exit;
            NEXT
        }
        None => LEFT,
    }
}

/// Gives a reply the client as its destination, and the frontend as its source.
#[inline(never)]
fn translate<F: Place>(raw: *mut Context, reply: &mut Packet<F::Address>) -> u64 {
    match to_client::<F>(Skb::from_raw(raw), reply) {
        Ok(()) => NEXT,
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn to_client<F: Place>(skb: Skb, reply: &mut Packet<F::Address>) -> Result<(), Drop> {
    let (backend, client) = (reply.flow.source, reply.peer);
    nat::to_destination::<F>(skb, &mut reply.flow, client, backend, false)?;
    nat::to_source::<F>(skb, &mut reply.flow, reply.frontend, client.address, false)?;
    way::forward_hop::<F>(skb)
}
