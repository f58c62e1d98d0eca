//! Values of filters that are texts: addresses, names, protocols, ports, nodes, DNS names.

use std::net::IpAddr;

use hubble_api::flow::layer4::Protocol as Transport;
use hubble_api::flow::{Flow, TcpFlags};
use ipnetwork::IpNetwork;
use regex::Regex;

use super::{BadFilter, l7};

/// The namespace of a name without one, and the cluster of a node without one.
const DEFAULT: &str = "default";

fn bad(field: &'static str, text: &str, problem: &str) -> BadFilter {
    BadFilter { field, problem: format!("{text:?} {problem}") }
}

/// An address or a range of addresses.
#[derive(Clone, Debug)]
pub(super) enum Address {
    /// As flows print it.
    Exact(String),
    Range(IpNetwork),
}

impl Address {
    pub(super) fn matches(&self, address: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == address,
            Self::Range(range) => address.parse::<IpAddr>().is_ok_and(|address| range.contains(address)),
        }
    }
}

/// Parses an address, or a range with a length of its prefix.
pub(super) fn address(field: &'static str, text: &str) -> Result<Address, BadFilter> {
    if text.contains('/') {
        let range =
            text.parse().map_err(|_| bad(field, text, "is no range of addresses such as 10.0.0.0/8"))?;
        return Ok(Address::Range(range));
    }
    let address: IpAddr = text.parse().map_err(|_| bad(field, text, "is no IP address"))?;
    Ok(Address::Exact(address.to_string()))
}

/// The beginning of a name in a namespace.
#[derive(Clone, Debug)]
pub(super) struct Name {
    /// `None` for any.
    namespace: Option<String>,
    prefix: String,
}

impl Name {
    pub(super) fn matches(&self, namespace: &str, name: &str) -> bool {
        (!namespace.is_empty() || !name.is_empty())
            && self.namespace.as_deref().is_none_or(|expected| expected == namespace)
            && name.starts_with(&self.prefix)
    }
}

/// Parses `NAMESPACE/PREFIX`, `NAMESPACE/`, `/PREFIX` or `PREFIX`, which is in the namespace `default`.
pub(super) fn name(field: &'static str, text: &str) -> Result<Name, BadFilter> {
    let (namespace, prefix) = match text.split_once('/') {
        _ if text.is_empty() => return Err(bad(field, text, "is empty")),
        None => (Some(DEFAULT), text),
        Some(("", prefix)) => (None, prefix),
        Some((namespace, prefix)) => (Some(namespace), prefix),
    };
    Ok(Name { namespace: namespace.map(str::to_owned), prefix: prefix.to_owned() })
}

/// A protocol by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Icmp,
    Icmpv4,
    Icmpv6,
    Tcp,
    Udp,
    Sctp,
    Vrrp,
    Igmp,
    Dns,
    Http,
}

impl Protocol {
    pub(super) fn matches(self, flow: &Flow) -> bool {
        match self {
            Self::Dns => return l7::dns(flow).is_some(),
            Self::Http => return l7::http(flow).is_some(),
            _ => {}
        }
        match transport(flow) {
            Some(Transport::Tcp(_)) => self == Self::Tcp,
            Some(Transport::Udp(_)) => self == Self::Udp,
            Some(Transport::Sctp(_)) => self == Self::Sctp,
            Some(Transport::IcmPv4(_)) => matches!(self, Self::Icmp | Self::Icmpv4),
            Some(Transport::IcmPv6(_)) => matches!(self, Self::Icmp | Self::Icmpv6),
            Some(Transport::Vrrp(_)) => self == Self::Vrrp,
            Some(Transport::Igmp(_)) => self == Self::Igmp,
            None => false,
        }
    }
}

