//! Translation of addresses and ports in a packet, with an update of every checksum that covers them.
//!
//! A checksum is updated incrementally, by the difference between old and new value, and only by the kernel's helper,
//! which handles packets with a full checksum, with checksum offload to the device, and with a sum from the device.

use crate::monitor::drop::Drop;
use crate::packet::family::Family;
use crate::packet::flow::{Flow, TCP, UDP};
use crate::packet::headers::{Ipv4Header, Ipv6Header, fold};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::Skb;
use datapath_abi::file;

const FILE: u8 = file::LB;

/// Flags of the checksum helper (linux/bpf.h).
pub(crate) const SIZE_2: u64 = 2;
const PSEUDO_HEADER: u64 = 1 << 4;
pub(crate) const ZERO_IS_NONE: u64 = 1 << 5;

/// Length of an ICMP header; the quoted packet follows it.
pub(crate) const ICMP_LEN: usize = 8;
const ICMP_CHECKSUM: usize = 2;

/// An address or port before and after a change.
#[derive(Clone, Copy)]
pub(crate) struct Change<A> {
    pub(crate) from: A,
    pub(crate) to: A,
}

/// Translation of addresses in the headers of an IP family.
pub(crate) trait Translate: Family {
    /// Offsets of the addresses and of the checksum, if there is one, in the header of a quoted packet.
    const SOURCE_OFFSET: usize;
    const DESTINATION_OFFSET: usize;
    const CHECKSUM_OFFSET: Option<usize>;
    /// An address that no packet has.
    const NONE: Self::Address;
    /// Length of a header without options.
    const HEADER_LEN: usize;

    fn set_source(header: &mut Self::Header, change: Change<Self::Address>);
    fn set_destination(header: &mut Self::Header, change: Change<Self::Address>);
    /// Returns the change of a checksum over the address: a sum of 16-bit words.
    fn difference(change: Change<Self::Address>) -> u32;
    /// Updates the device's sum over the whole packet, if there is one, by the change in the header.
    fn header_moved(skb: Skb, difference: u32);
}

#[inline(always)]
fn word_difference(from: u32, to: u32) -> u64 {
    u64::from(!from) + u64::from(to)
}

#[inline(always)]
fn carry(sum: u64) -> u32 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

/// Returns a checksum after a change of its content.
#[inline(always)]
pub(crate) fn moved(checksum: u16, difference: u32) -> u16 {
    let sum = u32::from(!checksum) + (difference & 0xffff) + (difference >> 16);
    !fold(sum)
}

impl Translate for V4 {
    const SOURCE_OFFSET: usize = 12;
    const DESTINATION_OFFSET: usize = 16;
    const CHECKSUM_OFFSET: Option<usize> = Some(10);
    const NONE: u32 = 0;
    const HEADER_LEN: usize = size_of::<Ipv4Header>();

    #[inline(always)]
    fn set_source(header: &mut Ipv4Header, change: Change<u32>) {
        header.source = change.to;
        header.checksum = moved(header.checksum, Self::difference(change));
    }

    #[inline(always)]
    fn set_destination(header: &mut Ipv4Header, change: Change<u32>) {
        header.destination = change.to;
        header.checksum = moved(header.checksum, Self::difference(change));
    }

    #[inline(always)]
    fn difference(change: Change<u32>) -> u32 {
        carry(word_difference(change.from, change.to))
    }

    /// No effect: the update of the header checksum compensates for the address in the device's sum.
    #[inline(always)]
    fn header_moved(_: Skb, _: u32) {}
}

impl Translate for V6 {
    const SOURCE_OFFSET: usize = 8;
    const DESTINATION_OFFSET: usize = 24;
    const CHECKSUM_OFFSET: Option<usize> = None;
    const NONE: [u32; 4] = [0; 4];
    const HEADER_LEN: usize = size_of::<Ipv6Header>();

    #[inline(always)]
    fn set_source(header: &mut Ipv6Header, change: Change<[u32; 4]>) {
        header.source = change.to;
    }

    #[inline(always)]
    fn set_destination(header: &mut Ipv6Header, change: Change<[u32; 4]>) {
        header.destination = change.to;
    }

    #[inline(always)]
    fn difference(change: Change<[u32; 4]>) -> u32 {
        let Change { from, to } = change;
        carry(
            word_difference(from[0], to[0])
                + word_difference(from[1], to[1])
                + word_difference(from[2], to[2])
                + word_difference(from[3], to[3]),
        )
    }

    #[inline(always)]
    fn header_moved(skb: Skb, difference: u32) {
        skb.sum_changed(difference);
    }
}

/// An end of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Socket<A> {
    pub(crate) address: A,
    /// In network byte order; zero keeps the packet's port.
    pub(crate) port: u16,
}

/// Whether ports are translated, only of TCP and UDP: SCTP's checksum is a CRC and cannot be updated by a difference.
#[inline(always)]
fn has_ports<A>(flow: &Flow<A>) -> bool {
    flow.protocol() == TCP || flow.protocol() == UDP
}

