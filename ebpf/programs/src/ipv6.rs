//! IPv6.

use crate::drop::Drop;
use crate::family::Family;
use crate::ndp;
use crate::packet::Ipv6Header;
use crate::skb::Skb;
use datapath_abi::{EndpointConfig, FAMILY_V6, file, identity};

const FILE: u8 = file::IPV6;

/// IPv6.
pub(crate) struct V6;

impl Family for V6 {
    type Header = Ipv6Header;
    type Address = [u32; 4];

    const NUMBER: u8 = FAMILY_V6;
    const BITS: u32 = 128;

    #[inline(always)]
    fn world() -> u32 {
        if enabled!(enable_ipv4) { identity::WORLD_IPV6 } else { identity::WORLD }
    }

    #[inline(always)]
    fn source(header: &Ipv6Header) -> [u32; 4] {
        header.source
    }

    #[inline(always)]
    fn destination(header: &Ipv6Header) -> [u32; 4] {
        header.destination
    }

    #[inline(always)]
    fn same(a: [u32; 4], b: [u32; 4]) -> bool {
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) == 0
    }

    #[inline(always)]
    fn words(address: [u32; 4]) -> [u32; 4] {
        address
    }

    #[inline(always)]
    fn own(endpoint: &EndpointConfig) -> [u32; 4] {
        endpoint.ipv6
    }

    #[inline(always)]
    fn is_neighbour_discovery(skb: Skb, header: &Ipv6Header) -> bool {
        ndp::is_neighbour_message(skb, header)
    }

    #[inline(always)]
    fn decrement_hops(skb: Skb, header: &mut Ipv6Header) -> Result<(), Drop> {
        let hops = header.hop_limit;
        if hops <= 1 {
            return Err(drop_here!(TTL_EXCEEDED));
        }
        header.hop_limit = hops - 1;
        let next = header.next_header;
        skb.word_changed(u16::from_ne_bytes([next, hops]), u16::from_ne_bytes([next, hops - 1]));
        Ok(())
    }
}
