//! Packets of pods that policy denies: replies with ICMP "administratively prohibited" (`policy-deny-response`). The drop
//! itself has been reported; packets that get no reply end silently here.

use crate::endpoint;
use crate::maps::cilium_ratelimit;
use crate::packet::headers::mac;
use crate::packet::skb::{ETH_LEN, SHOT, Skb};
use crate::pod::{ndp, no_service};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use datapath_abi::file;
use datapath_abi::ratelimit::{ICMPV6, RatelimitBucket, RatelimitKey};

const FILE: u8 = file::BPF_LXC;

/// ICMP type and code of "communication administratively prohibited" (RFC 1812, 5.2.7.1; RFC 4443, 3.1).
const PROHIBITED: [u8; 2] = [3, 13];
const PROHIBITED_V6: (u8, u8) = (1, 1);
/// The first byte of the first address of multicast.
const MULTICAST: u8 = 224;
const MULTICAST_V6: u8 = 0xff;
/// Protocol and type of messages that get errors, unlike other ICMP (RFC 1122, 3.2.2).
const ICMP: u8 = 1;
const ECHO_REQUEST: u8 = 8;
/// Offsets in an IPv4 header without options, and of the ICMP type behind it.
const PROTOCOL: usize = ETH_LEN + 9;
const DESTINATION: usize = ETH_LEN + 16;
const ICMP_TYPE: usize = ETH_LEN + 20;
/// The offset of the destination in an IPv6 header.
const DESTINATION_V6: usize = ETH_LEN + 24;

/// Replies to an IPv4 packet.
#[inline(always)]
pub(crate) fn handle_ipv4(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else { return SHOT };
    if !is_answerable(skb) {
        return SHOT;
    }
    let why = drop_here!(POLICY_DENIED);
    no_service::error(skb, |_| mac(me.node_mac), (PROHIBITED, 0), None, why).unwrap_or(SHOT)
}

/// Replies to an IPv6 packet.
#[inline(always)]
pub(crate) fn handle_ipv6(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else { return SHOT };
    let mut first = 0u8;
    if !skb.load(DESTINATION_V6, &mut first) || first == MULTICAST_V6 || !take_token(skb.ifindex()) {
        return SHOT;
    }
    let why = drop_here!(POLICY_DENIED);
    ndp::refuse(skb, |_| mac(me.node_mac), PROHIBITED_V6, None, why).unwrap_or(SHOT)
}

/// Whether an IPv4 packet gets an error: not one to several receivers, and not an ICMP error.
#[inline(always)]
fn is_answerable(skb: Skb) -> bool {
    let (mut protocol, mut first, mut kind) = (0u8, 0u8, ECHO_REQUEST);
    if !skb.load(PROTOCOL, &mut protocol) || !skb.load(DESTINATION, &mut first) || first >= MULTICAST {
        return false;
    }
    protocol != ICMP || skb.load(ICMP_TYPE, &mut kind) && kind == ECHO_REQUEST
}

/// Takes a token of the interface's bucket of ICMPv6 errors (RFC 4443, 2.4 f); false if none is left. Two CPUs may get the
/// same token.
#[inline(always)]
fn take_token(ifindex: u32) -> bool {
    const TOKENS: u64 = 100;
    const INTERVAL: u64 = 1_000_000_000;
    let key = RatelimitKey { usage: ICMPV6, ifindex };
    // SAFETY: the helper takes no arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: null or a map entry, which outlives the program's run; words of it are written whole.
    let Some(bucket) = (unsafe { cilium_ratelimit.rows().pointer(&key).as_mut() }) else {
        cilium_ratelimit.insert(&key, &RatelimitBucket { last_topup: now, tokens: TOKENS - 1 });
        return true;
    };
    if now.wrapping_sub(bucket.last_topup) >= INTERVAL {
        (bucket.last_topup, bucket.tokens) = (now, TOKENS - 1);
        return true;
    }
    let has_token = bucket.tokens > 0;
    if has_token {
        bucket.tokens -= 1;
    }
    has_token
}
