//! The translation of a service's address: which backends a packet may get, and why.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use datapath_abi::{
    LbService, drop, identity, ipcache_flag, lb_algorithm, lb_backend_state, lb_flag, lb_flag2, lb_scope,
    tuple_flag,
};

use super::entries::{Entries, Frontend};
use super::path::{DirectReturn, Flow, Hop, NoBackend, NodeFacts, Origin, is_remote_node};

/// The outcome of the lookup of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The destination is no service.
    NoService,
    /// The packet does not leave its place.
    Dropped,
    /// The packet gets one of these destinations.
    Backends(Translated),
}

/// Destinations of a service's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Translated {
    /// The id of the service, in network byte order.
    pub(super) rev_nat: u16,
    /// Backends of other nodes answer clients outside directly.
    pub(super) direct_return: bool,
    /// Packets to them keep the frontend, in an outer IP header; their addresses here have the frontend's port.
    pub(super) has_outer_header: bool,
    pub(super) backends: Vec<SocketAddr>,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// Returns the place of the translation; `None` if this node does not translate.
fn place(flow: &Flow, node: &NodeFacts) -> Option<&'static str> {
    // SCTP has no hooks at sockets.
    let at_sockets = matches!(flow.protocol, TCP | UDP);
    match flow.origin {
        Origin::Host => (node.host_sockets && at_sockets).then_some("host's socket"),
        Origin::Pod if node.pod_sockets && at_sockets => Some("pod's socket"),
        Origin::Pod => Some("pod's interface"),
        Origin::Network => node.nodeport.then_some("device, received"),
    }
}

/// Looks up the destination among services as the program at the flow's origin does, and reports its steps.
pub(super) fn choose(
    flow: &Flow,
    node: &NodeFacts,
    entries: &impl Entries,
    hops: &mut Vec<Hop>,
) -> anyhow::Result<Choice> {
    if !matches!(flow.protocol, TCP | UDP | SCTP) {
        return Ok(Choice::NoService);
    }
    let Some(at) = place(flow, node) else { return Ok(Choice::NoService) };
    let Some((key, service)) = lookup(flow, node, entries)? else {
        if flow.origin == Origin::Network {
            let address = SocketAddr::new(flow.destination.ip(), 0);
            let all = Frontend { address, protocol: 0, scope: lb_scope::EXTERNAL, slot: 0 };
            if entries.service(&all)?.is_some() {
                hops.push(dropped(
                    at,
                    drop::SERVICE_BACKEND_NOT_FOUND,
                    "the address has services, on other ports",
                ));
                return Ok(Choice::Dropped);
            }
        }
        return Ok(Choice::NoService);
    };
    let id = service.rev_nat_index;
    let entry = format!(
        "service {} {}: {} backends{}",
        u16::from_be(id),
        key.address,
        service.count,
        if key.scope == lb_scope::INTERNAL { ", internal scope" } else { "" }
    );
    if flow.origin == Origin::Network
        && let Some(hop) = refused(at, flow, node, &service, entries)?
    {
        hops.push(hop.by(entry));
        return Ok(Choice::Dropped);
    }
    if service.flags2 & lb_flag2::L7_LOAD_BALANCER != 0
        || service.flags2 & lb_flag2::LOOPBACK != 0 && service.flags & lb_flag::HOST_PORT == 0
    {
        hops.push(Hop::new(at, "not translated: a proxy or another agent of this node serves it").by(entry));
        return Ok(Choice::NoService);
    }
    // Only devices translate between the families.
    let is_other_family = flow.origin != Origin::Network && service.flags2 & lb_flag2::NAT_46X64 != 0;
    let found = match is_other_family {
        true => None,
        false => backends(at, flow, node, &key, &service, entries)?,
    };
    let Some((hop, ids)) = found else {
        let (hop, choice) = without_backend(at, flow, node, &service);
        hops.push(hop.by(entry));
        return Ok(choice);
    };
    hops.push(Hop::new(at, format!("{} is a service", flow.destination)).by(entry));
    hops.push(hop);
    let direct_return = match node.direct_return {
        DirectReturn::Off => false,
        DirectReturn::ByService => service.flags2 & lb_flag2::FORWARDING_DSR != 0,
        DirectReturn::All => true,
    };
    let has_outer_header = direct_return && node.has_outer_headers && flow.origin == Origin::Network;
    let (ipv4, port) = (flow.destination.is_ipv4(), flow.destination.port());
    let mut addresses = Vec::new();
    for id in ids {
        if let Some(backend) = entries.backend(id, ipv4)? {
            let mut to = backend.address;
            let keeps_port = has_outer_header && entries.endpoint(to.ip())?.is_none();
            if keeps_port && ![0, port].contains(&to.port()) {
                let action = format!("packets to {} keep port {port}: IPIP carries no other", to.ip());
                hops.push(Hop::new(at, action).by(format!("backend {id}: {to}")));
            }
            if keeps_port || to.port() == 0 {
                to.set_port(port);
            }
            // Ports of one address differ no more if packets keep that of the frontend.
            if !addresses.contains(&to) {
                addresses.push(to);
            }
        }
    }
    Ok(Choice::Backends(Translated { rev_nat: id, direct_return, has_outer_header, backends: addresses }))
}

