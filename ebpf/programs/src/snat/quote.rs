//! ICMP errors about translated flows: the packet that they quote is translated with them, so that the receiver finds
//! the socket that has sent it.

use crate::monitor::drop::Drop;
use crate::nat::{self, Change, Translate};
use crate::packet::family::Family as _;
use crate::packet::flow::{SCTP, TCP, UDP};
use crate::packet::headers::Ipv4Header;
use crate::packet::ipv6::V6;
use crate::packet::skb::{Context, Skb};
use crate::snat::{Snat, TRANSLATED, UNTRANSLATED};
use datapath_abi::{NatKey, file, tuple_flag};

const FILE: u8 = file::NODEPORT;

/// Length of an ICMP header; the quoted packet follows it.
const ICMP_LEN: usize = 8;
const ICMP_CHECKSUM: usize = 2;
/// The offset of the identifier in an ICMP echo.
const IDENTIFIER: usize = 4;
/// The fragment offset in the fragment field of an IPv4 header, in network byte order.
const FRAGMENT_OFFSET: u16 = 0x1fffu16.to_be();
/// Mask of header offsets, as in `packet::flow`.
const OFFSET_MASK: u64 = 0x3fff;

/// Translates the ICMP error with its header at `icmp`: one that a pod sends (`leaves`) quotes a packet to it, one that
/// a device receives quotes a packet of a pod. Errors about flows without a mapping stay as they are. A separate
/// function: its paths join at the return.
#[inline(never)]
pub(crate) fn translate<F: Snat>(raw: *mut Context, icmp: u64, leaves: bool) -> u64 {
    match rewrite::<F>(Skb::from_raw(raw), (icmp & OFFSET_MASK) as usize, leaves) {
        Ok(true) => TRANSLATED,
        Ok(false) => UNTRANSLATED,
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn rewrite<F: Snat>(skb: Skb, icmp: usize, leaves: bool) -> Result<bool, Drop> {
    let inner = icmp + ICMP_LEN;
    let mut first = [0u8; size_of::<Ipv4Header>()];
    if !skb.load(inner, &mut first) {
        return Ok(false);
    }
    let (len, protocol) = match F::CHECKSUM_OFFSET {
        Some(_) if u16::from_ne_bytes([first[6], first[7]]) & FRAGMENT_OFFSET != 0 => return Ok(false),
        Some(_) => (usize::from(first[0] & 0xf) << 2, first[9]),
        None => (F::HEADER_LEN, first[6]),
    };
    let Some((mut from, mut to)) = addresses::<F>(skb, inner) else { return Ok(false) };
    let upper = inner + len;
    let mut words = [0u16; 4];
    if !skb.load(upper, &mut words) {
        return Ok(false);
    }
    let [mut sport, mut dport, ..] = words;
    if protocol == F::ICMP {
        let kind = words[0].to_ne_bytes()[0];
        (sport, dport) = if kind == F::ECHO_REQUEST {
            (words[2], 0)
        } else if kind == F::ECHO_REPLY {
            (0, words[2])
        } else {
            return Ok(false);
        };
    } else if !matches!(protocol, TCP | UDP | SCTP) {
        return Ok(false);
    }
    // The tuple of the packet that would have met this one.
    core::mem::swap(&mut from, &mut to);
    core::mem::swap(&mut sport, &mut dport);
    let flags = if leaves { tuple_flag::OUT } else { tuple_flag::IN };
    let key = NatKey { daddr: to, saddr: from, dport, sport, nexthdr: protocol, flags };
    let Some(mapping) = F::row(&key) else { return Ok(false) };
    // What changes in the quoted packet: the receiver, if it was sent to the pod; the sender, if the pod sent it.
    let (address_at, port_at, address, port) = if leaves {
        (F::DESTINATION_OFFSET, 2, Change { from, to: mapping.address }, sport)
    } else {
        (F::SOURCE_OFFSET, 0, Change { from: to, to: mapping.address }, dport)
    };
    let port = Change { from: port, to: mapping.port };
    let port_at = upper + if protocol == F::ICMP { IDENTIFIER } else { port_at };
    nat::set_quoted_address::<F>(skb, icmp, address_at, address.to)?;
    let mut difference = if protocol == F::ICMP && F::ICMP != V6::ICMP { 0 } else { F::difference(address) };
    if port.from != port.to {
        set_word(skb, icmp, port_at, port)?;
        difference = nat::sum(difference, port);
    }
    let checksum_at = match protocol {
        TCP => 16,
        UDP => 6,
        SCTP => 0,
        _ => ICMP_CHECKSUM,
    };
    let mut checksum = 0u16;
    // Routers may quote no more than eight bytes, and UDP may have no checksum.
    if checksum_at != 0 && skb.load(upper + checksum_at, &mut checksum) && (protocol != UDP || checksum != 0)
    {
        let moved = Change { from: checksum, to: nat::moved(checksum, difference) };
        set_word(skb, icmp, upper + checksum_at, moved)?;
    }
    outer::<F>(skb, icmp, leaves, address)?;
    Ok(true)
}

/// Returns source and destination of the quoted packet.
#[inline(always)]
fn addresses<F: Translate>(skb: Skb, inner: usize) -> Option<(F::Address, F::Address)> {
    let (mut from, mut to) = (F::NONE, F::NONE);
    let loaded =
        skb.load(inner + F::SOURCE_OFFSET, &mut from) && skb.load(inner + F::DESTINATION_OFFSET, &mut to);
    loaded.then_some((from, to))
}

/// Writes a word of the quoted packet, and updates the checksum of the error.
#[inline(always)]
fn set_word(skb: Skb, icmp: usize, at: usize, word: Change<u16>) -> Result<(), Drop> {
    if !skb.store_quietly(at, &word.to) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    nat::word_replaced(skb, icmp + ICMP_CHECKSUM, word)
}

/// Translates the address of the error itself: the sender of one that leaves, the receiver of one that enters.
#[inline(always)]
fn outer<F: Snat>(skb: Skb, icmp: usize, leaves: bool, quoted: Change<F::Address>) -> Result<(), Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing moves the packet in between.
    let ip = unsafe { &mut *header };
    let current = if leaves { F::source(ip) } else { F::destination(ip) };
    let change = Change { from: current, to: quoted.to };
    if leaves {
        F::set_source(ip, change);
    } else {
        F::set_destination(ip, change);
    }
    let difference = F::difference(change);
    F::header_moved(skb, difference);
    if F::ICMP == V6::ICMP {
        nat::pseudo_header_replaced(skb, icmp + ICMP_CHECKSUM, difference)
    } else {
        Ok(())
    }
}
