//! Health probes of backends that find the frontend in the packet (`bpf-lb-ipip-sock-mark`). A prober on the host gives
//! its socket [`PROBE`], binds it to the backend that it asks, and connects to the frontend. The address is not bound, but
//! stored by the socket's cookie for the programs of devices, which send the socket's packets in an outer header to that
//! backend.

use datapath_abi::{LbBackend, mark::PROBE};

use crate::context::{Address, ENOBUFS, PROCEED, is_host, refuse};
use crate::family::{Family, Mapped, V4, V6, View};

/// True for a socket of health probes.
#[inline(always)]
fn is_probe(ctx: Address) -> bool {
    enabled!(probes) && ctx.mark() == PROBE && is_host(ctx.netns_cookie())
}

/// Lets a socket of health probes connect to the frontend itself; its packets are those of any socket from then on.
#[inline(always)]
pub(crate) fn connects(ctx: Address) -> bool {
    let probes = is_probe(ctx);
    if probes {
        ctx.clear_mark();
    }
    probes
}

/// Handles bind(2) of an IPv4 socket.
#[inline(always)]
pub(crate) fn bind_ipv4(ctx: Address) -> i32 {
    if enabled!(enable_ipv4) && is_probe(ctx) { name::<V4>(ctx) } else { PROCEED }
}

/// Handles bind(2) of an IPv6 socket, which may have an IPv4 address.
#[inline(always)]
pub(crate) fn bind_ipv6(ctx: Address) -> i32 {
    if !is_probe(ctx) {
        return PROCEED;
    }
    if ctx.is_mapped() {
        if enabled!(enable_ipv4) { name::<Mapped>(ctx) } else { PROCEED }
    } else if enabled!(enable_ipv6) {
        name::<V6>(ctx)
    } else {
        PROCEED
    }
}

/// Stores the address as that of the socket's backend, and binds any address in its place.
#[inline(always)]
fn name<V: View>(ctx: Address) -> i32 {
    let backend = LbBackend {
        address: V::address(ctx),
        port: ctx.port(),
        proto: ctx.ip_protocol(),
        state: 0,
        cluster_id: 0,
        zone: 0,
        pad: 0,
    };
    if V::Family::probes().insert(&ctx.cookie(), &backend).is_err() {
        return refuse(ENOBUFS);
    }
    V::set_address(ctx, V::Family::ANY);
    ctx.set_port(0);
    PROCEED
}
