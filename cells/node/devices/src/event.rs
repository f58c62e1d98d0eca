//! Decodes the kernel's messages into events.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkInfo, LinkMessage, Prop, State};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::neighbor::STATE_NOARP;
use crate::{DeviceAddress, HardwareAddr, Link, Neighbor, Route, RouteKey};

/// `IFA_F_SECONDARY`, which is `IFA_F_TEMPORARY` for IPv6.
const IFA_F_SECONDARY: u32 = 0x1;

/// One change of the kernel's network state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Link(Link),
    LinkGone(u32),
    Addr(u32, DeviceAddress),
    AddrGone(u32, IpAddr, u8),
    Route(Route),
    RouteGone(RouteKey),
    Neighbor(Neighbor),
    NeighborGone(u32, IpAddr),
}

/// Returns the events of one message; none for other kinds of messages.
pub(crate) fn events(message: &RouteNetlinkMessage) -> Vec<Event> {
    use RouteNetlinkMessage as M;
    match message {
        M::NewLink(m) if is_plain(m) => vec![Event::Link(link(m))],
        M::DelLink(m) if is_plain(m) => vec![Event::LinkGone(m.header.index)],
        M::NewAddress(m) => address(m).map(|a| Event::Addr(m.header.index, a)).into_iter().collect(),
        M::DelAddress(m) => {
            address(m).map(|a| Event::AddrGone(m.header.index, a.addr, a.prefix_len)).into_iter().collect()
        }
        M::NewRoute(m) => routes(m).into_iter().map(Event::Route).collect(),
        M::DelRoute(m) => {
            let gone = |route: Route| Event::RouteGone(route.key);
            routes(m).into_iter().map(gone).collect()
        }
        M::NewNeighbour(m) => match neighbor(m) {
            Some(n) if n.state == 0 || n.state & STATE_NOARP != 0 => {
                vec![Event::NeighborGone(n.link_index, n.ip)]
            }
            Some(n) => vec![Event::Neighbor(n)],
            None => Vec::new(),
        },
        M::DelNeighbour(m) => {
            neighbor(m).map(|n| Event::NeighborGone(n.link_index, n.ip)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a message is about the link itself: those of the family bridge are about a port's bridge settings.
fn is_plain(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Unspec
}

/// Converts a link.
pub(crate) fn link(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        raw_flags: message.header.flags.bits(),
        kind: "device".to_owned(),
        oper_status: "unknown",
        ..Link::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Address(octets) => link.hardware_addr = HardwareAddr::new(octets),
            LinkAttribute::Controller(index) => link.master = *index,
            LinkAttribute::Link(index) => link.parent = *index,
            LinkAttribute::Group(group) => link.group = *group,
            LinkAttribute::OperState(state) => link.oper_status = oper_status(*state),
            LinkAttribute::PropList(list) => {
                link.alt_names = list
                    .iter()
                    .filter_map(|prop| match prop {
                        Prop::AltIfName(name) => Some(name.clone()),
                        _ => None,
                    })
                    .collect();
            }
            LinkAttribute::LinkInfo(infos) => {
                let kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                if let Some(kind) = kind {
                    link.kind = kind;
                }
                link.vlan = infos.iter().find_map(|info| match info {
                    LinkInfo::Data(InfoData::Vlan(data)) => vlan_id(data),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    link
}

fn vlan_id(data: &[InfoVlan]) -> Option<u16> {
    data.iter().find_map(|info| match info {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })
}

fn oper_status(state: State) -> &'static str {
    match state {
        State::NotPresent => "not-present",
        State::Down => "down",
        State::LowerLayerDown => "lower-layer-down",
        State::Testing => "testing",
        State::Dormant => "dormant",
        State::Up => "up",
        _ => "unknown",
    }
}

fn address(message: &AddressMessage) -> Option<DeviceAddress> {
    let mut peer = None;
    let mut local = None;
    let mut flags = u32::from(message.header.flags.bits());
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(ip) => peer = Some(*ip),
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Flags(all) => flags = all.bits(),
            _ => {}
        }
    }
    // On point-to-point links IFA_ADDRESS is the peer's, IFA_LOCAL the own one.
    let addr = local.or(peer)?;
    Some(DeviceAddress {
        addr,
        secondary: flags & IFA_F_SECONDARY != 0,
        scope: u8::from(message.header.scope),
        prefix_len: message.header.prefix_len,
    })
}

fn ip_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

/// Returns a route for each next hop; none for cached and non-IP routes.
pub(crate) fn routes(message: &RouteMessage) -> Vec<Route> {
    let header = &message.header;
    if header.flags.contains(RouteFlags::Cloned) {
        return Vec::new();
    }
    let any: IpAddr = match header.address_family {
        AddressFamily::Inet => [0, 0, 0, 0].into(),
        AddressFamily::Inet6 => [0u16; 8].into(),
        _ => return Vec::new(),
    };
    let mut table = u32::from(header.table);
    let mut dst = any;
    let mut hop = (0, None);
    let (mut src, mut mtu, mut priority) = (None, 0, 0);
    let mut hops = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(id) => table = *id,
            RouteAttribute::Destination(ip) => dst = ip_of(ip).unwrap_or(any),
            RouteAttribute::PrefSource(ip) => src = ip_of(ip),
            RouteAttribute::Priority(metric) => priority = *metric,
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    if let RouteMetric::Mtu(bytes) = metric {
                        mtu = *bytes;
                    }
                }
            }
            RouteAttribute::MultiPath(list) => {
                for next in list {
                    let mut one = (next.interface_index, None);
                    next.attributes.iter().for_each(|a| next_hop(a, &mut one));
                    hops.push(one);
                }
            }
            other => next_hop(other, &mut hop),
        }
    }
    if hops.is_empty() {
        hops.push(hop);
    }
    let Ok(dst) = IpNetwork::new(dst, header.destination_prefix_length) else {
        return Vec::new();
    };
    hops.into_iter()
        .map(|(link_index, gateway)| Route {
            key: RouteKey { table, link_index, dst, priority },
            kind: u8::from(header.kind),
            scope: u8::from(header.scope),
            src,
            gateway,
            mtu,
        })
        .collect()
}

