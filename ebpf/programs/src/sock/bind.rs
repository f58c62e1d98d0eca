//! bind: sockets of the host may not take ports that services of the node have.

use datapath_abi::{LbServiceKey, lb_flag, lb_scope};

use crate::context::{EADDRINUSE, PROCEED, Socket, is_mapped, refuse};
use crate::family::{Family, V4, V6};
use crate::service::{self, is_delegated, is_host_address, is_l7, is_node_port};

/// Checks a bound IPv4 socket.
#[inline(always)]
pub(crate) fn bound_ipv4(socket: Socket) -> i32 {
    if !enabled!(enable_ipv4) || !socket.is_of_host() {
        return PROCEED;
    }
    bound::<V4>(socket, socket.source_ipv4())
}

/// Checks a bound IPv6 socket. The address `::` is compared with IPv6 services alone.
#[inline(always)]
pub(crate) fn bound_ipv6(socket: Socket) -> i32 {
    if !socket.is_of_host() {
        return PROCEED;
    }
    let address = socket.source_ipv6();
    if is_mapped(address) {
        if enabled!(enable_ipv4) { bound::<V4>(socket, address[3]) } else { PROCEED }
    } else if enabled!(enable_ipv6) {
        bound::<V6>(socket, address)
    } else {
        PROCEED
    }
}

#[inline(always)]
fn bound<F: Family>(socket: Socket, address: F::Address) -> i32 {
    let Some(protocol) = socket.protocol() else { return PROCEED };
    let mut key: LbServiceKey<F::Address> = service::key::<F>(address, socket.source_port(), protocol);
    let mut found = service::of_frontend::<F>(&mut key);
    if found.is_none()
        && is_node_port(key.dport)
        && (F::is_loopback(address) || is_host_address::<F>(address))
    {
        key.address = F::ANY;
        key.scope = lb_scope::EXTERNAL;
        found = service::of_frontend::<F>(&mut key);
    }
    let Some(service) = found else { return PROCEED };
    let of_node = lb_flag::NODE_PORT | lb_flag::EXTERNAL_IP | lb_flag::LOAD_BALANCER;
    if service.flags & of_node != 0 && !is_l7(service) && !is_delegated(service) {
        return refuse(EADDRINUSE);
    }
    PROCEED
}