/// Returns the response to a packet to a service without an active backend.
fn without_backend(at: &str, flow: &Flow, node: &NodeFacts, service: &LbService) -> (Hop, Choice) {
    const OF_THE_NODE: u8 = lb_flag::EXTERNAL_IP | lb_flag::NODE_PORT | lb_flag::LOAD_BALANCER;
    let is_local = if service.flags & OF_THE_NODE != 0 {
        service.flags & lb_flag::EXT_LOCAL_SCOPE != 0
    } else {
        service.flags2 & lb_flag2::INT_LOCAL_SCOPE != 0
    };
    let is_socket = flow.origin == Origin::Host || flow.origin == Origin::Pod && node.pod_sockets;
    match node.no_backend {
        NoBackend::Route if !is_local => {
            let action = "the service has no active backend: left to the node's routes, by \
                          enable-no-service-endpoints-routable";
            (Hop::new(at, action), Choice::NoService)
        }
        _ if is_socket => {
            (Hop::new(at, "REFUSED, the service has no active backend: EHOSTUNREACH"), Choice::Dropped)
        }
        NoBackend::Reject => {
            let action =
                "REFUSED, the service has no active backend: ICMP \"port unreachable\" to the sender";
            (Hop::new(at, action), Choice::Dropped)
        }
        NoBackend::Drop | NoBackend::Route => {
            let hop = dropped(at, drop::SERVICE_BACKEND_NOT_FOUND, "the service has no active backend");
            (hop, Choice::Dropped)
        }
    }
}

fn dropped(at: &str, code: u8, why: &str) -> Hop {
    let label = drop::label(code).unwrap_or_default();
    Hop::new(at, format!("DROPPED, {why}: {label} ({code})"))
}

/// Returns the entry of a frontend: in the scope of the client, and for clients of the cluster also that of a port of all
/// nodes.
fn lookup(
    flow: &Flow,
    node: &NodeFacts,
    entries: &impl Entries,
) -> anyhow::Result<Option<(Frontend, LbService)>> {
    let in_scope = |address: SocketAddr| -> anyhow::Result<Option<(Frontend, LbService)>> {
        let key = Frontend { address, protocol: flow.protocol, scope: lb_scope::EXTERNAL, slot: 0 };
        let Some(found) = entries.service(&key)? else { return Ok(None) };
        if flow.origin == Origin::Network || found.flags2 & lb_flag2::TWO_SCOPES == 0 {
            return Ok(Some((key, found)));
        }
        let key = Frontend { scope: lb_scope::INTERNAL, ..key };
        Ok(entries.service(&key)?.map(|found| (key, found)))
    };
    let found = in_scope(flow.destination)?;
    if found.is_some() || flow.origin == Origin::Network || !node.nodeport {
        return Ok(found);
    }
    let is_loopback = flow.origin == Origin::Host && flow.destination.ip().is_loopback();
    let receiver = entries.ipcache(flow.destination.ip())?;
    let is_own = is_loopback || receiver.is_some_and(|info| info.sec_identity == identity::HOST);
    let is_other_node = receiver.is_some_and(|info| {
        is_remote_node(info.sec_identity) && info.flags & ipcache_flag::REMOTE_CLUSTER == 0
    });
    if !is_own && !is_other_node {
        return Ok(None);
    }
    let any: IpAddr = match flow.destination.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let found = in_scope(SocketAddr::new(any, flow.destination.port()))?;
    Ok(found.filter(|(_, service)| {
        service.flags & lb_flag::NODE_PORT != 0
            || is_own
                && service.flags & lb_flag::HOST_PORT != 0
                && (is_loopback || service.flags2 & lb_flag2::LOOPBACK == 0)
    }))
}

