//! What differs between the IP families.

use crate::maps::btf::Rows;
use crate::monitor::drop::Drop;
use crate::packet::flow::{Datagram, Upper};
use crate::packet::headers::{EthHeader, mac};
use crate::packet::skb::{ETH_LEN, Skb};
use datapath_abi::{CtEntry, CtTuple, EndpointConfig, FragmentPorts};

/// An IP family. Programs are written once, over this.
pub(crate) trait Family {
    /// The header behind Ethernet.
    type Header;
    /// An address, as in packets and maps.
    type Address: Copy + 'static;
    /// The key of a datagram that came in pieces.
    type FragmentKey;

    /// The family's number in map keys.
    const NUMBER: u8;
    /// Bits of an address.
    const BITS: u32;
    /// The family's number in signals.
    const SIGNAL: u32;
    /// The slot of the program that forwards what pods send, behind services.
    const FORWARD_SLOT: u32;
    /// The slot of the program that answers for services without backends.
    const NO_SERVICE_SLOT: u32;
    /// The slot of the program that guards pods.
    const POLICY_SLOT: u32;
    /// The number of its ICMP, and of some messages.
    const ICMP: u8;
    const ECHO_REQUEST: u8;
    const ECHO_REPLY: u8;

    /// The identity of addresses that the ipcache does not have.
    fn world() -> u32;
    fn source(header: &Self::Header) -> Self::Address;
    fn destination(header: &Self::Header) -> Self::Address;
    fn same(a: Self::Address, b: Self::Address) -> bool;
    /// The address as map keys hold it.
    fn words(address: Self::Address) -> [u32; 4];
    /// An endpoint's own address.
    fn own(endpoint: &EndpointConfig) -> Self::Address;
    /// True for packets between neighbours on the link, which are answered here or left to the stack.
    fn is_neighbour_discovery(skb: Skb, header: &Self::Header) -> bool;
    /// True for packets that no router forwarded.
    fn is_from_link(header: &Self::Header) -> bool;
    /// One hop less, in the header and in what is known of the packet's checksums.
    fn decrement_hops(skb: Skb, header: &mut Self::Header) -> Result<(), Drop>;

    /// What lies behind the IP header.
    fn upper(skb: Skb, header: &Self::Header) -> Result<Upper, Drop>;
    /// True for ICMP messages about other packets.
    fn is_error(icmp_type: u8) -> bool;
    /// True if policy lets an ICMP message pass without asking.
    fn passes_policy(icmp: [u8; 2]) -> bool;
    /// Connections over TCP.
    fn ct_tcp() -> Rows<CtTuple<Self::Address>, CtEntry>;
    /// Other connections.
    fn ct_any() -> Rows<CtTuple<Self::Address>, CtEntry>;
    /// Whether the ports of fragments are remembered.
    fn tracks_fragments() -> bool;
    fn fragments() -> Rows<Self::FragmentKey, FragmentPorts>;
    fn fragment_key(datagram: &Datagram<Self::Address>) -> Self::FragmentKey;
    /// The key under which the protocol of a datagram is, if its later pieces do not have it.
    fn protocol_key(key: &Self::FragmentKey) -> Option<Self::FragmentKey>;

    /// The header of a packet; `None` if the packet is too short for it.
    #[inline(always)]
    fn header(skb: Skb) -> Option<*mut Self::Header> {
        skb.pull_header::<Self::Header>(ETH_LEN)
    }

    /// Routes a packet: one hop less, new MAC addresses.
    #[inline(always)]
    fn route(skb: Skb, header: *mut Self::Header, source: u64, destination: u64) -> Result<(), Drop> {
        // SAFETY: the header was checked by `header`, and nothing moved the packet since; the Ethernet header lies
        // before it.
        unsafe {
            Self::decrement_hops(skb, &mut *header)?;
            let eth = header.byte_sub(ETH_LEN).cast::<EthHeader>();
            (*eth).destination = mac(destination);
            (*eth).source = mac(source);
        }
        Ok(())
    }
}
