//! VLAN devices.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use super::link::all_links;
use crate::{Link, Netlink, NetlinkError, event};

impl Netlink {
    /// Adds a VLAN device, which is up after its creation.
    pub fn add_vlan(&mut self, name: &str, parent: u32, id: u16) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Link(parent),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vlan),
                LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(id)])),
            ]),
        ];
        let describe = || format!("add VLAN device {name} with id {id} on link {parent}");
        self.request(describe, Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Lists all links of the namespace with the ids of those that are VLAN devices.
    pub fn vlans(&mut self) -> Result<Vec<(Link, Option<u16>)>, NetlinkError> {
        self.dump("list links", &all_links(), |message| match message {
            Message::NewLink(m) => Some((event::link(&m), vlan_id(&m))),
            _ => None,
        })
    }
}

fn vlan_id(message: &LinkMessage) -> Option<u16> {
    message.attributes.iter().find_map(|attribute| {
        let LinkAttribute::LinkInfo(infos) = attribute else { return None };
        infos.iter().find_map(|info| {
            let LinkInfo::Data(InfoData::Vlan(data)) = info else { return None };
            data.iter().find_map(|one| if let InfoVlan::Id(id) = one { Some(*id) } else { None })
        })
    })
}
