//! The path of a flow through this node: each place that changes or forwards its packets, with the map entry that decides.
//!
//! The steps are those of the programs (`ebpf/programs/src`), in their order, on the entries of now. Pure: the entries
//! come from [`Entries`].

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use datapath_abi::{identity, ipcache_flag, lxc_flag, tuple_flag};
use serde::Serialize;

use super::entries::{Entries, Tuple};
use super::nat46x64;
use super::service::{self, Choice, Translated};
use super::source;

/// The origin of packets, as this node sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A pod of this node.
    Pod,
    /// This node itself.
    Host,
    /// The network: another machine.
    Network,
}

/// Settings that the programs were loaded with.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeFacts {
    /// Sockets of the host are translated.
    pub(super) host_sockets: bool,
    /// Those of pods as well.
    pub(super) pod_sockets: bool,
    /// Devices serve frontends.
    pub(super) nodeport: bool,
    /// Frontends without an algorithm of their own have Maglev tables.
    pub(super) maglev: bool,
    /// Frontends may have backends of the other IP family.
    pub(super) translates: bool,
    /// Packets to `64:ff9b::/96` continue as IPv4.
    pub(super) is_gateway: bool,
    /// Services that use direct server return.
    pub(super) direct_return: DirectReturn,
    /// Packets of direct server return keep the frontend, in an outer IP header to the backend.
    pub(super) has_outer_headers: bool,
    /// Packets between nodes are encapsulated.
    pub(super) tunnel: bool,
    /// Packets between pods and the network bypass the host's stack.
    pub(super) bypasses_stack: bool,
    /// Masquerading of IPv4 and of IPv6.
    pub(super) masquerade: [Masquerade; 2],
    /// Ranges of ip-masq-agent are not masqueraded.
    pub(super) ip_masq_agent: bool,
    /// The response to packets to services without backends.
    pub(super) no_backend: NoBackend,
}

impl NodeFacts {
    /// Returns how packets of an address's family are masqueraded.
    pub(super) fn masquerade_of(&self, ip: IpAddr) -> Masquerade {
        self.masquerade[usize::from(ip.is_ipv6())]
    }
}

/// Services with backends on other nodes that answer clients directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DirectReturn {
    #[default]
    Off,
    /// Those with the flag in their entry.
    ByService,
    All,
}

/// The response to packets to services without backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NoBackend {
    /// An ICMP error; sockets do not connect.
    #[default]
    Reject,
    /// Dropped without an answer; sockets do not connect.
    Drop,
    /// The node's routes, unless only this node could have backends (`enable-no-service-endpoints-routable=false`).
    Route,
}

/// How packets that leave the cluster are masqueraded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Masquerade {
    #[default]
    Off,
    Iptables,
    Bpf,
}

/// A flow. Without a source port entries of existing connections cannot be looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) origin: Origin,
    pub(super) source: IpAddr,
    pub(super) sport: Option<u16>,
    pub(super) destination: SocketAddr,
    pub(super) protocol: u8,
}

impl Flow {
    /// Returns the tuple of its packets with the flags of a key; `None` without a source port.
    pub(super) fn tuple(&self, flags: u8) -> Option<Tuple> {
        let source = SocketAddr::new(self.source, self.sport?);
        Some(Tuple { source, destination: self.destination, protocol: self.protocol, flags })
    }
}

/// A place where packets are changed or forwarded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Hop {
    /// The place.
    pub(super) at: String,
    /// The change or the forwarding there.
    pub(super) action: String,
    /// The map entry that decides.
    pub(super) entry: Option<String>,
}

impl Hop {
    pub(super) fn new(at: &str, action: impl Into<String>) -> Hop {
        Hop { at: at.to_owned(), action: action.into(), entry: None }
    }

    pub(super) fn by(self, entry: impl Into<String>) -> Hop {
        Hop { entry: Some(entry.into()), ..self }
    }
}

/// The path of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Path {
    /// Places that all its packets pass.
    pub(super) hops: Vec<Hop>,
    /// The paths from there, one for each destination that they may have.
    pub(super) branches: Vec<Branch>,
}

/// The path to one destination, and back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Branch {
    pub(super) destination: SocketAddr,
    pub(super) hops: Vec<Hop>,
    pub(super) reply: Vec<Hop>,
}

/// Returns the path of a flow.
pub(super) fn explain(flow: &Flow, node: &NodeFacts, entries: &impl Entries) -> anyhow::Result<Path> {
    let mut hops = Vec::new();
    let as_ipv6 = nat46x64::request(flow, node, entries)?;
    let flow = match &as_ipv6 {
        Some((as_ipv6, hop)) => {
            hops.push(hop.clone());
            as_ipv6
        }
        None => flow,
    };
    let translated = match service::choose(flow, node, entries, &mut hops)? {
        Choice::Dropped => return Ok(Path { hops, branches: Vec::new() }),
        Choice::NoService => {
            let branch = branch(flow, flow.destination, None, node, entries)?;
            return Ok(Path { hops, branches: vec![branch] });
        }
        Choice::Backends(translated) => translated,
    };
    let to = |address: &SocketAddr| branch(flow, *address, Some(&translated), node, entries);
    let branches = translated.backends.iter().map(to).collect::<anyhow::Result<_>>()?;
    Ok(Path { hops, branches })
}

