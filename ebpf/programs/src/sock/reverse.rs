//! recvmsg and getpeername: replaces a backend's address by that of the service. Release: removes a socket's row.

use datapath_abi::event::xlate;
use datapath_abi::{LbReverseSkKey, direction, metric};

use crate::context::{Address, PROCEED, Socket, count, is_host, is_mapped};
use crate::family::{Family, V4, V6, View, remove_socket, row};
use crate::service::{self, is_l7};
use crate::trace::{self, Call};

/// Address families of sockets.
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

/// Replaces the peer's address in the result of a system call by the service's, if the socket was translated to this
/// peer and the service still exists. Always lets the call go on.
#[inline(always)]
pub(crate) fn translate<V: View>(ctx: Address) -> i32 {
    let (address, port) = (V::address(ctx), ctx.port());
    let socket = LbReverseSkKey { cookie: ctx.cookie(), address, port, pad: Default::default() };
    let Some(from) = row(&V::Family::sockets(), &socket) else { return PROCEED };
    let Some(protocol) = ctx.protocol() else { return PROCEED };
    let seen = (address, port);
    let (address, port, rev_nat_index) = (from.address, from.port, from.rev_nat_index);
    let mut key = service::key::<V::Family>(address, port, protocol);
    let found = service::of_destination::<V::Family>(&mut key, || is_host(ctx.netns_cookie()));
    let is_current = found.is_some_and(|service| {
        service.rev_nat_index == rev_nat_index && (service.count != 0 || is_l7(service))
    });
    if is_current {
        trace::translation::<V::Family>(ctx, xlate::PRE_REV, Call::Reverse, protocol, seen.0, seen.1);
        trace::translation::<V::Family>(ctx, xlate::POST_REV, Call::Reverse, protocol, address, port);
        V::set_address(ctx, address);
        ctx.set_port(port);
    } else if remove_socket::<V::Family>(&socket) {
        count(metric::LB_REVNAT_STALE, direction::INGRESS);
    }
    PROCEED
}

/// Removes the row of a closed socket.
#[inline(always)]
pub(crate) fn release(socket: Socket) {
    match socket.family() {
        AF_INET if enabled!(enable_ipv4) => forget::<V4>(socket, socket.peer_ipv4()),
        AF_INET6 => {
            let peer = socket.peer_ipv6();
            if is_mapped(peer) {
                if enabled!(enable_ipv4) {
                    forget::<V4>(socket, peer[3]);
                }
            } else if enabled!(enable_ipv6) {
                forget::<V6>(socket, peer);
            }
        }
        _ => {}
    }
}

#[inline(always)]
fn forget<F: Family>(socket: Socket, address: F::Address) {
    if socket.protocol().is_none() {
        return;
    }
    let (cookie, port) = (socket.cookie(), socket.peer_port());
    if remove_socket::<F>(&LbReverseSkKey { cookie, address, port, pad: Default::default() }) {
        count(metric::LB_REVNAT_DELETE, direction::EGRESS);
    }
}
