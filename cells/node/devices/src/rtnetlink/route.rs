//! Routes.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};

use super::address::family;
use crate::event::{self, Event};
use crate::{Netlink, NetlinkError, Route, TABLE_MAIN};

/// A unicast route to add or delete.
#[derive(Clone, Copy, Debug)]
pub struct RouteSpec {
    /// Destination.
    pub dst: IpNetwork,
    /// Interface index.
    pub link_index: u32,
    /// Next hop; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Preferred source address.
    pub src: Option<IpAddr>,
    /// Routing table.
    pub table: u32,
    /// MTU in bytes, 0 for the device's.
    pub mtu: u32,
    /// Metric.
    pub priority: u32,
    /// Routing protocol (`RTPROT_*`): 2 kernel, 3 boot, 4 static.
    pub protocol: u8,
}

impl RouteSpec {
    /// Returns a route of the main table and of protocol boot to destinations on the link.
    #[must_use]
    pub fn on_link(dst: IpNetwork, link_index: u32) -> Self {
        Self {
            dst,
            link_index,
            gateway: None,
            src: None,
            table: TABLE_MAIN,
            mtu: 0,
            priority: 0,
            protocol: 3,
        }
    }

    /// Sets the next hop.
    #[must_use]
    pub fn via(self, gateway: IpAddr) -> Self {
        Self { gateway: Some(gateway), ..self }
    }

    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        let header = &mut message.header;
        header.address_family = family(self.dst.ip());
        header.destination_prefix_length = self.dst.prefix();
        header.table = u8::try_from(self.table).unwrap_or(0);
        header.protocol = RouteProtocol::from(self.protocol);
        header.kind = RouteType::Unicast;
        header.scope = if self.gateway.is_none() && self.dst.is_ipv4() {
            RouteScope::Link
        } else {
            RouteScope::Universe
        };
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Oif(self.link_index));
        attributes.push(RouteAttribute::Table(self.table));
        if self.dst.prefix() > 0 {
            attributes.push(RouteAttribute::Destination(self.dst.network().into()));
        }
        attributes.extend(self.gateway.map(|ip| RouteAttribute::Gateway(ip.into())));
        attributes.extend(self.src.map(|ip| RouteAttribute::PrefSource(ip.into())));
        if self.priority > 0 {
            attributes.push(RouteAttribute::Priority(self.priority));
        }
        if self.mtu > 0 {
            attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(self.mtu)]));
        }
        message
    }
}

impl Netlink {
    /// Adds a route, or replaces the one with the same table, destination and metric.
    pub fn replace_route(&mut self, spec: &RouteSpec) -> Result<(), NetlinkError> {
        let describe = || format!("set route {spec:?}");
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.request(describe, Message::NewRoute(spec.message()), flags)
    }

    /// Deletes a route.
    pub fn delete_route(&mut self, spec: &RouteSpec) -> Result<(), NetlinkError> {
        let describe = || format!("delete route {spec:?}");
        self.request(describe, Message::DelRoute(spec.message()), 0)
    }

    /// Deletes a route as [`Netlink::routes`] returned it, of any type, scope and protocol.
    pub fn delete_listed_route(&mut self, route: &Route) -> Result<(), NetlinkError> {
        let key = &route.key;
        let spec = RouteSpec {
            table: key.table,
            priority: key.priority,
            ..RouteSpec::on_link(key.dst, key.link_index)
        };
        let mut message = RouteSpec { gateway: route.gateway, ..spec }.message();
        message.header.kind = RouteType::from(route.kind);
        // In a deletion these match any scope and any protocol.
        message.header.scope = RouteScope::NoWhere;
        message.header.protocol = RouteProtocol::Unspec;
        let describe = || format!("delete route {route:?}");
        self.request(describe, Message::DelRoute(message), 0)
    }

    /// Returns the route that the kernel takes to an address: its destination is the address itself. `None` if the
    /// address is unreachable.
    pub fn route_to(&mut self, ip: IpAddr) -> Result<Option<Route>, NetlinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(ip);
        message.header.destination_prefix_length = IpNetwork::from(ip).prefix();
        message.attributes.push(RouteAttribute::Destination(ip.into()));
        match self.get(|| format!("get route to {ip}"), Message::GetRoute(message)) {
            Ok(Some(Message::NewRoute(mut found))) => {
                // The answer is a clone of the route for this destination.
                found.header.flags.remove(RouteFlags::Cloned);
                Ok(event::routes(&found).into_iter().next())
            }
            Ok(_) => Ok(None),
            Err(error) if error.is_unreachable() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists the routes of all tables and both families, without cached clones.
    pub fn routes(&mut self) -> Result<Vec<Route>, NetlinkError> {
        let all = Message::GetRoute(RouteMessage::default());
        self.dump("list routes", &all, |message| {
            event::events(&message).into_iter().filter_map(|event| match event {
                Event::Route(route) => Some(route),
                _ => None,
            })
        })
    }
}
