//! Devices that add outer IP headers to packets of the same family, with addresses that come with each packet
//! (`external`).

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{
    InfoData, InfoIpTunnel, InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use crate::{Link, Netlink, NetlinkError};

/// The kind of a device that adds outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpipKind {
    /// `ipip`: IPv4 in IPv4
    Ipip,
    /// `ip6tnl`: IPv6 in IPv6
    Ip6tnl,
}

impl IpipKind {
    /// Returns the kernel's name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            IpipKind::Ipip => "ipip",
            IpipKind::Ip6tnl => "ip6tnl",
        }
    }
}

impl Netlink {
    /// Adds a device that adds outer headers, and sets it up; returns its link.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the kernel has no such devices.
    pub fn add_ipip(&mut self, name: &str, kind: IpipKind, mtu: u32) -> Result<Link, NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        let info = match kind {
            IpipKind::Ipip => InfoKind::IpIp,
            IpipKind::Ip6tnl => InfoKind::Ip6Tnl,
        };
        let data = LinkInfo::Data(InfoData::IpTunnel(vec![InfoIpTunnel::CollectMetadata]));
        let attributes = &mut message.attributes;
        attributes.push(LinkAttribute::IfName(name.to_owned()));
        attributes.push(LinkAttribute::Mtu(mtu));
        attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(info), data]));
        let describe = || format!("add {} device {name}", kind.name());
        self.request(describe, Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)?;
        self.link_by_name(name)
    }
}
