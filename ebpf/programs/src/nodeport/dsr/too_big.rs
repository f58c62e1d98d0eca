//! Packets that do not fit into the MTU of their route with the option: their senders learn the length that does
//! (`enable-pmtu-discovery`), from the frontend that they have sent to.

use crate::monitor::drop::{Drop, Parties, dropped};
use crate::monitor::metrics;
use crate::nat::{self, Socket};
use crate::nodeport::dsr::{Dsr, is_by};
use crate::nodeport::reply;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::Skb;
use crate::pod::{ndp, no_service};
use datapath_abi::dsr::dispatch;
use datapath_abi::{direction, drop, file};

const FILE: u8 = file::NODEPORT;

/// ICMP type and code of "fragmentation needed" (RFC 1191), and of "packet too big" (RFC 4443, 3.2).
const FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
const PACKET_TOO_BIG: (u8, u8) = (2, 0);
/// The bits of the frontend's port in the first word of the context; the length is in those above.
const LENGTH_SHIFT: u32 = 16;

/// Passes a packet to [`refuse`], with the length that fits. Returns if that program is missing.
#[inline(always)]
pub(crate) fn hand_over<F: Dsr>(skb: Skb, length: u16) {
    skb.set_cb(0, skb.cb(0) & 0xffff | u32::from(length) << LENGTH_SHIFT);
    skb.tail_call(F::TOO_BIG_SLOT);
}

/// Refuses an IPv4 packet.
#[inline(always)]
pub(crate) fn refuse_ipv4(skb: Skb) -> i32 {
    let length = skb.cb(0) >> LENGTH_SHIFT;
    let refused = restore::<V4>(skb).and_then(|()| {
        no_service::error(skb, |own| own, (FRAGMENTATION_NEEDED, length), None, drop_here!(FRAG_NEEDED))
    });
    refused.unwrap_or_else(|why| lost(skb, why))
}

/// Refuses an IPv6 packet.
#[inline(always)]
pub(crate) fn refuse_ipv6(skb: Skb) -> i32 {
    let length = skb.cb(0) >> LENGTH_SHIFT;
    let refused = restore::<V6>(skb)
        .and_then(|()| ndp::error(skb, |own| own, (PACKET_TOO_BIG, length), None, drop_here!(FRAG_NEEDED)));
    refused.unwrap_or_else(|why| lost(skb, why))
}

/// Gives the packet the destination that its sender knows, and counts it.
#[inline(always)]
fn restore<F: Dsr>(skb: Skb) -> Result<(), Drop> {
    metrics::count(drop::FRAG_NEEDED, direction::EGRESS, FILE, line!() as u16, skb.len());
    if is_by(dispatch::IPIP) {
        return Ok(());
    }
    let words = [skb.cb(1), skb.cb(2), skb.cb(3), skb.cb(4)];
    let frontend = Socket { address: F::from_words(words), port: skb.cb(0) as u16 };
    let mut flow = reply::flow_of::<F>(skb)?;
    let source = flow.source;
    nat::to_destination::<F>(skb, &mut flow, frontend, source, false)
}

#[inline(always)]
fn lost(skb: Skb, why: Drop) -> i32 {
    let parties = Parties { endpoint: node!(host_endpoint_id), ..Parties::default() };
    dropped(skb, why.any(skb), direction::EGRESS, parties)
}
