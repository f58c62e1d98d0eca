//! Packets of clients to frontends.

use crate::conntrack;
use crate::endpoint::{self, ipcache};
use crate::hop;
use crate::ipip;
use crate::monitor::drop::Drop;
use crate::nat::{self, Socket};
use crate::nodeport::dsr::{self, Dsr};
use crate::nodeport::{frontend, way};
use crate::packet::flow::{self, SCTP, TCP, UDP};
use crate::packet::skb::{Context, PASS, Skb};
use crate::snat::{self, STEP, TRANSLATED};
use crate::state::{Packet, Place};
use crate::tunnel::{self, NO_TUNNEL};
use crate::{LEFT, NEXT, leave, length, refuse};
use datapath_abi::dsr::dispatch;
use datapath_abi::mark::xdp_transfer;
use datapath_abi::{direction, file, lb_flag, lb_flag2};

const FILE: u8 = file::BPF_XDP;

/// Results of [`choose`]: no frontend; a backend of this node; one of another node, which gets the node's address as the
/// client's, or with direct server return.
const NO_FRONTEND: u64 = 5 * STEP;
const LOCAL: u64 = 6 * STEP;
const REMOTE: u64 = 7 * STEP;
const DIRECT: u64 = 8 * STEP;

/// Decides about an IP packet, and passes one that is translated to [`send`]. Its steps are functions, as those of
/// masquerading.
#[inline(always)]
pub(crate) fn handle<F: Place>(skb: Skb) -> i32 {
    let Some(request) = F::place() else { return PASS };
    let chosen = skb.forget(choose::<F>(skb.raw(), request));
    let slot = match chosen {
        LEFT => return PASS,
        NO_FRONTEND => F::INGRESS_SLOT,
        LOCAL => F::REMOTE_SLOT,
        REMOTE | DIRECT => {
            if skb.forget(route::<F>(skb.raw(), request, chosen == DIRECT)) != NEXT {
                return PASS;
            }
            F::REMOTE_SLOT
        }
        why => return refuse::<F>(skb, why, direction::INGRESS),
    };
    request.chosen = chosen;
    skb.tail_call(slot);
    refuse::<F>(skb, drop_here!(MISSED_TAIL_CALL).packed(), direction::INGRESS)
}

/// Translates a packet to its backend and sends it there.
#[inline(always)]
pub(crate) fn send<F: Place>(skb: Skb) -> i32 {
    let Some(request) = F::place() else { return PASS };
    let chosen = request.chosen;
    let translated = skb.forget(translate::<F>(skb.raw(), request, chosen));
    if translated != NEXT {
        return refuse::<F>(skb, translated, direction::INGRESS);
    }
    if chosen == LOCAL {
        // Without the flag the device's program looks the backend's address up, which is no frontend in general.
        skb.transfer(xdp_transfer::NO_SERVICE);
        return PASS;
    }
    let named = if chosen == DIRECT {
        name::<F>(skb.raw(), request)
    } else {
        snat::to_backend::<F>(skb, &request.flow, &request.source)
    };
    let named = skb.forget(named);
    if named != TRANSLATED {
        return refuse::<F>(skb, named, direction::EGRESS);
    }
    if request.tunnel != NO_TUNNEL {
        let is_named = dsr::is_by(dispatch::GENEVE) && chosen == DIRECT && dsr::names_frontend(&request.flow);
        let encapsulated = skb.forget(tunnel::encapsulate::<F>(skb.raw(), request, is_named));
        if encapsulated != NEXT {
            return refuse::<F>(skb, encapsulated, direction::EGRESS);
        }
    }
    if chosen == DIRECT && dsr::is_by(dispatch::IPIP) {
        let encapsulated = skb.forget(ipip::encapsulate::<F>(skb.raw(), request));
        if encapsulated != NEXT {
            return refuse::<F>(skb, encapsulated, direction::EGRESS);
        }
    }
    leave(skb, request.exit)
}

#[inline(always)]
fn step(result: Result<u64, Drop>) -> u64 {
    match result {
        Ok(step) => step,
        Err(why) => why.packed(),
    }
}

/// Writes flow, frontend and backend of a packet.
#[inline(never)]
fn choose<F: Dsr>(raw: *mut Context, request: &mut Packet<F::Address>) -> u64 {
    step(select::<F>(Skb::from_raw(raw), request))
}

