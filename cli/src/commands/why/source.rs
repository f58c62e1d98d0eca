//! The translation of source addresses: masquerading, and clients of services with backends on other nodes.

use std::net::IpAddr;

use datapath_abi::{
    DIRECT_ROUTING, MasqueradeAddresses, RemoteEndpointInfo, drop, ipcache_flag, ipv4_from_word, ipv4_word,
    ipv6_from_words, ipv6_words, lxc_flag, tuple_flag,
};

use super::entries::{Entries, Tuple};
use super::path::{Flow, Hop, Masquerade, NodeFacts, Origin, is_remote_node};

/// Reports the source of a client's packet to a backend of another node, and the way back.
pub(super) fn of_client(
    flow: &Flow,
    by_tunnel: bool,
    entries: &impl Entries,
    hops: &mut Vec<Hop>,
    reply: &mut Vec<Hop>,
) -> anyhow::Result<()> {
    let node = entries.masquerade()?.into_iter().find(|(index, _)| *index == DIRECT_ROUTING);
    let (address, which) = match node {
        _ if by_tunnel => (None, "the router's address"),
        Some((_, row)) => (address(&row, flow.source), "the direct-routing address of this node"),
        None => (None, "the direct-routing address of this node"),
    };
    let at = "device, received";
    if address.is_none() && !by_tunnel {
        let code = drop::NO_MAPPING_FOR_NAT_MASQUERADE;
        let label = drop::label(code).unwrap_or_default();
        hops.push(Hop::new(
            at,
            format!("DROPPED, this node has no direct-routing address: {label} ({code})"),
        ));
        return Ok(());
    }
    let new = match address {
        Some(ip) => format!("source becomes {which}, {ip}, so that replies come back here"),
        None => format!("source becomes {which}, so that replies come back here"),
    };
    translated(flow, at, &new, entries, hops, reply)
}

/// Reports whether and why the source of a packet of a pod or of the host is masqueraded where it leaves the node.
pub(super) fn of_node(
    flow: &Flow,
    node: &NodeFacts,
    receiver: Option<&RemoteEndpointInfo>,
    entries: &impl Entries,
    hops: &mut Vec<Hop>,
    reply: &mut Vec<Hop>,
) -> anyhow::Result<()> {
    let at = "device, sent";
    let to = flow.destination.ip();
    let keeps = |why: String| Hop::new(at, format!("source {} stays: {why}", flow.source));
    match node.masquerade_of(to) {
        Masquerade::Off => {
            hops.push(keeps("masquerading is off".to_owned()));
            return Ok(());
        }
        Masquerade::Iptables => {
            hops.push(Hop::new(
                at,
                "masqueraded by iptables if its rules match: iptables -t nat -S CILIUM_POST_nat",
            ));
            return Ok(());
        }
        Masquerade::Bpf => {}
    }
    let devices: Vec<(u32, MasqueradeAddresses)> =
        entries.masquerade()?.into_iter().filter(|(index, _)| *index != DIRECT_ROUTING).collect();
    if flow.origin == Origin::Host {
        return translated_if_known(
            flow,
            keeps("it is the host's; a port that a translation has is changed".to_owned()),
            entries,
            hops,
            reply,
        );
    }
    if devices.iter().any(|(_, row)| is_excluded(row, to)) {
        hops.push(
            keeps(format!("{to} is in the range that is not masqueraded"))
                .by("ep_masquerade: excluded range"),
        );
        return Ok(());
    }
    let own = entries.endpoint(flow.source)?.map_or(0, |info| info.flags);
    let skips = if to.is_ipv4() { lxc_flag::SKIP_MASQUERADE_V4 } else { lxc_flag::SKIP_MASQUERADE_V6 };
    if own & skips != 0 {
        hops.push(
            keeps("the pod keeps its address".to_owned())
                .by(format!("cilium_lxc {}: no masquerading", flow.source)),
        );
        return Ok(());
    }
    if node.ip_masq_agent && entries.is_excluded_by_agent(to)? {
        hops.push(
            keeps("ip-masq-agent excludes the destination".to_owned())
                .by(format!("cilium_ipmasq: a range with {to}")),
        );
        return Ok(());
    }
    // In a tunnel's cluster nodes are outside of it, as they do not have routes to pods.
    let is_in_cluster = |info: &&RemoteEndpointInfo| {
        is_remote_node(info.sec_identity) && (!node.tunnel || info.flags & ipcache_flag::SKIP_TUNNEL != 0)
    };
    if let Some(info) = receiver.filter(is_in_cluster) {
        let entry = format!("cilium_ipcache {to}: identity {}", info.sec_identity);
        hops.push(
            Hop::new(at, "the destination is a node: masqueraded only with enable-remote-node-masquerade")
                .by(entry),
        );
        return Ok(());
    }
    let addresses: Vec<String> = devices
        .iter()
        .filter_map(|(index, row)| Some(format!("{} by interface {index}", address(row, to)?)))
        .collect();
    if addresses.is_empty() {
        let code = drop::NO_MAPPING_FOR_NAT_MASQUERADE;
        let label = drop::label(code).unwrap_or_default();
        hops.push(Hop::new(at, format!("DROPPED, no device has a masquerade address: {label} ({code})")));
        return Ok(());
    }
    let new =
        format!("masqueraded, as {to} is outside of the cluster; source becomes {}", addresses.join(" or "));
    translated(flow, at, &new, entries, hops, reply)
}

