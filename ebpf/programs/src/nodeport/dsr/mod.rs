//! Direct server return: packets to backends of other nodes keep the client's address, and the backend's node sends
//! replies to the client itself, in the name of the frontend.
//!
//! A packet names the frontend for the backend's node: in an option of the IP header ([`option`]) or of the tunnel
//! ([`geneve`]). Of a TCP connection only packets with SYN do. The backend's node writes the frontend into an entry of
//! connection tracking ([`receive`]), by which [`reply`](super::reply) translates what goes back. This node has no entry
//! but that of the choice of a backend.
//!
//! Packets that get too long for their route by the option are refused ([`too_big`]).
//!
//! Uses `conntrack`, `endpoint`, `overlay`, `packet`, `pod` and `snat`.

pub(crate) mod geneve;
pub(crate) mod option;
pub(crate) mod receive;
pub(crate) mod too_big;

use crate::conntrack::SYN;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::nat::Socket;
use crate::nodeport::NodePort;
use crate::nodeport::fib::Route;
use crate::nodeport::reply;
use crate::packet::flow::{Flow, TCP, UDP};
use crate::packet::skb::Skb;
use crate::snat::Snat;
use datapath_abi::{LbService, direction, dsr as mode, file, lb_flag2, mark};

const FILE: u8 = file::NODEPORT;

/// How packets of an IP family name the frontend.
pub(crate) trait Dsr: NodePort + Snat {
    /// The slot of the program that refuses packets which get too long by the option.
    const TOO_BIG_SLOT: u32;
    /// Length of the option in the IP header.
    const OPTION_LEN: u16;

    /// Returns the length of the packet with its header.
    fn length(header: &Self::Header) -> u16;
    /// Inserts the option that names a frontend. The caller must reload its packet pointers.
    fn insert_option(skb: Skb, frontend: Socket<Self::Address>) -> Result<(), Drop>;
    /// Returns the frontend that the option names.
    fn named(skb: Skb, header: &Self::Header) -> Option<Socket<Self::Address>>;
    /// Adds the option of the tunnel that names a frontend to a packet with a tunnel's key; false if the kernel refuses.
    fn insert_into_tunnel(skb: Skb, frontend: Socket<Self::Address>) -> bool;
    /// Returns the frontend that the option of the tunnel names.
    fn named_in_tunnel(skb: Skb) -> Option<Socket<Self::Address>>;
}

/// True for a service with direct replies of backends on other nodes.
#[inline(always)]
pub(crate) fn is_mode_of(service: &LbService) -> bool {
    node!(dsr) == mode::ALL || service.flags2 & lb_flag2::FORWARDING_DSR != 0
}

/// Passes a packet that was translated to a backend of another node to [`send`]. Returns if that program is missing.
#[inline(always)]
pub(crate) fn hand_over<F: NodePort>(skb: Skb, frontend: Socket<F::Address>) -> Drop {
    let [a, b, c, d] = F::words(frontend.address);
    skb.set_cb(0, u32::from(frontend.port));
    skb.set_cb(1, a);
    skb.set_cb(2, b);
    skb.set_cb(3, c);
    skb.set_cb(4, d);
    skb.tail_call(F::DSR_SLOT);
    drop_here!(MISSED_TAIL_CALL)
}

/// Sends a packet to a backend of another node, past the stack.
#[inline(always)]
pub(crate) fn send<F: Dsr>(skb: Skb) -> i32 {
    match leave::<F>(skb) {
        Ok(verdict) => verdict,
        Err(why) => {
            let parties = Parties { endpoint: node!(host_endpoint_id), ..Parties::default() };
            dropped(skb, why.any(skb), direction::EGRESS, parties)
        }
    }
}

#[inline(always)]
fn leave<F: Dsr>(skb: Skb) -> Result<i32, Drop> {
    let words = [skb.cb(1), skb.cb(2), skb.cb(3), skb.cb(4)];
    let frontend = Socket { address: F::from_words(words), port: skb.cb(0) as u16 };
    let flow = reply::flow_of::<F>(skb)?;
    let is_named = skb.forget(u64::from(names_frontend(&flow))) != 0;
    reply::forward_hop::<F>(skb)?;
    // It must leave as it is.
    skb.set_mark(mark::SNAT_DONE);
    if enabled!(dsr_geneve) {
        return geneve::send::<F>(skb, &flow, is_named.then_some(frontend));
    }
    if !is_named {
        return Ok(Route::of::<F>(skb, flow.source, flow.destination)?.redirect());
    }
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let length = F::length(unsafe { &*header }).saturating_add(F::OPTION_LEN);
    let mut mtu = 0;
    let route = match Route::for_length::<F>(skb, flow.source, flow.destination, length, &mut mtu) {
        Ok(route) => route,
        Err(why) => {
            if enabled!(dsr_icmp) && mtu > F::OPTION_LEN && matches!(flow.protocol(), TCP | UDP) {
                // The tail call does not return unless the program is missing.
                too_big::hand_over::<F>(skb, mtu - F::OPTION_LEN);
            }
            return Err(why);
        }
    };
    F::insert_option(skb, frontend)?;
    Ok(route.redirect())
}

/// True for packets that name the frontend: the first ones of a TCP connection, all of another protocol, which has no
/// first one.
#[inline(always)]
fn names_frontend<A>(flow: &Flow<A>) -> bool {
    !flow.is_tcp() || flow.tcp_flags() & SYN != 0
}
