//! This node: packets leave to the backend with the name of the frontend.

use crate::endpoint::ipcache;
use crate::host::at_host;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::monitor::trace::Trace;
use crate::nat::Socket;
use crate::nodeport::dsr::ipip::{self, Outer};
use crate::nodeport::dsr::{Dsr, is_by, names_frontend, too_big};
use crate::nodeport::fib::Route;
use crate::nodeport::{NodePort, reply, way};
use crate::overlay::encapsulate::encapsulate;
use crate::packet::flow::{Flow, TCP, UDP};
use crate::packet::skb::Skb;
use datapath_abi::dsr::dispatch;
use datapath_abi::trace::{TO_OVERLAY, reason};
use datapath_abi::{direction, file, mark};

const FILE: u8 = file::NODEPORT;

/// Passes a packet that was translated to a backend of another node to [`send`]; by IPIP it is not translated, and has the
/// backend in place of the frontend. Returns if that program is missing.
#[inline(always)]
pub(crate) fn hand_over<F: NodePort>(skb: Skb, frontend: Socket<F::Address>) -> Drop {
    let [a, b, c, d] = F::words(frontend.address);
    skb.set_cb(0, u32::from(frontend.port));
    skb.set_cb(1, a);
    skb.set_cb(2, b);
    skb.set_cb(3, c);
    skb.set_cb(4, d);
    skb.tail_call(F::DSR_SLOT);
    drop_here!(MISSED_TAIL_CALL)
}

/// Sends a packet to a backend of another node, past the stack.
#[inline(always)]
pub(crate) fn send<F: Outer>(skb: Skb) -> i32 {
    match leave::<F>(skb) {
        Ok(verdict) => verdict,
        Err(why) => {
            let parties = Parties { endpoint: node!(host_endpoint_id), ..Parties::default() };
            dropped(skb, why.any(skb), direction::EGRESS, parties)
        }
    }
}

#[inline(always)]
fn leave<F: Outer>(skb: Skb) -> Result<i32, Drop> {
    let words = [skb.cb(1), skb.cb(2), skb.cb(3), skb.cb(4)];
    let frontend = Socket { address: F::from_words(words), port: skb.cb(0) as u16 };
    let flow = reply::flow_of::<F>(skb)?;
    if is_by(dispatch::IPIP) {
        return ipip::send::<F>(skb, &flow, frontend.address);
    }
    let is_named = skb.forget(u64::from(names_frontend(&flow))) != 0;
    way::forward_hop::<F>(skb)?;
    // It must leave as it is.
    skb.set_mark(mark::SNAT_DONE);
    if is_by(dispatch::GENEVE) {
        return by_tunnel::<F>(skb, &flow, is_named.then_some(frontend));
    }
    if !is_named {
        return Ok(Route::of::<F>(skb, flow.source, flow.destination)?.redirect());
    }
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let length = F::length(unsafe { &*header }).saturating_add(F::OPTION_LEN);
    let mut mtu = 0;
    let route = match Route::for_length::<F>(skb, flow.source, flow.destination, length, &mut mtu) {
        Ok(route) => route,
        Err(why) => {
            if enabled!(dsr_icmp) && mtu > F::OPTION_LEN && matches!(flow.protocol(), TCP | UDP) {
                // The tail call does not return unless the program is missing.
                too_big::hand_over::<F>(skb, mtu - F::OPTION_LEN);
            }
            return Err(why);
        }
    };
    F::insert_option(skb, frontend)?;
    Ok(route.redirect())
}

/// Sends a packet by the tunnel to the backend's node, with the option if there is a frontend to name. Its size needs no
/// check: the kernel fragments the packet around it.
#[inline(always)]
fn by_tunnel<F: Dsr>(
    skb: Skb,
    flow: &Flow<F::Address>,
    frontend: Option<Socket<F::Address>>,
) -> Result<i32, Drop> {
    let Some(info) = ipcache::lookup::<F>(flow.destination) else {
        return Err(drop_here!(NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT));
    };
    let at = at_host(TO_OVERLAY, F::world(), info.sec_identity);
    let verdict = encapsulate(skb, info, Trace { reason: reason::POLICY, ..at })?;
    // It belongs to the key, which encapsulation sets.
    match frontend {
        Some(frontend) if !F::insert_into_tunnel(skb, frontend) => Err(drop_here!(ERROR_WRITING_TO_PACKET)),
        _ => Ok(verdict),
    }
}
