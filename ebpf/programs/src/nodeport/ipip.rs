//! Packets in an outer IP header to an address of this node (`enable-ipip-termination`): another balancer has chosen that
//! address as the backend of the packet inside. The header is removed, and the packet handled as if the device had
//! received it, but for the choice of a backend. The backend's port is the one that the client has asked: the outer header
//! names no other. Replies leave to the client as those of any backend of this node. A mark of congestion in the outer header
//! is one of the packet inside (RFC 6040, 4.2), which is dropped if its sender knows no such marks.
//!
//! Everything else in an outer header is left to the host's stack: fragments, options, packets that are cut off or damaged,
//! and those of the other family inside.

use crate::conntrack;
use crate::device;
use crate::endpoint;
use crate::host::drop_incoming;
use crate::monitor::drop::Drop;
use crate::nat::{self, Socket};
use crate::nodeport::dsr::ipip::Outer;
use crate::nodeport::frontend;
use crate::packet::flow::{self, SCTP, TCP, UDP};
use crate::packet::headers::{Ipv4Header, Ipv6Header, checksum_changed, fold};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, ETH_LEN, Skb};
use crate::snat::Snat;
use datapath_abi::{FAMILY_V4, file, identity, lb_flag, lb_flag2, slot};

const FILE: u8 = file::BPF_HOST;

/// The offsets of the words with the protocol in IPv4 (behind the hop limit) and in IPv6 (before it).
const IPV4_PROTOCOL: usize = ETH_LEN + 8;
const IPV6_PROTOCOL: usize = ETH_LEN + 6;
/// The protocols that are removed: IPv4 in IPv4, IPv6 in IPv6.
const IPV4: u16 = <V4 as Outer>::PROTOCOL as u16;
const IPV6: u16 = <V6 as Outer>::PROTOCOL as u16;

/// Passes a packet in an outer header to [`receive`]. Returns `None` for any other packet, a drop if that program is
/// missing.
#[inline(always)]
pub(crate) fn dispatch(skb: Skb) -> Option<Drop> {
    let slot = match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) && u16::from_be(skb.read::<u16>(IPV4_PROTOCOL)?) & 0xff == IPV4 => {
            slot::IPV4_IPIP
        }
        ETH_IPV6 if enabled!(enable_ipv6) && u16::from_be(skb.read::<u16>(IPV6_PROTOCOL)?) >> 8 == IPV6 => {
            slot::IPV6_IPIP
        }
        _ => return None,
    };
    skb.tail_call(slot);
    Some(drop_here!(MISSED_TAIL_CALL))
}

/// The check of outer headers of an IP family.
pub(crate) trait Terminated: Outer {
    /// True for a header without options around a whole packet of the same family.
    fn is_outer(skb: Skb, header: &Self::Header) -> bool;
    /// Returns the congestion bits of a header that begins at an offset.
    fn congestion(skb: Skb, offset: usize) -> u8;
    /// Marks a packet of a capable sender as one that has met congestion.
    fn set_congested(skb: Skb, header: &mut Self::Header);
}

/// The fragment offset and the bit of more fragments.
const FRAGMENT: u16 = 0x3fffu16.to_be();
/// Bits of congestion notification: those of a packet that has met it, and of a sender that is not capable.
const CONGESTED: u8 = 3;
const NOT_CAPABLE: u8 = 0;
const IPV4_LEN: usize = size_of::<Ipv4Header>();
const IPV6_LEN: usize = size_of::<Ipv6Header>();

/// The shift of the traffic class in the first word of IPv6.
const CLASS_SHIFT: u32 = 4;

impl Terminated for V4 {
    #[inline(always)]
    fn is_outer(skb: Skb, header: &Ipv4Header) -> bool {
        const WITHOUT_OPTIONS: u8 = 0x45;
        if header.version_ihl != WITHOUT_OPTIONS || header.fragment & FRAGMENT != 0 {
            return false;
        }
        let Some(words) = skb.header::<[u16; IPV4_LEN / 2]>(ETH_LEN) else { return false };
        let mut sum = 0;
        for word in 0..IPV4_LEN / 2 {
            // SAFETY: `header` checked the bounds; headers begin at even addresses.
            sum += u32::from(unsafe { words.cast::<u16>().add(word).read() });
        }
        let Some([first, len]) = skb.read::<[u16; 2]>(ETH_LEN + IPV4_LEN) else { return false };
        let (outer, inner) = (u32::from(u16::from_be(header.len)), u32::from(u16::from_be(len)));
        let version_ihl = u16::from_be(first) >> 8;
        fold(sum) == u16::MAX
            && outer <= skb.len() - ETH_LEN as u32
            && version_ihl >> 4 == 4
            && version_ihl & 0xf >= 5
            && inner >= IPV4_LEN as u32
            && inner + IPV4_LEN as u32 <= outer
    }

    #[inline(always)]
    fn congestion(skb: Skb, offset: usize) -> u8 {
        u16::from_be(skb.read(offset).unwrap_or_default()) as u8 & CONGESTED
    }

