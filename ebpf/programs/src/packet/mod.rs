//! The packet: its bytes and metadata, headers, IP families, and its flow.
//!
//! Owns: the context of a tc program ([`skb`]), or that of an XDP program with the same functions (`xdp.rs`), header layouts and checksums ([`headers`]), the two implementations of
//! an IP family ([`family`], [`ipv4`], [`ipv6`]), and addresses, protocol and ports of a packet with the ports of
//! fragments ([`flow`]), also of the packet that an ICMP error quotes ([`quoted`]), and
//! sockets for it ([`socket`]). Uses `maps` and `monitor`.

pub(crate) mod family;
pub(crate) mod flow;
pub(crate) mod headers;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
pub(crate) mod quoted;
#[cfg_attr(feature = "xdp", path = "xdp.rs")]
pub(crate) mod skb;
#[cfg(not(feature = "xdp"))]
pub(crate) mod socket;