fn branch(
    flow: &Flow,
    destination: SocketAddr,
    service: Option<&Translated>,
    node: &NodeFacts,
    entries: &impl Entries,
) -> anyhow::Result<Branch> {
    let frontend = flow.destination;
    let flow = Flow { destination, ..*flow };
    let (mut hops, mut reply) = (Vec::new(), Vec::new());
    let at = match flow.origin {
        Origin::Pod => "pod's interface",
        Origin::Host => "host",
        Origin::Network => "device, received",
    };
    // No stack accepts a packet from its own address.
    if flow.origin == Origin::Pod && service.is_some() && flow.source == destination.ip() {
        hops.push(Hop::new(
            at,
            "the pod is its own backend: source becomes the loopback address of services",
        ));
    }
    known_connection(&flow, at, entries, &mut hops)?;
    if let Some(hop) = nat46x64::leaves(at, &flow, service.is_some(), node, entries)? {
        hops.push(hop);
        if let Some(translated) = service {
            service::back(&flow, frontend, translated, node, entries, &mut reply)?;
        }
        return Ok(Branch { destination, hops, reply });
    }
    let local = entries.endpoint(destination.ip())?;
    let remote = match local {
        Some(info) if info.flags & lxc_flag::HOST != 0 => {
            hops.push(
                Hop::new(at, "passed to the host's stack")
                    .by(format!("cilium_lxc {}: host", destination.ip())),
            );
            None
        }
        Some(info) => {
            let way = match flow.origin {
                Origin::Network if !node.bypasses_stack => {
                    "routed by the host's stack to cilium_host, delivered to"
                }
                _ => "delivered to",
            };
            let entry = format!("cilium_lxc {}: endpoint {}", destination.ip(), info.lxc_id);
            hops.push(
                Hop::new(at, format!("{way} endpoint {}, by its ingress policy", info.lxc_id)).by(entry),
            );
            None
        }
        None => Some(entries.ipcache(destination.ip())?),
    };
    if let Some(found) = remote {
        let behind = found.filter(|info| {
            let has = info.flags & ipcache_flag::HAS_TUNNEL_ENDPOINT != 0;
            node.tunnel && has && info.flags & ipcache_flag::SKIP_TUNNEL == 0
        });
        let is_request = flow.origin == Origin::Network && service.is_some();
        let is_outer = is_request && service.is_some_and(|service| service.has_outer_header);
        if is_outer {
            hops.push(Hop::new(at, format!("destination {frontend} stays, by direct return with IPIP")));
        }
        if is_request && service.is_some_and(|service| service.direct_return) {
            hops.push(Hop::new(
                at,
                format!("source {} stays: the backend's node answers the client itself", flow.source),
            ));
        } else if is_request {
            source::of_client(&flow, behind.is_some(), entries, &mut hops, &mut reply)?;
        }
        if is_outer {
            let to = destination.ip();
            hops.push(Hop::new(at, format!("sent in an outer IP header to {to}, by the host's route there")));
        } else if let Some(info) = behind {
            let entry = format!(
                "cilium_ipcache {}: identity {}, tunnel endpoint",
                destination.ip(),
                info.sec_identity
            );
            hops.push(Hop::new("tunnel", "encapsulated for the destination's node").by(entry));
        } else {
            let way = if is_request || flow.origin == Origin::Pod && node.bypasses_stack {
                "sent by the host's route, past the stack"
            } else {
                "routed by the host's stack"
            };
            hops.push(Hop::new(at, way));
            if flow.origin != Origin::Network {
                source::of_node(&flow, node, found.as_ref(), entries, &mut hops, &mut reply)?;
            }
        }
    } else if flow.origin == Origin::Network && service.is_none() {
        source::back(&flow, entries, &mut hops)?;
    }
    if let Some(translated) = service {
        service::back(&flow, frontend, translated, node, entries, &mut reply)?;
    }
    Ok(Branch { destination, hops, reply })
}

/// Reports the entry of the connection, if there is one.
fn known_connection(
    flow: &Flow,
    at: &str,
    entries: &impl Entries,
    hops: &mut Vec<Hop>,
) -> anyhow::Result<()> {
    let Some(out) = flow.tuple(tuple_flag::OUT) else { return Ok(()) };
    if let Some(entry) = entries.connection(&out)? {
        let text = format!(
            "connection {} -> {} out: service {}, expires at {}",
            out.source,
            out.destination,
            u16::from_be(entry.rev_nat_index),
            entry.lifetime
        );
        hops.push(Hop::new(at, "the connection is known: policy still applies to its packets").by(text));
    }
    Ok(())
}

/// True for identities of nodes other than this one.
pub(super) fn is_remote_node(label: u32) -> bool {
    const REMOTE_NODE_SCOPE: u32 = 2;
    matches!(label, identity::REMOTE_NODE | identity::KUBE_APISERVER) || label >> 24 == REMOTE_NODE_SCOPE
}

impl Path {
    /// Formats the path, a line for each place.
    pub(super) fn text(&self) -> String {
        let mut text = "\nPath on this node:\n".to_owned();
        write(&mut text, "  ", &self.hops);
        for branch in &self.branches {
            let _ = writeln!(text, "  to {}:", branch.destination);
            write(&mut text, "    ", &branch.hops);
            if !branch.reply.is_empty() {
                text.push_str("    reply:\n");
                write(&mut text, "      ", &branch.reply);
            }
        }
        text
    }
}

fn write(text: &mut String, indent: &str, hops: &[Hop]) {
    for Hop { at, action, entry } in hops {
        let _ = writeln!(text, "{indent}{at}: {action}");
        if let Some(entry) = entry {
            let _ = writeln!(text, "{indent}  by {entry}");
        }
    }
}
