//! Neighbour entries.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};

use super::address::family;
use crate::event::{self, Event};
use crate::{Neighbor, Netlink, NetlinkError};

/// A permanent neighbour entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborSpec {
    /// Interface index.
    pub link_index: u32,
    /// The neighbour's address.
    pub ip: IpAddr,
    /// Its hardware address.
    pub mac: [u8; 6],
}

/// Returns a message about the entry of an address on a link, for requests.
#[must_use]
pub fn neighbor_message(link_index: u32, ip: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(ip);
    message.header.ifindex = link_index;
    let address = match ip {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    };
    message.attributes = vec![NeighbourAttribute::Destination(address)];
    message
}

impl Netlink {
    /// Adds a permanent neighbour entry, or replaces the existing one.
    pub fn replace_neighbor(&mut self, spec: &NeighborSpec) -> Result<(), NetlinkError> {
        let mut message = neighbor_message(spec.link_index, spec.ip);
        message.header.state = NeighbourState::Permanent;
        let mac = NeighbourAttribute::LinkLayerAddress(spec.mac.to_vec());
        message.attributes.push(mac);
        let describe = || format!("set neighbour {spec:?}");
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.request(describe, Message::NewNeighbour(message), flags)
    }

    /// Deletes a neighbour entry.
    pub fn delete_neighbor(&mut self, link_index: u32, ip: IpAddr) -> Result<(), NetlinkError> {
        let describe = || format!("delete neighbour {ip} of link {link_index}");
        let message = neighbor_message(link_index, ip);
        self.request(describe, Message::DelNeighbour(message), 0)
    }

    /// Lists the neighbour entries of both families, without those that need no resolution.
    pub fn neighbors(&mut self) -> Result<Vec<Neighbor>, NetlinkError> {
        let all = Message::GetNeighbour(NeighbourMessage::default());
        self.dump("list neighbours", &all, |message| {
            event::events(&message).into_iter().filter_map(|event| match event {
                Event::Neighbor(neighbor) => Some(neighbor),
                _ => None,
            })
        })
    }
}
