//! ARP from pods: every address is reachable by the host's side of the pod's interface.

use crate::endpoint;
use crate::packet::headers::{EthHeader, Mac, mac};
use crate::packet::skb::{ETH_IPV4, PASS, Skb};
use crate::pod::container::drop_sent;
use datapath_abi::file;

const FILE: u8 = file::BPF_LXC;

/// Ethernet with an ARP packet for IPv4 (RFC 826). Addresses in two-byte units, by the alignment of the packet.
#[repr(C)]
struct Arp {
    eth: EthHeader,
    hardware: u16,
    protocol: u16,
    hardware_len: u8,
    protocol_len: u8,
    operation: u16,
    sender_mac: Mac,
    sender_ip: [u16; 2],
    target_mac: Mac,
    target_ip: [u16; 2],
}

const HARDWARE_ETHERNET: u16 = 1u16.to_be();
const REQUEST: u16 = 1u16.to_be();
const REPLY: u16 = 2u16.to_be();
const BROADCAST: Mac = [0xffff; 3];

/// Answers requests with the MAC address of the host's side. A pod may ask for a gateway that a previous agent has
/// configured, so any address is answered except for the pod's own, which it requests to detect duplicates.
#[inline(always)]
pub(crate) fn handle(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        return drop_sent(skb, drop_here!(EP_NOT_READY), None);
    };
    let Some(packet) = skb.pull_header::<Arp>(0) else { return PASS };
    // SAFETY: `pull_header` checked the bounds, and nothing moves the packet below.
    let packet = unsafe { &mut *packet };
    let node_mac = mac(me.node_mac);
    let request = packet.hardware == HARDWARE_ETHERNET
        && packet.protocol == ETH_IPV4
        && packet.operation == REQUEST
        && (packet.eth.destination == BROADCAST || packet.eth.destination == node_mac);
    let target = packet.target_ip;
    if !request || u32::from(target[0]) | u32::from(target[1]) << 16 == me.ipv4 {
        return PASS;
    }
    let (asker_mac, asker_ip) = (packet.sender_mac, packet.sender_ip);
    packet.eth.destination = asker_mac;
    packet.eth.source = node_mac;
    packet.operation = REPLY;
    packet.sender_mac = node_mac;
    packet.sender_ip = target;
    packet.target_mac = asker_mac;
    packet.target_ip = asker_ip;
    skb.redirect(skb.ifindex())
}
