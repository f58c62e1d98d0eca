//! Tunnel devices whose keys come with each packet (`external`): VXLAN and Geneve.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{
    InfoData, InfoGeneve, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use super::link::all_links;
use crate::{Link, Netlink, NetlinkError, event};

/// The encapsulation of a tunnel device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelKind {
    /// `vxlan`
    Vxlan,
    /// `geneve`
    Geneve,
}

/// A tunnel device to add. It is up after its creation, which fails if its port is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its kind.
    pub kind: TunnelKind,
    /// UDP destination port.
    pub port: u16,
    /// Lowest and highest UDP source port, 0 and 0 for the kernel's choice.
    pub source_ports: (u16, u16),
    /// Whether it receives IPv6 packets without UDP checksum, which the kernel drops otherwise.
    pub zero_checksum_receive: bool,
    /// MTU, the kernel's default if absent.
    pub mtu: Option<u32>,
    /// Hardware address; the kernel chooses if absent.
    pub mac: Option<[u8; 6]>,
    /// Index; the kernel chooses if absent.
    pub index: Option<u32>,
}

/// A tunnel device as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelLink {
    /// Its link.
    pub link: Link,
    /// Its kind.
    pub kind: TunnelKind,
    /// UDP destination port.
    pub port: u16,
    /// Lowest and highest UDP source port.
    pub source_ports: (u16, u16),
    /// Whether keys come with each packet.
    pub external: bool,
    /// Whether it learns addresses of other ends from packets.
    pub learning: bool,
    /// Whether it receives IPv6 packets without UDP checksum.
    pub zero_checksum_receive: bool,
}

impl Netlink {
    /// Adds a tunnel device; returns its link.
    pub fn add_tunnel(&mut self, spec: &TunnelSpec<'_>) -> Result<Link, NetlinkError> {
        let data = match spec.kind {
            TunnelKind::Vxlan => {
                let mut data = vec![
                    InfoVxlan::CollectMetadata(true),
                    InfoVxlan::Learning(false),
                    InfoVxlan::Port(spec.port),
                    InfoVxlan::UDPCsum(true),
                    InfoVxlan::UDPZeroCsumRX(spec.zero_checksum_receive),
                ];
                if spec.source_ports != (0, 0) {
                    data.push(InfoVxlan::PortRange(spec.source_ports));
                }
                LinkInfo::Data(InfoData::Vxlan(data))
            }
            TunnelKind::Geneve => LinkInfo::Data(InfoData::Geneve(vec![
                InfoGeneve::CollectMetadata,
                InfoGeneve::Port(spec.port),
                InfoGeneve::UdpCsum(true),
                InfoGeneve::UdpZeroCsum6Rx(spec.zero_checksum_receive),
            ])),
        };
        let kind = match spec.kind {
            TunnelKind::Vxlan => InfoKind::Vxlan,
            TunnelKind::Geneve => InfoKind::Geneve,
        };
        let mut message = LinkMessage::default();
        message.header.index = spec.index.unwrap_or_default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        let attributes = &mut message.attributes;
        attributes.push(LinkAttribute::IfName(spec.name.to_owned()));
        attributes.extend(spec.mtu.map(LinkAttribute::Mtu));
        attributes.extend(spec.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), data]));
        let describe = || format!("add {:?} device {} on UDP port {}", spec.kind, spec.name, spec.port);
        self.request(describe, Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)?;
        self.link_by_name(spec.name)
    }

    /// Lists the tunnel devices of the namespace, of any owner.
    pub fn tunnels(&mut self) -> Result<Vec<TunnelLink>, NetlinkError> {
        self.dump("list links", &all_links(), |message| match message {
            Message::NewLink(m) => tunnel(&m),
            _ => None,
        })
    }
}

fn tunnel(message: &LinkMessage) -> Option<TunnelLink> {
    let infos = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    })?;
    infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(vxlan(event::link(message), data)),
        LinkInfo::Data(InfoData::Geneve(data)) => Some(geneve(event::link(message), data)),
        _ => None,
    })
}

fn plain(link: Link, kind: TunnelKind) -> TunnelLink {
    TunnelLink {
        link,
        kind,
        port: 0,
        source_ports: (0, 0),
        external: false,
        learning: false,
        zero_checksum_receive: false,
    }
}

fn vxlan(link: Link, data: &[InfoVxlan]) -> TunnelLink {
    let mut found = plain(link, TunnelKind::Vxlan);
    for info in data {
        match info {
            InfoVxlan::Port(port) => found.port = *port,
            InfoVxlan::PortRange(ports) => found.source_ports = *ports,
            InfoVxlan::CollectMetadata(on) => found.external = *on,
            InfoVxlan::Learning(on) => found.learning = *on,
            InfoVxlan::UDPZeroCsumRX(on) => found.zero_checksum_receive = *on,
            _ => {}
        }
    }
    found
}

fn geneve(link: Link, data: &[InfoGeneve]) -> TunnelLink {
    let mut found = plain(link, TunnelKind::Geneve);
    for info in data {
        match info {
            InfoGeneve::Port(port) => found.port = *port,
            InfoGeneve::CollectMetadata => found.external = true,
            InfoGeneve::UdpZeroCsum6Rx(on) => found.zero_checksum_receive = *on,
            _ => {}
        }
    }
    found
}
