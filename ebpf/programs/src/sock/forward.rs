//! connect and sendmsg: replaces a service's address by that of a backend.

use core::num::NonZeroU32;

use aya_ebpf::helpers::bpf_get_prandom_u32;
use datapath_abi::event::xlate;
use datapath_abi::{
    LbAffinity, LbAffinityKey, LbAffinityMatch, LbReverseSk, LbReverseSkKey, LbService, LbServiceKey,
    direction, lb_flag, lb_flag2, metric,
};

use crate::context::{Address, EHOSTUNREACH, ENOMEM, PROCEED, TCP, count, is_host, now, refuse};
use crate::family::{Family, View, row};
use crate::maps::cilium_lb_affinity_match;
use crate::probe;
use crate::service::{self, is_delegated, is_host_address, is_l7};
use crate::trace::{self, Call};

/// No backend has this id.
const NO_BACKEND: u32 = 0;

/// Bits of a frontend entry's first word that are the affinity timeout in seconds.
const AFFINITY_TIMEOUT_MASK: u32 = 0x00ff_ffff;

/// Translates the destination of a system call if it is a service. Returns the verdict.
#[inline(always)]
pub(crate) fn translate<V: View>(ctx: Address, call: Call) -> i32 {
    let Some(protocol) = ctx.protocol() else { return PROCEED };
    if enabled!(host_only) && !is_host(ctx.netns_cookie()) {
        return PROCEED;
    }
    if call == Call::Connect && probe::connects(ctx) {
        return PROCEED;
    }
    let (address, port) = (V::address(ctx), ctx.port());
    let mut key = service::key::<V::Family>(address, port, protocol);
    let in_host = || is_host(ctx.netns_cookie());
    let Some(service) = service::of_destination::<V::Family>(&mut key, in_host) else { return PROCEED };
    let is_l7 = is_l7(service);
    if service.count == 0 && !is_l7 {
        let refused = enabled!(empty_services_drop) || is_local_only(service);
        return if refused { refuse(EHOSTUNREACH) } else { PROCEED };
    }
    trace::translation::<V::Family>(ctx, xlate::PRE_FWD, call, protocol, address, port);
    if is_delegated(service) || service.flags2 & lb_flag2::NAT_46X64 != 0 {
        return PROCEED;
    }
    if is_guarded::<V::Family>(service, address) && !is_host_address::<V::Family>(address) {
        return PROCEED;
    }
    if service.flags2 & lb_flag2::LOCAL_REDIRECT != 0 && V::Family::skips(ctx.netns_cookie(), address, port) {
        return PROCEED;
    }
    let rev_nat_index = service.rev_nat_index;
    let from = LbReverseSk { address, port, rev_nat_index };
    if is_l7 {
        if !in_host() {
            return PROCEED;
        }
        // The proxy's port, big-endian, in a word of the host's byte order.
        let proxy = service.backend_id as u16;
        trace::translation::<V::Family>(ctx, xlate::POST_FWD, call, protocol, V::Family::LOOPBACK, proxy);
        return redirect::<V>(ctx, &from, V::Family::LOOPBACK, proxy);
    }
    let Some(id) = choose::<V::Family>(ctx, protocol, service, &mut key) else {
        count(metric::LB_NO_BACKEND_SLOT, direction::EGRESS);
        return refuse(EHOSTUNREACH);
    };
    let Some(backend) = row(&V::Family::backends(), &id) else {
        count(metric::LB_NO_BACKEND, direction::EGRESS);
        return refuse(EHOSTUNREACH);
    };
    let to_port = if backend.port == 0 { port } else { backend.port };
    trace::translation::<V::Family>(ctx, xlate::POST_FWD, call, protocol, backend.address, to_port);
    redirect::<V>(ctx, &from, backend.address, to_port)
}