    #[inline(always)]
    fn set_congested(_: Skb, header: &mut Ipv4Header) {
        let from = u16::from_ne_bytes([header.version_ihl, header.tos]);
        header.tos |= CONGESTED;
        let to = u16::from_ne_bytes([header.version_ihl, header.tos]);
        header.checksum = checksum_changed(header.checksum, from, to);
    }
}

impl Terminated for V6 {
    #[inline(always)]
    fn is_outer(skb: Skb, header: &Ipv6Header) -> bool {
        const VERSION: u32 = 6;
        let Some([first, _, len]) = skb.read::<[u16; 3]>(ETH_LEN + IPV6_LEN) else { return false };
        let (outer, inner) = (u32::from(u16::from_be(header.payload_len)), u32::from(u16::from_be(len)));
        u32::from_be(header.version_class_flow) >> 28 == VERSION
            && outer + IPV6_LEN as u32 <= skb.len() - ETH_LEN as u32
            && u32::from(u16::from_be(first)) >> 12 == VERSION
            && inner + IPV6_LEN as u32 <= outer
    }

    #[inline(always)]
    fn congestion(skb: Skb, offset: usize) -> u8 {
        (u16::from_be(skb.read(offset).unwrap_or_default()) >> CLASS_SHIFT) as u8 & CONGESTED
    }

    #[inline(always)]
    fn set_congested(skb: Skb, header: &mut Ipv6Header) {
        let from = header.version_class_flow;
        let to = from | (u32::from(CONGESTED) << (16 + CLASS_SHIFT)).to_be();
        header.version_class_flow = to;
        skb.word_changed(from as u16, to as u16);
    }
}

/// Removes the outer header of a packet to an address of this node. The rest, or any other packet as it is, continues with
/// the next program.
#[inline(always)]
pub(crate) fn receive<F: Terminated + Snat>(skb: Skb) -> i32 {
    let why = match terminate::<F>(skb) {
        Ok(()) => {
            skb.tail_call(device::received::<F>());
            drop_here!(MISSED_TAIL_CALL)
        }
        Err(why) => why.any(skb),
    };
    drop_incoming(skb, why, identity::UNKNOWN)
}

#[inline(always)]
fn terminate<F: Terminated>(skb: Skb) -> Result<(), Drop> {
    let Some(header) = F::header(skb) else { return Ok(()) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let outer = unsafe { &*header };
    let backend = F::destination(outer);
    if !F::is_outer(skb, outer) || endpoint::local::<F>(backend).is_none() {
        return Ok(());
    }
    let outer = F::congestion(skb, ETH_LEN);
    let inner = F::congestion(skb, ETH_LEN + F::HEADER_LEN);
    let has_met = outer == CONGESTED && inner != CONGESTED;
    if has_met && inner == NOT_CAPABLE {
        return Err(drop_here!(INVALID_PACKET_DROPPED));
    }
    if !skb.strip(F::HEADER_LEN as u16) {
        return Ok(());
    }
    if has_met && let Some(header) = F::header(skb) {
        // SAFETY: `header` checked the bounds; nothing moves the packet in between.
        F::set_congested(skb, unsafe { &mut *header });
    }
    // A program of XDP has seen the outer header only.
    device::set_unknown(skb);
    if enabled!(nodeport) && admit::<F>(skb, backend)? {
        device::set_looked_up(skb);
    }
    Ok(())
}

/// Translates a packet to the backend that its sender has chosen if its destination is a frontend. Returns whether it only
/// has to be delivered; the next program decides about any other packet.
#[inline(always)]
fn admit<F: Terminated>(skb: Skb, backend: F::Address) -> Result<bool, Drop> {
    let Some(header) = F::header(skb) else { return Ok(false) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let Ok(mut flow) = flow::of::<F>(skb, unsafe { &*header }, flow::UNCOUNTED) else { return Ok(false) };
    if flow.is_related() || !matches!(flow.protocol(), TCP | UDP | SCTP) {
        return Ok(false);
    }
    let key = frontend::key::<F>(&flow);
    let Some(service) = frontend::find::<F>(&key, &flow)? else { return Ok(false) };
    let is_translated = F::NUMBER == FAMILY_V4 && service.flags2 & lb_flag2::NAT_46X64 != 0;
    if service.flags2 & lb_flag2::L7_LOAD_BALANCER != 0 || is_translated {
        return Ok(false);
    }
    // The local proxy handles it, which finds the frontend's address in the packet.
    if service.flags2 & lb_flag2::LOOPBACK != 0 && service.flags & lb_flag::HOST_PORT == 0 {
        return Ok(true);
    }
    let (rev_nat, client) = (service.rev_nat_index, flow.source);
    nat::to_destination::<F>(skb, &mut flow, Socket { address: backend, port: 0 }, client, false)?;
    conntrack::nodeport::admit::<F>(skb, &flow, rev_nat, conntrack::now())?;
    Ok(true)
}