fn next_hop(attribute: &RouteAttribute, hop: &mut (u32, Option<IpAddr>)) {
    match attribute {
        RouteAttribute::Oif(index) => hop.0 = *index,
        RouteAttribute::Gateway(ip) => hop.1 = ip_of(ip),
        RouteAttribute::Via(RouteVia::Inet(v4)) => hop.1 = Some((*v4).into()),
        RouteAttribute::Via(RouteVia::Inet6(v6)) => hop.1 = Some((*v6).into()),
        _ => {}
    }
}

fn neighbor(message: &NeighbourMessage) -> Option<Neighbor> {
    let header = &message.header;
    if !matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6) {
        return None;
    }
    let mut ip = None;
    let mut hardware_addr = HardwareAddr::default();
    let mut flags_ext = 0;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => ip = Some((*v4).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => ip = Some((*v6).into()),
            NeighbourAttribute::LinkLayerAddress(octets) => {
                hardware_addr = HardwareAddr::new(octets);
            }
            NeighbourAttribute::ExtFlags(flags) => flags_ext = flags.bits(),
            _ => {}
        }
    }
    Some(Neighbor {
        link_index: header.ifindex,
        ip: ip?,
        hardware_addr,
        kind: u8::from(header.kind),
        state: u16::from(header.state),
        flags: header.flags.bits(),
        flags_ext,
    })
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::{RouteHeader, RouteNextHop, RouteScope, RouteType};

    use super::*;

    fn header() -> RouteHeader {
        RouteHeader {
            address_family: AddressFamily::Inet,
            destination_prefix_length: 0,
            table: 254,
            scope: RouteScope::Universe,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        }
    }

    #[test]
    fn a_route_of_several_hops_is_a_row_for_each() {
        let mut message = RouteMessage::default();
        message.header = header();
        let hop = |index: u32, last: u8| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = index;
            hop.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet([10, 0, 0, last].into()))];
            hop
        };
        message.attributes = vec![
            RouteAttribute::MultiPath(vec![hop(2, 1), hop(3, 2)]),
            RouteAttribute::Priority(100),
            RouteAttribute::Table(1000),
        ];
        let routes = routes(&message);
        assert_eq!(routes.len(), 2);
        assert_eq!(routes[1].gateway, Some([10, 0, 0, 2].into()));
        let key = routes[1].key;
        assert_eq!((key.link_index, key.table, key.priority), (3, 1000, 100));
        assert_eq!(key.dst, "0.0.0.0/0".parse().unwrap());
        message.header.flags = RouteFlags::Cloned;
        assert!(super::routes(&message).is_empty());
    }

    #[test]
    fn bridge_messages_do_not_delete_links() {
        let mut message = LinkMessage::default();
        message.header.index = 5;
        let gone = RouteNetlinkMessage::DelLink(message.clone());
        assert_eq!(events(&gone), [Event::LinkGone(5)]);
        message.header.interface_family = AddressFamily::Bridge;
        assert_eq!(events(&RouteNetlinkMessage::DelLink(message)), []);
    }

    #[test]
    fn entries_without_resolution_are_no_neighbours() {
        use netlink_packet_route::neighbour::NeighbourState;
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = 2;
        message.header.state = NeighbourState::Noarp;
        let address = NeighbourAddress::Inet([224, 0, 0, 22].into());
        message.attributes = vec![NeighbourAttribute::Destination(address)];
        assert_eq!(
            events(&RouteNetlinkMessage::NewNeighbour(message)),
            [Event::NeighborGone(2, [224, 0, 0, 22].into())]
        );
    }
}