/// Reports a translation: that of the existing entry, or a new one.
fn translated(
    flow: &Flow,
    at: &str,
    new: &str,
    entries: &impl Entries,
    hops: &mut Vec<Hop>,
    reply: &mut Vec<Hop>,
) -> anyhow::Result<()> {
    if translated_by_entry(flow, at, entries, hops, reply)? {
        return Ok(());
    }
    hops.push(Hop::new(at, format!("{new}; its port stays if it is free and in the range of translations")));
    reply.push(Hop::new("device, received", format!("destination becomes {} again", flow.source)));
    Ok(())
}

fn translated_if_known(
    flow: &Flow,
    otherwise: Hop,
    entries: &impl Entries,
    hops: &mut Vec<Hop>,
    reply: &mut Vec<Hop>,
) -> anyhow::Result<()> {
    if !translated_by_entry(flow, "device, sent", entries, hops, reply)? {
        hops.push(otherwise);
    }
    Ok(())
}

/// Reports the translation of an existing entry. Returns whether there is one.
fn translated_by_entry(
    flow: &Flow,
    at: &str,
    entries: &impl Entries,
    hops: &mut Vec<Hop>,
    reply: &mut Vec<Hop>,
) -> anyhow::Result<bool> {
    let Some(out) = flow.tuple(tuple_flag::OUT) else { return Ok(false) };
    let Some(to) = entries.translation(&out)? else { return Ok(false) };
    let entry = format!("NAT {} -> {} out: source {to}", out.source, out.destination);
    hops.push(Hop::new(at, format!("source {} becomes {to}", out.source)).by(entry));
    let back =
        Tuple { source: out.destination, destination: to, protocol: out.protocol, flags: tuple_flag::IN };
    let hop = match entries.translation(&back)? {
        Some(own) => Hop::new("device, received", format!("destination {to} becomes {own} again"))
            .by(format!("NAT {} -> {to} in: destination {own}", back.source)),
        None => Hop::new("device, received", "the entry of replies is missing: the next packet restores it"),
    };
    reply.push(hop);
    Ok(true)
}

/// Reports the translation back of a packet that is a reply to a translated one.
pub(super) fn back(flow: &Flow, entries: &impl Entries, hops: &mut Vec<Hop>) -> anyhow::Result<()> {
    let Some(tuple) = flow.tuple(tuple_flag::IN) else { return Ok(()) };
    if let Some(own) = entries.translation(&tuple)? {
        let entry = format!("NAT {} -> {} in: destination {own}", tuple.source, tuple.destination);
        hops.insert(0, Hop::new("device, received", format!("a reply: destination becomes {own}")).by(entry));
    }
    Ok(())
}

/// Returns the address of a family; `None` if there is none.
fn address(row: &MasqueradeAddresses, family: IpAddr) -> Option<IpAddr> {
    let ip: IpAddr = match family {
        IpAddr::V4(_) => ipv4_from_word(row.ipv4).into(),
        IpAddr::V6(_) => ipv6_from_words(row.ipv6).into(),
    };
    (!ip.is_unspecified()).then_some(ip)
}

fn is_excluded(row: &MasqueradeAddresses, destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(ip) => ipv4_word(ip) & row.excluded_ipv4_mask == row.excluded_ipv4,
        IpAddr::V6(ip) => {
            let words = ipv6_words(ip);
            let masked = [0, 1, 2, 3].map(|at| words[at] & row.excluded_ipv6_mask[at]);
            masked == row.excluded_ipv6
        }
    }
}
