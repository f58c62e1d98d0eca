//! The packet that an ICMP error quotes: addresses and ports of a flow of the receiver's.

use crate::nat::{ICMP_LEN, Translate};
use crate::packet::flow::{Flow, TCP, UDP};
use crate::packet::skb::Skb;

/// Addresses and ports of a quoted TCP or UDP packet.
#[derive(Clone, Copy)]
pub(crate) struct Quoted<A> {
    pub(crate) source: A,
    pub(crate) destination: A,
    /// In network byte order.
    pub(crate) sport: u16,
    pub(crate) dport: u16,
    tcp: bool,
}

impl<A: Copy> Quoted<A> {
    /// Reads the packet that an ICMP error quotes. `None` for other protocols, for packets with IPv6 extension headers,
    /// and without ports in the quote.
    #[inline(always)]
    pub(crate) fn of<F: Translate<Address = A>>(skb: Skb, error: &Flow<A>) -> Option<Self> {
        if !error.has_upper_header() {
            return None;
        }
        let header = error.offset() + ICMP_LEN;
        let mut first = [0u8; 10];
        if !skb.load(header, &mut first) {
            return None;
        }
        let (len, protocol) = match F::CHECKSUM_OFFSET {
            Some(_) => (usize::from(first[0] & 0xf) << 2, first[9]),
            None => (F::HEADER_LEN, first[6]),
        };
        if protocol != TCP && protocol != UDP {
            return None;
        }
        let (mut source, mut destination, mut ports) = (error.source, error.destination, [0u16; 2]);
        if !skb.load(header + F::SOURCE_OFFSET, &mut source)
            || !skb.load(header + F::DESTINATION_OFFSET, &mut destination)
            || !skb.load(header + len, &mut ports)
        {
            return None;
        }
        Some(Self { source, destination, sport: ports[0], dport: ports[1], tcp: protocol == TCP })
    }

    #[inline(always)]
    pub(crate) fn is_tcp(&self) -> bool {
        self.tcp
    }

    #[inline(always)]
    pub(crate) fn protocol(&self) -> u8 {
        if self.tcp { TCP } else { UDP }
    }
}
