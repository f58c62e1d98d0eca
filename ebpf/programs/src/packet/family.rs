//! The differences between the IP families.

use crate::maps::btf::Rows;
use crate::monitor::drop::Drop;
use crate::packet::flow::{Datagram, Upper};
use crate::packet::headers::{EthHeader, mac};
use crate::packet::skb::{ETH_LEN, Skb};
use datapath_abi::{CtEntry, CtTuple, EndpointConfig, FragmentPorts};

/// An IP family. Programs are generic over it.
pub(crate) trait Family {
    /// The IP header.
    type Header;
    /// An address, as in packets and map keys.
    type Address: Copy + 'static;
    /// The key of a fragmented datagram.
    type FragmentKey;

    /// The family's value in map keys.
    const NUMBER: u8;
    /// Number of bits of an address.
    const BITS: u32;
    /// The family's value in signals.
    const SIGNAL: u32;
    /// The slot of the program that forwards packets of pods after service translation.
    const FORWARD_SLOT: u32;
    /// The slot of the program that rejects packets to services without backends.
    const NO_SERVICE_SLOT: u32;
    /// The slot of the program that answers packets of pods that policy denies.
    const POLICY_DENIED_SLOT: u32;
    /// The slot of the program that applies ingress policy and delivers to pods.
    const POLICY_SLOT: u32;
    /// The slot of the program for packets of the host to pods.
    const FROM_HOST_SLOT: u32;
    /// The slot of the program that applies the host's policy to packets to it.
    const HOST_INGRESS_SLOT: u32;
    /// The slot of the program that applies the host's policy to its own packets.
    const HOST_EGRESS_SLOT: u32;
    /// The protocol number of its ICMP, and types of some messages.
    const ICMP: u8;
    const ECHO_REQUEST: u8;
    const ECHO_REPLY: u8;

    /// Returns the identity of addresses without an ipcache entry.
    fn world() -> u32;
    fn source(header: &Self::Header) -> Self::Address;
    fn destination(header: &Self::Header) -> Self::Address;
    fn same(a: Self::Address, b: Self::Address) -> bool;
    /// Returns the address in the format of map keys.
    fn words(address: Self::Address) -> [u32; 4];
    /// Returns the address of the format of map keys.
    fn from_words(words: [u32; 4]) -> Self::Address;
    /// Returns an endpoint's address of this family.
    fn own(endpoint: &EndpointConfig) -> Self::Address;
    /// True for neighbour discovery, which is answered by programs or passed to the stack.
    fn is_neighbour_discovery(skb: Skb, header: &Self::Header) -> bool;
    /// True for packets that no router forwarded.
    fn is_from_link(header: &Self::Header) -> bool;
    /// Returns the hop limit.
    fn hops(header: &Self::Header) -> u8;
    /// Decrements the hop limit, and updates the checksums that cover it.
    fn decrement_hops(skb: Skb, header: &mut Self::Header) -> Result<(), Drop>;

    /// Returns protocol and offset of the header after IP and its extensions.
    fn upper(skb: Skb, header: &Self::Header) -> Result<Upper, Drop>;
    /// True for ICMP messages about other packets.
    fn is_error(icmp_type: u8) -> bool;
    /// True for ICMP messages that are allowed without a policy lookup.
    fn passes_policy(icmp: [u8; 2]) -> bool;
    /// Returns the map of TCP connections.
    fn ct_tcp() -> Rows<CtTuple<Self::Address>, CtEntry>;
    /// Returns the map of other connections.
    fn ct_any() -> Rows<CtTuple<Self::Address>, CtEntry>;
    /// Whether fragments are tracked.
    fn tracks_fragments() -> bool;
    fn fragments() -> Rows<Self::FragmentKey, FragmentPorts>;
    fn fragment_key(datagram: &Datagram<Self::Address>) -> Self::FragmentKey;
    /// Returns the key of a datagram's protocol entry, for families whose later fragments may not name it.
    fn protocol_key(key: &Self::FragmentKey) -> Option<Self::FragmentKey>;

    /// Returns the IP header of a packet; `None` if the packet is too short.
    #[inline(always)]
    fn header(skb: Skb) -> Option<*mut Self::Header> {
        skb.pull_header::<Self::Header>(ETH_LEN)
    }

    /// Routes a packet: decrements the hop limit and sets MAC addresses.
    #[inline(always)]
    fn route(skb: Skb, header: *mut Self::Header, source: u64, destination: u64) -> Result<(), Drop> {
        // SAFETY: `header` checked the bounds, and nothing has moved the packet since; the Ethernet header precedes the
        // IP header.
        unsafe {
            Self::decrement_hops(skb, &mut *header)?;
            let eth = header.byte_sub(ETH_LEN).cast::<EthHeader>();
            (*eth).destination = mac(destination);
            (*eth).source = mac(source);
        }
        Ok(())
    }
}
