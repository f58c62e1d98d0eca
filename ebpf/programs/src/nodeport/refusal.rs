//! Services without backends: packets of devices and of the tunnel are answered with ICMP "port unreachable".

use crate::endpoint::ipcache;
use crate::host::{at_host, drop_incoming};
use crate::monitor::drop::Drop;
use crate::monitor::trace::Trace;
use crate::nodeport::{NodePort, remote};
use crate::overlay::encapsulate::encapsulate;
use crate::packet::family::Family;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_LEN, Skb};
use crate::pod::no_service;
use datapath_abi::trace::{TO_OVERLAY, reason};
use datapath_abi::{file, identity, mark};

const FILE: u8 = file::NODEPORT;

/// Refuses an IPv4 packet that a device has received.
#[inline(always)]
pub(crate) fn refuse_ipv4(skb: Skb) -> i32 {
    skb.set_mark(mark::SNAT_DONE);
    no_service::refuse(skb, |own| own)
        .and_then(|verdict| back::<V4>(skb, verdict))
        .unwrap_or_else(|why| drop_incoming(skb, why, ipcache::sender_of::<V4>(skb, V4::world(), ETH_LEN)))
}

/// Refuses an IPv6 packet that a device has received.
#[inline(always)]
pub(crate) fn refuse_ipv6(skb: Skb) -> i32 {
    skb.set_mark(mark::SNAT_DONE);
    no_service::refuse_v6(skb, |own| own)
        .and_then(|verdict| back::<V6>(skb, verdict))
        .unwrap_or_else(|why| drop_incoming(skb, why, ipcache::sender_of::<V6>(skb, V6::world(), ETH_LEN)))
}

/// Returns the verdict of an answer. One to the tunnel needs a key: the device does not send a packet by the key that it
/// has received it with.
#[inline(always)]
fn back<F: NodePort>(skb: Skb, verdict: i32) -> Result<i32, Drop> {
    if !enabled!(tunnel) || skb.ifindex() != node!(tunnel_ifindex) {
        return Ok(verdict);
    }
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let Some(info) = remote::behind_tunnel::<F>(F::destination(unsafe { &*header })) else {
        return Err(drop_here!(NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT));
    };
    let at = at_host(TO_OVERLAY, identity::REMOTE_NODE, info.sec_identity);
    encapsulate(skb, info, Trace { reason: reason::POLICY, ..at })
}
