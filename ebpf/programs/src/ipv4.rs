//! IPv4.

use crate::drop::Drop;
use crate::family::Family;
use crate::packet::{Ipv4Header, checksum_changed};
use crate::skb::Skb;
use datapath_abi::{EndpointConfig, FAMILY_V4, file, identity};

const FILE: u8 = file::IPV4;

/// IPv4.
pub(crate) struct V4;

impl Family for V4 {
    type Header = Ipv4Header;
    type Address = u32;

    const NUMBER: u8 = FAMILY_V4;
    const BITS: u32 = 32;

    #[inline(always)]
    fn world() -> u32 {
        if enabled!(enable_ipv6) { identity::WORLD_IPV4 } else { identity::WORLD }
    }

    #[inline(always)]
    fn source(header: &Ipv4Header) -> u32 {
        header.source
    }

    #[inline(always)]
    fn destination(header: &Ipv4Header) -> u32 {
        header.destination
    }

    #[inline(always)]
    fn same(a: u32, b: u32) -> bool {
        a == b
    }

    #[inline(always)]
    fn words(address: u32) -> [u32; 4] {
        [address, 0, 0, 0]
    }

    #[inline(always)]
    fn own(endpoint: &EndpointConfig) -> u32 {
        endpoint.ipv4
    }

    #[inline(always)]
    fn is_neighbour_discovery(_: Skb, _: &Ipv4Header) -> bool {
        false
    }

    #[inline(always)]
    fn decrement_hops(_: Skb, header: &mut Ipv4Header) -> Result<(), Drop> {
        let ttl = header.ttl;
        if ttl <= 1 {
            return Err(drop_here!(TTL_EXCEEDED));
        }
        header.ttl = ttl - 1;
        header.checksum = checksum_changed(header.checksum, u16::from(ttl), u16::from(ttl - 1));
        Ok(())
    }
}
