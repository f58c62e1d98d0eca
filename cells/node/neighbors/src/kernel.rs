//! Requests to rtnetlink: neighbour entries, next hops.

use std::net::IpAddr;

use devices::rtnetlink::neighbor_message;
use netlink::{Connection, Message, Protocol, Request};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE, Parseable};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RouteType, RouteVia,
};

use crate::{Error, Upkeep};

/// `NUD_PERMANENT` of `linux/neighbour.h`.
const STATE_PERMANENT: u16 = 0x80;
/// `NTF_EXT_LEARNED`.
const FLAG_EXT_LEARNED: u8 = 0x10;
/// `NTF_EXT_MANAGED`, of the extended flags.
const FLAG_EXT_MANAGED: u32 = 0x1;

/// The properties of an entry by which it belongs to an agent or to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) state: u16,
    pub(crate) flags: u8,
    pub(crate) flags_ext: u32,
}

impl Properties {
    /// Whether an administrator has made it.
    pub(crate) fn is_permanent(self) -> bool {
        self.state & STATE_PERMANENT != 0
    }

    /// Whether it is marked as made by an agent.
    pub(crate) fn is_learned(self) -> bool {
        self.flags & FLAG_EXT_LEARNED != 0
    }

    /// Whether the kernel keeps it resolved.
    pub(crate) fn is_managed(self) -> bool {
        self.flags_ext & FLAG_EXT_MANAGED != 0
    }

    /// Whether it is what is desired, or is not this agent's to change.
    pub(crate) fn is_kept(self, upkeep: Upkeep) -> bool {
        self.is_permanent() || self.is_learned() && (upkeep == Upkeep::Agent || self.is_managed())
    }
}

/// An entry of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) ip: IpAddr,
    pub(crate) link_index: u32,
    pub(crate) properties: Properties,
}

/// A socket of rtnetlink in the network namespace of the thread that opened it.
pub(crate) struct Kernel(Connection);

impl Kernel {
    pub(crate) fn open() -> Result<Self, Error> {
        Connection::open(Protocol::Route).map(Self).map_err(Error::Socket)
    }

    /// Returns an entry; `None` if there is none.
    pub(crate) fn entry(&mut self, ip: IpAddr, link_index: u32) -> Result<Option<Properties>, Error> {
        let request = Request { kind: libc::RTM_GETNEIGH, body: neighbor_message(link_index, ip) };
        match self.0.get(&request, |answer| parse(&answer)) {
            Ok(found) => Ok(found.flatten().map(|entry| entry.properties)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(Error::Entry { ip, link_index, source }),
        }
    }

    /// Marks an entry as learned and has it resolved, whether it exists or not.
    pub(crate) fn resolve(&mut self, ip: IpAddr, link_index: u32, upkeep: Upkeep) -> Result<(), Error> {
        let mut body = neighbor_message(link_index, ip);
        body.header.flags = NeighbourFlags::ExtLearned;
        match upkeep {
            Upkeep::Kernel => body.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed)),
            Upkeep::Agent => body.header.flags |= NeighbourFlags::Use,
        }
        let request = Request { kind: libc::RTM_NEWNEIGH, body };
        let result = self.0.request(&request, NLM_F_CREATE | NLM_F_REPLACE);
        result.map_err(|source| Error::Entry { ip, link_index, source })
    }

    /// Deletes an entry; it is no error if there is none.
    pub(crate) fn delete(&mut self, ip: IpAddr, link_index: u32) -> Result<(), Error> {
        let request = Request { kind: libc::RTM_DELNEIGH, body: neighbor_message(link_index, ip) };
        match self.0.request(&request, 0) {
            Err(error) if error.is_not_found() => Ok(()),
            result => result.map_err(|source| Error::Entry { ip, link_index, source }),
        }
    }

    /// Lists the entries of both families.
    pub(crate) fn entries(&mut self) -> Result<Vec<Entry>, Error> {
        let request = Request { kind: libc::RTM_GETNEIGH, body: NeighbourMessage::default() };
        self.0.dump(&request, |answer| parse(&answer)).map_err(Error::List)
    }

    /// Returns the next hop to an address by a link: the address itself if it is on the link, else a gateway, the first of
    /// several. `None` if no route by this link leads there, or if the address is the node's own.
    pub(crate) fn next_hop(&mut self, ip: IpAddr, link_index: u32) -> Result<Option<IpAddr>, Error> {
        let mut body = RouteMessage::default();
        body.header.address_family = family(ip);
        body.header.destination_prefix_length = if ip.is_ipv4() { 32 } else { 128 };
        // The route itself: without the flag the kernel takes any address to be on the link that a request names.
        body.header.flags = RouteFlags::FibMatch;
        body.attributes = vec![RouteAttribute::Destination(ip.into()), RouteAttribute::Oif(link_index)];
        let request = Request { kind: libc::RTM_GETROUTE, body };
        let found = self.0.get(&request, |answer| {
            RouteMessage::parse(answer.body).map_err(|error| answer.undecodable(error))
        });
        match found {
            Ok(route) => Ok(route.and_then(|route| next_hop_of(&route, ip, link_index))),
            Err(error) if error.is_not_found() || is_unreachable(&error) => Ok(None),
            Err(source) => Err(Error::Lookup { ip, link_index, source }),
        }
    }
}