#[inline(always)]
fn select<F: Dsr>(skb: Skb, request: &mut Packet<F::Address>) -> Result<u64, Drop> {
    let Some(header) = F::header(skb) else { return Ok(LEFT) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    // What cannot be read, and what is answered, is handled by the device's program.
    if F::hops(ip) <= 1 {
        return Ok(LEFT);
    }
    let Ok(flow) = flow::of::<F>(skb, ip, flow::UNCOUNTED) else { return Ok(LEFT) };
    request.flow = flow;
    if !matches!(flow.protocol(), TCP | UDP | SCTP) {
        return Ok(LEFT);
    }
    let mut key = frontend::key::<F>(&flow);
    let Some(service) = frontend::find::<F>(&key, &flow)? else { return Ok(NO_FRONTEND) };
    if service.flags2 & (lb_flag2::L7_LOAD_BALANCER | lb_flag2::NAT_46X64) != 0
        || service.flags & lb_flag::EXT_LOCAL_SCOPE != 0
    {
        return Ok(LEFT);
    }
    request.frontend = Socket { address: key.address, port: key.dport };
    request.rev_nat = service.rev_nat_index;
    let now = conntrack::now();
    request.now = now;
    let Some(backend) = frontend::backend::<F>(skb, &flow, &mut key, service, now)? else {
        return Ok(LEFT);
    };
    request.peer = Socket { address: backend.address, port: backend.port };
    let host_port = service.flags & lb_flag::HOST_PORT != 0;
    let is_remote = endpoint::local::<F>(backend.address).is_none();
    // A port of a pod that is elsewhere, and a backend that finds its frontend in the packet.
    if is_remote && host_port || !is_remote && service.flags2 & lb_flag2::LOOPBACK != 0 && !host_port {
        return Ok(LEFT);
    }
    let is_direct = is_remote && enabled!(dsr) && dsr::is_mode_of(service);
    // By IPIP the packet keeps the frontend's port.
    if !(is_direct && dsr::is_by(dispatch::IPIP)) {
        frontend::check_port(&flow, backend.port)?;
    }
    Ok(match is_remote {
        false => LOCAL,
        true if is_direct => DIRECT,
        true => REMOTE,
    })
}

/// Writes way and source of a packet to another node; [`LEFT`] for one that XDP cannot send.
#[inline(never)]
fn route<F: Place>(raw: *mut Context, request: &mut Packet<F::Address>, is_direct: bool) -> u64 {
    let (skb, backend) = (Skb::from_raw(raw), request.peer.address);
    request.tunnel = NO_TUNNEL;
    if is_direct && dsr::is_by(dispatch::IPIP) {
        return ipip::route::<F>(raw, request);
    }
    if is_direct && dsr::is_by(dispatch::GENEVE) {
        return match ipcache::lookup::<F>(backend) {
            Some(info) => tunnel::route::<F>(raw, request, info, dsr::names_frontend(&request.flow)),
            None => LEFT,
        };
    }
    if !is_direct {
        request.source = way::source_to::<F>(skb, backend);
        if F::is_unspecified(request.source) {
            return LEFT;
        }
    }
    if let Some(info) = way::behind_tunnel::<F>(backend) {
        return if is_direct { LEFT } else { tunnel::route::<F>(raw, request, info, false) };
    }
    let mut len = length(skb);
    if is_direct {
        request.source = request.flow.source;
        if dsr::names_frontend(&request.flow) {
            let Some(header) = F::header(skb) else { return LEFT };
            // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
            let claimed = F::length(unsafe { &*header });
            // A header that claims more than has arrived must not overflow by the option.
            len = if claimed > len { claimed } else { len }.saturating_add(F::OPTION_LEN);
        }
    }
    match hop::exit::<F>(skb, request.source, backend, len) {
        Some(exit) => {
            request.exit = exit;
            NEXT
        }
        None => LEFT,
    }
}

/// Translates a packet to its backend, and creates the entry of its connection unless the backend replies itself.
#[inline(never)]
fn translate<F: Place>(raw: *mut Context, request: &mut Packet<F::Address>, chosen: u64) -> u64 {
    step(to_backend::<F>(Skb::from_raw(raw), request, chosen))
}

#[inline(always)]
fn to_backend<F: Place>(skb: Skb, request: &mut Packet<F::Address>, chosen: u64) -> Result<u64, Drop> {
    let (source, backend) = (request.flow.source, request.peer);
    if chosen != DIRECT || !dsr::is_by(dispatch::IPIP) {
        nat::to_destination::<F>(skb, &mut request.flow, backend, source, false)?;
    }
    if chosen != DIRECT {
        conntrack::nodeport::admit::<F>(skb, &request.flow, request.rev_nat, request.now)?;
    }
    if chosen != LOCAL {
        way::forward_hop::<F>(skb)?;
    }
    Ok(NEXT)
}

/// Names the frontend to the backend's node, where that needs it.
#[inline(never)]
fn name<F: Dsr>(raw: *mut Context, request: &Packet<F::Address>) -> u64 {
    // Encapsulation does it.
    if !dsr::is_by(dispatch::OPTION) {
        return TRANSLATED;
    }
    if dsr::names_frontend(&request.flow)
        && let Err(why) = F::insert_option(Skb::from_raw(raw), request.frontend)
    {
        return why.packed();
    }
    TRANSLATED
}
