//! Sockets of proxies for packets that go to one (`enable-bpf-tproxy`): the kernel gives an assigned packet to its socket,
//! and no rule of iptables is needed. Rules of routing still lead the packet to the host by its mark.

use crate::endpoint::deliver;
use crate::monitor::drop::Drop;
use crate::packet::family::Family;
use crate::packet::flow::{Piece, TCP, UDP};
use crate::packet::skb::Skb;
use crate::packet::socket::{self, Socket};
use aya_ebpf::bindings::__sk_buff;
use datapath_abi::{FAMILY_V4, file};

const FILE: u8 = file::LOCAL_DELIVERY;

/// Assigns a packet that is marked for a proxy's port to that proxy's socket: of its connection, or the listener. A packet
/// without a port in its mark is left to the stack, which finds the connection's socket. Only at tc ingress.
#[inline(always)]
pub(crate) fn assign<F: Family>(skb: Skb) -> Result<(), Drop> {
    if !enabled!(bpf_tproxy) || skb.mark() >> 16 == 0 {
        return Ok(());
    }
    let result = skb.forget(run::<F>(skb.raw()));
    if result == 0 { Ok(()) } else { Err(Drop::unpacked(result)) }
}

/// A function of its own: its variables would be spilled on the way of all packets. Returns zero or a packed drop.
#[inline(never)]
fn run<F: Family>(raw: *mut __sk_buff) -> u64 {
    match find_and_assign::<F>(Skb::from_raw(raw)) {
        Ok(()) => 0,
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn find_and_assign<F: Family>(skb: Skb) -> Result<(), Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    let upper = F::upper(skb, ip)?;
    if upper.protocol != TCP && upper.protocol != UDP {
        return Err(drop_here!(PROXY_REDIRECTION_NOT_SUPPORTED_FOR_PROTOCOL));
    }
    if upper.piece != Piece::WHOLE {
        // Reassembly in the stack loses the socket, and the datagram would be answered by the host.
        return Err(drop_here!(IP_FRAGMENTATION_NOT_SUPPORTED));
    }
    let Some([sport, dport]) = skb.read::<[u16; 2]>(upper.offset) else {
        return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
    };
    let port = (skb.mark() >> 16) as u16;
    let mut tuple = socket::Tuple { source: F::source(ip), destination: F::destination(ip), sport, dport };
    if upper.protocol == TCP {
        // A handshake in progress has a socket, too, which its last packet has to reach.
        if let Some(socket) = Socket::of_tcp(skb, &tuple) {
            if !matches!(socket.state(), socket::LISTEN | socket::TIME_WAIT) {
                return give(skb, socket);
            }
            socket.release();
        }
    }
    // Finds sockets that are bound to the port at any address, too.
    (tuple.destination, tuple.dport) = (F::from_words(loopback::<F>()), port);
    let found = if upper.protocol == TCP { Socket::of_tcp(skb, &tuple) } else { Socket::of_udp(skb, &tuple) };
    match found {
        Some(socket) => give(skb, socket),
        None => Err(drop_here!(SOCKET_LOOKUP_FAILED)),
    }
}

/// Assigns a packet to a socket and releases that.
#[inline(always)]
fn give(skb: Skb, socket: Socket) -> Result<(), Drop> {
    let is_assigned = socket.assign(skb);
    socket.release();
    if !is_assigned {
        return Err(drop_here!(SOCKET_ASSIGN_FAILED));
    }
    // Without the port, as rules of iptables leave it.
    deliver::to_proxy(skb, 0);
    Ok(())
}

/// Returns the address at which proxies listen, in the format of map keys.
#[inline(always)]
fn loopback<F: Family>() -> [u32; 4] {
    if F::NUMBER == FAMILY_V4 { [0x7f00_0001u32.to_be(), 0, 0, 0] } else { [0, 0, 0, 1u32.to_be()] }
}