/// Parses the name of a protocol, in any case.
pub(super) fn protocol(text: &str) -> Result<Protocol, BadFilter> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "icmp" => Protocol::Icmp,
        "icmpv4" => Protocol::Icmpv4,
        "icmpv6" => Protocol::Icmpv6,
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        "vrrp" => Protocol::Vrrp,
        "igmp" => Protocol::Igmp,
        "dns" => Protocol::Dns,
        "http" => Protocol::Http,
        _ => {
            let expected = "is none of icmp, icmpv4, icmpv6, tcp, udp, sctp, vrrp, igmp, dns, http";
            return Err(bad("protocol", text, expected));
        }
    })
}

/// Parses a port.
pub(super) fn port(field: &'static str, text: &str) -> Result<u32, BadFilter> {
    text.parse::<u16>().map(u32::from).map_err(|_| bad(field, text, "is no port"))
}

/// Returns the ports of source and destination.
pub(super) fn ports(flow: &Flow) -> Option<(u32, u32)> {
    match transport(flow)? {
        Transport::Tcp(tcp) => Some((tcp.source_port, tcp.destination_port)),
        Transport::Udp(udp) => Some((udp.source_port, udp.destination_port)),
        Transport::Sctp(sctp) => Some((sctp.source_port, sctp.destination_port)),
        _ => None,
    }
}

/// Whether a flow has all of these flags.
pub(super) fn has_flags(flow: &Flow, wanted: &TcpFlags) -> bool {
    let all = |flags: &TcpFlags| {
        [flags.fin, flags.syn, flags.rst, flags.psh, flags.ack, flags.urg, flags.ece, flags.cwr, flags.ns]
    };
    match transport(flow) {
        Some(Transport::Tcp(tcp)) => {
            let set = tcp.flags.as_ref().map(all).unwrap_or_default();
            all(wanted).into_iter().zip(set).all(|(wanted, set)| !wanted || set)
        }
        _ => false,
    }
}

fn transport(flow: &Flow) -> Option<&Transport> {
    flow.l4.as_ref()?.protocol.as_ref()
}

/// A pattern of nodes: cluster and name, each with `*` for any characters; empty for any.
#[derive(Clone, Debug)]
pub(super) struct Node {
    cluster: String,
    name: String,
}

impl Node {
    pub(super) fn matches(&self, node: &str) -> bool {
        let (cluster, name) = node.split_once('/').unwrap_or((DEFAULT, node));
        is_like(&self.cluster, cluster) && is_like(&self.name, name)
    }
}

/// Parses `[CLUSTER/]NODE`.
pub(super) fn node(text: &str) -> Result<Node, BadFilter> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '*' | '/');
    if text.is_empty() || !text.chars().all(is_valid) || text.matches('/').count() > 1 {
        return Err(bad("node_name", text, "is no pattern of nodes such as k8s* or CLUSTER/NODE"));
    }
    let text = text.trim_end_matches('.').to_ascii_lowercase();
    let (cluster, name) = text.split_once('/').unwrap_or((DEFAULT, &text));
    Ok(Node { cluster: cluster.to_owned(), name: name.to_owned() })
}

/// Parses a pattern of DNS names, with `*` for letters, digits, hyphens and dots.
pub(super) fn fqdn(field: &'static str, text: &str) -> Result<Regex, BadFilter> {
    let invalid = || bad(field, text, "is no pattern of DNS names such as *.example.com");
    let pattern = text.trim();
    let pattern = pattern.strip_suffix('.').unwrap_or(pattern).to_ascii_lowercase();
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '*');
    if pattern.is_empty() || !pattern.chars().all(is_valid) {
        return Err(invalid());
    }
    let pattern = pattern.replace('.', r"\.").replace('*', "[-.0-9a-z]*");
    Regex::new(&format!("^{pattern}$")).map_err(|_| invalid())
}

/// Whether a text is like a pattern with `*`; an empty pattern is like everything. Quadratic at worst.
fn is_like(pattern: &str, text: &str) -> bool {
    if pattern.is_empty() {
        return true;
    }
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    // The earliest place of each part leaves most for the following ones.
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}