/// Returns the drop of a packet from outside that the frontend does not serve.
fn refused(
    at: &str,
    flow: &Flow,
    node: &NodeFacts,
    service: &LbService,
    entries: &impl Entries,
) -> anyhow::Result<Option<Hop>> {
    if service.flags & lb_flag::SOURCE_RANGE != 0 {
        let listed = entries.in_source_range(flow.source, service.rev_nat_index)?;
        let denies = service.flags2 & lb_flag2::QUARANTINED_OR_DENY != 0;
        if listed == denies {
            let why =
                if listed { "a source range denies the client" } else { "no source range has the client" };
            return Ok(Some(dropped(at, drop::DENIED_BY_LB_SRC_RANGE_CHECK, why)));
        }
    }
    if service.flags & lb_flag::ROUTABLE == 0 {
        return Ok(Some(dropped(at, drop::IS_A_CLUSTERIP, "only clients of the cluster are served")));
    }
    if !node.translates && service.flags2 & lb_flag2::NAT_46X64 != 0 {
        let why = "its backends are of the other IP family";
        return Ok(Some(dropped(at, drop::SERVICE_BACKEND_NOT_FOUND, why)));
    }
    Ok(None)
}

/// Returns how the backend is chosen, and the ids of those that may be. `None` without an active one.
fn backends(
    at: &str,
    flow: &Flow,
    node: &NodeFacts,
    key: &Frontend,
    service: &LbService,
    entries: &impl Entries,
) -> anyhow::Result<Option<(Hop, Vec<u32>)>> {
    let (id, ipv4) = (service.rev_nat_index, flow.destination.is_ipv4());
    let per_packet = !at.ends_with("socket");
    if per_packet
        && let Some(tuple) = flow.tuple(tuple_flag::SERVICE)
        && let Some(entry) = entries.connection(&tuple)?
        && let Some(backend) = entries.backend(entry.backend_id as u32, ipv4)?
        && entry.rev_nat_index == id
    {
        let text = format!(
            "connection {} -> {} service: backend {}",
            tuple.source, tuple.destination, entry.backend_id
        );
        let hop = match backend.state {
            lb_backend_state::ACTIVE => Hop::new(at, "the connection keeps its backend"),
            _ => Hop::new(at, "the connection keeps its backend, a new one on its ports would not"),
        };
        return Ok(Some((hop.by(text), vec![entry.backend_id as u32])));
    }
    if per_packet
        && service.flags & lb_flag::SESSION_AFFINITY != 0
        && let Some(known) = entries.affinity(flow.source, id)?
        && entries.backend(known.backend_id, ipv4)?.is_some()
    {
        let text = format!(
            "affinity of {}: backend {}, last used at {}, for {} s",
            flow.source,
            known.backend_id,
            known.last_used,
            service.backend_id & AFFINITY_TIMEOUT_MASK
        );
        return Ok(Some((
            Hop::new(at, "the client stays with its backend").by(text),
            vec![known.backend_id],
        )));
    }
    if per_packet && let Some(table) = maglev_table(flow, node, service, entries)? {
        let mut shares = BTreeMap::<u32, usize>::new();
        table.iter().filter(|id| **id != 0).for_each(|id| *shares.entry(*id).or_default() += 1);
        if !shares.is_empty() {
            let texts: Vec<String> =
                shares.iter().map(|(id, count)| format!("backend {id} at {count}")).collect();
            let text = format!("Maglev table of {} positions: {}", table.len(), texts.join(", "));
            let hop = Hop::new(at, "a new connection gets a backend by the hash of its addresses and ports");
            return Ok(Some((hop.by(text), shares.into_keys().collect())));
        }
    }
    let mut ids = Vec::new();
    for slot in 1..=service.count {
        if let Some(row) = entries.service(&Frontend { slot, ..*key })? {
            ids.push(row.backend_id);
        }
    }
    if ids.is_empty() {
        return Ok(None);
    }
    let texts: Vec<String> = ids.iter().map(u32::to_string).collect();
    let action = match (per_packet, service.flags & lb_flag::SESSION_AFFINITY != 0) {
        (false, true) => "a new connection gets the backend of its network namespace, else a random one",
        (false, false) => "a new connection gets a random backend, a connected socket keeps its own",
        (true, _) => "a new connection gets a random backend",
    };
    Ok(Some((
        Hop::new(at, action).by(format!("slots 1 to {}: backends {}", service.count, texts.join(", "))),
        ids,
    )))
}

