//! Packets of health probes (`bpf-lb-ipip-sock-mark`): a prober on the host asks a backend by the frontend's address, as a
//! client's packet reaches it by IPIP. Its socket names the backend, see `sock/probe.rs`. The packet leaves in an outer
//! header to that backend; for a backend of this node it enters here, as the device of outer headers receives it.

use crate::endpoint;
use crate::lb::row;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::nodeport::dsr::ipip::Outer;
use crate::packet::headers::EthHeader;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, Skb};
use crate::snat::STEP;
use aya_ebpf::bindings::__sk_buff;
use datapath_abi::mark::tc_index::SKIP_HEALTH_CHECK;
use datapath_abi::{FAMILY_V6, direction, file, identity, mark};

const FILE: u8 = file::NODEPORT;

/// Results of [`handle`] beside drops: the packet is of no probe; it is redirected, with the verdict in the lower half.
const OTHER: u64 = STEP;
const REDIRECTED: u64 = 2 * STEP;

/// Sends a packet of a health probe to its backend; `None` for any other packet.
#[inline(always)]
pub(crate) fn dispatch(skb: Skb) -> Option<i32> {
    // The outer packet has the socket of the inner one.
    if skb.tc_index() & SKIP_HEALTH_CHECK != 0 {
        return None;
    }
    let result = match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => handle::<V4>(skb.raw()),
        ETH_IPV6 if enabled!(enable_ipv6) => handle::<V6>(skb.raw()),
        _ => return None,
    };
    match skb.forget(result) {
        OTHER => None,
        sent if sent >> 32 == REDIRECTED >> 32 => Some(sent as i32),
        why => {
            let endpoint = node!(host_endpoint_id);
            let parties = Parties { endpoint, src_label: identity::HOST, ..Parties::default() };
            Some(dropped(skb, Drop::unpacked(why), direction::EGRESS, parties))
        }
    }
}

/// A function of its own: its variables would be spilled on the way of all packets that a device sends.
#[inline(never)]
fn handle<F: Outer>(raw: *mut __sk_buff) -> u64 {
    let skb = Skb::from_raw(raw);
    let cookie = skb.socket_cookie();
    let Some(backend) = row(&F::probes(), &cookie) else { return OTHER };
    match send::<F>(skb, backend.address) {
        Ok(verdict) => REDIRECTED | u64::from(verdict as u32),
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn send<F: Outer>(skb: Skb, backend: F::Address) -> Result<i32, Drop> {
    if F::device() == 0 {
        return Err(drop_here!(NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT));
    }
    skb.set_tc_index(skb.tc_index() | SKIP_HEALTH_CHECK);
    if endpoint::local::<F>(backend).is_some() {
        let Some(eth) = skb.header::<EthHeader>(0) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
        // SAFETY: `header` checked the bounds; nothing moves the packet in between.
        unsafe { (*eth).destination = [0; 3] };
        return Ok(skb.redirect_ingress(F::device()));
    }
    if !skb.set_tunnel_key(0, F::words(backend), F::NUMBER == FAMILY_V6) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    // The outer packet must leave as it is.
    skb.set_mark(mark::SNAT_DONE);
    Ok(skb.redirect(F::device()))
}