/// Translates the destination of a packet and its flow, and the source to `source`, which may be the current one. The
/// caller must reload its packet pointers.
#[inline(always)]
pub(crate) fn to_destination<F: Translate>(
    skb: Skb,
    flow: &mut Flow<F::Address>,
    to: Socket<F::Address>,
    source: F::Address,
    both: bool,
) -> Result<(), Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    let destination = Change { from: flow.destination, to: to.address };
    let mut difference = F::difference(destination);
    // SAFETY: `header` checked the bounds; nothing moves the packet in between.
    unsafe { F::set_destination(&mut *header, destination) };
    flow.destination = to.address;
    if both {
        let source = Change { from: flow.source, to: source };
        difference = carry(u64::from(difference) + u64::from(F::difference(source)));
        // SAFETY: as above, with the same header.
        unsafe { F::set_source(&mut *header, source) };
        flow.source = source.to;
    }
    F::header_moved(skb, difference);
    let mut port = Change { from: flow.dport, to: flow.dport };
    if to.port != 0 && has_ports(flow) {
        (port.to, flow.dport) = (to.port, to.port);
    }
    upper_moved::<F>(skb, flow, difference, DESTINATION_PORT, port)
}

/// Translates the source of a packet and its flow, and the destination to `destination`, which may be the current one.
#[inline(always)]
pub(crate) fn to_source<F: Translate>(
    skb: Skb,
    flow: &mut Flow<F::Address>,
    to: Socket<F::Address>,
    destination: F::Address,
    both: bool,
) -> Result<(), Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    let source = Change { from: flow.source, to: to.address };
    let mut difference = F::difference(source);
    // SAFETY: `header` checked the bounds; nothing moves the packet in between.
    unsafe { F::set_source(&mut *header, source) };
    flow.source = to.address;
    if both {
        let destination = Change { from: flow.destination, to: destination };
        difference = carry(u64::from(difference) + u64::from(F::difference(destination)));
        // SAFETY: as above, with the same header.
        unsafe { F::set_destination(&mut *header, destination) };
        flow.destination = destination.to;
    }
    F::header_moved(skb, difference);
    let mut port = Change { from: flow.sport, to: flow.sport };
    if to.port != 0 && has_ports(flow) {
        (port.to, flow.sport) = (to.port, to.port);
    }
    upper_moved::<F>(skb, flow, difference, SOURCE_PORT, port)
}

/// Indexes of the two ports at the beginning of a transport header.
const SOURCE_PORT: usize = 0;
const DESTINATION_PORT: usize = 1;

/// Writes a port and updates the checksum of the transport header.
#[inline(always)]
fn upper_moved<F: Translate>(
    skb: Skb,
    flow: &Flow<F::Address>,
    addresses: u32,
    which: usize,
    port: Change<u16>,
) -> Result<(), Drop> {
    // Later fragments have no such header; the checksum in the first fragment covers the whole datagram.
    if !flow.has_upper_header() {
        return Ok(());
    }
    let (at, flags) = match flow.protocol() {
        TCP => (16, 0),
        UDP => (6, ZERO_IS_NONE),
        V6::ICMP => (ICMP_CHECKSUM, 0),
        _ => return Ok(()),
    };
    if port.from != port.to {
        let Some(ports) = skb.pull_header::<[u16; 2]>(flow.offset()) else {
            return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
        };
        // SAFETY: `pull_header` checked the bounds; nothing moves the packet in between.
        unsafe { (*ports)[which] = port.to };
    }
    let at = flow.offset() + at;
    replace(skb, at, 0, u64::from(addresses), PSEUDO_HEADER | flags)?;
    if port.from != port.to {
        replace(skb, at, u64::from(port.from), u64::from(port.to), SIZE_2 | flags)?;
    }
    Ok(())
}

#[inline(always)]
fn replace(skb: Skb, at: usize, from: u64, to: u64, flags: u64) -> Result<(), Drop> {
    if !skb.replace_checksum(at, from, to, flags) {
        return Err(drop_here!(ERROR_WHILE_CORRECTING_L4_CHECKSUM));
    }
    Ok(())
}

/// Returns the change of a sum that has changed by `difference` and by a 16-bit word.
#[inline(always)]
pub(crate) fn sum(difference: u32, word: Change<u16>) -> u32 {
    carry(u64::from(difference) + u64::from(!word.from) + u64::from(word.to))
}

/// Updates the checksum at `at` after the change of a 16-bit word that it covers.
#[inline(always)]
pub(crate) fn word_replaced(skb: Skb, at: usize, word: Change<u16>) -> Result<(), Drop> {
    replace(skb, at, u64::from(word.from), u64::from(word.to), SIZE_2)
}

/// Updates the checksum at `at` after a change of addresses in the pseudo header.
#[inline(always)]
pub(crate) fn pseudo_header_replaced(skb: Skb, at: usize, difference: u32) -> Result<(), Drop> {
    replace(skb, at, 0, u64::from(difference), PSEUDO_HEADER)
}

