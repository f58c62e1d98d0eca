//! The backend's node: packets that name a frontend of another node.

use crate::conntrack::{SYN, dsr, now};
use crate::host::drop_incoming;
use crate::monitor::drop::Drop;
use crate::nodeport::dsr::{Dsr, is_by};
use crate::nodeport::reply;
use crate::packet::flow::{SCTP, TCP, UDP};
use crate::packet::skb::Skb;
use crate::snat::masquerade;
use datapath_abi::dsr::dispatch;
use datapath_abi::{file, identity};

const FILE: u8 = file::NODEPORT;

/// Handles a packet that is no request of a service here: its frontend is stored if it names one, and it is delivered as it
/// is. Any other packet may be the reply to a translated one.
#[inline(always)]
pub(crate) fn receive<F: Dsr>(skb: Skb) -> i32 {
    match admit::<F>(skb) {
        Ok(true) => masquerade::deliver::<F>(skb),
        Ok(false) => {
            skb.tail_call(F::INGRESS_SLOT);
            drop_incoming(skb, drop_here!(MISSED_TAIL_CALL), identity::UNKNOWN)
        }
        Err(why) => drop_incoming(skb, why.any(skb), identity::UNKNOWN),
    }
}

/// Returns whether the packet belongs to a connection by a frontend of another node.
#[inline(always)]
fn admit<F: Dsr>(skb: Skb) -> Result<bool, Drop> {
    // The host's stack decides about packets that programs cannot read.
    let Ok(flow) = reply::flow_of::<F>(skb) else { return Ok(false) };
    if !matches!(flow.protocol(), TCP | UDP | SCTP) {
        return Ok(false);
    }
    let now = now();
    if flow.is_tcp() && flow.tcp_flags() & SYN == 0 {
        return Ok(dsr::keep::<F>(skb, &flow, now));
    }
    let frontend = if is_by(dispatch::GENEVE) {
        F::named_in_tunnel(skb)
    } else {
        let Some(header) = F::header(skb) else { return Ok(false) };
        // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
        F::named(skb, unsafe { &*header })
    };
    let Some(frontend) = frontend else {
        if flow.is_tcp() {
            dsr::end::<F>(&flow);
        }
        return Ok(false);
    };
    if frontend.port == 0 {
        return Err(drop_here!(INVALID_PACKET_DROPPED));
    }
    dsr::admit::<F>(skb, &flow, frontend, now)?;
    Ok(true)
}
