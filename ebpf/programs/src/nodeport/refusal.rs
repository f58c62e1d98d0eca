//! Services without backends: packets of devices are answered with ICMP "port unreachable".

use crate::endpoint::ipcache;
use crate::host::drop_incoming;
use crate::packet::family::Family;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_LEN, Skb};
use crate::pod::no_service;
use datapath_abi::mark;

/// Refuses an IPv4 packet that a device has received.
#[inline(always)]
pub(crate) fn refuse_ipv4(skb: Skb) -> i32 {
    skb.set_mark(mark::SNAT_DONE);
    no_service::refuse(skb, |own| own)
        .unwrap_or_else(|why| drop_incoming(skb, why, ipcache::sender_of::<V4>(skb, V4::world(), ETH_LEN)))
}

/// Refuses an IPv6 packet that a device has received.
#[inline(always)]
pub(crate) fn refuse_ipv6(skb: Skb) -> i32 {
    skb.set_mark(mark::SNAT_DONE);
    no_service::refuse_v6(skb, |own| own)
        .unwrap_or_else(|why| drop_incoming(skb, why, ipcache::sender_of::<V6>(skb, V6::world(), ETH_LEN)))
}