/// As [`pseudo_header_replaced`], with more flags of the helper.
#[cfg(not(feature = "xdp"))]
#[inline(always)]
pub(crate) fn pseudo_header_replaced_with(
    skb: Skb,
    at: usize,
    difference: u32,
    flags: u64,
) -> Result<(), Drop> {
    replace(skb, at, 0, u64::from(difference), PSEUDO_HEADER | flags)
}

/// Updates the checksum at `at` after a change of what it covers in the packet, by the difference.
#[cfg(not(feature = "xdp"))]
#[inline(always)]
pub(crate) fn content_replaced(skb: Skb, at: usize, difference: u32) -> Result<(), Drop> {
    replace(skb, at, 0, u64::from(difference), 0)
}

/// Writes the identifier of an ICMP echo, unless the packet is a later fragment.
#[inline(always)]
pub(crate) fn set_echo_identifier<A>(skb: Skb, flow: &Flow<A>, identifier: Change<u16>) -> Result<(), Drop> {
    const IDENTIFIER: usize = 4;
    if identifier.from == identifier.to || !flow.has_upper_header() {
        return Ok(());
    }
    if !skb.store_quietly(flow.offset() + IDENTIFIER, &identifier.to) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    word_replaced(skb, flow.offset() + ICMP_CHECKSUM, identifier)
}

/// Translates back the packet quoted in an ICMP error, which the receiver of the error has sent: its destination to
/// `service` with the original port, its source to `source`. The checksum of the quoted transport header is kept: the
/// datagram is rarely quoted completely, and receivers only evaluate addresses and ports.
#[inline(always)]
pub(crate) fn quoted<F: Translate>(
    skb: Skb,
    icmp: usize,
    service: Socket<F::Address>,
    source: F::Address,
) -> Result<(), Drop> {
    let header = icmp + ICMP_LEN;
    let mut first = [0u8; 8];
    if !skb.load(header, &mut first) {
        return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
    }
    let (len, protocol) = match F::CHECKSUM_OFFSET {
        Some(_) => {
            let mut protocol = 0u8;
            if !skb.load(header + 9, &mut protocol) {
                return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
            }
            (usize::from(first[0] & 0xf) << 2, protocol)
        }
        None => (F::HEADER_LEN, first[6]),
    };
    set_quoted_address::<F>(skb, icmp, F::DESTINATION_OFFSET, service.address)?;
    set_quoted_address::<F>(skb, icmp, F::SOURCE_OFFSET, source)?;
    if service.port != 0 && (protocol == TCP || protocol == UDP) {
        let at = header + len + 2;
        let mut from = 0u16;
        if !skb.load(at, &mut from) || !skb.store_quietly(at, &service.port) {
            return Err(drop_here!(ERROR_WRITING_TO_PACKET));
        }
        replace(skb, icmp + ICMP_CHECKSUM, u64::from(from), u64::from(service.port), SIZE_2)?;
    }
    Ok(())
}

/// Translates forward the source of the packet quoted in an ICMP error, which the receiver of the error has sent by
/// the address of a service, to its own address and port. The quoted packet is TCP or UDP.
#[inline(always)]
pub(crate) fn quoted_source<F: Translate>(
    skb: Skb,
    icmp: usize,
    own: Socket<F::Address>,
) -> Result<(), Drop> {
    let header = icmp + ICMP_LEN;
    let mut version_ihl = 0u8;
    if !skb.load(header, &mut version_ihl) {
        return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
    }
    let len = match F::CHECKSUM_OFFSET {
        Some(_) => usize::from(version_ihl & 0xf) << 2,
        None => F::HEADER_LEN,
    };
    set_quoted_address::<F>(skb, icmp, F::SOURCE_OFFSET, own.address)?;
    let (at, mut from) = (header + len, 0u16);
    if own.port == 0 {
        return Ok(());
    }
    if !skb.load(at, &mut from) || !skb.store_quietly(at, &own.port) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    replace(skb, icmp + ICMP_CHECKSUM, u64::from(from), u64::from(own.port), SIZE_2)
}

/// Writes an address in the quoted header and updates the header checksum, if there is one, and ICMP's. In IPv4 the
/// header checksum compensates for the address, so that ICMP's checksum stays valid.
#[inline(always)]
pub(crate) fn set_quoted_address<F: Translate>(
    skb: Skb,
    icmp: usize,
    at: usize,
    to: F::Address,
) -> Result<(), Drop> {
    let header = icmp + ICMP_LEN;
    let mut from = to;
    if !skb.load(header + at, &mut from) || !skb.store_quietly(header + at, &to) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    let difference = F::difference(Change { from, to });
    match F::CHECKSUM_OFFSET {
        Some(at) => {
            let mut checksum = 0u16;
            if !skb.load(header + at, &mut checksum)
                || !skb.store_quietly(header + at, &moved(checksum, difference))
            {
                return Err(drop_here!(ERROR_WRITING_TO_PACKET));
            }
            Ok(())
        }
        None => replace(skb, icmp + ICMP_CHECKSUM, 0, u64::from(difference), 0),
    }
}