/// Writes the socket's row and the new destination. Returns the verdict.
#[inline(always)]
fn redirect<V: View>(
    ctx: Address,
    from: &LbReverseSk<<V::Family as Family>::Address>,
    address: <V::Family as Family>::Address,
    port: u16,
) -> i32 {
    let key = LbReverseSkKey { cookie: ctx.cookie(), address, port, pad: Default::default() };
    let known = row(&V::Family::sockets(), &key).is_some_and(|row| {
        V::Family::same(row.address, from.address)
            && row.port == from.port
            && row.rev_nat_index == from.rev_nat_index
    });
    if !known {
        if V::Family::sockets().insert(&key, from).is_err() {
            count(metric::LB_REVNAT_UPDATE, direction::EGRESS);
            return refuse(ENOMEM);
        }
        // A row is evicted last if it was read.
        let _ = row(&V::Family::sockets(), &key);
    }
    V::set_address(ctx, address);
    ctx.set_port(port);
    PROCEED
}

/// True if a service's traffic stays on nodes with backends: without one here, no other node may serve it.
#[inline(always)]
fn is_local_only(service: &LbService) -> bool {
    let external = lb_flag::EXTERNAL_IP | lb_flag::NODE_PORT | lb_flag::LOAD_BALANCER;
    if service.flags & external != 0 {
        service.flags & lb_flag::EXT_LOCAL_SCOPE != 0
    } else {
        service.flags2 & lb_flag2::INT_LOCAL_SCOPE != 0
    }
}

/// True if a service is translated only at addresses of this node.
#[inline(always)]
fn is_guarded<F: Family>(service: &LbService, address: F::Address) -> bool {
    enabled!(external_ip_mitigation) && service.flags & lb_flag::EXTERNAL_IP != 0
        || service.flags & lb_flag::HOST_PORT != 0 && !F::is_loopback(address)
}

/// Returns the id of a backend: that of the namespace by affinity, else one by chance; for UDP by the socket, so that
/// each datagram of an unconnected socket has the same one.
#[inline(always)]
fn choose<F: Family>(
    ctx: Address,
    protocol: u8,
    service: &LbService,
    key: &mut LbServiceKey<F::Address>,
) -> Option<u32> {
    let has_affinity = service.flags & lb_flag::SESSION_AFFINITY != 0;
    let client = LbAffinityKey {
        client: F::client(if has_affinity { ctx.netns_cookie() } else { 0 }),
        rev_nat_id: service.rev_nat_index,
        netns_cookie: 1,
        pad1: 0,
        pad2: 0,
    };
    let time = if has_affinity { now() } else { 0 };
    if has_affinity && let Some(id) = recall::<F>(&client, service, time) {
        return Some(id);
    }
    let count = NonZeroU32::new(u32::from(service.count))?;
    let number = match protocol {
        // SAFETY: the helper takes no arguments.
        TCP => unsafe { bpf_get_prandom_u32() },
        _ => ctx.cookie() as u32,
    };
    let first = number % count;
    let mut id = in_slot::<F>(key, first + 1);
    // The agent may be about to remove a slot or its backend: take the next one.
    if row(&F::backends(), &id).is_none() {
        id = in_slot::<F>(key, (first + 1) % count + 1);
    }
    if id == NO_BACKEND {
        return None;
    }
    if has_affinity {
        // If the map is full, the next connection chooses again.
        let _ = F::affinity().insert(&client, &LbAffinity { last_used: time, backend_id: id, pad: 0 });
    }
    Some(id)
}

#[inline(always)]
fn in_slot<F: Family>(key: &mut LbServiceKey<F::Address>, slot: u32) -> u32 {
    key.backend_slot = slot as u16;
    row(&F::services(), key).map_or(NO_BACKEND, |slot| slot.backend_id)
}

/// Returns the namespace's backend by affinity, if the entry has not expired and the backend still serves.
#[inline(always)]
fn recall<F: Family>(client: &LbAffinityKey<F::Client>, service: &LbService, now: u64) -> Option<u32> {
    let known = row(&F::affinity(), client)?;
    let seconds = u64::from(service.backend_id & AFFINITY_TIMEOUT_MASK);
    let timeout = seconds * u64::from(setting!(ticks_in_256_seconds)) / 256;
    if known.last_used + timeout <= now {
        return None;
    }
    let backend_id = known.backend_id;
    let serves = LbAffinityMatch { backend_id, rev_nat_id: service.rev_nat_index, pad: 0 };
    cilium_lb_affinity_match.get(&serves)?;
    row(&F::backends(), &backend_id)?;
    Some(backend_id)
}
