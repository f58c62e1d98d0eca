//! Packets that change the IP family at a device: to frontends with backends of the other one, and by the gateway.

use std::net::{IpAddr, SocketAddr};

use datapath_abi::nat46x64::{embedded, is_mapped, is_prefixed};
use datapath_abi::{ipv4_from_word, ipv6_words, lb_flag2, lb_scope, lxc_flag};

use super::entries::{Entries, Frontend};
use super::path::{Flow, Hop, NodeFacts, Origin};

/// Returns the flow of a packet to an IPv4 frontend with IPv6 backends, as the IPv6 packet that it becomes; `None` for any
/// other.
pub(super) fn request(
    flow: &Flow,
    node: &NodeFacts,
    entries: &impl Entries,
) -> anyhow::Result<Option<(Flow, Hop)>> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (flow.source, flow.destination.ip()) else {
        return Ok(None);
    };
    if flow.origin != Origin::Network || !node.translates {
        return Ok(None);
    }
    let (address, protocol) = (flow.destination, flow.protocol);
    let key = Frontend { address, protocol, scope: lb_scope::EXTERNAL, slot: 0 };
    let Some(service) = entries.service(&key)? else { return Ok(None) };
    if service.flags2 & lb_flag2::NAT_46X64 == 0 {
        return Ok(None);
    }
    let twin = SocketAddr::new(destination.to_ipv6_mapped().into(), address.port());
    let text =
        format!("service {} {address}: backends of the other IP family", u16::from_be(service.rev_nat_index));
    let hop = Hop::new("device, received", format!("the packet becomes IPv6, to {twin}")).by(text);
    Ok(Some((Flow { source: source.to_ipv6_mapped().into(), destination: twin, ..*flow }, hop)))
}

/// Returns the last hop of a packet to an IPv4 machine behind an IPv6 address; `None` for any other.
pub(super) fn leaves(
    at: &str,
    flow: &Flow,
    is_of_service: bool,
    node: &NodeFacts,
    entries: &impl Entries,
) -> anyhow::Result<Option<Hop>> {
    let IpAddr::V6(destination) = flow.destination.ip() else { return Ok(None) };
    let words = ipv6_words(destination);
    let is_backend = is_of_service && node.translates && is_mapped(words);
    let is_gateways = node.is_gateway && flow.origin != Origin::Host && is_prefixed(words);
    if !is_backend && !is_gateways {
        return Ok(None);
    }
    let to = SocketAddr::new(ipv4_from_word(embedded(words)).into(), flow.destination.port());
    let is_prefixed_source = matches!(flow.source, IpAddr::V6(ip) if is_prefixed(ipv6_words(ip)));
    let source = if is_gateways && is_prefixed_source {
        "the packet becomes IPv4"
    } else {
        "source becomes an IPv4 address of this node, the packet becomes IPv4"
    };
    let (way, entry) = match entries.endpoint(to.ip())? {
        Some(info) if info.flags & lxc_flag::HOST != 0 => {
            ("DROPPED, the host refuses its own address as a source, to", Some("host".to_owned()))
        }
        Some(info) => {
            ("delivered by ingress policy for the world to", Some(format!("endpoint {}", info.lxc_id)))
        }
        None => ("sent past the stack to", None),
    };
    let hop = Hop::new(at, format!("{source}, {way} {to}"));
    Ok(Some(match entry {
        Some(entry) => hop.by(format!("cilium_lxc {}: {entry}", to.ip())),
        None => hop,
    }))
}