/// Whether no route leads to an address, or one that rejects packets.
fn is_unreachable(error: &netlink::Error) -> bool {
    let unreachable = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];
    error.errno().is_some_and(|errno| unreachable.contains(&errno))
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Converts an answer; `None` for entries of other families.
fn parse(answer: &Message<'_>) -> Result<Option<Entry>, netlink::Error> {
    let message = NeighbourMessage::parse(answer.body).map_err(|error| answer.undecodable(error))?;
    if !matches!(message.header.family, AddressFamily::Inet | AddressFamily::Inet6) {
        return Ok(None);
    }
    let header = &message.header;
    let (mut ip, mut flags_ext) = (None, 0);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => ip = Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => ip = Some(IpAddr::V6(*v6)),
            NeighbourAttribute::ExtFlags(flags) => flags_ext = flags.bits(),
            _ => {}
        }
    }
    let properties = Properties { state: header.state.into(), flags: header.flags.bits(), flags_ext };
    Ok(ip.map(|ip| Entry { ip, link_index: header.ifindex, properties }))
}

/// Returns the next hop of a route by a link, see [`Kernel::next_hop`].
fn next_hop_of(route: &RouteMessage, ip: IpAddr, link_index: u32) -> Option<IpAddr> {
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    let paths = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(paths) => Some(paths),
        _ => None,
    });
    let attributes = match paths {
        Some(paths) => {
            let is_by_link = |path: &&RouteNextHop| path.interface_index == link_index;
            &paths.iter().find(is_by_link)?.attributes
        }
        None => {
            let is_by_link =
                |a: &RouteAttribute| matches!(a, RouteAttribute::Oif(index) if *index == link_index);
            route.attributes.iter().any(is_by_link).then_some(&route.attributes)?
        }
    };
    Some(attributes.iter().find_map(gateway).unwrap_or(ip))
}

fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(v4)) | RouteAttribute::Via(RouteVia::Inet(v4)) => {
            Some((*v4).into())
        }
        RouteAttribute::Gateway(RouteAddress::Inet6(v6)) | RouteAttribute::Via(RouteVia::Inet6(v6)) => {
            Some((*v6).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(link_index: u32, gateway: Option<[u8; 4]>) -> RouteNextHop {
        let mut hop = RouteNextHop::default();
        hop.interface_index = link_index;
        hop.attributes.extend(gateway.map(|ip| RouteAttribute::Gateway(RouteAddress::Inet(ip.into()))));
        hop
    }

    fn route(kind: RouteType, attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.kind = kind;
        message.attributes = attributes;
        message
    }

    #[test]
    fn next_hops_of_routes() {
        let ip = IpAddr::from([10, 1, 0, 9]);
        let of = |kind, attributes| next_hop_of(&route(kind, attributes), ip, 3);
        let gateway = RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, 1].into()));
        assert_eq!(of(RouteType::Unicast, vec![RouteAttribute::Oif(3)]), Some(ip));
        let by_gateway = vec![RouteAttribute::Oif(3), gateway];
        assert_eq!(of(RouteType::Unicast, by_gateway.clone()), Some([192, 0, 2, 1].into()));
        assert_eq!(of(RouteType::Local, by_gateway), None);
        assert_eq!(of(RouteType::Unicast, vec![RouteAttribute::Oif(4)]), None);
        let via = RouteAttribute::Via(RouteVia::Inet6("fe80::1".parse().unwrap()));
        assert_eq!(
            of(RouteType::Unicast, vec![RouteAttribute::Oif(3), via]),
            Some("fe80::1".parse().unwrap())
        );
        let paths = vec![hop(2, Some([192, 0, 2, 2])), hop(3, Some([192, 0, 2, 3])), hop(3, None)];
        let several = vec![RouteAttribute::MultiPath(paths)];
        assert_eq!(of(RouteType::Unicast, several), Some([192, 0, 2, 3].into()));
        assert_eq!(of(RouteType::Unicast, vec![RouteAttribute::MultiPath(vec![hop(2, None)])]), None);
    }

    #[test]
    fn entries_that_stay_as_they_are() {
        let entry = |state, flags, flags_ext| Properties { state, flags, flags_ext };
        for upkeep in [Upkeep::Kernel, Upkeep::Agent] {
            assert!(entry(STATE_PERMANENT, 0, 0).is_kept(upkeep));
            assert!(entry(2, FLAG_EXT_LEARNED, FLAG_EXT_MANAGED).is_kept(upkeep));
            assert!(!entry(2, 0, 0).is_kept(upkeep));
            assert!(!entry(2, 0, FLAG_EXT_MANAGED).is_kept(upkeep));
        }
        assert!(entry(4, FLAG_EXT_LEARNED, 0).is_kept(Upkeep::Agent));
        assert!(!entry(4, FLAG_EXT_LEARNED, 0).is_kept(Upkeep::Kernel));
    }
}