/// Bits of a frontend's first word that are the timeout of affinity, in seconds.
const AFFINITY_TIMEOUT_MASK: u32 = 0x00ff_ffff;

/// Returns the Maglev table of a frontend, if it decides: of pods only by an annotation.
fn maglev_table(
    flow: &Flow,
    node: &NodeFacts,
    service: &LbService,
    entries: &impl Entries,
) -> anyhow::Result<Option<Vec<u32>>> {
    let decides = match (flow.origin, service.backend_id >> lb_algorithm::SHIFT) {
        (_, lb_algorithm::RANDOM) => false,
        (_, lb_algorithm::MAGLEV) => true,
        (origin, _) => origin == Origin::Network && node.maglev,
    };
    if decides { entries.maglev(service.rev_nat_index, flow.destination.is_ipv4()) } else { Ok(None) }
}

/// Reports how the reply of a backend gets the frontend's address.
pub(super) fn back(
    flow: &Flow,
    frontend: SocketAddr,
    service: &Translated,
    node: &NodeFacts,
    entries: &impl Entries,
    reply: &mut Vec<Hop>,
) -> anyhow::Result<()> {
    let id = service.rev_nat;
    let at = match (flow.origin, place(flow, node)) {
        (Origin::Network, _) => match entries.endpoint(flow.destination.ip())? {
            Some(info) if info.flags & datapath_abi::lxc_flag::HOST == 0 => "backend's interface",
            Some(_) => "device, sent",
            None if service.direct_return => "backend's node",
            None => "device, received",
        },
        (_, Some(at)) => at,
        (_, None) => return Ok(()),
    };
    if at.ends_with("socket") {
        let hop = Hop::new(
            at,
            format!("packets keep {}; the socket reports {frontend} as its peer", flow.destination),
        );
        reply.push(hop.by("cilium_lb4_reverse_sk or cilium_lb6_reverse_sk of the socket"));
        return Ok(());
    }
    let hop = match entries.reverse_nat(id, frontend.is_ipv4())? {
        Some(to) => {
            // A port of all nodes has the address zero; the connection's entry has that of the client's packets.
            let to = if to.ip().is_unspecified() { SocketAddr::new(frontend.ip(), to.port()) } else { to };
            let entry = format!("reverse NAT of service {}: {to}", u16::from_be(id));
            Hop::new(at, format!("source {} becomes {to}", flow.destination)).by(entry)
        }
        None => Hop::new(
            at,
            format!("source {} stays: service {} has no reverse entry", flow.destination, u16::from_be(id)),
        ),
    };
    reply.push(hop);
    Ok(())
}
